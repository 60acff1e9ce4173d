-- Preemptions that follow one another within $gap_s seconds, $least of them or more: the storms.
--
-- start_ns, end_ns    the first and the last preemption
-- num_preemptions, num_victims, num_repeat_victims   evictions, requests hit, requests hit more than once
-- num_lost_tokens     computed tokens thrown away
-- num_freed_blocks    KV blocks that the evictions freed
WITH gaps AS (
    SELECT *, time_ns - LAG(time_ns) OVER (ORDER BY time_ns, request_id) AS gap_ns
    FROM preemptions
),
numbered AS (
    SELECT *, SUM((gap_ns IS NULL OR gap_ns > $gap_s::BIGINT * 1000000000)::INT) OVER (ORDER BY time_ns, request_id) AS storm
    FROM gaps
),
victims AS (
    SELECT storm, request_id, COUNT(*) AS times FROM numbered GROUP BY storm, request_id
)
SELECT
    MIN(n.time_ns) AS start_ns,
    MAX(n.time_ns) AS end_ns,
    COUNT(*) AS num_preemptions,
    COUNT(DISTINCT n.request_id) AS num_victims,
    (SELECT COUNT(*) FROM victims AS v WHERE v.storm = n.storm AND v.times > 1) AS num_repeat_victims,
    SUM(n.num_computed_tokens)::BIGINT AS num_lost_tokens,
    SUM(n.num_blocks)::BIGINT AS num_freed_blocks
FROM numbered AS n
GROUP BY n.storm
HAVING COUNT(*) >= $least
ORDER BY start_ns
