-- When were requests preempted, and how many tokens did it cost?
--
-- From the rows of preemptions, else from the growth of the cumulative counter (then the tokens are unknown).
--
-- $interval_s = 10: width of an interval, seconds
--
-- time_s               start of the interval, seconds from the run's start
-- num_preemptions      preemptions in it
-- num_computed_tokens  computed tokens lost; null where unknown
-- source               preemptions or engine_stats
WITH readings AS (
    SELECT time_ns, source, engine, num_preemptions, COUNT(DISTINCT engine) OVER (PARTITION BY source) AS num_engines
    FROM engine_stats
    WHERE num_preemptions IS NOT NULL
    QUALIFY (engine IS NOT NULL) = (num_engines > 0)
),
growth AS (
    SELECT
        time_ns,
        source,
        num_preemptions,
        LAG(num_preemptions) OVER (PARTITION BY source, engine ORDER BY time_ns) AS before
    FROM readings
    WHERE source = (SELECT MAX(source) FROM readings)
        AND NOT (SELECT is_present FROM tables WHERE table_name = 'preemptions')
),
evictions AS (
    SELECT time_ns, 1 AS num, num_computed_tokens, 'preemptions' AS source
    FROM preemptions
    UNION ALL
    SELECT time_ns, CASE WHEN num_preemptions < before THEN num_preemptions ELSE num_preemptions - before END, NULL, 'engine_stats'
    FROM growth
    WHERE before IS NOT NULL
)
SELECT
    FLOOR(time_ns / ($interval_s * 1e9)) * $interval_s AS time_s,
    SUM(num)::BIGINT AS num_preemptions,
    SUM(num_computed_tokens)::BIGINT AS num_computed_tokens,
    source
FROM evictions
GROUP BY ALL
ORDER BY time_s, source
