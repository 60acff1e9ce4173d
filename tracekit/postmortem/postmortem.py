"""A run's postmortem: findings, causes, remedies, and what could not be told."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import polars as pl

from tracekit.compare.summary import summarise
from tracekit.errors import ConfigError, TracekitError
from tracekit.postmortem.asking import query_text
from tracekit.postmortem.findings import Finding, find
from tracekit.postmortem.remedies import Remedy, Replay, Trial, candidates, outcome_of, remedies_of, try_out
from tracekit.progress import Progress, no_progress
from tracekit.replay.clients import ArrivalMode
from tracekit.replay.compiled import unsupported
from tracekit.replay.replay import replay as _replay
from tracekit.replay.settings import settle
from tracekit.run import Run
from tracekit.step_time.parameters import StepTime

_NEEDS_STEPS: Final = frozenset({"queueing_with_free_kv", "head_of_line_blocking", "prefill_stall"})
_KERNEL_FROM: Final = 300
_ALL_STEPS: Final = 200_000
"""Larger traces keep a sample of their steps: what is found in steps is then found in the sample."""
_FEW_APART: Final = 10
_FAR_APART: Final = 0.25
_FROM_CLIENT: Final = frozenset({"client_cap", "log_silence"})


@dataclass
class Postmortem:
    """``findings`` with their ``remedies`` (one list a finding); ``unknown``: what could not be told and why.

    ``source``: observed, simulated, or replayed where the run itself does not know its preemptions and steps.
    """

    run: Run
    source: str
    findings: list[Finding]
    remedies: list[list[Remedy]]
    unknown: list[str]
    outcome: dict[str, Any]
    asked: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    num_replays: int = 0
    is_blind: bool = False
    """Whether most of what this looks for could not be looked at."""
    doubt: str | None = None
    """Why the replay, and so what was found in it, is not what happened; None: nothing recorded says so."""

    @property
    def is_healthy(self) -> bool:
        """Whether it was looked at and nothing was found."""
        return not self.findings and not self.is_blind and self.doubt is None

    def sql(self) -> list[tuple[str, dict[str, Any], str]]:
        """Every query that was asked: its name, its parameters, its text."""
        return [(name, parameters, query_text(name)) for name, parameters in self.asked]


def postmortem(
    run: Run,
    *,
    settings: Sequence[str] = (),
    step_time: StepTime | None = None,
    rules: str | None = None,
    mode: ArrivalMode | None = None,
    remedies: bool = True,
    progress: Progress = no_progress,
    announce: Callable[[str], None] | None = None,
) -> Postmortem:
    """Find what went wrong in a run, why, and which of vLLM's knobs would have helped.

    What the run does not know itself (V1 logs neither steps nor preemptions) is found in a replay of its requests, with
    ``settings``, ``step_time``, ``rules`` and ``mode`` as of ``replay``; remedies are replays too. Raises
    ``TracekitError``.
    """
    own, asking = find(run)
    unknown: list[str] = []
    asked = list(asking.asked)
    knows_all = run.table("steps").height > 0 and run.has("preemptions")
    before, replayer = _base(run, settings, step_time, rules, mode, unknown, announce, needed=not knows_all or remedies)
    findings = own
    source: str = run.kind
    if not knows_all and before is not None:
        found, asking = find(before)
        asked += [entry for entry in asking.asked if entry not in asked]
        # What clients did and what the log kept quiet about is the observed side's own.
        findings = [f for f in found if f.kind not in _FROM_CLIENT] + [f for f in own if f.kind in _FROM_CLIENT]
        source = "replayed"
    is_blind = before is None and not knows_all
    if is_blind:
        unknown.append(
            "without requests to replay, steps or preemptions, nothing can be said of storms, limits and stalls: ingest "
            "the client's table or a trace together with the log"
        )
    else:
        unknown += _unknown(run, knows_all=knows_all)
    listed: list[list[Remedy]] = [[] for _ in findings]
    num_replays = 0
    if remedies and before is not None and replayer is not None and findings:
        trials = _try(before, findings, replayer, progress)
        num_replays = len(trials)
        for place, finding in enumerate(findings):
            wanted = {candidate.settings for candidate in candidates(before, {finding.kind})}
            listed[place] = remedies_of(finding, [t for t in trials if t.candidate.settings in wanted])
    judged = before if before is not None else run
    outcome = outcome_of(judged)
    doubt = _doubt(run, outcome) if source == "replayed" else None
    return Postmortem(run, source, findings, listed, unknown, outcome, asked, num_replays, is_blind, doubt)


def _doubt(run: Run, outcome: dict[str, Any]) -> str | None:
    """Whether the engine's own counter and the replay tell of the same run."""
    totals = {row["metric"]: row["value"] for row in summarise(run)["totals"]}
    recorded, replayed = totals.get("num_preemptions"), outcome.get("num_preemptions")
    if recorded is None or replayed is None or abs(replayed - recorded) <= max(_FEW_APART, _FAR_APART * recorded):
        return None
    return (
        f"the engine counted {recorded:,.0f} preemptions, the replay has {replayed:,.0f}: findings and remedies are those of "
        "the replay and not of what happened; calibrate its step time (tracekit fit RUN -o F, --step-time F), and see whether "
        "all requests that it served are in the run"
    )


