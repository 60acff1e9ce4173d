-- Observed and simulated concurrency side by side, at the observed samples.
--
-- time_s                 when, seconds from the start
-- observed_running_reqs, simulated_running_reqs   running requests
-- observed_waiting_reqs, simulated_waiting_reqs   waiting requests
-- observed_kv_usage, simulated_kv_usage           share of the KV blocks in use
WITH states AS MATERIALIZED (
    SELECT engine, time_ns, num_running_reqs, num_waiting_reqs, kv_cache_usage FROM simulated.states
),
instants AS MATERIALIZED (
    SELECT e.engine, s.time_ns
    FROM (SELECT DISTINCT time_ns FROM observed.samples) AS s, (SELECT DISTINCT engine FROM states) AS e
),
simulated_at AS (
    SELECT
        i.time_ns,
        SUM(COALESCE(s.num_running_reqs, 0))::BIGINT AS num_running_reqs,
        SUM(COALESCE(s.num_waiting_reqs, 0))::BIGINT AS num_waiting_reqs,
        AVG(CASE WHEN s.time_ns IS NULL THEN 0 ELSE s.kv_cache_usage END) AS kv_cache_usage
    FROM instants AS i
    ASOF LEFT JOIN states AS s ON i.engine = s.engine AND i.time_ns >= s.time_ns
    GROUP BY i.time_ns
)
SELECT
    o.time_ns / 1e9 AS time_s,
    o.num_running_reqs AS observed_running_reqs,
    s.num_running_reqs AS simulated_running_reqs,
    o.num_waiting_reqs AS observed_waiting_reqs,
    s.num_waiting_reqs AS simulated_waiting_reqs,
    o.kv_cache_usage AS observed_kv_usage,
    s.kv_cache_usage AS simulated_kv_usage
FROM observed.samples AS o
LEFT JOIN simulated_at AS s USING (time_ns)
ORDER BY o.time_ns, o.source
