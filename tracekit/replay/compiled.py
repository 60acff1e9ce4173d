"""Replay with the kernel: the requests table as columns, the compiled loop, the tables; no object per request.

The same tables as the model's path (``replay.simulate``), to the nanosecond, for whatever ``unsupported`` has nothing
to say about.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final

import polars as pl

from tracekit.config import EngineConfig
from tracekit.model.livelock import STUCK
from tracekit.model.rules import Rules
from tracekit.progress import Progress, no_progress
from tracekit.replay.clients import ArrivalMode
from tracekit.step_time.parameters import StepTime

_TURNS_A_CALL: Final = 1 << 18
_LARGEST: Final = 2**30
_MOST_BUDGET: Final = 2**22
_RULES: Final = frozenset({
    "engine", "full_prompt_gate", "has_watermark", "unchunked_over_budget", "has_active_limit", "has_prefill_interval",
    "has_long_prefill_threshold", "threshold_spares_lone_request", "unchunked_clears_threshold", "foresees_max_tokens",
    "has_priority", "scheduled_victim", "steps_back_for_idle_victim", "equal_arrivals_crash",
    "goes_on_after_self_preemption", "has_null_block", "num_preallocated_tokens", "unhashed_blocks_first",
    "usage_counts_null_block", "has_running_reset", "reset_drops_next_output", "prefix_stats", "window",
})  # fmt: skip
"""The rules that the kernel follows; a replay resets no cache."""
_CRASHES: Final = (
    (
        "vLLM 0.9.2 to 0.11.2 crashes here (TypeError): two waiting requests have the same priority and arrival "
        "time, and requests cannot be compared"
    ),
    (
        "vLLM 0.9.2 to 0.10.1 crashes here (AssertionError): a request was preempted by priority "
        "after it had been scheduled in the same step"
    ),
    (
        "vLLM 0.9.2 to 0.11.0 crashes here (AssertionError): under asynchronous scheduling the output of a "
        "request that was preempted by priority in the step that scheduled it has no placeholder"
    ),
    STUCK,
)


@dataclass
class CompiledReplay:
    """What the kernel recorded.

    ``left_out``: rows that were not replayed, by reason; ``refused``: requests by vLLM's reason; ``steps_kept``: which
    rows of ``steps`` were stored (all, none, sample). The aggregates are exact whatever was stored: the device's time
    by ``bound_by`` here, and by the number of running requests in ``distributions``.
    """

    tables: dict[str, pl.DataFrame]
    left_out: Counter[str]
    refused: Counter[str]
    notes: list[str]
    steps_kept: str
    num_steps: int
    prefix_cache: dict[str, int] = field(default_factory=dict)
    ns_bound_by: dict[str, int] = field(default_factory=dict)


def unsupported(  # noqa: PLR0911 - one reason a line
    config: EngineConfig, rules: Rules, requests: pl.DataFrame | None = None
) -> str | None:
    """Why the kernel cannot replay this, in words for ``run.json``; None when it can."""
    if config.max_num_batched_tokens > _MOST_BUDGET:
        return "the kernel tabulates the time of steps up to 2^22 tokens"
    if rules.engine != "v1":
        return "the kernel has no V0 scheduler"
    unknown = [f.name for f in fields(rules) if f.name not in _RULES and not f.name.startswith("v0_")]
    if any(getattr(rules, name) != getattr(Rules(), name) for name in unknown):
        return f"the kernel does not know the rule {unknown[0]}"
    if config.kv_cache_windows not in {(), (None,)}:
        return "the kernel has one group of full attention"
    if config.data_parallel_size != 1:
        return "the kernel has one engine"
    if requests is not None:
        engines = requests["engine"].unique()
        if len(engines) > 1:
            return "the kernel has one engine"
    if max(config.max_model_len, config.num_gpu_blocks, config.max_num_batched_tokens) > _LARGEST:
        return "the kernel counts tokens and blocks up to 2^30"
    return None


def replay_compiled(
    requests: pl.DataFrame,
    config: EngineConfig,
    rules: Rules,
    step_time: StepTime,
    mode: ArrivalMode,
    *,
    hash_block_size: int | None = None,
    rate: float = 1.0,
    sample_at: Sequence[int] = (),
    books_computed_prompts: bool = True,
    steps: str = "auto",
    lockstep: bool = True,
    progress: Progress = no_progress,
    announce: Callable[[str], None] | None = None,
) -> CompiledReplay:
    """Replay a requests table; arguments as of ``Simulation`` and ``workload_of``.

    ``steps``: all, none, sample (one a second and every step that preempts), or auto (all up to 2 million, else a
    sample). ``lockstep`` False handles every decode one by one, as a plain loop does. ``announce`` is told once when
    the kernel has to be compiled first.
    """
    from tracekit.kernel.compiling import is_compiled
    from tracekit.kernel.memory import memory_for
    from tracekit.replay.compiled_columns import REFUSALS, columns_of
    from tracekit.replay.compiled_tables import tables_of
    from tracekit.replay.endpoints import held_in_frontend
    from tracekit.replay.workload import compressed

    if announce is not None and not is_compiled():
        announce("compiling the kernel, once for this version of tracekit (about 20 s)")
    sent_requests = held_in_frontend(compressed(requests, rate), step_time.chat_ns)
    columns = columns_of(sent_requests, config, rules, mode, hash_block_size)
    memory = memory_for(
        columns.requests, columns.hashes, columns.num_open, columns.num_arrivals, config, rules, step_time,
        max_concurrency=mode.max_concurrency, sample_at=sample_at, books_computed_prompts=books_computed_prompts,
        steps=steps, lockstep=lockstep,
    )  # fmt: skip
    crash = run_kernel(memory, steps, progress)
    if crash is not None:
        columns.notes.append(f"the replay ends where the recorded version dies: {crash}")
    sent = memory.arrays["requests"]["status"] != 0
    if num_unsent := int((~sent).sum()):
        columns.left_out[why_never_sent(crash is not None)] += num_unsent
    codes = memory.arrays["requests"]["refused"]
    refused = Counter({
        what: count for code, what in enumerate(REFUSALS, 1) if (count := int(((codes == code) & sent).sum()))
    })  # fmt: skip
    return CompiledReplay(
        tables_of(requests, columns, memory), columns.left_out, refused, columns.notes, *_aggregates(memory)
    )


def why_never_sent(crashed: bool) -> str:  # noqa: FBT001 - its only question
    """Why a request's turn never came."""
    return "the engine had died before it was sent" if crashed else "its earlier turn never ended, so it was never sent"


