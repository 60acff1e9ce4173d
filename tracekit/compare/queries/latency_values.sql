-- Every request's latencies of one run, in order of size: what bands of percentiles come from.
--
-- Over the requests served to their end; see the view latencies.
--
-- $from_ns = null: leave out requests that arrived before this instant
--
-- metric    ttft_ms, tpot_ms, e2e_ms or queue_ms
-- value_ms  one request's latency, milliseconds
WITH kept AS (
    SELECT ttft_ns::DOUBLE AS ttft_ms, tpot_ns AS tpot_ms, e2e_ns::DOUBLE AS e2e_ms, queue_ns::DOUBLE AS queue_ms
    FROM latencies
    WHERE $from_ns::BIGINT IS NULL OR arrival_ns >= $from_ns::BIGINT
),
measured AS (
    UNPIVOT kept ON ttft_ms, tpot_ms, e2e_ms, queue_ms INTO NAME metric VALUE value_ns
)
SELECT metric, value_ns / 1e6 AS value_ms
FROM measured
ORDER BY metric, value_ms
