-- The engine before ($around_s seconds), during and after the time from $start_ns to $end_ns.
--
-- place                before, during or after
-- mean_kv_cache_usage, mean_running_reqs, mean_waiting_reqs, max_waiting_reqs   over the steps, by their duration
-- num_scheduled_tokens   all work of those steps
SELECT
    CASE WHEN start_ns < $start_ns THEN 'before' WHEN start_ns <= $end_ns THEN 'during' ELSE 'after' END AS place,
    SUM(kv_cache_usage * duration_ns) / SUM(duration_ns) AS mean_kv_cache_usage,
    SUM(num_running_reqs * duration_ns) / SUM(duration_ns) AS mean_running_reqs,
    SUM(num_waiting_reqs * duration_ns) / SUM(duration_ns) AS mean_waiting_reqs,
    MAX(num_waiting_reqs) AS max_waiting_reqs,
    SUM(num_scheduled_tokens)::BIGINT AS num_scheduled_tokens
FROM steps
WHERE start_ns BETWEEN $start_ns - $around_s::BIGINT * 1000000000 AND $end_ns + $around_s::BIGINT * 1000000000
GROUP BY place
ORDER BY place
