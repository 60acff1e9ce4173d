-- Which requests were preempted most often, and what did it cost them?
--
-- $limit = 20: how many requests
--
-- request_id           the victim
-- num_preemptions      how often it was preempted
-- num_computed_tokens  computed tokens it lost in all
-- preempted_ms         time between eviction and resume, milliseconds; null where the resumes are unknown
-- e2e_ms               arrival to last token, milliseconds
WITH evicted AS (
    SELECT request_id, COUNT(*) AS num, SUM(num_computed_tokens)::BIGINT AS num_computed_tokens
    FROM preemptions
    GROUP BY request_id
),
away AS (
    SELECT request_id, SUM(end_ns - start_ns) / 1e6 AS preempted_ms
    FROM phases
    WHERE phase = 'preempted'
    GROUP BY request_id
)
SELECT
    request_id,
    COALESCE(e.num, r.num_preemptions) AS num_preemptions,
    e.num_computed_tokens,
    a.preempted_ms,
    (r.last_token_ns - r.arrival_ns) / 1e6 AS e2e_ms
FROM requests AS r
LEFT JOIN evicted AS e USING (request_id)
LEFT JOIN away AS a USING (request_id)
WHERE COALESCE(e.num, r.num_preemptions) > 0
ORDER BY num_preemptions DESC, request_id
LIMIT $limit
