-- One row a sample, each holding from halfway after the one before to halfway before the next (for runs without
-- steps and without the requests' scheduling).
--
-- source            samples
-- engine            0: the samples are of the whole deployment
-- time_ns           from when the state holds
-- until_ns          until when; the last sample is not known to hold beyond itself
-- num_running_reqs, num_waiting_reqs, kv_cache_usage   as in samples
WITH halved AS (
    SELECT *, (time_ns + LAG(time_ns, 1, time_ns) OVER (ORDER BY time_ns, source)) // 2 AS from_ns
    FROM samples
)
SELECT
    'samples' AS source,
    0 AS engine,
    from_ns AS time_ns,
    LEAD(from_ns, 1, time_ns) OVER (ORDER BY time_ns, source) AS until_ns,
    num_running_reqs,
    num_waiting_reqs,
    kv_cache_usage
FROM halved
