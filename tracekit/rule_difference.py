"""The same trace under two vLLM versions: where the decisions part, and which rule is responsible.

Each thing that differs (a rule, or a default of the configuration) is switched alone, from the left version's to the
right's, and the trace is replayed: the switch that takes the left run nearest to the right one is responsible.
"""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

import polars as pl

from tracekit.config import Scalar
from tracekit.model.rules import Rules
from tracekit.progress import Progress, no_progress
from tracekit.replay.replay import replay
from tracekit.replay.settings import Settled, settle
from tracekit.run import Run

_DECISIONS = (
    "num_running_reqs", "num_waiting_reqs", "num_scheduled_reqs", "num_scheduled_tokens", "num_free_blocks",
    "num_admitted_reqs", "num_preempted_reqs", "num_finished_reqs",
)  # fmt: skip


@dataclass(frozen=True)
class Switch:
    """One difference switched alone: its name and values, and what the replay then gives."""

    name: str
    left: object
    right: object
    num_preemptions: int
    mean_ttft_ms: float | None
    num_steps: int


@dataclass(frozen=True)
class RuleDifference:
    """What two versions do differently with one trace.

    ``first_step``: the first step whose decision differs, null when none does; ``num_steps_differing``: of the steps
    that both runs have, how many. ``responsible``: name of the switch nearest to the right run, null when the runs agree
    or no single switch comes nearer than the left run is.
    """

    left_version: str
    right_version: str
    first_step: int | None
    num_steps_differing: int
    switches: tuple[Switch, ...]
    left: Switch
    right: Switch
    responsible: str | None


def rule_difference(left: Run, right: Run, progress: Progress = no_progress) -> RuleDifference | None:
    """Explain how two replays of one trace under different versions differ; None when they are not such a pair."""
    versions = [_version(run) for run in (left, right)]
    if None in versions or versions[0] == versions[1] or not _same_requests(left, right):
        return None
    one, two = (settle(run, (), None, version) for run, version in zip((left, right), versions, strict=True))
    switches = []
    differences = list(_differences(one, two))
    for done, (name, before, after, rules, settings) in enumerate(differences):
        progress("switching one rule at a time", done, len(differences))
        switches.append(_switch(name, before, after, replay(left, rules=rules, settings=settings)))
    progress("switching one rule at a time", len(differences), len(differences))
    first, count = _first_difference(left, right)
    ends = (_switch("left", one.version, one.version, left), _switch("right", two.version, two.version, right))
    return RuleDifference(one.version, two.version, first, count, tuple(switches), *ends, _responsible(switches, *ends))


def _version(run: Run) -> str | None:
    replayed = run.info.get("replayed")
    return str(replayed["rules"]) if isinstance(replayed, dict) and "rules" in replayed else None


def _same_requests(left: Run, right: Run) -> bool:
    columns = ["request_id", "num_prompt_tokens"]
    return left.requests.select(columns).sort(columns).equals(right.requests.select(columns).sort(columns))


def _differences(one: Settled, two: Settled) -> Iterator[tuple[str, object, object, Rules, list[str]]]:
    """Each difference: its name, both values, and the rules and settings that switch it alone."""
    pinned = f"vllm_version={one.version}"
    for field in dataclasses.fields(Rules):
        before, after = getattr(one.rules, field.name), getattr(two.rules, field.name)
        if before != after and field.compare:
            yield field.name, before, after, dataclasses.replace(one.rules, **{field.name: after}), [pinned]
    for name, value in two.resolved.config.items():
        old = one.resolved.config.get(name)
        if value.origin == "default" and name != "vllm_version" and old is not None and old.value != value.value:
            yield name, old.value, value.value, one.rules, [pinned, _setting(name, value.value)]


def _setting(name: str, value: Scalar) -> str:
    return f"{name}={value}"


def _switch(name: str, before: object, after: object, run: Run) -> Switch:
    ttft = run.requests.select((pl.col("first_token_ns") - pl.col("arrival_ns")).mean() / 1e6).item()
    return Switch(name, before, after, run.preemptions.height, ttft, run.steps.height)


def _first_difference(left: Run, right: Run) -> tuple[int | None, int]:
    both = left.steps.join(right.steps, on=["engine", "step"], suffix="_right").sort("step", "engine")
    differs = both.filter(pl.any_horizontal(pl.col(name) != pl.col(f"{name}_right") for name in _DECISIONS))
    return (int(differs["step"][0]), differs.height) if differs.height else (None, 0)


def _responsible(switches: list[Switch], left: Switch, right: Switch) -> str | None:
    def distance(switch: Switch) -> float:
        ttft = abs((switch.mean_ttft_ms or 0.0) - (right.mean_ttft_ms or 0.0)) / max(right.mean_ttft_ms or 0.0, 1e-9)
        preempted = abs(switch.num_preemptions - right.num_preemptions) / max(right.num_preemptions, 1)
        return ttft + preempted + abs(switch.num_steps - right.num_steps) / max(right.num_steps, 1)

    nearest = min(switches, key=distance, default=None)
    return nearest.name if nearest is not None and distance(nearest) < distance(left) else None