def _base(
    run: Run,
    settings: Sequence[str],
    step_time: StepTime | None,
    rules: str | None,
    mode: ArrivalMode | None,
    unknown: list[str],
    announce: Callable[[str], None] | None,
    *,
    needed: bool,
) -> tuple[Run | None, Replay | None]:
    """The replay that remedies are compared with, and how to replay under more settings."""
    if not needed or not run.requests.height:
        return None, None

    def again(more: Sequence[str]) -> Run:
        replicas = next((int(entry.partition("=")[2]) for entry in more if entry.startswith("replicas=")), 1)
        if replicas > 1:
            return one_of(_share_of(run, replicas), more[1:])
        return one_of(run, more)

    def one_of(run: Run, more: Sequence[str]) -> Run:
        names = {entry.partition("=")[0] for entry in more}
        kept = [entry for entry in settings if entry.partition("=")[0] not in names]
        chosen = None if "vllm_version" in names else rules
        settled = settle(run, [*kept, *more], step_time, chosen)
        can = unsupported(settled.resolved.engine, settled.rules, run.requests) is None
        engine = "kernel" if can and run.requests.height >= _KERNEL_FROM else "model"
        return _replay(
            run, settings=[*kept, *more], step_time=step_time, rules=chosen, mode=mode, engine=engine, steps="all" if run.requests.height <= _ALL_STEPS else None,
            announce=announce,
        )  # fmt: skip

    try:
        return again(()), again
    except TracekitError as error:
        if settings or rules is not None or step_time is not None:
            raise  # what was asked for cannot be done
        unknown.append(f"it cannot be replayed, so no remedy is tested: {error}")
        return None, None


def _share_of(run: Run, replicas: int) -> Run:
    """The requests that one of so many replicas gets: every so-many-th session, and every so-many-th lone request."""
    requests = run.requests
    if requests["parent_request_id"].null_count() < requests.height and requests["session_id"].null_count():
        msg = "the turns of a session cannot be told from its session_id, so the load cannot be split"
        raise ConfigError(msg)
    session = pl.coalesce("session_id", "request_id").rank("dense") - 1
    kept = requests.sort("arrival_ns", "request_id").filter(session % replicas == 0)
    tables = {name: frame for name, frame in run.tables.items() if name not in {"requests", "steps", "preemptions"}}
    return Run(run.kind, {**tables, "requests": kept}, run.config, run.start_unix_ns, run.info)


def _unknown(run: Run, *, knows_all: bool) -> list[str]:
    found = []
    if run.kind == "observed" and not knows_all:
        found.append(
            "the run knows neither every step nor every preemption (V1 logs none): storms, limits and stalls are those "
            "of its replay"
        )
    if run.requests.height and run.requests["block_hashes"].null_count() == run.requests.height:
        found.append("no prefix hashes: whether prompts share content, and so the prefix cache, cannot be judged")
    return found


def _try(before: Run, findings: Sequence[Finding], again: Replay, progress: Progress) -> list[Trial]:
    """Replay the candidates, family by family from the smallest, until one removes every finding it is meant for."""
    kinds = {finding.kind for finding in findings}
    meant = {kind: {candidate.settings for candidate in candidates(before, {kind})} for kind in kinds}
    chosen = candidates(before, kinds)
    trials: dict[tuple[str, ...], Trial] = {}
    done: set[str] = set()
    for number, candidate in enumerate(chosen):
        progress("remedies", number + 1, len(chosen))
        key = (candidate.family, *candidate.settings)
        if key in trials or candidate.family in done:
            continue
        trial = trials[key] = try_out(again, before, candidate)
        if trial.failed is None and not any(kind in trial.kinds for kind in kinds if candidate.settings in meant[kind]):
            done.add(candidate.family)
    return list(trials.values())
