-- How many tokens a second went in and came out?
--
-- From the requests, where they say when they ended: prompt tokens count at the first token, output tokens evenly
-- between first and last token. Without such requests, from the periodic samples.
--
-- $interval_s = 10: width of an interval, seconds
--
-- time_s          start of the interval, seconds from the run's start
-- prompt_tps      prompt tokens per second
-- output_tps      output tokens per second
-- num_finished    requests that got their last token; null from samples
-- source          requests or samples
WITH served AS (
    SELECT
        first_token_ns,
        last_token_ns,
        num_prompt_tokens,
        num_generated_tokens,
        ($interval_s * 1e9)::BIGINT AS width_ns
    FROM requests
    WHERE first_token_ns IS NOT NULL AND last_token_ns IS NOT NULL AND num_generated_tokens IS NOT NULL
),
pieces AS (
    SELECT *, UNNEST(RANGE(first_token_ns // width_ns, last_token_ns // width_ns + 1)) AS nth
    FROM served
),
shares AS (
    SELECT
        nth,
        CASE WHEN nth = first_token_ns // width_ns THEN num_prompt_tokens END AS prompt_tokens,
        CASE
            WHEN last_token_ns = first_token_ns THEN num_generated_tokens
            ELSE num_generated_tokens
                * (LEAST(last_token_ns, (nth + 1) * width_ns) - GREATEST(first_token_ns, nth * width_ns))
                / (last_token_ns - first_token_ns)
        END AS output_tokens,
        (nth = last_token_ns // width_ns)::INTEGER AS finished
    FROM pieces
)
SELECT
    nth * $interval_s::DOUBLE AS time_s,
    COALESCE(SUM(prompt_tokens), 0) / $interval_s AS prompt_tps,
    SUM(output_tokens) / $interval_s AS output_tps,
    SUM(finished)::BIGINT AS num_finished,
    'requests' AS source
FROM shares
GROUP BY nth
UNION ALL
SELECT
    FLOOR(time_ns / ($interval_s * 1e9)) * $interval_s,
    AVG(prompt_tps),
    AVG(generation_tps),
    NULL,
    'samples'
FROM samples
WHERE (SELECT COUNT(*) FROM served) = 0
GROUP BY 1
ORDER BY time_s
