-- How many requests two runs have in common, by request_id.
--
-- num_matched         requests in both
-- num_only_observed   requests only in observed
-- num_only_simulated  requests only in simulated
SELECT
    COUNT(*) FILTER (WHERE o.request_id IS NOT NULL AND s.request_id IS NOT NULL) AS num_matched,
    COUNT(*) FILTER (WHERE s.request_id IS NULL) AS num_only_observed,
    COUNT(*) FILTER (WHERE o.request_id IS NULL) AS num_only_simulated
FROM (SELECT request_id FROM observed.requests) AS o
FULL JOIN (SELECT request_id FROM simulated.requests) AS s USING (request_id)
ORDER BY ALL
