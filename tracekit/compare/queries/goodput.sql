-- How many requests meet all objectives, and how many a second?
--
-- A request meets a limit when its latency is at most that; TPOT does not apply below two output tokens. Requests that
-- were refused, failed or never ended meet nothing but count; aborted ones are the client's doing and do not count.
--
-- $ttft_ms = null: most milliseconds from arrival to first token
-- $tpot_ms = null: most milliseconds an output token after the first
-- $e2e_ms = null: most milliseconds from arrival to last token
-- $queue_ms = null: most milliseconds from queued to first scheduled
-- $from_ns = null: leave out requests that arrived before this instant
--
-- metric   slo_share (of the requests), goodput_rps (such requests a second, from the first arrival to the last end)
-- value    null when a latency that has a limit is known of no request
-- n        requests counted
WITH kept AS (
    SELECT r.*, l.ttft_ns, l.tpot_ns, l.e2e_ns, l.queue_ns, l.request_id IS NOT NULL AS is_served
    FROM requests AS r
    LEFT JOIN latencies AS l USING (request_id)
    WHERE ($from_ns::BIGINT IS NULL OR r.arrival_ns >= $from_ns::BIGINT) AND r.finish_reason IS DISTINCT FROM 'abort'
),
judged AS (
    SELECT
        *,
        is_served
        AND ($ttft_ms::DOUBLE IS NULL OR COALESCE(ttft_ns <= $ttft_ms::DOUBLE * 1e6, FALSE))
        AND ($tpot_ms::DOUBLE IS NULL OR COALESCE(num_generated_tokens < 2, FALSE) OR COALESCE(tpot_ns <= $tpot_ms::DOUBLE * 1e6, FALSE))
        AND ($e2e_ms::DOUBLE IS NULL OR COALESCE(e2e_ns <= $e2e_ms::DOUBLE * 1e6, FALSE))
        AND ($queue_ms::DOUBLE IS NULL OR COALESCE(queue_ns <= $queue_ms::DOUBLE * 1e6, FALSE)) AS meets_all
    FROM kept
),
counted AS (
    SELECT
        COUNT(*) AS n,
        COUNT(*) FILTER (WHERE meets_all) AS num_met,
        (MAX(GREATEST(last_token_ns, finished_ns)) - MIN(arrival_ns)) / 1e9 AS span_s,
        COUNT(*) > 0
        AND ($ttft_ms::DOUBLE IS NULL OR COUNT(ttft_ns) > 0)
        AND ($tpot_ms::DOUBLE IS NULL OR COUNT(tpot_ns) > 0 OR COALESCE(MAX(num_generated_tokens) < 2, FALSE))
        AND ($e2e_ms::DOUBLE IS NULL OR COUNT(e2e_ns) > 0)
        AND ($queue_ms::DOUBLE IS NULL OR COUNT(queue_ns) > 0) AS is_known
    FROM judged
),
figures AS (
    SELECT 'slo_share' AS metric, CASE WHEN is_known THEN num_met / n END AS value, n FROM counted
    UNION ALL
    SELECT 'goodput_rps', CASE WHEN is_known THEN num_met / NULLIF(span_s, 0) END, n FROM counted
)
SELECT metric, value, n
FROM figures
ORDER BY metric DESC
