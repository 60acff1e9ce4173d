-- What a remedy is judged by.
--
-- num_preemptions, num_lost_tokens   evictions and the computed tokens they threw away
-- preemption_tax       lost tokens over all scheduled tokens
-- mean_waiting_reqs, mean_kv_cache_usage   by device time
-- duration_s           from the first arrival to the last token
SELECT
    (SELECT COUNT(*) FROM preemptions) AS num_preemptions,
    (SELECT COALESCE(SUM(num_computed_tokens), 0) FROM preemptions)::BIGINT AS num_lost_tokens,
    (SELECT COALESCE(SUM(num_computed_tokens), 0) FROM preemptions) / NULLIF(SUM(num_scheduled_tokens), 0) AS preemption_tax,
    SUM(num_waiting_reqs * duration_ns) / NULLIF(SUM(duration_ns), 0) AS mean_waiting_reqs,
    SUM(kv_cache_usage * duration_ns) / NULLIF(SUM(duration_ns), 0) AS mean_kv_cache_usage,
    (SELECT (MAX(last_token_ns) - MIN(arrival_ns)) / 1e9 FROM requests) AS duration_s
FROM steps
ORDER BY num_preemptions
