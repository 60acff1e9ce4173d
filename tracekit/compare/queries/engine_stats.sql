-- What did the engine report about itself?
--
-- time_s            when, seconds from the run's start
-- engine            the engine; null for an aggregate or when unknown
-- num_running_reqs, num_waiting_reqs, kv_cache_usage, prompt_tps, generation_tps, prefix_hit_rate, num_preemptions
--                   as in engine_stats (num_preemptions is cumulative)
-- source            log, metrics or replay
SELECT
    time_ns / 1e9 AS time_s,
    engine,
    num_running_reqs,
    num_waiting_reqs,
    kv_cache_usage,
    prompt_tps,
    generation_tps,
    prefix_hit_rate,
    num_preemptions,
    source
FROM engine_stats
ORDER BY time_ns, source, engine NULLS FIRST
