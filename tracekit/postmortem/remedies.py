"""What would have helped: vLLM's own knobs, each replayed on the same trace, never a rule of thumb alone."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tracekit.compare.database import connect
from tracekit.compare.metrics import compare
from tracekit.config import NEWEST_VERSION, parse_version
from tracekit.errors import TracekitError
from tracekit.model.capacity.memory import default_utilization
from tracekit.postmortem.asking import Asking
from tracekit.postmortem.findings import Finding, find
from tracekit.run import Run

Replay = Callable[[Sequence[str]], Run]
"""Replays the trace under other settings (``key=value``)."""

_EFFECTS: Final = (
    ("ttft_ms", "p50"), ("ttft_ms", "p99"), ("tpot_ms", "p50"), ("tpot_ms", "p99"), ("e2e_ms", "p50"), ("e2e_ms", "p99"),
    ("queue_ms", "p99"), ("num_preemptions", "total"), ("output_tps", "total"), ("peak_running_reqs", "max"),
)  # fmt: skip
_POOLS: Final = (1.05, 1.1, 1.25, 1.5, 2.0, 3.0, 4.0)
_SHARES: Final = (0.75, 0.5, 0.33, 0.25)


@dataclass(frozen=True)
class Candidate:
    """One change; ``family``: candidates of which the smallest that helps is shown, in order of size.

    ``estimated``: its effect rests on something that was not measured here; the words say what.
    """

    settings: tuple[str, ...]
    label: str
    family: str
    estimated: str | None = None


@dataclass(frozen=True)
class Remedy:
    """A candidate as replayed: whether the finding is gone, and what else it changes (share of the replay before)."""

    candidate: Candidate
    removes_it: bool
    effects: dict[str, float | None]
    values: dict[str, float | None] = field(default_factory=dict)
    failed: str | None = None


def candidates(run: Run, kinds: set[str]) -> list[Candidate]:
    """The changes worth a replay for findings of these kinds, by family and size; ``run``: the replay before."""
    value = {name: entry.value for name, entry in run.config.items()}
    found: list[Candidate] = []
    if kinds & {"preemption_storm", "prefix_cache_collapse", "head_of_line_blocking", "inadmissible_request"}:
        blocks = run.config.get("num_gpu_blocks")
        is_pinned = "num_gpu_blocks_override" in value or (blocks is not None and blocks.origin == "given")
        # A pool of a size that was given does not grow with the memory.
        found += [*([] if is_pinned else _more_memory(value)), *_larger_pools(value)]
    if kinds & {"preemption_storm", "prefix_cache_collapse"}:
        found += _fewer("max_num_seqs", value, "fewer requests at once")
        found += _admission(value)
    if kinds & {"preemption_storm", "queueing_with_free_kv", "head_of_line_blocking"}:
        found.append(_replica())
    if kinds & {"queueing_with_free_kv"}:
        found += _more("max_num_seqs", value, "more requests at once")
        found += _more("max_num_batched_tokens", value, "a larger token budget")
    if kinds & {"prefill_stall", "head_of_line_blocking"}:
        found += _fewer("max_num_batched_tokens", value, "a smaller token budget")
        found += _thresholds(value)
    if kinds & {"preemption_storm", "queueing_with_free_kv", "head_of_line_blocking", "prefill_stall"}:
        found += _newer(value)
    if kinds & {"inadmissible_request"}:
        found += _more("max_model_len", value, "a longer context")
    return found


def _more_memory(value: dict[str, Any]) -> list[Candidate]:
    """More of the GPU's memory, or more GPUs; both need to know the GPU and the model."""
    if not {"gpu", "model"} <= set(value):
        return []
    version = str(value.get("vllm_version", NEWEST_VERSION))
    now = float(value.get("gpu_memory_utilization") or default_utilization(version))
    shares = [share for share in (0.92, 0.94, 0.96) if share > now + 0.005]
    found = [
        Candidate((f"gpu_memory_utilization={share}",), f"gpu_memory_utilization={share}", "more of the GPU's memory")
        for share in shares
    ]
    ranks = 2 * int(value.get("tensor_parallel_size") or 1)
    note = "the pool and the step time with other GPUs are estimates outside of what was measured"
    setting = f"tensor_parallel_size={ranks}"
    stages = 2 * int(value.get("pipeline_parallel_size") or 1)
    deeper = f"pipeline_parallel_size={stages}"
    # As many GPUs again in a row: the pool grows alike, but a replay has one batch in the pipeline at a time.
    in_a_row = "the pool is an estimate, and one batch at a time is replayed where a pipeline holds several"
    return [
        *found,
        Candidate((setting,), setting, "more GPUs", note),
        Candidate((deeper,), deeper, "more GPUs in a row", in_a_row),
    ]


def _replica() -> Candidate:
    note = "each of two replicas gets every second session; the figures are of one of them"
    return Candidate(("replicas=2",), "a second replica", "another replica", note)


