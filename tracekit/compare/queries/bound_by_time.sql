-- What kept the head of the waiting queue out, and for how long?
--
-- bound_by     none (nobody waited), token_budget, max_num_seqs, kv_blocks, ...: see the dictionary
-- num_steps    steps bound by it
-- duration_s   device time of those steps, seconds
-- share        their share of the device time, 0..1
-- mean_waiting_reqs  waiting requests on average in those steps
SELECT
    bound_by,
    COUNT(*) AS num_steps,
    SUM(duration_ns) / 1e9 AS duration_s,
    SUM(duration_ns) / NULLIF(SUM(SUM(duration_ns)) OVER (), 0) AS share,
    AVG(num_waiting_reqs) AS mean_waiting_reqs
FROM steps
WHERE bound_by IS NOT NULL
GROUP BY bound_by
ORDER BY duration_s DESC NULLS LAST, bound_by
