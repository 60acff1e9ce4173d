-- Latencies of two runs read from the same buckets, where one has nothing but a coarse histogram.
--
-- Both runs are put into that histogram's buckets and read from them in the same way: like with like.
-- A percentile is interpolated linearly within its bucket, the mean is that of the buckets' middles; there is none where
-- every coarse histogram has its sum, from which each side's mean is known. A bucket without an upper edge counts as its
-- lower edge. Where both histograms are coarse the one with fewer buckets is taken.
--
-- $from_ns = null: leave out requests that arrived before this instant (histograms are taken as they are)
--
-- metric     ttft_ms, tpot_ms, itl_ms, e2e_ms or queue_ms
-- stat       mean, p50, p90, p95 or p99
-- observed   milliseconds
-- simulated  milliseconds
-- observed_low, observed_high, simulated_low, simulated_high   the bucket of it (of a mean: what the buckets leave open),
--            milliseconds; a high one is null where there is no upper edge
WITH latency AS (
    SELECT 'observed' AS side, ttft_ns::DOUBLE AS ttft_ms, tpot_ns AS tpot_ms, e2e_ns::DOUBLE AS e2e_ms, queue_ns::DOUBLE AS queue_ms
    FROM observed.latencies
    WHERE $from_ns::BIGINT IS NULL OR arrival_ns >= $from_ns::BIGINT
    UNION ALL
    SELECT 'simulated', ttft_ns::DOUBLE, tpot_ns, e2e_ns::DOUBLE, queue_ns::DOUBLE
    FROM simulated.latencies
    WHERE $from_ns::BIGINT IS NULL OR arrival_ns >= $from_ns::BIGINT
),
served AS (
    SELECT 'observed' AS side, * FROM observed.requests
    UNION ALL
    SELECT 'simulated', * FROM simulated.requests
),
own AS (
    SELECT side, metric, value AS value_ns FROM (UNPIVOT latency ON ttft_ms, tpot_ms, e2e_ms, queue_ms INTO NAME metric VALUE value)
    UNION ALL
    SELECT side, 'itl_ms', UNNEST(itl_ns)
    FROM served
    WHERE (finish_reason IS NULL OR finish_reason IN ('stop', 'length'))
        AND ($from_ns::BIGINT IS NULL OR arrival_ns >= $from_ns::BIGINT)
),
histogram AS (
    SELECT h.*
    FROM (
        SELECT 'observed' AS side, * FROM observed.histograms
        UNION ALL
        SELECT 'simulated', * FROM simulated.histograms
    ) AS h
    WHERE (side, metric) NOT IN (SELECT DISTINCT side, metric FROM own)
),
chosen AS (
    SELECT metric, side
    FROM histogram
    WHERE is_coarse
    GROUP BY metric, side
    QUALIFY ROW_NUMBER() OVER (PARTITION BY metric ORDER BY COUNT(*), side) = 1
),
buckets AS (
    SELECT h.metric, h.low_ns, COALESCE(h.high_ns, h.low_ns) AS high_ns, COALESCE(h.high_ns, 'infinity'::DOUBLE) AS edge_ns
    FROM histogram AS h
    JOIN chosen AS c USING (metric, side)
),
points AS (
    SELECT side, metric, value_ns::DOUBLE AS value_ns, COUNT(*) AS num FROM own GROUP BY ALL
    UNION ALL
    SELECT side, metric, COALESCE((low_ns + high_ns) / 2, NEXTAFTER(low_ns, 'infinity'::DOUBLE)), num FROM histogram WHERE num > 0
),
filled AS (
    SELECT
        p.side,
        p.metric,
        b.low_ns,
        b.high_ns,
        b.edge_ns,
        SUM(p.num) AS num,
        SUM(SUM(p.num)) OVER (PARTITION BY p.side, p.metric ORDER BY b.edge_ns) AS upto,
        SUM(SUM(p.num)) OVER (PARTITION BY p.side, p.metric) AS total
    FROM points AS p
    ASOF JOIN buckets AS b ON p.metric = b.metric AND p.value_ns <= b.edge_ns
    GROUP BY p.side, p.metric, b.low_ns, b.high_ns, b.edge_ns
),
wanted AS (
    SELECT UNNEST(['p50', 'p90', 'p95', 'p99']) AS stat, UNNEST([0.5, 0.9, 0.95, 0.99]::DOUBLE[]) AS share
),
figures AS (
    SELECT
        side,
        metric,
        stat,
        MIN_BY(low_ns + (share * total - (upto - num)) / num * (high_ns - low_ns), upto) AS value_ns,
        MIN_BY(low_ns, upto) AS least_ns,
        MIN_BY(edge_ns, upto) AS most_ns
    FROM filled, wanted
    WHERE upto >= share * total
    GROUP BY side, metric, stat
    UNION ALL
    SELECT side, metric, 'mean', SUM(num * (low_ns + high_ns) / 2) / SUM(num), SUM(num * low_ns) / SUM(num), SUM(num * edge_ns) / SUM(num)
    FROM filled
    WHERE metric IN (SELECT metric FROM histogram WHERE is_coarse AND sum_ns IS NULL)
    GROUP BY side, metric
)
SELECT
    metric,
    stat,
    MAX(value_ns) FILTER (WHERE side = 'observed') / 1e6 AS observed,
    MAX(value_ns) FILTER (WHERE side = 'simulated') / 1e6 AS simulated,
    MAX(least_ns) FILTER (WHERE side = 'observed') / 1e6 AS observed_low,
    NULLIF(MAX(most_ns) FILTER (WHERE side = 'observed') / 1e6, 'infinity'::DOUBLE) AS observed_high,
    MAX(least_ns) FILTER (WHERE side = 'simulated') / 1e6 AS simulated_low,
    NULLIF(MAX(most_ns) FILTER (WHERE side = 'simulated') / 1e6, 'infinity'::DOUBLE) AS simulated_high
FROM figures
GROUP BY metric, stat
HAVING COUNT(*) = 2
ORDER BY metric, ARRAY_POSITION(['mean', 'p50', 'p90', 'p95', 'p99'], stat)
