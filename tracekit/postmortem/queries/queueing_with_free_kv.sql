-- Requests wait although at most $most_usage of the KV blocks are in use: which limit kept them out, and how long?
--
-- bound_by             the limit
-- start_ns, end_ns     the first and the last such step
-- duration_s, share    device time of such steps, and its share of all device time
-- mean_waiting_reqs, max_waiting_reqs, mean_running_reqs, mean_kv_cache_usage   in those steps
SELECT
    bound_by,
    MIN(start_ns) AS start_ns,
    MAX(start_ns + duration_ns) AS end_ns,
    SUM(duration_ns) / 1e9 AS duration_s,
    SUM(duration_ns) / (SELECT SUM(duration_ns) FROM steps) AS share,
    AVG(num_waiting_reqs) AS mean_waiting_reqs,
    MAX(num_waiting_reqs) AS max_waiting_reqs,
    AVG(num_running_reqs) AS mean_running_reqs,
    AVG(kv_cache_usage) AS mean_kv_cache_usage
FROM steps
WHERE num_waiting_reqs > 0
    AND kv_cache_usage <= $most_usage
    AND bound_by IN ('max_num_seqs', 'max_num_active_seqs', 'token_budget', 'full_prompt_reservation', 'watermark', 'prefill_interval')
GROUP BY bound_by
ORDER BY duration_s DESC, bound_by
