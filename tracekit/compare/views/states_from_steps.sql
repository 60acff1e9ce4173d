-- One row a change of an engine's state, from its steps: a decision holds until the next one.
--
-- When a step has ended and no other was decided by then, its finished requests no longer run (nor those of a step
-- whose output was still due at the decision), what waits still waits, and an engine that runs nothing uses no blocks.
--
-- source            steps
-- engine            its number; 0 where unknown
-- time_ns           from when the state holds
-- until_ns          until when; null: to the end
-- num_running_reqs, num_waiting_reqs, kv_cache_usage   as in steps
WITH decisions AS (
    SELECT
        COALESCE(engine, 0) AS engine,
        COALESCE(scheduled_ns, start_ns) AS time_ns,
        start_ns + duration_ns AS done_ns,
        num_running_reqs,
        num_waiting_reqs,
        kv_cache_usage,
        COALESCE(num_finished_reqs, 0) AS num_finished_reqs,
        step
    FROM steps
    WHERE num_running_reqs IS NOT NULL
),
chained AS (
    SELECT
        *,
        LEAD(time_ns) OVER decided AS next_ns,
        num_running_reqs - num_finished_reqs
            - CASE WHEN LAG(done_ns) OVER decided > time_ns THEN LAG(num_finished_reqs) OVER decided ELSE 0 END AS num_left_reqs
    FROM decisions
    WINDOW decided AS (PARTITION BY engine ORDER BY time_ns, step)
)
SELECT
    'steps' AS source,
    engine,
    time_ns,
    LEAST(next_ns, done_ns) AS until_ns,
    num_running_reqs,
    num_waiting_reqs,
    kv_cache_usage
FROM chained
UNION ALL
SELECT
    'steps',
    engine,
    done_ns,
    next_ns,
    GREATEST(num_left_reqs, 0),
    num_waiting_reqs,
    CASE WHEN num_left_reqs <= 0 THEN 0 ELSE kv_cache_usage END
FROM chained
WHERE done_ns < next_ns OR (next_ns IS NULL AND done_ns IS NOT NULL)
