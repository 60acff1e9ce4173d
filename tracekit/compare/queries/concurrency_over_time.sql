-- How many requests ran and waited, over time.
--
-- From the states of the engines (steps, else the requests' scheduling, else periodic samples); several engines are
-- added up, their KV usage is averaged. An interval shows what held at its end.
--
-- $interval_s = 10: width of an interval, seconds
--
-- time_s            end of the interval, seconds from the run's start
-- num_running_reqs  running requests: the concurrency
-- num_waiting_reqs  waiting requests
-- kv_cache_usage    share of the KV blocks in use; null where unknown
-- source            steps, requests or samples
WITH known AS MATERIALIZED (
    SELECT source, engine, time_ns, until_ns, num_running_reqs, num_waiting_reqs, kv_cache_usage FROM states
),
span AS (
    SELECT
        MIN(time_ns) AS first_ns,
        MAX(COALESCE(until_ns, time_ns)) AS last_ns,
        GREATEST(($interval_s * 1e9)::BIGINT, (MAX(COALESCE(until_ns, time_ns)) - MIN(time_ns)) // 100000, 1) AS width_ns
    FROM known
),
instants AS MATERIALIZED (
    SELECT e.engine, UNNEST(RANGE(first_ns // width_ns * width_ns + width_ns, last_ns + width_ns, width_ns)) AS time_ns
    FROM span, (SELECT DISTINCT engine FROM known) AS e
)
SELECT
    i.time_ns / 1e9 AS time_s,
    SUM(COALESCE(s.num_running_reqs, 0))::BIGINT AS num_running_reqs,
    SUM(COALESCE(s.num_waiting_reqs, 0))::BIGINT AS num_waiting_reqs,
    AVG(s.kv_cache_usage) AS kv_cache_usage,
    MAX(s.source) AS source
FROM instants AS i
ASOF LEFT JOIN known AS s ON i.engine = s.engine AND i.time_ns >= s.time_ns
GROUP BY i.time_ns
ORDER BY time_s
