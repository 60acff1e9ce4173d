-- Which requests does the simulation miss by most?
--
-- $limit = 20: how many requests
--
-- request_id        a request of both runs, served to its end in both
-- observed_e2e_ms, simulated_e2e_ms     arrival to last token, milliseconds
-- observed_ttft_ms, simulated_ttft_ms   arrival to first token, milliseconds
-- e2e_error         simulated / observed - 1
SELECT
    request_id,
    o.e2e_ns / 1e6 AS observed_e2e_ms,
    s.e2e_ns / 1e6 AS simulated_e2e_ms,
    o.ttft_ns / 1e6 AS observed_ttft_ms,
    s.ttft_ns / 1e6 AS simulated_ttft_ms,
    s.e2e_ns / NULLIF(o.e2e_ns, 0) - 1 AS e2e_error
FROM observed.latencies AS o
JOIN simulated.latencies AS s USING (request_id)
ORDER BY ABS(s.e2e_ns - o.e2e_ns) DESC NULLS LAST, request_id
LIMIT $limit
