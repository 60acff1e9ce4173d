"""The tables of a run; a column is spelled here and nowhere else.

``schemas/`` and ``docs/data-dictionary.md`` are generated from this module (``python -m tracekit.schema``).
Instants are nanoseconds from the run's start, shares are 0..1, null means unknown or not applicable.
"""

from typing import Final

from tracekit.schema.column import Column, Table

ENGINE: Final = Column("engine", "int32", "Engine (data-parallel rank) number; null for an aggregate or when unknown.")


def _instant(name: str, doc: str, *, nullable: bool = True) -> Column:
    return Column(name, "int64", doc, unit="ns", nullable=nullable)


def _count(name: str, doc: str, *, nullable: bool = True, unit: str | None = None) -> Column:
    return Column(name, "int64", doc, unit=unit, nullable=nullable)


def _text(name: str, doc: str, *, nullable: bool = True) -> Column:
    return Column(name, "string", doc, nullable=nullable)


REQUESTS: Final = Table(
    "requests",
    "a request: what arrived, and (where known) what became of it",
    (
        _text("request_id", "Unique name of the request; made when missing or repeated.", nullable=False),
        _text("source_request_id", "The id the source gave, where request_id had to be made anew."),
        ENGINE,
        _instant(
            "arrival_ns", "When it arrived (client side where only that was observed); null only for a later turn."
        ),
        _text("parent_request_id", "The previous turn of the same session."),
        _text("session_id", "The conversation it belongs to."),
        Column("think_ns", "int64", "Time between the end of the parent and this arrival.", unit="ns"),
        _count("num_prompt_tokens", "Prompt length; null when unknown, e.g. of a refused request.", unit="tokens"),
        _count("num_output_tokens", "Output length if left alone.", unit="tokens"),
        _count("max_tokens", "Output limit that the client set.", unit="tokens"),
        Column("priority", "int32", "Scheduling priority; lower is served first."),
        Column(
            "block_hashes",
            "list<uint64>",
            "Chained content hashes of the prompt's full blocks of hash_block_size tokens; with a parent, those behind "
            "the parent's prompt name blocks the parent generated. Null: the prompt is unique.",
        ),
        _instant("queued_ns", "When the engine put it into its waiting queue."),
        _instant("scheduled_ns", "When it was first scheduled."),
        _instant("first_token_ns", "When its first output token was there."),
        _instant("last_token_ns", "When its last output token was there."),
        _instant("finished_ns", "When it ended, also of an aborted, failed or refused one."),
        _count("num_generated_tokens", "Output tokens it really got.", unit="tokens"),
        _count("num_cached_tokens", "Prompt tokens found in the prefix cache at first admission.", unit="tokens"),
        _count("num_preemptions", "How often it was preempted.", unit="preemptions"),
        _count("num_recomputed_tokens", "Computed tokens lost to preemption and not found again.", unit="tokens"),
        _text("finish_reason", "stop, length, abort, error, rejected, ignored or unfinished."),
        Column("itl_ns", "list<int64>", "Gaps between output tokens, where measured.", unit="ns"),
        _instant("client_send_ns", "When the client sent it, where client and engine are both known."),
        _instant("client_first_token_ns", "When the client saw the first token."),
        _instant("client_last_token_ns", "When the client saw the last token."),
    ),
)

STEPS: Final = Table(
    "steps",
    "a scheduler step (one forward pass)",
    (
        _count("step", "Number of the step, from 0, per engine.", nullable=False),
        ENGINE,
        _instant("start_ns", "When the device starts the step.", nullable=False),
        Column("duration_ns", "int64", "How long the device runs.", unit="ns"),
        _instant("scheduled_ns", "When the host decided the step; earlier than start under asynchronous scheduling."),
        _count("num_running_reqs", "Running requests right after the decision: the concurrency.", unit="requests"),
        _count("num_waiting_reqs", "Waiting requests right after the decision.", unit="requests"),
        _count("num_scheduled_reqs", "Requests with tokens in this step: the batch size.", unit="requests"),
        _count("num_scheduled_tokens", "Tokens computed in this step: the work.", unit="tokens"),
        _count(
            "num_decode_reqs", "Scheduled requests that decode (one new token on a complete context).", unit="requests"
        ),
        _count("num_short_extend_reqs", "Scheduled requests that extend a context by few tokens.", unit="requests"),
        _count("num_long_extend_reqs", "Scheduled requests that extend a context by many tokens.", unit="requests"),
        _count("num_prefill_reqs", "Scheduled requests that start from an empty context.", unit="requests"),
        _count("num_context_tokens", "KV tokens that the scheduled requests held before the step.", unit="tokens"),
        _count("num_free_blocks", "Free KV blocks right after the decision.", unit="blocks"),
        Column("kv_cache_usage", "float64", "Share of the KV blocks in use right after the decision.", unit="share"),
        _count("num_admitted_reqs", "Requests admitted from waiting, resumed ones included.", unit="requests"),
        _count("num_preempted_reqs", "Requests preempted since the last step.", unit="requests"),
        _count("num_finished_reqs", "Requests that finished with this step's output.", unit="requests"),
        _text(
            "bound_by",
            "Why the head of the waiting queue was not admitted: none (nobody waited), token_budget, max_num_seqs, "
            "kv_blocks, full_prompt_reservation, watermark, preempted, prefill_interval.",
        ),
    ),
)

