-- What the preemptions from $start_ns to $end_ns cost their victims: the time from eviction to the step that resumed them.
--
-- num_delayed          evictions whose resumption is known
-- total_delay_s, mean_delay_s, max_delay_s   time spent preempted
-- hardest_hit          the request that lost most, and num_hits how often it was evicted
WITH hits AS (
    SELECT p.request_id, COALESCE(s.scheduled_ns, s.start_ns) - p.time_ns AS delay_ns
    FROM preemptions AS p
    LEFT JOIN steps AS s ON s.step = p.resumed_step AND COALESCE(s.engine, 0) = COALESCE(p.engine, 0)
    WHERE p.time_ns BETWEEN $start_ns AND $end_ns
),
by_request AS (
    SELECT request_id, SUM(delay_ns) AS delay_ns, COUNT(*) AS num_hits FROM hits GROUP BY request_id
)
SELECT
    COUNT(delay_ns) AS num_delayed,
    SUM(delay_ns) / 1e9 AS total_delay_s,
    AVG(delay_ns) / 1e9 AS mean_delay_s,
    MAX(delay_ns) / 1e9 AS max_delay_s,
    (SELECT request_id FROM by_request ORDER BY delay_ns DESC NULLS LAST, request_id LIMIT 1) AS hardest_hit,
    (SELECT num_hits FROM by_request ORDER BY delay_ns DESC NULLS LAST, request_id LIMIT 1) AS num_hits
FROM hits
ORDER BY num_delayed
