-- Totals of one run: its peak of running requests, requests, preemptions and throughput.
--
-- $from_ns = null: count only what arrived or happened from this instant on
--
-- metric   peak_running_reqs (most running requests in any step, or at any instant by the requests' scheduling),
--          num_requests, num_preemptions (rows of preemptions, else the growth of the cumulative counter, a restart
--          from 0 included, else the requests' own counts), output_tps (output tokens from the first arrival to the
--          last token or end, else the mean of the periodic samples while busy)
-- stat     max or total
-- value    null when nothing is known
-- n        rows behind it
-- source   the table it comes from; null when nothing is known
WITH kept AS (
    SELECT * FROM requests WHERE $from_ns::BIGINT IS NULL OR arrival_ns >= $from_ns::BIGINT
),
busy AS (
    SELECT *
    FROM samples
    WHERE num_running_reqs + num_waiting_reqs > 0 AND ($from_ns::BIGINT IS NULL OR time_ns >= $from_ns::BIGINT)
),
states_kept AS MATERIALIZED (
    SELECT source, engine, time_ns, num_running_reqs
    FROM states
    WHERE source <> 'samples' AND ($from_ns::BIGINT IS NULL OR time_ns >= $from_ns::BIGINT)
),
device AS (
    -- A replay books the device's time at every number of running requests, however few of its steps it keeps.
    SELECT MAX(bucket_high) AS value, SUM(count) AS n
    FROM distributions
    WHERE metric = 'num_running_reqs' AND count > 0 AND $from_ns::BIGINT IS NULL
    HAVING COUNT(DISTINCT engine) = 1
),
engines AS (
    SELECT COUNT(DISTINCT engine) AS num FROM states_kept
),
together AS (
    SELECT SUM(change) OVER (ORDER BY time_ns) AS num_running_reqs
    FROM (
        SELECT time_ns, num_running_reqs - LAG(num_running_reqs, 1, 0) OVER (PARTITION BY engine ORDER BY time_ns) AS change
        FROM states_kept
        WHERE (SELECT num FROM engines) > 1
    )
),
stepped AS (
    SELECT
        CASE WHEN ANY_VALUE(e.num) > 1 THEN (SELECT MAX(num_running_reqs) FROM together) ELSE MAX(s.num_running_reqs) END AS value,
        COUNT(*) AS n,
        ANY_VALUE(s.source) AS source
    FROM states_kept AS s, engines AS e
),
peak AS (
    SELECT
        COALESCE(d.value, s.value) AS value,
        CASE WHEN s.n > 0 THEN s.n ELSE COALESCE(d.n, 0) END AS n,
        CASE WHEN d.value IS NOT NULL THEN COALESCE(s.source, 'steps') ELSE s.source END AS source
    FROM stepped AS s LEFT JOIN device AS d ON TRUE
),
counted AS (
    SELECT
        CASE
            WHEN COUNT(*) > 0 THEN COUNT(*)
            WHEN (SELECT COUNT(*) FROM busy) > 0 OR (SELECT COUNT(*) FROM steps) > 0 THEN NULL
            WHEN (SELECT SUM(count) FROM distributions) > 0 THEN NULL
            ELSE 0
        END AS value,
        COUNT(*) AS n
    FROM kept
),
evictions AS (
    SELECT COUNT(*) AS n FROM preemptions WHERE $from_ns::BIGINT IS NULL OR time_ns >= $from_ns::BIGINT
),
readings AS (
    SELECT
        source,
        engine,
        num_preemptions,
        LAG(num_preemptions) OVER (PARTITION BY source, engine ORDER BY time_ns) AS before,
        COUNT(DISTINCT engine) OVER (PARTITION BY source) AS num_engines
    FROM engine_stats
    WHERE num_preemptions IS NOT NULL AND ($from_ns::BIGINT IS NULL OR time_ns >= $from_ns::BIGINT)
    QUALIFY (engine IS NOT NULL) = (num_engines > 0)
),
growth AS (
    SELECT source, SUM(CASE WHEN num_preemptions < before THEN num_preemptions ELSE num_preemptions - before END) AS value, COUNT(*) AS n
    FROM readings
    GROUP BY source
),
counter AS (
    SELECT MAX(value) AS value, ARG_MAX(n, value) AS n FROM growth
),
own AS (
    SELECT CASE WHEN COUNT(num_preemptions) = COUNT(*) THEN SUM(num_preemptions) END AS value, COUNT(*) AS n FROM kept
),
preempted AS (
    SELECT
        CASE WHEN t.is_present THEN e.n ELSE COALESCE(c.value, o.value) END AS value,
        CASE WHEN t.is_present THEN e.n WHEN c.value IS NOT NULL THEN c.n WHEN o.value IS NOT NULL THEN o.n ELSE 0 END AS n,
        CASE
            WHEN t.is_present THEN 'preemptions'
            WHEN c.value IS NOT NULL THEN 'engine_stats'
            WHEN o.value IS NOT NULL THEN 'requests'
        END AS source
    FROM (SELECT is_present FROM tables WHERE table_name = 'preemptions') AS t, evictions AS e, counter AS c, own AS o
),
produced AS (
    SELECT
        SUM(num_generated_tokens) / NULLIF((MAX(GREATEST(last_token_ns, finished_ns)) - MIN(arrival_ns)) / 1e9, 0) AS value,
        COUNT(num_generated_tokens) AS n
    FROM kept
),
sampled AS (
    SELECT source, AVG(generation_tps) AS value, COUNT(generation_tps) AS n FROM busy GROUP BY source
),
throughput AS (
    SELECT
        COALESCE(p.value, s.value) AS value,
        CASE WHEN p.value IS NULL AND s.value IS NOT NULL THEN s.n ELSE p.n END AS n,
        CASE WHEN p.value IS NOT NULL THEN 'requests' WHEN s.value IS NOT NULL THEN 'engine_stats' END AS source
    FROM produced AS p, (SELECT MIN_BY(value, source) AS value, MIN_BY(n, source) AS n FROM sampled WHERE value IS NOT NULL) AS s
),
rows_of AS (
    SELECT 0 AS nth, 'peak_running_reqs' AS metric, 'max' AS stat, value::DOUBLE AS value, n, source FROM peak
    UNION ALL
    SELECT 1, 'num_requests', 'total', value, n, CASE WHEN value IS NOT NULL THEN 'requests' END FROM counted
    UNION ALL
    SELECT 2, 'num_preemptions', 'total', value, n, source FROM preempted
    UNION ALL
    SELECT 3, 'output_tps', 'total', value, n, source FROM throughput
)
SELECT metric, stat, value, n::BIGINT AS n, source
FROM rows_of
ORDER BY nth
