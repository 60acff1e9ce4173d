-- One row a periodic sample of the whole deployment: the engines' rows of one moment put together.
--
-- vLLM prints or exports one row an engine; rows of rising engine numbers within 1.5 s of the row before are one
-- sample. An engine that printed nothing counts as idle: vLLM leaves out the line of an idle engine. Rows without an
-- engine number are aggregates and count only where a source has no numbered ones.
--
-- time_ns           the first of the rows
-- source            log, metrics or replay
-- num_running_reqs, num_waiting_reqs, prompt_tps, generation_tps   sums over the engines
-- kv_cache_usage    mean over the engines
WITH kept AS (
    SELECT *, COUNT(DISTINCT engine) OVER (PARTITION BY source) AS num_engines
    FROM engine_stats
    QUALIFY (engine IS NOT NULL) = (num_engines > 0)
),
marked AS (
    SELECT
        *,
        CASE WHEN engine > LAG(engine) OVER engines AND time_ns - LAG(time_ns) OVER engines <= 1500000000 THEN 0 ELSE 1 END AS is_first
    FROM kept
    WINDOW engines AS (PARTITION BY source ORDER BY time_ns, engine)
),
numbered AS (
    SELECT *, SUM(is_first) OVER (PARTITION BY source ORDER BY time_ns, engine ROWS UNBOUNDED PRECEDING) AS nth
    FROM marked
)
SELECT
    MIN(time_ns) AS time_ns,
    source,
    SUM(num_running_reqs)::BIGINT AS num_running_reqs,
    SUM(num_waiting_reqs)::BIGINT AS num_waiting_reqs,
    CASE WHEN COUNT(kv_cache_usage) = COUNT(*) THEN SUM(kv_cache_usage) / GREATEST(MAX(num_engines), 1) END AS kv_cache_usage,
    SUM(prompt_tps) AS prompt_tps,
    SUM(generation_tps) AS generation_tps
FROM numbered
GROUP BY source, nth
