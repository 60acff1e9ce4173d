-- How many requests ran, weighted by the device's time?
--
-- Of a replay; exact however few of its steps are kept.
--
-- engine     its number
-- busy_s     device time, seconds
-- mean_running_reqs   requests running on average while the device worked
-- p50_running_reqs, p90_running_reqs, p99_running_reqs   at most so many ran in that share of the time
-- max_running_reqs    most at once
WITH running AS (
    SELECT engine, bucket_high AS num, SUM(count) AS ns
    FROM distributions
    WHERE metric = 'num_running_reqs' AND count > 0
    GROUP BY engine, bucket_high
),
summed AS (
    SELECT
        *,
        SUM(ns) OVER (PARTITION BY engine ORDER BY num) AS ns_up_to,
        SUM(ns) OVER (PARTITION BY engine) AS ns_in_all
    FROM running
)
SELECT
    engine,
    ANY_VALUE(ns_in_all) / 1e9 AS busy_s,
    SUM(num * ns) / ANY_VALUE(ns_in_all) AS mean_running_reqs,
    MIN(num) FILTER (WHERE ns_up_to >= 0.5 * ns_in_all) AS p50_running_reqs,
    MIN(num) FILTER (WHERE ns_up_to >= 0.9 * ns_in_all) AS p90_running_reqs,
    MIN(num) FILTER (WHERE ns_up_to >= 0.99 * ns_in_all) AS p99_running_reqs,
    MAX(num) AS max_running_reqs
FROM summed
GROUP BY engine
ORDER BY engine NULLS FIRST
