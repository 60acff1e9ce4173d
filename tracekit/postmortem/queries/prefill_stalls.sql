-- Steps in which running decodes waited for somebody's prefill: $times the usual decode step or longer.
--
-- usual_ms             median duration of steps that only decode
-- num_stalls, share    such steps, and their share of all steps with decodes
-- start_ns, end_ns     the first and the last
-- total_stall_s        time by which those steps were longer than usual
-- worst_ms, worst_step, worst_prefill_tokens   the longest of them
-- mean_stalled_reqs    decodes that waited, on average
WITH usual AS (
    SELECT MEDIAN(duration_ns) AS ns FROM steps WHERE num_scheduled_tokens = num_scheduled_reqs AND num_decode_reqs > 0
),
stalled AS (
    SELECT s.*, s.num_scheduled_tokens - s.num_decode_reqs AS num_prefill_tokens
    FROM steps AS s, usual AS u
    WHERE s.num_decode_reqs > 0 AND s.num_scheduled_tokens > s.num_scheduled_reqs AND s.duration_ns >= $times * u.ns
)
SELECT
    (SELECT ns FROM usual) / 1e6 AS usual_ms,
    COUNT(*) AS num_stalls,
    COUNT(*) / NULLIF((SELECT COUNT(*) FROM steps WHERE num_decode_reqs > 0), 0) AS share,
    MIN(start_ns) AS start_ns,
    MAX(start_ns + duration_ns) AS end_ns,
    SUM(duration_ns - (SELECT ns FROM usual)) / 1e9 AS total_stall_s,
    MAX(duration_ns) / 1e6 AS worst_ms,
    ARG_MAX(step, duration_ns) AS worst_step,
    ARG_MAX(num_prefill_tokens, duration_ns) AS worst_prefill_tokens,
    AVG(num_decode_reqs) AS mean_stalled_reqs
FROM stalled
ORDER BY num_stalls
