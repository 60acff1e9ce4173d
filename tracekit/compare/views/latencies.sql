-- One row a request that was served to its end (finish_reason stop, length or unknown), with its latencies.
--
-- The boundary is that of the columns read: the client's where only the client was observed, else the engine's.
-- ttft_ns   first token - arrival; null without a first token
-- tpot_ns   (last - first token) / (generated tokens - 1); null below two generated tokens
-- e2e_ns    last token - arrival; null without a last token
-- queue_ns  first scheduled - queued; null where the engine's own instants are unknown
SELECT
    request_id,
    engine,
    arrival_ns,
    num_prompt_tokens,
    num_generated_tokens,
    num_preemptions,
    first_token_ns - arrival_ns AS ttft_ns,
    CASE WHEN num_generated_tokens > 1 THEN (last_token_ns - first_token_ns) / (num_generated_tokens - 1) END AS tpot_ns,
    last_token_ns - arrival_ns AS e2e_ns,
    scheduled_ns - queued_ns AS queue_ns
FROM requests
WHERE finish_reason IS NULL OR finish_reason IN ('stop', 'length')
