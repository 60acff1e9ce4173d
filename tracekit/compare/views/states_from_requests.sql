-- One row a change of an engine's state, from what became of its requests (for runs without steps and evictions).
--
-- source            requests
-- engine            its number; 0 where unknown
-- time_ns           from when the state holds
-- until_ns          until when; null: to the end
-- num_running_reqs  requests scheduled and not at their end
-- num_waiting_reqs  requests queued (else arrived) and not scheduled
-- kv_cache_usage    null: requests do not say it
WITH lives AS (
    SELECT
        COALESCE(engine, 0) AS engine,
        COALESCE(queued_ns, arrival_ns) AS queued_ns,
        scheduled_ns,
        COALESCE(finished_ns, last_token_ns) AS finished_ns
    FROM requests
    WHERE finish_reason IS DISTINCT FROM 'rejected'
),
changes AS (
    SELECT engine, queued_ns AS time_ns, 0 AS running, 1 AS waiting FROM lives WHERE queued_ns IS NOT NULL
    UNION ALL
    SELECT engine, scheduled_ns, 1, CASE WHEN queued_ns IS NULL THEN 0 ELSE -1 END FROM lives WHERE scheduled_ns IS NOT NULL
    UNION ALL
    SELECT engine, finished_ns, -1, 0 FROM lives WHERE scheduled_ns IS NOT NULL AND finished_ns IS NOT NULL
    UNION ALL
    SELECT engine, finished_ns, 0, -1 FROM lives WHERE scheduled_ns IS NULL AND queued_ns IS NOT NULL AND finished_ns IS NOT NULL
)
-- Changes at one instant are one state: the default frame of the sums takes them together.
SELECT
    'requests' AS source,
    engine,
    time_ns,
    LEAD(time_ns) OVER engine_order AS until_ns,
    (SUM(running) OVER engine_order)::BIGINT AS num_running_reqs,
    (SUM(waiting) OVER engine_order)::BIGINT AS num_waiting_reqs,
    NULL::DOUBLE AS kv_cache_usage
FROM changes
WINDOW engine_order AS (PARTITION BY engine ORDER BY time_ns)