PREEMPTIONS: Final = Table(
    "preemptions",
    "one eviction: a running request loses its KV blocks and waits again",
    (
        _count("step", "The step whose decision evicted it."),
        _instant("time_ns", "When the host decided it.", nullable=False),
        ENGINE,
        _text("request_id", "The victim.", nullable=False),
        _text("needed_by_request_id", "The request that needed the block (may be the victim itself)."),
        _count("num_computed_tokens", "Computed tokens lost.", unit="tokens"),
        _count("num_blocks", "KV blocks freed.", unit="blocks"),
        _count("resumed_step", "The step that admitted it again; null if none did."),
    ),
)

ENGINE_STATS: Final = Table(
    "engine_stats",
    "one periodic sample as vLLM logs or exports it",
    (
        _instant("time_ns", "When the sample was taken.", nullable=False),
        ENGINE,
        Column(
            "prompt_tps",
            "float64",
            "Prompt tokens per second over the interval, as the version books them.",
            unit="tokens/s",
        ),
        Column("generation_tps", "float64", "Output tokens per second over the interval.", unit="tokens/s"),
        _count("num_running_reqs", "Running requests.", unit="requests"),
        _count("num_waiting_reqs", "Waiting requests.", unit="requests"),
        _count("num_swapped_reqs", "Swapped requests (V0).", unit="requests"),
        _count("num_deferred_reqs", "Waiting requests that are deferred.", unit="requests"),
        Column("kv_cache_usage", "float64", "Share of the KV blocks in use.", unit="share"),
        Column(
            "prefix_hit_rate", "float64", "Prefix cache hits over queries, as the version counts them.", unit="share"
        ),
        _count("num_preemptions", "Preemptions since the engine started (cumulative).", unit="preemptions"),
        _count("num_preemptions_min", "Lower bound of the cumulative number.", unit="preemptions"),
        _count("num_preemptions_max", "Upper bound of the cumulative number.", unit="preemptions"),
        _text("source", "log, metrics or replay.", nullable=False),
    ),
)

EVENTS: Final = Table(
    "events",
    "anything else with a time",
    (
        _instant("time_ns", "When; null when the line has no time of its own."),
        ENGINE,
        _text("kind", "start, restart, access, abort, preemption_warning, warning, error, ...", nullable=False),
        _text("request_id", "The request concerned."),
        Column("value", "float64", "The number it carries, e.g. an HTTP status or a cumulative count."),
        _text("file", "Name of the source file."),
        _count("line", "Line number in the source file, from 1."),
    ),
)

DISTRIBUTIONS: Final = Table(
    "distributions",
    "a bucket of a histogram",
    (
        _text("metric", "Canonical name with its unit, e.g. ttft_ns.", nullable=False),
        ENGINE,
        _instant("time_ns", "When the histogram was read; null: of the whole run."),
        Column("bucket_low", "float64", "Lower edge (exclusive); null: none."),
        Column("bucket_high", "float64", "Upper edge (inclusive); null: infinity."),
        _count(
            "count",
            "Observations in the bucket (not cumulative); of num_running_reqs, the device's time in ns.",
            nullable=False,
        ),
        Column(
            "sum",
            "float64",
            "All observations of the histogram added up, in the metric's unit, the same in each of its buckets; null: unknown.",
        ),
    ),
)

TABLES: Final = (REQUESTS, STEPS, PREEMPTIONS, ENGINE_STATS, EVENTS, DISTRIBUTIONS)
TABLES_BY_NAME: Final = {table.name: table for table in TABLES}

FINISH_REASONS: Final = ("stop", "length", "abort", "error", "rejected", "ignored", "unfinished")
