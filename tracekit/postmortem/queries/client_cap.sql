-- Does the client keep a fixed number of requests in flight? What was in flight just before each arrival.
--
-- num_in_flight        the commonest number, the new request included
-- share                share of the arrivals at which it was that
-- num_arrivals         arrivals counted (after the number was first reached)
-- start_ns, end_ns     from the first such arrival to the last
-- median_gap_ms        from the last end before an arrival to that arrival
WITH changes AS (
    SELECT arrival_ns AS time_ns, 1 AS change, TRUE AS is_arrival, request_id FROM requests
    WHERE arrival_ns IS NOT NULL AND finish_reason IS DISTINCT FROM 'rejected'
    UNION ALL
    SELECT COALESCE(finished_ns, last_token_ns), -1, FALSE, request_id FROM requests
    WHERE COALESCE(finished_ns, last_token_ns) IS NOT NULL AND arrival_ns IS NOT NULL
        AND finish_reason IS DISTINCT FROM 'rejected'
),
running AS (
    SELECT
        *,
        SUM(change) OVER (ORDER BY time_ns, change, request_id) AS num_in_flight,
        MAX(CASE WHEN NOT is_arrival THEN time_ns END) OVER (ORDER BY time_ns, change, request_id) AS last_end_ns
    FROM changes
),
arrivals AS (
    SELECT * FROM running WHERE is_arrival
),
commonest AS (
    SELECT num_in_flight, MIN(time_ns) AS first_ns FROM arrivals GROUP BY num_in_flight ORDER BY COUNT(*) DESC, num_in_flight LIMIT 1
)
SELECT
    ANY_VALUE(c.num_in_flight)::BIGINT AS num_in_flight,
    AVG((a.num_in_flight = c.num_in_flight)::INT) AS share,
    COUNT(*) AS num_arrivals,
    MIN(a.time_ns) AS start_ns,
    MAX(a.time_ns) AS end_ns,
    MEDIAN(a.time_ns - a.last_end_ns) / 1e6 AS median_gap_ms
FROM arrivals AS a, commonest AS c
WHERE a.time_ns >= c.first_ns
ORDER BY num_in_flight
