-- The evictions from $start_ns to $end_ns one by one: who lost what, for whom, and the pool at that moment.
--
-- time_s, step         when it was decided
-- victim, needed_by    who lost its blocks, and whose tokens needed one
-- num_computed_tokens, num_blocks   what the victim lost
-- num_running_reqs, num_waiting_reqs, kv_cache_usage   right after that step's decision
SELECT
    p.time_ns / 1e9 AS time_s,
    p.step,
    p.request_id AS victim,
    p.needed_by_request_id AS needed_by,
    p.num_computed_tokens,
    p.num_blocks,
    s.num_running_reqs,
    s.num_waiting_reqs,
    s.kv_cache_usage
FROM preemptions AS p
LEFT JOIN steps AS s ON s.step = p.step AND COALESCE(s.engine, 0) = COALESCE(p.engine, 0)
WHERE p.time_ns BETWEEN $start_ns AND $end_ns
ORDER BY p.time_ns, p.request_id
LIMIT $most
