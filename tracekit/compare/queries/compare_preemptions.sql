-- Observed and simulated preemptions over time.
--
-- Observed ones from the rows of preemptions where there are any, else from the growth of the cumulative counter.
--
-- $interval_s = 10: width of an interval, seconds
--
-- time_s              start of the interval, seconds from the start
-- observed_preemptions, simulated_preemptions   preemptions in it
WITH readings AS (
    SELECT time_ns, source, engine, num_preemptions, COUNT(DISTINCT engine) OVER (PARTITION BY source) AS num_engines
    FROM observed.engine_stats
    WHERE num_preemptions IS NOT NULL AND (SELECT COUNT(*) FROM observed.preemptions) = 0
    QUALIFY (engine IS NOT NULL) = (num_engines > 0)
),
growth AS (
    SELECT time_ns, num_preemptions, LAG(num_preemptions) OVER (PARTITION BY engine ORDER BY time_ns) AS before
    FROM readings
    WHERE source = (SELECT MAX(source) FROM readings)
),
evictions AS (
    SELECT time_ns, 1 AS observed, 0 AS simulated FROM observed.preemptions
    UNION ALL
    SELECT time_ns, CASE WHEN num_preemptions < before THEN num_preemptions ELSE num_preemptions - before END, 0
    FROM growth
    WHERE before IS NOT NULL
    UNION ALL
    SELECT time_ns, 0, 1 FROM simulated.preemptions
)
SELECT
    FLOOR(time_ns / ($interval_s * 1e9)) * $interval_s AS time_s,
    SUM(observed)::BIGINT AS observed_preemptions,
    SUM(simulated)::BIGINT AS simulated_preemptions
FROM evictions
GROUP BY time_s
ORDER BY time_s