def run_kernel(memory: Any, steps: str = "all", progress: Progress = no_progress) -> str | None:  # noqa: ANN401
    """Run to the end; returns what vLLM itself would have died of, or None."""
    from tracekit.kernel import layout
    from tracekit.kernel.loop import run
    from tracekit.kernel.memory import grow, keep_a_sample

    while True:
        reason = run(memory.engines, _TURNS_A_CALL)
        if reason == layout.STEPS_FULL and steps == "auto":
            keep_a_sample(memory)
        elif reason in {layout.STEPS_FULL, layout.PREEMPTIONS_FULL, layout.SAMPLES_FULL}:
            grow(memory, reason)
        elif reason != layout.PAUSED:
            break
        progress("replay", int(memory.engine["num_ended"]), int(memory.engine["num_requests"]))
    if reason == layout.DONE:
        progress("replay", int(memory.engine["num_ended"]), int(memory.engine["num_requests"]))
        return None
    return _CRASHES[reason - layout.CRASH_EQUAL_ARRIVALS]


def _aggregates(memory: Any) -> tuple[str, int, dict[str, int], dict[str, int]]:  # noqa: ANN401
    from tracekit.kernel.layout import BOUNDS
    from tracekit.kernel.recording import KEEP_ALL, KEEP_NONE

    kept = {KEEP_ALL: "all", KEEP_NONE: "none"}.get(int(memory.engine["keep_steps"]), "sample")
    bound_by = {
        name: int(ns) for name, ns in zip(BOUNDS, memory.arrays["bound_times"]["duration_ns"], strict=True) if ns
    }
    names = ("requests", "queries", "hits")
    prefix_cache = {f"num_{name}": int(memory.engine[f"prefix_{name}"]) for name in names}
    prefix_cache |= {f"num_preempted_{name}": int(memory.engine[f"preempted_{name}"]) for name in names}
    return kept, int(memory.engine["num_steps"]), prefix_cache, bound_by
