"""Lay out the kernel's arrays for one replay; everything that can be large is reserved, not touched."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from tracekit.config import EngineConfig
from tracekit.kernel import layout
from tracekit.kernel.layout import (
    NEVER,
    NO_OWNER,
    NONE,
    Array,
)
from tracekit.kernel.recording import INTERVAL_NS, KEEP_ALL, KEEP_NONE, KEEP_SAMPLE
from tracekit.model.livelock import fruitless_limit
from tracekit.model.rules import Rules
from tracekit.step_time.duration import of_context, of_reqs, of_tokens
from tracekit.step_time.parameters import StepTime

KEEP: Final = {"all": KEEP_ALL, "auto": KEEP_ALL, "sample": KEEP_SAMPLE, "none": KEEP_NONE}
MOST_STEP_ROWS: Final = 2_000_000
"""With ``auto``, more steps than this are kept as a sample (as ``replay.record`` has it)."""
_FIRST_ROWS: Final = 1 << 16


@dataclass
class Memory:
    """All state of one replay; ``run(memory.engines, max_turns)`` goes on from it."""

    engines: Array
    arrays: dict[str, Array]

    @property
    def engine(self) -> Any:  # noqa: ANN401 - a numpy record
        """The engine's record."""
        return self.engines[0]

    def place(self, name: str, array: Array) -> None:
        """Hold an array and tell the engine where it is."""
        self.arrays[name] = array
        self.engines[f"{name}_at"] = array.ctypes.data
        if f"most_{name}" in (self.engines.dtype.names or ()):
            self.engines[f"most_{name}"] = len(array)


def empty_requests(count: int) -> Array:
    """Records of requests that were not sent yet; the caller fills in what arrived."""
    fresh = np.zeros(1, layout.REQUEST)
    for name in ("previous", "following", "slot", "open_preemption", "first_turn", "next_turn", "abort_after_ns"):
        fresh[name] = NONE
    for name in ("arrival_ns", "queued_ns", "scheduled_ns", "first_token_ns", "last_token_ns", "finished_ns"):
        fresh[name] = NEVER
    # Written once, record by record: the first touch of memory costs more than anything else here.
    return fresh.repeat(count)


def memory_for(
    requests: Array,
    hashes: Array,
    num_open: int,
    num_arrivals: int,
    config: EngineConfig,
    rules: Rules,
    step_time: StepTime,
    *,
    max_concurrency: int | None,
    sample_at: Sequence[int],
    books_computed_prompts: bool,
    steps: str,
    lockstep: bool,
) -> Memory:
    """Everything that a replay of these requests needs; ``lockstep`` False makes it handle every decode one by one."""
    engines = np.zeros(1, layout.ENGINE)
    _configure(engines, config, rules, step_time)
    engine = engines[0]
    engine["num_open"], engine["num_requests"] = num_open, num_arrivals
    engine["max_concurrency"] = max_concurrency or 0
    engine["books_computed_prompts"] = books_computed_prompts
    engine["lockstep"] = lockstep and can_lockstep(config, rules)
    engine["keep_steps"] = KEEP[steps]
    engine["num_sample_instants"] = len(sample_at)
    engine["sample_last_ns"] = sample_at[0] - INTERVAL_NS if sample_at else 0
    most_active = int(min(engine["max_num_active"], max(len(requests), 1)))
    longest = int(requests["stop_length"].max()) + 2 if len(requests) else 1
    ring = 1 << (longest + 4).bit_length()
    engine["ring_mask"] = ring - 1
    memory = Memory(engines, {})
    memory.place("requests", requests)
    memory.place("hashes", hashes)
    _place_cache(memory, config, rules, most_active, longest)
    _place_queues(memory, most_active, len(requests), ring)
    _place_records(memory, sample_at, most_active, steps)
    _place_times(memory, step_time, config.max_num_batched_tokens, most_active)
    return memory


def can_lockstep(config: EngineConfig, rules: Rules) -> bool:
    """Whether decodes may advance in lockstep; else they are handled one by one, with the same result.

    Not where a growing request gets more blocks than it needs (up to 0.8.4), nor where a preempted request keeps the
    tokens of the step (priority, 0.9.2 to 0.11.0).
    """
    by_priority = config.scheduling_policy == "priority" and rules.has_priority
    return not rules.num_preallocated_tokens and not (by_priority and rules.scheduled_victim != "give_back")


