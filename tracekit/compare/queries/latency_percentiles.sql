-- What latencies did the requests see?
--
-- Over the requests served to their end (stop or length); see the view latencies.
--
-- metric        ttft, tpot, e2e or queue
-- num_requests  requests that have it
-- mean_ms, p50_ms, p90_ms, p95_ms, p99_ms, max_ms   milliseconds
WITH measured AS (
    UNPIVOT (SELECT ttft_ns::DOUBLE AS ttft, tpot_ns AS tpot, e2e_ns::DOUBLE AS e2e, queue_ns::DOUBLE AS queue FROM latencies)
    ON ttft, tpot, e2e, queue INTO NAME metric VALUE value_ns
)
SELECT
    metric,
    COUNT(*) AS num_requests,
    AVG(value_ns) / 1e6 AS mean_ms,
    QUANTILE_CONT(value_ns, 0.5) / 1e6 AS p50_ms,
    QUANTILE_CONT(value_ns, 0.9) / 1e6 AS p90_ms,
    QUANTILE_CONT(value_ns, 0.95) / 1e6 AS p95_ms,
    QUANTILE_CONT(value_ns, 0.99) / 1e6 AS p99_ms,
    MAX(value_ns) / 1e6 AS max_ms
FROM measured
GROUP BY metric
ORDER BY ARRAY_POSITION(['ttft', 'tpot', 'e2e', 'queue'], metric)
