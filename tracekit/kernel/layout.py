"""The kernel's state: one record per request, per KV block, per plan in flight, and one for the engine.

Records are numpy structured types, so that compiled code reads ``request.num_computed_tokens`` as the model does.
``NONE`` stands for a missing link, ``NEVER`` for an instant that has not come: neither leaves the kernel.
"""

from typing import Any, Final

import numpy as np
import numpy.typing as npt

Record = Any
"""One element of a structured array: to compiled code a reference to it."""
Array = npt.NDArray[Any]

NONE: Final = -1
NEVER: Final = -(1 << 62)

# status of a request
UNSENT: Final = 0
WAITING: Final = 1
RUNNING: Final = 2
PREEMPTED: Final = 3
FINISHED: Final = 4

FINISH_REASONS: Final = ("unfinished", "stop", "length", "abort", "rejected")
UNFINISHED: Final = 0
STOP: Final = 1
LENGTH: Final = 2
ABORT: Final = 3
REJECTED: Final = 4

BOUNDS: Final = ("none", "token_budget", "max_num_seqs", "max_num_active_seqs", "kv_blocks", "full_prompt_reservation",
                 "watermark", "preempted", "prefill_interval")  # fmt: skip
BOUND_NONE: Final = 0
BOUND_TOKEN_BUDGET: Final = 1
BOUND_MAX_NUM_SEQS: Final = 2
BOUND_MAX_NUM_ACTIVE: Final = 3
BOUND_KV_BLOCKS: Final = 4
BOUND_FULL_PROMPT: Final = 5
BOUND_WATERMARK: Final = 6
BOUND_PREEMPTED: Final = 7
BOUND_PREFILL_INTERVAL: Final = 8

# what a pass over the kernel ends with
DONE: Final = 0
PAUSED: Final = 1
STEPS_FULL: Final = 2
PREEMPTIONS_FULL: Final = 3
SAMPLES_FULL: Final = 4
CRASH_EQUAL_ARRIVALS: Final = 5
CRASH_SCHEDULED_VICTIM: Final = 6
CRASH_KEPT_OUTPUT: Final = 7
CRASH_STUCK: Final = 8

# rules with more than two values
CHUNK: Final = 0
SKIP: Final = 1
HALT: Final = 2
CRASH: Final = 0
KEEP: Final = 1
GIVE_BACK: Final = 2

NO_OWNER: Final = -2
"""A block without a hash."""
NAMED: Final = -1
"""A block whose content the trace names; else the owner is the only request that has this content."""

RECENT_REQUESTS: Final = 1000
ITL_BUCKETS: Final = 64 * 64

_I8: Final = "i8"
_I4: Final = "i4"

REQUEST: Final = np.dtype(
    [(name, _I8) for name in (
        "due_ns", "order", "abort_after_ns", "think_ns", "hashes_start",
        "arrival_ns", "queued_ns", "scheduled_ns", "first_token_ns", "last_token_ns", "finished_ns",
        "admission", "planned_in", "lock_base", "lock_entry", "open_preemption",
    )]
    + [(name, _I4) for name in (
        "num_prompt_tokens", "stop_length", "schedule_limit", "max_tokens", "priority", "rank", "num_hashes",
        "refused", "first_turn", "next_turn",
        "num_tokens", "num_computed_tokens", "num_output_placeholders", "num_blocks", "num_hashed_blocks", "slot",
        "num_cached_tokens", "num_preemptions", "num_lost_tokens", "num_recomputed_tokens",
        "previous", "following", "peer_previous", "peer_following", "bucket_previous", "bucket_following", "bucket",
    )]
    + [(name, "?") for name in ("is_prefill_chunk", "in_lockstep")]
    + [(name, "i1") for name in ("status", "finish_reason")], align=True
)  # fmt: skip

BLOCK: Final = np.dtype(
    [("content", _I8)] + [(name, _I4) for name in ("owner", "references", "free_previous", "free_following",
                                                   "same_previous", "same_following", "watch")], align=True
)  # fmt: skip

PLAN: Final = np.dtype(
    [(name, _I8) for name in ("step", "end_ns", "row", "count", "num_lockstep", "num_scheduled_tokens",
                              "num_context_tokens", "num_attention_pairs", "num_decode", "num_short_extend",
                              "num_long_extend", "num_prefill",
                              "num_admitted", "num_preemptions", "num_kept", "bound_by")]
    + [("is_unsorted", "?")], align=True
)  # fmt: skip

ENTRY: Final = np.dtype([("request", _I4), ("num_new_tokens", _I4), ("samples", "?"), ("kept", "?"), ("sampled", "?"),
                         ("finished", "?")], align=True)  # fmt: skip
"""One request of a plan that is handled apart from the decodes in lockstep."""