def _configure(engines: Array, config: EngineConfig, rules: Rules, step_time: StepTime) -> None:
    max_num_active, active_bound = config.max_num_seqs, layout.BOUND_MAX_NUM_SEQS
    if rules.has_active_limit and config.max_num_active_seqs is not None:
        max_num_active = config.max_num_active_seqs
        if max_num_active != config.max_num_seqs:
            active_bound = layout.BOUND_MAX_NUM_ACTIVE
    interval = config.prefill_schedule_interval if rules.has_prefill_interval and config.data_parallel_size == 1 else 1
    usable = config.num_gpu_blocks - rules.has_null_block
    stats = rules.prefix_stats
    values: dict[str, Any] = {
        "max_num_batched_tokens": config.max_num_batched_tokens,
        "max_model_len": config.max_model_len,
        "block_size": config.block_size,
        "block_shift": _shift(config.block_size),
        "max_blocks": -(-config.max_model_len // config.block_size),
        "watermark_blocks": int(config.watermark * config.num_gpu_blocks) if rules.has_watermark else 0,
        "max_num_active": max_num_active,
        "active_bound": active_bound,
        "long_prefill_token_threshold": _long_prefill_threshold(config, rules),
        "adaptive": config.long_prefill_token_threshold_adaptive,
        "spares_lone_request": rules.threshold_spares_lone_request,
        "prefill_interval": interval,
        "last_prefill_step": -interval,
        "num_preallocated": rules.num_preallocated_tokens // config.block_size,
        "usage_blocks": config.num_gpu_blocks if rules.usage_counts_null_block else usable,
        "num_usable_blocks": usable,
        "num_free_blocks": usable,
        "caching": config.enable_prefix_caching,
        "chunked": config.enable_chunked_prefill,
        "full_prompt_gate": rules.full_prompt_gate and config.scheduler_reserve_full_isl,
        "by_priority": config.scheduling_policy == "priority" and rules.has_priority,
        "is_async": config.async_scheduling,
        "depth": 2 if config.async_scheduling else 1,
        "unchunked_over_budget": {"chunk": layout.CHUNK, "skip": layout.SKIP, "stop": layout.HALT}[
            rules.unchunked_over_budget
        ],
        "scheduled_victim": {"crash": layout.CRASH, "keep": layout.KEEP, "give_back": layout.GIVE_BACK}[
            rules.scheduled_victim
        ],
        "steps_back_for_idle_victim": rules.steps_back_for_idle_victim,
        "equal_arrivals_crash": rules.equal_arrivals_crash,
        "goes_on_after_self_preemption": rules.goes_on_after_self_preemption,
        "unhashed_blocks_first": rules.unhashed_blocks_first,
        "counts_lookups": stats.counts == "lookups",
        "preempted_apart": stats.preempted_apart,
        "stats_in_blocks": stats.unit == "blocks",
        "frontend_ns": step_time.frontend_ns,
        "fruitless_limit": fruitless_limit(config),
        **of_context(step_time.parameters)._asdict(),
        **dict.fromkeys(("running_head", "running_tail", "individual_head", "individual_tail", "waiting_head",
                         "waiting_tail", "held_head", "held_tail", "last_processed_step"), NONE),
        "last_second": NEVER,
        "was_idle": True,
    }  # fmt: skip
    for name, value in values.items():
        engines[name] = value


def _shift(block_size: int) -> int:
    """The bits to shift by instead of dividing; ``NONE`` where the block size is no power of two."""
    return block_size.bit_length() - 1 if block_size & (block_size - 1) == 0 else NONE


def _long_prefill_threshold(config: EngineConfig, rules: Rules) -> int:
    """The threshold as far as it does not depend on the load; 0 is no limit (``model.prefill_limits``)."""
    if rules.unchunked_clears_threshold and not (config.enable_chunked_prefill or config.enable_prefix_caching):
        return 0
    return config.long_prefill_token_threshold if rules.has_long_prefill_threshold else 0


def _place_cache(memory: Memory, config: EngineConfig, rules: Rules, most_active: int, longest: int) -> None:
    engine = memory.engine
    count = config.num_gpu_blocks if config.enable_prefix_caching else 1
    blocks = np.zeros(count, layout.BLOCK)
    blocks["owner"] = NO_OWNER
    first = int(rules.has_null_block)
    numbers = np.arange(count, dtype=np.int32)
    blocks["free_previous"], blocks["free_following"] = numbers - 1, numbers + 1
    if count > first:
        blocks["free_previous"][first] = NONE
        blocks["free_following"][-1] = NONE
    engine["free_head"] = first if count > first else NONE
    engine["free_tail"] = count - 1 if count > first else NONE
    chain_bits = max(4, (2 * count).bit_length())
    engine["bucket_shift"] = 64 - chain_bits
    chains = np.empty(1 << chain_bits, layout.CHAIN)
    chains["head"] = chains["tail"] = NONE
    width = -(-longest // config.block_size) + 2
    if rules.num_preallocated_tokens:
        width = max(width, int(engine["max_blocks"]) + 1)
    if not config.enable_prefix_caching:
        width = 1
    slots = np.empty(most_active + 1, layout.SLOT)
    slots["free"] = np.arange(most_active, -1, -1)
    engine["num_free_slots"] = len(slots)
    engine["held_width"] = width
    memory.place("blocks", blocks)
    memory.place("chains", chains)
    memory.place("slots", slots)
    memory.place("held", np.empty((most_active + 1) * width, layout.HELD))


def _place_queues(memory: Memory, most_active: int, num_requests: int, ring: int) -> None:
    residues = np.zeros(int(memory.engine["block_size"]), layout.RESIDUE)
    residues["head"] = residues["tail"] = NONE
    endings = np.empty(ring, layout.CHAIN)
    endings["head"] = endings["tail"] = NONE
    memory.engine["entries_width"] = most_active + 2
    memory.place("plans", np.zeros(2, layout.PLAN))
    memory.place("entries", np.zeros(2 * (most_active + 2), layout.ENTRY))
    memory.place("heaps", np.empty(num_requests + 1, layout.HEAP))
    memory.place("residues", residues)
    memory.place("endings", endings)


def _place_records(memory: Memory, sample_at: Sequence[int], most_active: int, steps: str) -> None:
    rows = MOST_STEP_ROWS + 1 if steps == "auto" else _FIRST_ROWS
    memory.place("step_rows", np.empty(rows, layout.STEP_ROW))
    memory.place("preemption_rows", np.empty(_FIRST_ROWS + most_active, layout.PREEMPTION_ROW))
    memory.place("sample_rows", np.empty(1024, layout.SAMPLE_ROW))
    memory.place("sample_instants", np.array(sample_at or [0], np.int64).view(layout.INSTANT))
    memory.place("recent", np.zeros(layout.RECENT_REQUESTS + 2, layout.RECENT))
    memory.place("itl", np.zeros(layout.ITL_BUCKETS, layout.COUNT))
    memory.place("bound_times", np.zeros(len(layout.BOUNDS), layout.DURATION))
    memory.place("running_times", np.zeros(most_active + 2, layout.DURATION))


def _place_times(memory: Memory, step_time: StepTime, most_tokens: int, most_active: int) -> None:
    """Tabulate what depends on the number of tokens, or of requests, alone."""
    parameters = step_time.parameters
    for name, most, part in (("token_times", most_tokens, of_tokens), ("req_times", most_active, of_reqs)):
        # A victim that kept its tokens (0.10.2 and 0.11.0) is a request more than may run.
        times = np.array([part(parameters, count) for count in range(most + most_active + 2)], np.float64)
        memory.place(name, times.view(layout.PART))


def grow(memory: Memory, reason: int) -> None:
    """Make the table larger that was full."""
    name = {
        layout.STEPS_FULL: "step_rows", layout.PREEMPTIONS_FULL: "preemption_rows", layout.SAMPLES_FULL: "sample_rows"
    }[reason]  # fmt: skip
    old = memory.arrays[name]
    larger = np.empty(2 * len(old), old.dtype)
    larger[: len(old)] = old
    memory.place(name, larger)


def keep_a_sample(memory: Memory) -> None:
    """From now on keep one step a second and every step that preempts; thin out those already kept."""
    engine, count = memory.engine, int(memory.engine["num_step_rows"])
    rows = memory.arrays["step_rows"][:count]
    second = rows["start_ns"] // 1_000_000_000
    kept = rows["num_preempted_reqs"] > 0
    kept[0] = True
    kept[1:] |= second[1:] != second[:-1]
    position = np.cumsum(kept) - 1
    memory.arrays["step_rows"][: int(kept.sum())] = rows[kept]
    for plan in memory.arrays["plans"]:
        if 0 <= plan["row"] < count:
            plan["row"] = position[plan["row"]] if kept[plan["row"]] else NONE
    engine["num_step_rows"] = int(kept.sum())
    engine["last_second"] = second[-1]
    engine["keep_steps"] = KEEP_SAMPLE
