-- The head of the queue does not fit, while others behind it would: for how long, and who is the head?
--
-- start_ns, end_ns     a stretch of such steps, no more than a second apart
-- duration_s           its device time
-- mean_free_blocks, mean_waiting_reqs   in those steps
-- request_id, num_prompt_tokens   the head: the longest-waiting request, and its prompt
-- median_prompt_tokens  of all requests
WITH typical AS (
    SELECT MEDIAN(num_prompt_tokens) AS num_tokens FROM requests WHERE num_prompt_tokens IS NOT NULL
),
blocked AS (
    SELECT s.*, s.start_ns - LAG(s.start_ns + s.duration_ns) OVER (ORDER BY s.start_ns) AS gap_ns
    FROM steps AS s, typical AS t
    WHERE s.bound_by IN ('kv_blocks', 'full_prompt_reservation', 'watermark')
        AND s.num_waiting_reqs >= 2
        AND s.num_free_blocks * $block_size >= 2 * t.num_tokens
),
numbered AS (
    SELECT *, SUM((gap_ns IS NULL OR gap_ns > 1000000000)::INT) OVER (ORDER BY start_ns) AS stretch FROM blocked
),
stretches AS (
    SELECT
        MIN(start_ns) AS start_ns,
        MAX(start_ns + duration_ns) AS end_ns,
        SUM(duration_ns) / 1e9 AS duration_s,
        AVG(num_free_blocks) AS mean_free_blocks,
        AVG(num_waiting_reqs) AS mean_waiting_reqs
    FROM numbered
    GROUP BY stretch
    HAVING SUM(duration_ns) >= $least_s::BIGINT * 1000000000
),
heads AS (
    SELECT
        t.*,
        r.request_id,
        r.num_prompt_tokens,
        ROW_NUMBER() OVER (PARTITION BY t.start_ns ORDER BY r.queued_ns, r.request_id) AS place
    FROM stretches AS t
    JOIN requests AS r ON r.queued_ns <= t.start_ns AND (r.scheduled_ns IS NULL OR r.scheduled_ns > t.start_ns)
)
SELECT
    start_ns, end_ns, duration_s, mean_free_blocks, mean_waiting_reqs, request_id, num_prompt_tokens,
    (SELECT num_tokens FROM typical) AS median_prompt_tokens
FROM heads
WHERE place = 1
ORDER BY duration_s DESC, start_ns
