"""Preemption storms: when, who, what it cost, and what filled the pool."""

import math
from dataclasses import dataclass
from typing import Any, Final

from tracekit.postmortem.asking import Asking
from tracekit.run import Run

GAP_S: Final = 10
"""Preemptions further apart than this belong to different storms."""
LEAST: Final = 10
"""Fewer preemptions are no storm."""
_AROUND_S: Final = 60
_CHAIN: Final = 50
_BURST: Final = 1.5
_LONGER: Final = 1.3


@dataclass(frozen=True)
class Storm:
    """One storm, as a finding wants it."""

    start_ns: int
    end_ns: int
    title: str
    evidence: dict[str, Any]
    causes: tuple[str, ...]
    queries: tuple[str, ...]
    weight: float
    chain: tuple[dict[str, Any], ...]


def storms(asking: Asking, run: Run) -> list[Storm]:
    """The storms of a run that knows its preemptions one by one."""
    return [_storm(asking, run, row) for row in asking.rows("preemption_storms", gap_s=GAP_S, least=LEAST)]


def _storm(asking: Asking, run: Run, row: dict[str, Any]) -> Storm:
    span = {"start_ns": row["start_ns"], "end_ns": row["end_ns"]}
    states = {state["place"]: state for state in asking.rows("storm_state", **span, around_s=_AROUND_S)}
    delay = asking.row("storm_delay", **span) or {}
    loads = {load["place"]: load for load in asking.rows("storm_load", **span, around_s=_AROUND_S)}
    chain = asking.rows("storm_chain", **span, most=_CHAIN)
    work = (states.get("during") or {}).get("num_scheduled_tokens")
    evidence = {
        **{name: value for name, value in row.items() if not name.endswith("_ns")},
        "preemption_tax": row["num_lost_tokens"] / work if work and row["num_lost_tokens"] is not None else None,
        **{name: value for name, value in delay.items() if name != "num_delayed"},
        "states": states,
        "loads": loads,
    }
    seconds = max((row["end_ns"] - row["start_ns"]) / 1e9, 0.0)
    title = (
        f"{row['num_preemptions']:,} preemptions of {row['num_victims']:,} requests in {seconds:.0f} s"
        f" ({row['num_repeat_victims']:,} of them hit more than once)"
    )
    queries = ("preemption_storms", "storm_state", "storm_delay", "storm_load", "storm_chain")
    weight = float(delay.get("total_delay_s") or row["num_preemptions"])
    causes = tuple(_causes(run, states, loads))
    return Storm(row["start_ns"], row["end_ns"], title, evidence, causes, queries, weight, tuple(chain))


def _causes(run: Run, states: dict[str, Any], loads: dict[str, Any]) -> list[str]:
    """What filled the pool, each with the numbers that say so; the strongest first."""
    storm, rest = loads.get("storm") or {}, loads.get("rest") or {}
    found: list[tuple[float, str]] = []
    for key, times, text in (
        (
            "requests_per_s",
            _BURST,
            "an arrival burst: {one:.2f} requests/s before and during it, {other:.2f} in the rest",
        ),
        ("mean_output_tokens", _LONGER, "long outputs: {one:,.0f} tokens on average, {other:,.0f} in the rest"),
        ("mean_prompt_tokens", _LONGER, "long prompts: {one:,.0f} tokens on average, {other:,.0f} in the rest"),
    ):
        one, other = storm.get(key), rest.get(key)
        if one and other and one > times * other:
            found.append((one / other, text.format(one=one, other=other)))
    one, other = storm.get("cached_share"), rest.get("cached_share")
    if one is not None and other and one < other / 2:
        found.append(
            (other / max(one, 0.01), f"prefix misses: {one:.0%} of the prompt tokens hit, {other:.0%} in the rest")
        )
    causes = [text for _, text in sorted(found, reverse=True)]
    return [*causes, *_too_many(run, states.get("during") or {}, storm)]


def _too_many(run: Run, during: dict[str, Any], load: dict[str, Any]) -> list[str]:
    """Whether the requests that may run need more blocks than there are, at the lengths they had."""
    names = ("max_num_seqs", "num_gpu_blocks", "block_size")
    if not all(name in run.config for name in names) or not load.get("mean_prompt_tokens"):
        return []
    limit, blocks, size = (int(run.config[name].value) for name in names)
    length = load["mean_prompt_tokens"] + (load.get("mean_output_tokens") or 0)
    # A request holds whole blocks.
    fitting = blocks // max(math.ceil(length / size), 1)
    if fitting >= limit:
        return []
    ran = during.get("mean_running_reqs")
    said = f"; {ran:.0f} ran on average" if ran else ""
    return [
        (
            f"admission outruns the pool: {blocks:,} blocks hold {fitting:,} requests of this length to their end "
            f"({length:,.0f} tokens), max_num_seqs admits {limit}{said}"
        )
    ]
