-- Takes the place of samples for a run that has none: its state at 1,000 instants evenly over its busy span.
--
-- time_ns           the instant
-- source            grid
-- num_running_reqs, num_waiting_reqs   sums over the engines
-- kv_cache_usage    mean over the engines
WITH known AS MATERIALIZED (
    SELECT engine, time_ns, until_ns, num_running_reqs, num_waiting_reqs, kv_cache_usage
    FROM states
),
busy AS (
    SELECT MIN(time_ns) AS first_ns, MAX(COALESCE(until_ns, time_ns)) AS last_ns
    FROM known
    WHERE num_running_reqs + num_waiting_reqs > 0
    HAVING COUNT(*) > 0
),
instants AS MATERIALIZED (
    SELECT e.engine, b.first_ns + (b.last_ns - b.first_ns) * (2 * r.range + 1) // 2000 AS time_ns
    FROM busy AS b, RANGE(1000) AS r, (SELECT DISTINCT engine FROM known) AS e
)
SELECT
    i.time_ns,
    'grid' AS source,
    SUM(COALESCE(s.num_running_reqs, 0))::BIGINT AS num_running_reqs,
    SUM(COALESCE(s.num_waiting_reqs, 0))::BIGINT AS num_waiting_reqs,
    AVG(CASE WHEN s.time_ns IS NULL THEN 0 ELSE s.kv_cache_usage END) AS kv_cache_usage
FROM instants AS i
ASOF LEFT JOIN known AS s ON i.engine = s.engine AND i.time_ns >= s.time_ns
GROUP BY i.time_ns
