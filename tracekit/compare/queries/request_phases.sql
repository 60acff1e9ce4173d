-- What did one request do, phase by phase?
--
-- $request_id = null: the request; null takes the slowest one
--
-- request_id   the request
-- phase        waiting, prefill, decode or preempted
-- start_s      when the phase began, seconds from the run's start
-- duration_ms  how long it lasted, milliseconds; null while it lasts
WITH slowest AS (
    SELECT request_id FROM latencies ORDER BY e2e_ns DESC NULLS LAST, request_id LIMIT 1
)
SELECT request_id, phase, start_ns / 1e9 AS start_s, (end_ns - start_ns) / 1e6 AS duration_ms
FROM phases
WHERE request_id = COALESCE($request_id::VARCHAR, (SELECT request_id FROM slowest))
ORDER BY start_ns, ARRAY_POSITION(['waiting', 'prefill', 'decode', 'preempted'], phase)