def _larger_pools(value: dict[str, Any]) -> list[Candidate]:
    blocks = int(value["num_gpu_blocks"])
    found = [
        Candidate(
            (f"num_gpu_blocks={int(blocks * times)}",),
            f"KV blocks +{times - 1:.0%} ({int(blocks * times):,})",
            "larger pool",
        )
        for times in _POOLS
    ]
    if not str(value.get("kv_cache_dtype", "auto")).startswith("fp8"):
        note = "the step time with an fp8 KV cache was not measured"
        found.append(Candidate((f"num_gpu_blocks={2 * blocks}",), "fp8 KV cache (2x blocks)", "fp8 KV cache", note))
    return found


def _fewer(name: str, value: dict[str, Any], family: str) -> list[Candidate]:
    if name not in value:
        return []
    now = int(value[name])
    least = int(value.get("max_num_seqs", 1)) if name == "max_num_batched_tokens" else 1
    sizes = sorted({max(int(now * share), least) for share in _SHARES} - {now}, reverse=True)
    return [Candidate((f"{name}={size}",), f"{name}={size}", family) for size in sizes]


def _more(name: str, value: dict[str, Any], family: str) -> list[Candidate]:
    if name not in value:
        return []
    now = int(value[name])
    found = []
    for times in (1.5, 2, 4):
        settings = [f"{name}={int(now * times)}"]
        budget = int(value.get("max_num_batched_tokens", 0))
        if name == "max_num_seqs" and int(now * times) > budget:
            settings.append(f"max_num_batched_tokens={int(now * times)}")
        found.append(Candidate(tuple(settings), ", ".join(settings), family))
    return found


def _admission(value: dict[str, Any]) -> list[Candidate]:
    version = parse_version(str(value.get("vllm_version", NEWEST_VERSION)))
    found = []
    if version >= (0, 24, 0):
        found += [
            Candidate((f"watermark={share}",), f"watermark={share}", "admission watermark")
            for share in (0.01, 0.05, 0.1)
        ]
    if version >= (0, 19, 0) and value.get("scheduler_reserve_full_isl") is False:
        setting = "scheduler_reserve_full_isl=true"
        found.append(Candidate((setting,), setting, "full-prompt reservation"))
    return found


def _thresholds(value: dict[str, Any]) -> list[Candidate]:
    budget = int(value.get("max_num_batched_tokens", 0))
    sizes = [size for size in (budget // 4, budget // 8, budget // 16) if size >= 16]  # noqa: PLR2004 - a block
    name = "long_prefill_token_threshold"
    return [
        Candidate((f"{name}={size}",), f"long-prefill threshold {size}", "a limit on long prefills") for size in sizes
    ]


def _newer(value: dict[str, Any]) -> list[Candidate]:
    version = str(value.get("vllm_version", NEWEST_VERSION))
    if parse_version(version) >= parse_version(NEWEST_VERSION) or value.get("engine_generation") == "v0":
        return []
    note = "only the scheduler's rules are newer; the step time is the recorded version's"
    return [Candidate((f"vllm_version={NEWEST_VERSION}",), f"vLLM {NEWEST_VERSION}'s rules", "a newer scheduler", note)]


@dataclass(frozen=True)
class Trial:
    """A candidate's replay: what is found in it and how it compares, or why vLLM would not start (``failed``)."""

    candidate: Candidate
    kinds: frozenset[str] = frozenset()
    rows: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    failed: str | None = None


def try_out(replay: Replay, before: Run, candidate: Candidate) -> Trial:
    """Replay a candidate and look at it as at the run before."""
    try:
        after = replay(candidate.settings)
    except TracekitError as error:
        return Trial(candidate, failed=str(error))
    found, _ = find(after)
    rows = {(row["metric"], row["stat"]): row for row in compare(before, after).to_rows()}
    return Trial(candidate, frozenset(finding.kind for finding in found), rows)


def remedies_of(finding: Finding, trials: Sequence[Trial]) -> list[Remedy]:
    """What the trials do to a finding: of each family the smallest that removes it, or the last that was tried."""
    families: dict[str, Remedy] = {}
    for trial in trials:
        done = families.get(trial.candidate.family)
        if done is None or not done.removes_it:
            families[trial.candidate.family] = _judged(finding, trial)
    return sorted(families.values(), key=lambda remedy: (not remedy.removes_it, remedy.failed is not None))


def _judged(finding: Finding, trial: Trial) -> Remedy:
    effects = {f"{metric}.{stat}": trial.rows.get((metric, stat), {}).get("error") for metric, stat in _EFFECTS}
    values = {f"{metric}.{stat}": trial.rows.get((metric, stat), {}).get("right") for metric, stat in _EFFECTS}
    if trial.candidate.settings[0].startswith("replicas="):
        effects["output_tps.total"] = None  # half the load makes half the tokens
    removes = trial.failed is None and finding.kind not in trial.kinds
    return Remedy(trial.candidate, removes, effects, values, trial.failed)


def outcome_of(run: Run) -> dict[str, Any]:
    """The totals that a remedy is judged by."""
    with connect({"run": run}, locked=False) as connection:
        return Asking(connection).row("outcome") or {}
