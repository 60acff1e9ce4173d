-- One row a phase of a request: waiting, then prefill and decode, cut by preempted; derived from the requests, the
-- preemptions and the steps that resumed them. Requests whose scheduling was not observed have no phases.
--
-- phase     waiting    queued (else arrival) to first scheduled
--           prefill    scheduled or resumed to first token
--           decode     first token to the end, also after a resume (its recomputation included)
--           preempted  evicted to resumed
-- start_ns  when the phase begins
-- end_ns    when it ends; null while it lasts, or when the resuming step's time is not known
WITH evictions AS (
    SELECT
        p.request_id,
        p.time_ns,
        p.resumed_step,
        COALESCE(s.scheduled_ns, s.start_ns) AS resumed_ns,
        ROW_NUMBER() OVER (PARTITION BY p.request_id ORDER BY p.time_ns) AS nth,
        LEAD(p.time_ns) OVER (PARTITION BY p.request_id ORDER BY p.time_ns) AS next_ns
    FROM preemptions AS p
    LEFT JOIN steps AS s ON s.step = p.resumed_step AND COALESCE(s.engine, 0) = COALESCE(p.engine, 0)
),
served AS (
    SELECT
        request_id,
        COALESCE(queued_ns, arrival_ns) AS queued_ns,
        scheduled_ns,
        first_token_ns,
        COALESCE(finished_ns, last_token_ns) AS finished_ns
    FROM requests
    WHERE finish_reason IS DISTINCT FROM 'rejected' AND (scheduled_ns IS NOT NULL OR first_token_ns IS NULL)
        AND (SELECT COUNT(scheduled_ns) FROM requests) > 0
),
admitted AS (
    SELECT r.request_id, r.first_token_ns, r.scheduled_ns AS start_ns, COALESCE(e.time_ns, r.finished_ns) AS end_ns
    FROM served AS r
    LEFT JOIN (SELECT request_id, time_ns FROM evictions WHERE nth = 1) AS e USING (request_id)
    WHERE r.scheduled_ns IS NOT NULL
    UNION ALL
    SELECT r.request_id, r.first_token_ns, e.resumed_ns, COALESCE(e.next_ns, r.finished_ns)
    FROM evictions AS e
    JOIN served AS r USING (request_id)
    WHERE e.resumed_ns IS NOT NULL
),
phases AS (
    SELECT request_id, 'waiting' AS phase, queued_ns AS start_ns, COALESCE(scheduled_ns, finished_ns) AS end_ns
    FROM served
    WHERE queued_ns IS NOT NULL
    UNION ALL
    SELECT request_id, 'prefill', start_ns, LEAST(first_token_ns, end_ns)
    FROM admitted
    WHERE first_token_ns IS NULL OR first_token_ns > start_ns
    UNION ALL
    SELECT request_id, 'decode', GREATEST(first_token_ns, start_ns), end_ns
    FROM admitted
    WHERE first_token_ns IS NOT NULL AND (end_ns IS NULL OR end_ns > first_token_ns)
    UNION ALL
    SELECT
        e.request_id,
        'preempted',
        e.time_ns,
        CASE WHEN e.resumed_step IS NULL THEN r.finished_ns ELSE e.resumed_ns END
    FROM evictions AS e
    JOIN served AS r USING (request_id)
)
SELECT request_id, phase, start_ns, end_ns
FROM phases
