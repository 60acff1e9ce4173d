-- What were the scheduler's steps like?
--
-- engine               the engine; null where unknown
-- num_steps            steps
-- busy_s               device time, seconds
-- mean_step_ms, p99_step_ms   duration of a step, milliseconds
-- mean_running_reqs, max_running_reqs   concurrency, over steps
-- mean_scheduled_reqs  batch size
-- mean_scheduled_tokens  work of a step
-- max_kv_cache_usage   highest share of the KV blocks in use
-- num_preempted_reqs   preemptions
SELECT
    engine,
    COUNT(*) AS num_steps,
    SUM(duration_ns) / 1e9 AS busy_s,
    AVG(duration_ns) / 1e6 AS mean_step_ms,
    QUANTILE_CONT(duration_ns, 0.99) / 1e6 AS p99_step_ms,
    AVG(num_running_reqs) AS mean_running_reqs,
    MAX(num_running_reqs) AS max_running_reqs,
    AVG(num_scheduled_reqs) AS mean_scheduled_reqs,
    AVG(num_scheduled_tokens) AS mean_scheduled_tokens,
    MAX(kv_cache_usage) AS max_kv_cache_usage,
    SUM(num_preempted_reqs)::BIGINT AS num_preempted_reqs
FROM steps
GROUP BY engine
ORDER BY engine NULLS FIRST
