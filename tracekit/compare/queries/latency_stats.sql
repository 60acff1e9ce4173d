-- Mean and percentiles of every latency of one run.
--
-- Over the requests served to their end where they carry the latency (exact); else from histograms in
-- distributions (see the view histograms): a percentile interpolated linearly within its bucket, the mean
-- from the histogram's sum (exact), without one of the buckets' middles. A bucket without an upper edge counts
-- as its lower edge.
--
-- $from_ns = null: leave out requests that arrived before this instant (histograms are taken as they are)
--
-- metric   ttft_ms, tpot_ms, itl_ms, e2e_ms or queue_ms
-- stat     mean, p50, p90, p95 or p99
-- value    milliseconds; null when nothing is known
-- n        values (for itl_ms gaps between tokens) behind it
-- source   requests or distributions; null when nothing is known
-- low      of a figure from a histogram: what it is at least, ms (the bucket's edge); null when exact
-- high     what it is at most, ms; null when exact or unbounded
WITH kept AS (
    SELECT ttft_ns::DOUBLE AS ttft_ms, tpot_ns AS tpot_ms, e2e_ns::DOUBLE AS e2e_ms, queue_ns::DOUBLE AS queue_ms
    FROM latencies
    WHERE $from_ns::BIGINT IS NULL OR arrival_ns >= $from_ns::BIGINT
),
measured AS (
    UNPIVOT kept ON ttft_ms, tpot_ms, e2e_ms, queue_ms INTO NAME metric VALUE value
),
gaps AS (
    SELECT UNNEST(itl_ns) AS gap_ns
    FROM requests
    WHERE itl_ns IS NOT NULL AND (finish_reason IS NULL OR finish_reason IN ('stop', 'length'))
        AND ($from_ns::BIGINT IS NULL OR arrival_ns >= $from_ns::BIGINT)
),
exact AS (
    SELECT metric, COUNT(*) AS n, AVG(value) AS mean, QUANTILE_CONT(value, [0.5, 0.9, 0.95, 0.99]) AS quantiles
    FROM measured
    GROUP BY metric
    UNION ALL
    SELECT 'itl_ms', COUNT(gap_ns), AVG(gap_ns), QUANTILE_CONT(gap_ns, [0.5, 0.9, 0.95, 0.99])
    FROM gaps
    HAVING COUNT(gap_ns) > 0
),
buckets AS (
    SELECT
        metric,
        low_ns AS low,
        COALESCE(high_ns, low_ns) AS high,
        high_ns AS edge,
        num,
        sum_ns,
        SUM(num) OVER (PARTITION BY metric ORDER BY COALESCE(high_ns, 'infinity'::DOUBLE)) AS upto,
        SUM(num) OVER (PARTITION BY metric) AS n
    FROM histograms
    WHERE num > 0 AND metric NOT IN (SELECT metric FROM exact)
),
wanted AS (
    SELECT UNNEST(['p50', 'p90', 'p95', 'p99']) AS stat, UNNEST([0.5, 0.9, 0.95, 0.99]::DOUBLE[]) AS share
),
interpolated AS (
    SELECT
        metric,
        stat,
        MIN_BY(low + (share * n - (upto - num)) / num * (high - low), upto) AS value,
        ANY_VALUE(n) AS n,
        MIN_BY(low, upto) AS low,
        NULLIF(MIN_BY(COALESCE(edge, 'infinity'::DOUBLE), upto), 'infinity'::DOUBLE) AS high
    FROM buckets, wanted
    WHERE upto >= share * n
    GROUP BY metric, stat
    UNION ALL
    SELECT
        metric,
        'mean',
        COALESCE(ANY_VALUE(sum_ns), SUM(num * (low + high) / 2)) / SUM(num),
        SUM(num),
        CASE WHEN COUNT(sum_ns) = 0 THEN SUM(num * low) / SUM(num) END,
        CASE WHEN COUNT(sum_ns) = 0 AND COUNT(edge) = COUNT(*) THEN SUM(num * edge) / SUM(num) END
    FROM buckets
    GROUP BY metric
),
known AS (
    SELECT metric, 'mean' AS stat, mean AS value, n, 'requests' AS source, NULL::DOUBLE AS low, NULL::DOUBLE AS high FROM exact
    UNION ALL
    SELECT metric, UNNEST(['p50', 'p90', 'p95', 'p99']), UNNEST(quantiles), n, 'requests', NULL, NULL FROM exact
    UNION ALL
    SELECT metric, stat, value, n, 'distributions', low, high FROM interpolated
),
every AS (
    SELECT metric, stat, metric_order, stat_order
    FROM (SELECT UNNEST(['ttft_ms', 'tpot_ms', 'itl_ms', 'e2e_ms', 'queue_ms']) AS metric, UNNEST(RANGE(5)) AS metric_order),
        (SELECT UNNEST(['mean', 'p50', 'p90', 'p95', 'p99']) AS stat, UNNEST(RANGE(5)) AS stat_order)
)
SELECT e.metric, e.stat, k.value / 1e6 AS value, COALESCE(k.n, 0)::BIGINT AS n, k.source, k.low / 1e6 AS low, k.high / 1e6 AS high
FROM every AS e
LEFT JOIN known AS k USING (metric, stat)
ORDER BY e.metric_order, e.stat_order
