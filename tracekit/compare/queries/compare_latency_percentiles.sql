-- Observed and simulated latency percentiles side by side.
--
-- metric        ttft, tpot, e2e or queue
-- stat          p50, p90, p95 or p99
-- observed_ms, simulated_ms   milliseconds; null where unknown
-- error         simulated / observed - 1
WITH measured AS (
    UNPIVOT (
        SELECT 'observed' AS side, ttft_ns::DOUBLE AS ttft, tpot_ns AS tpot, e2e_ns::DOUBLE AS e2e, queue_ns::DOUBLE AS queue
        FROM observed.latencies
        UNION ALL
        SELECT 'simulated', ttft_ns::DOUBLE, tpot_ns, e2e_ns::DOUBLE, queue_ns::DOUBLE
        FROM simulated.latencies
    )
    ON ttft, tpot, e2e, queue INTO NAME metric VALUE value_ns
),
quantiles AS (
    SELECT
        metric,
        QUANTILE_CONT(value_ns, [0.5, 0.9, 0.95, 0.99]) FILTER (WHERE side = 'observed') AS observed,
        QUANTILE_CONT(value_ns, [0.5, 0.9, 0.95, 0.99]) FILTER (WHERE side = 'simulated') AS simulated
    FROM measured
    GROUP BY metric
)
SELECT
    q.metric,
    s.stat,
    q.observed[s.nth] / 1e6 AS observed_ms,
    q.simulated[s.nth] / 1e6 AS simulated_ms,
    q.simulated[s.nth] / NULLIF(q.observed[s.nth], 0) - 1 AS error
FROM quantiles AS q
CROSS JOIN (SELECT UNNEST(['p50', 'p90', 'p95', 'p99']) AS stat, UNNEST([1, 2, 3, 4]) AS nth) AS s
ORDER BY ARRAY_POSITION(['ttft', 'tpot', 'e2e', 'queue'], q.metric), s.nth