ENGINE: Final = np.dtype(
    [(name, _I8) for name in (
        # configuration
        "max_num_batched_tokens", "max_model_len", "block_size", "max_blocks", "watermark_blocks", "max_num_active",
        "active_bound", "long_prefill_token_threshold", "prefill_interval", "num_preallocated", "usage_blocks",
        "num_usable_blocks", "frontend_ns", "max_concurrency", "depth", "unchunked_over_budget", "scheduled_victim",
        "stats_in_blocks", "ring_mask", "bucket_shift", "block_shift",
        # the clients
        "next_open", "num_open", "heap_size", "held_head", "held_tail", "num_in_flight_requests", "num_ended",
        "num_requests", "abort_size",
        # the scheduler
        "running_head", "running_tail", "num_running", "individual_head", "individual_tail", "num_individual",
        "waiting_head", "waiting_tail", "num_waiting", "num_known", "next_admission", "attempt",
        "num_executed_steps", "last_prefill_step", "num_free_blocks", "free_head", "free_tail", "num_free_slots",
        "watch_request", "watch_tokens", "watch_hits", "watch_unreferenced", "watch_number", "watch_owner", "watch_content",
        # lockstep
        "num_lockstep", "lock_base_sum", "step_mod", "last_processed_step",
        # the loop
        "now", "device_free", "num_steps", "num_plans", "oldest_plan", "last_update_ns", "crash", "num_preempted_since_step", "request_steps",
        # records
        "num_step_rows", "num_preemption_rows", "num_sample_rows", "last_second", "keep_steps",
        "sample_position", "num_sample_instants", "sample_last_ns", "state_running", "state_waiting", "state_free_blocks",
        "prompt_tokens_booked", "tokens_booked", "preemptions_booked", "fruitless_tokens", "fruitless_limit",
        "prefix_requests", "prefix_queries", "prefix_hits", "preempted_requests", "preempted_queries", "preempted_hits", "seen_requests", "seen_queries", "seen_hits",
        "recent_first", "recent_count", "recent_requests", "recent_queries", "recent_hits",
        # where the arrays are, and how long the growing ones
        "requests_at", "blocks_at", "chains_at", "slots_at", "hashes_at", "held_at", "plans_at", "entries_at", "heaps_at",
        "residues_at", "endings_at", "step_rows_at", "preemption_rows_at", "sample_rows_at", "sample_instants_at",
        "recent_at", "itl_at", "bound_times_at", "running_times_at", "token_times_at", "req_times_at",
        "held_width", "entries_width", "most_step_rows", "most_preemption_rows", "most_sample_rows",
    )]
    + [(name, "f8") for name in ("per_context_token", "per_attention_pair", "per_prefill_step")]
    + [(name, "?") for name in (
        "caching", "chunked", "adaptive", "full_prompt_gate", "by_priority", "is_async", "lockstep",
        "spares_lone_request", "steps_back_for_idle_victim", "equal_arrivals_crash", "goes_on_after_self_preemption",
        "unhashed_blocks_first", "counts_lookups", "preempted_apart", "books_computed_prompts",
        "prefill_capacity_bound", "is_blocked", "was_idle", "is_watching", "hits_are_listed", "has_state",
    )], align=True
)  # fmt: skip

STEP_ROW: Final = np.dtype(
    [(name, _I8) for name in (
        "step", "start_ns", "duration_ns", "scheduled_ns", "num_running_reqs", "num_waiting_reqs",
        "num_scheduled_reqs", "num_scheduled_tokens", "num_decode_reqs", "num_short_extend_reqs",
        "num_long_extend_reqs", "num_prefill_reqs", "num_context_tokens", "num_free_blocks", "num_admitted_reqs",
        "num_preempted_reqs", "num_finished_reqs", "bound_by",
    )] + [("kv_cache_usage", "f8")], align=True
)  # fmt: skip
PREEMPTION_ROW: Final = np.dtype(
    [(name, _I8) for name in ("step", "time_ns", "request", "needed_by", "num_computed_tokens", "num_blocks",
                              "resumed_step")], align=True
)  # fmt: skip
SAMPLE_ROW: Final = np.dtype(
    [(name, _I8) for name in ("time_ns", "num_running_reqs", "num_waiting_reqs", "num_preemptions")]
    + [(name, "f8") for name in ("prompt_tps", "generation_tps", "kv_cache_usage", "prefix_hit_rate")], align=True
)  # fmt: skip
RECENT: Final = np.dtype([(name, _I8) for name in ("requests", "queries", "hits")], align=True)

# records of one number each, so that every array is reached the same way
HASH: Final = np.dtype([("content", _I8)])
HELD: Final = np.dtype([("block", _I4)])
SLOT: Final = np.dtype([("free", _I4)])
CHAIN: Final = np.dtype([("head", _I4), ("tail", _I4)])
RESIDUE: Final = np.dtype([("count", _I8), ("head", _I4), ("tail", _I4)])
HEAP: Final = np.dtype([(name, _I4) for name in ("due", "abort", "waiting", "passed_over")])
INSTANT: Final = np.dtype([("time_ns", _I8)])
COUNT: Final = np.dtype([("count", _I8)])
DURATION: Final = np.dtype([("duration_ns", _I8)])
PART: Final = np.dtype([("ns", "f8")])
"""What so many tokens, or requests, add to the time of a step."""

ARRAYS: Final = {
    "requests": REQUEST, "blocks": BLOCK, "chains": CHAIN, "slots": SLOT, "hashes": HASH, "held": HELD, "plans": PLAN,
    "entries": ENTRY, "heaps": HEAP, "residues": RESIDUE, "endings": CHAIN, "step_rows": STEP_ROW,
    "preemption_rows": PREEMPTION_ROW, "sample_rows": SAMPLE_ROW, "sample_instants": INSTANT, "recent": RECENT,
    "itl": COUNT, "bound_times": DURATION, "running_times": DURATION,
    "token_times": PART, "req_times": PART,
}  # fmt: skip
"""Every array of the kernel and what its records are; ``references`` has a function for each."""
