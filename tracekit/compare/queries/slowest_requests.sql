-- Which requests took longest from arrival to last token?
--
-- $limit = 20: how many requests
--
-- request_id   the request
-- arrival_s    when it arrived, seconds from the run's start
-- e2e_ms, ttft_ms, queue_ms, tpot_ms   its latencies, milliseconds; null where unknown
-- num_prompt_tokens, num_generated_tokens, num_preemptions   as in requests
SELECT
    request_id,
    arrival_ns / 1e9 AS arrival_s,
    e2e_ns / 1e6 AS e2e_ms,
    ttft_ns / 1e6 AS ttft_ms,
    queue_ns / 1e6 AS queue_ms,
    tpot_ns / 1e6 AS tpot_ms,
    num_prompt_tokens,
    num_generated_tokens,
    num_preemptions
FROM latencies
WHERE e2e_ns IS NOT NULL
ORDER BY e2e_ns DESC, request_id
LIMIT $limit
