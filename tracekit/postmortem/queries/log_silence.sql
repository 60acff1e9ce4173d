-- Stretches without a periodic line although requests were in flight.
--
-- start_ns, end_ns     the lines on either side
-- silent_s             how long nothing was printed
-- usual_s              the usual distance between two lines
-- num_in_flight        requests that had arrived and not ended by the middle of it
WITH lines AS (
    SELECT DISTINCT time_ns FROM engine_stats WHERE source = 'log'
),
gaps AS (
    SELECT time_ns AS start_ns, LEAD(time_ns) OVER (ORDER BY time_ns) AS end_ns FROM lines
),
usual AS (
    SELECT MEDIAN(end_ns - start_ns) AS ns FROM gaps WHERE end_ns IS NOT NULL
),
silent AS (
    SELECT g.*, u.ns FROM gaps AS g, usual AS u WHERE g.end_ns - g.start_ns > GREATEST(3 * u.ns, 30000000000)
)
SELECT
    s.start_ns,
    s.end_ns,
    (s.end_ns - s.start_ns) / 1e9 AS silent_s,
    s.ns / 1e9 AS usual_s,
    (
        SELECT COUNT(*) FROM requests AS r
        WHERE r.arrival_ns < (s.start_ns + s.end_ns) // 2
            AND COALESCE(r.finished_ns, r.last_token_ns) > (s.start_ns + s.end_ns) // 2
    ) AS num_in_flight
FROM silent AS s
ORDER BY silent_s DESC, s.start_ns
