-- The share of prompt tokens that hit the prefix cache, in $parts equal parts of the run by arrival.
--
-- part                 its number, from 0
-- start_ns, end_ns     its bounds
-- num_requests, num_prompt_tokens   what arrived in it
-- cached_share         0..1
-- repeated_share       share of its prompt tokens whose content an earlier request had: what could have hit
WITH served AS (
    SELECT request_id, arrival_ns, num_prompt_tokens, num_cached_tokens, block_hashes
    FROM requests
    WHERE num_cached_tokens IS NOT NULL AND arrival_ns IS NOT NULL
),
bounds AS (
    SELECT MIN(arrival_ns) AS low, GREATEST(MAX(arrival_ns) - MIN(arrival_ns), 1) AS span FROM served
),
placed AS (
    SELECT s.*, LEAST((s.arrival_ns - b.low) * $parts // b.span, $parts - 1) AS part FROM served AS s, bounds AS b
),
named AS (
    SELECT request_id, part, arrival_ns, UNNEST(block_hashes) AS content FROM placed
),
repeated AS (
    SELECT request_id, COUNT(*) AS num_blocks, SUM((nth > 1)::INT) AS num_repeated
    FROM (SELECT request_id, ROW_NUMBER() OVER (PARTITION BY content ORDER BY arrival_ns, request_id) AS nth FROM named)
    GROUP BY request_id
)
SELECT
    p.part,
    ANY_VALUE(b.low + p.part * b.span // $parts) AS start_ns,
    ANY_VALUE(b.low + (p.part + 1) * b.span // $parts) AS end_ns,
    COUNT(*) AS num_requests,
    SUM(p.num_prompt_tokens)::BIGINT AS num_prompt_tokens,
    SUM(p.num_cached_tokens) / SUM(p.num_prompt_tokens) AS cached_share,
    SUM(p.num_prompt_tokens * COALESCE(r.num_repeated / r.num_blocks, 0)) / SUM(p.num_prompt_tokens) AS repeated_share
FROM placed AS p
LEFT JOIN repeated AS r USING (request_id)
CROSS JOIN bounds AS b
GROUP BY p.part
ORDER BY p.part
