-- When the first and the last request of one run arrived.
--
-- first_ns  first arrival; null without any
-- last_ns   last arrival
SELECT MIN(arrival_ns) AS first_ns, MAX(arrival_ns) AS last_ns
FROM requests
ORDER BY ALL
