-- Running, waiting and KV usage of two runs at the same instants: the samples of the observed one.
--
-- At each sample of observed the state of simulated at the same time_ns is taken (see the view states), the engines
-- added up (KV usage: their mean). Only the common span counts, from when both are busy first to when both are busy
-- last.
--
-- $from_ns = null: leave out instants before this one
--
-- metric     num_running_reqs, num_waiting_reqs or kv_cache_usage
-- stat       mean, max or mae (mean absolute difference over observed's maximum)
-- observed   its value; null for mae
-- simulated  its value; for mae the distance between the two
-- n          instants at which both are known
-- source     where the instants come from: samples, or grid for a run without samples
WITH states AS MATERIALIZED (
    SELECT source, engine, time_ns, until_ns, num_running_reqs, num_waiting_reqs, kv_cache_usage
    FROM simulated.states
),
samples AS MATERIALIZED (
    SELECT time_ns, source, num_running_reqs, num_waiting_reqs, kv_cache_usage
    FROM observed.samples
),
busy AS (
    SELECT MAX(first_ns) AS first_ns, MIN(last_ns) AS last_ns
    FROM (
        SELECT MIN(time_ns) AS first_ns, MAX(time_ns) AS last_ns
        FROM samples
        WHERE num_running_reqs + num_waiting_reqs > 0
        UNION ALL
        SELECT MIN(time_ns), MAX(COALESCE(until_ns, time_ns))
        FROM states
        WHERE num_running_reqs + num_waiting_reqs > 0
    )
    HAVING COUNT(first_ns) = 2
),
instants AS MATERIALIZED (
    SELECT DISTINCT i.time_ns
    FROM samples AS i, busy AS b
    WHERE i.time_ns BETWEEN b.first_ns AND b.last_ns AND ($from_ns::BIGINT IS NULL OR i.time_ns >= $from_ns::BIGINT)
),
engines AS (
    SELECT DISTINCT engine, source = 'samples' AS is_sampled FROM states
),
simulated_at AS (
    SELECT
        i.time_ns,
        -- Before an engine's first step it is idle; before its first sample nothing is known.
        SUM(CASE WHEN s.time_ns IS NULL AND NOT i.is_sampled THEN 0 ELSE s.num_running_reqs END) AS num_running_reqs,
        SUM(CASE WHEN s.time_ns IS NULL AND NOT i.is_sampled THEN 0 ELSE s.num_waiting_reqs END) AS num_waiting_reqs,
        AVG(CASE WHEN s.time_ns IS NULL AND NOT i.is_sampled THEN 0 ELSE s.kv_cache_usage END) AS kv_cache_usage
    FROM (SELECT * FROM instants, engines) AS i
    ASOF LEFT JOIN states AS s ON i.engine = s.engine AND i.time_ns >= s.time_ns
    GROUP BY i.time_ns
),
pairs AS (
    SELECT
        o.source,
        UNNEST(['num_running_reqs', 'num_waiting_reqs', 'kv_cache_usage']) AS metric,
        UNNEST([o.num_running_reqs, o.num_waiting_reqs, o.kv_cache_usage]::DOUBLE[]) AS observed,
        UNNEST([s.num_running_reqs, s.num_waiting_reqs, s.kv_cache_usage]::DOUBLE[]) AS simulated
    FROM samples AS o
    JOIN simulated_at AS s USING (time_ns)
),
figures AS (
    SELECT
        metric,
        CASE WHEN ANY_VALUE(source) = 'grid' THEN 'grid' ELSE 'samples' END AS source,
        COUNT(*) AS n,
        AVG(observed) AS observed_mean,
        AVG(simulated) AS simulated_mean,
        MAX(observed) AS observed_max,
        MAX(simulated) AS simulated_max,
        AVG(ABS(observed - simulated)) / NULLIF(MAX(observed), 0) AS mae
    FROM pairs
    WHERE observed IS NOT NULL AND simulated IS NOT NULL
    GROUP BY metric
),
every AS (
    SELECT metric, stat, metric_nth, stat_nth
    FROM (SELECT UNNEST(['num_running_reqs', 'num_waiting_reqs', 'kv_cache_usage']) AS metric, UNNEST(RANGE(3)) AS metric_nth),
        (SELECT UNNEST(['mean', 'max', 'mae']) AS stat, UNNEST(RANGE(3)) AS stat_nth)
)
SELECT
    e.metric,
    e.stat,
    CASE e.stat WHEN 'mean' THEN f.observed_mean WHEN 'max' THEN f.observed_max END AS observed,
    CASE e.stat WHEN 'mean' THEN f.simulated_mean WHEN 'max' THEN f.simulated_max WHEN 'mae' THEN f.mae END AS simulated,
    COALESCE(f.n, 0) AS n,
    f.source
FROM every AS e
LEFT JOIN figures AS f USING (metric)
ORDER BY e.metric_nth, e.stat_nth
