-- How did the requests end?
--
-- finish_reason  stop, length, abort, error, rejected, ignored, unfinished; null when unknown
-- num_requests   requests
-- share          their share, 0..1
-- mean_prompt_tokens, mean_generated_tokens   tokens on average
SELECT
    finish_reason,
    COUNT(*) AS num_requests,
    COUNT(*) / SUM(COUNT(*)) OVER () AS share,
    AVG(num_prompt_tokens) AS mean_prompt_tokens,
    AVG(num_generated_tokens) AS mean_generated_tokens
FROM requests
GROUP BY finish_reason
ORDER BY num_requests DESC, finish_reason NULLS LAST
