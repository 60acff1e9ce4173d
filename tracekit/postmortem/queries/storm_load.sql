-- What arrived in the $around_s seconds before and during $start_ns to $end_ns, against the rest of the run.
--
-- place               storm or rest
-- num_requests, requests_per_s   arrivals
-- mean_prompt_tokens, mean_output_tokens   their lengths
-- cached_share        share of their prompt tokens that hit the prefix cache
WITH placed AS (
    SELECT
        *,
        CASE WHEN arrival_ns BETWEEN $start_ns - $around_s::BIGINT * 1000000000 AND $end_ns THEN 'storm' ELSE 'rest' END AS place
    FROM requests
    WHERE finish_reason IS DISTINCT FROM 'rejected' AND arrival_ns IS NOT NULL
),
spans AS (
    SELECT
        ($end_ns - $start_ns) / 1e9 + $around_s AS storm_s,
        (MAX(arrival_ns) - MIN(arrival_ns)) / 1e9 AS whole_s
    FROM placed
)
SELECT
    p.place,
    COUNT(*) AS num_requests,
    COUNT(*) / NULLIF(CASE WHEN p.place = 'storm' THEN ANY_VALUE(s.storm_s) ELSE GREATEST(ANY_VALUE(s.whole_s - s.storm_s), 0) END, 0) AS requests_per_s,
    AVG(p.num_prompt_tokens) AS mean_prompt_tokens,
    AVG(COALESCE(p.num_generated_tokens, p.num_output_tokens)) AS mean_output_tokens,
    SUM(p.num_cached_tokens) / NULLIF(SUM(p.num_prompt_tokens), 0) AS cached_share
FROM placed AS p, spans AS s
GROUP BY p.place
ORDER BY p.place
