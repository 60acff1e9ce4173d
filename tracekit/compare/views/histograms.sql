-- One row a bucket of each latency histogram of the whole run: the newest one of each engine, added up.
--
-- metric   ttft_ms, tpot_ms, itl_ms, e2e_ms or queue_ms
-- low_ns   lower edge; 0 where the bucket has none
-- high_ns  upper edge; null: infinity
-- num      observations in it
-- sum_ns   all observations of the metric added up, the same in each row; null: unknown
-- is_coarse  whether some filled bucket of the histogram is wider than 5 % of its upper edge
WITH newest AS (
    SELECT REPLACE(metric, '_ns', '_ms') AS metric, COALESCE(bucket_low, 0) AS low_ns, bucket_high AS high_ns, count, engine, sum
    FROM distributions
    WHERE metric IN ('ttft_ns', 'tpot_ns', 'itl_ns', 'e2e_ns', 'queue_ns')
    QUALIFY time_ns IS NOT DISTINCT FROM MAX(time_ns) OVER (PARTITION BY metric, engine)
),
sums AS (
    SELECT metric, CASE WHEN COUNT(*) = COUNT(sum) THEN SUM(sum) END AS sum_ns
    FROM (SELECT metric, engine, MAX(sum) AS sum FROM newest GROUP BY metric, engine HAVING SUM(count) > 0)
    GROUP BY metric
)
SELECT
    metric,
    low_ns,
    high_ns,
    SUM(count)::BIGINT AS num,
    ANY_VALUE(sum_ns) AS sum_ns,
    BOOL_OR(SUM(count) > 0 AND (high_ns IS NULL OR high_ns - low_ns > 0.05 * high_ns)) OVER (PARTITION BY metric) AS is_coarse
FROM newest
LEFT JOIN sums USING (metric)
GROUP BY metric, low_ns, high_ns
