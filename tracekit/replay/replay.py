"""From a trace to a simulated run: settle what it runs with, simulate, record."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tracekit.config import parse_version
from tracekit.errors import ConfigError
from tracekit.model.rules import EngineCrashError, Rules
from tracekit.model.scheduler import Scheduler
from tracekit.progress import Progress, no_progress
from tracekit.replay.clients import ArrivalMode, Clients
from tracekit.replay.loop import Observer
from tracekit.replay.settings import Settled, settle
from tracekit.replay.simulate import Simulation
from tracekit.replay.workload import Workload, compressed, workload_of
from tracekit.run import Run
from tracekit.step_time.parameters import StepTime

_MAX_RATE = 1e6
_BOOKS_COMPUTED_PROMPTS = (0, 16, 0)
"""Prompt throughput leaves cached tokens out since a version between 0.15.1 (with) and 0.17.1 (without)."""


@dataclass
class Prepared:
    """A replay that is ready to run."""

    settled: Settled
    workload: Workload
    mode: ArrivalMode
    simulation: Simulation


def prepare(
    trace: Run,
    *,
    settings: Sequence[str] = (),
    step_time: StepTime | None = None,
    rules: str | Rules | None = None,
    mode: ArrivalMode | None = None,
    rate: float = 1.0,
    progress: Progress = no_progress,
    observer: Observer | None = None,
) -> Prepared:
    """Settle everything and build the engines; ``observer`` is told every decision. Arguments as of ``replay``."""
    mode = mode or ArrivalMode()
    if not 0 < rate <= _MAX_RATE or (mode.max_concurrency is not None and mode.max_concurrency < 1):
        msg = "--max-concurrency must be at least 1" if 0 < rate <= _MAX_RATE else "--rate must be above 0"
        raise ConfigError(msg)
    settled = settle(trace, settings, step_time, rules)
    workload = workload_of(compressed(trace.requests, rate), settled.resolved.engine, settled.hash_block_size)
    simulation = Simulation(
        settled.resolved.engine,
        settled.rules,
        settled.step_time,
        Clients(workload.arrivals, mode),
        sample_at=_sample_instants(trace),
        books_computed_prompts=parse_version(settled.version) >= _BOOKS_COMPUTED_PROMPTS,
        progress=progress,
        observer=observer,
    )
    return Prepared(settled, workload, mode, simulation)


def replay(
    trace: Run,
    *,
    settings: Sequence[str] = (),
    step_time: StepTime | None = None,
    rules: str | Rules | None = None,
    mode: ArrivalMode | None = None,
    rate: float = 1.0,
    progress: Progress = no_progress,
) -> Run:
    """Replay a trace's arrivals through the scheduler model; returns the simulated run.

    ``settings``: ``key=value``, before what the trace's run says; ``step_time``: of the device (else the one stored in
    the run, else a generic default, which is said); ``rules``: the vLLM version whose decisions are taken. The
    simulated run keeps the trace's time axis. Raises ``ConfigError`` when something is missing or vLLM would refuse it.
    """
    prepared = prepare(
        trace, settings=settings, step_time=step_time, rules=rules, mode=mode, rate=rate, progress=progress
    )
    settled, simulation = prepared.settled, prepared.simulation
    notes = settled.notes + prepared.workload.notes
    try:
        simulation.run()
    except EngineCrashError as crash:
        notes.append(f"the replay ends where the recorded version dies: {crash}")
    recording = simulation.recording
    left_out = prepared.workload.left_out + simulation.clients.left_out
    if simulation.clients.num_never_sent:
        left_out["its earlier turn never ended, so it was never sent"] += simulation.clients.num_never_sent
    unfinished = sum(outcome.finish_reason == "unfinished" for outcome in recording.outcomes)
    if unfinished:
        notes.append(f"{unfinished:,} requests were never finished")
    info: dict[str, Any] = {
        "replayed": {
            "trace": trace.name,
            "engine": "model",
            "rules": settled.version,
            "closed_loop": prepared.mode.closed_loop,
            "max_concurrency": prepared.mode.max_concurrency,
            "rate": rate,
        },
        "prefix_cache": _prefix_cache(simulation),
        "step_time": settled.step_time.to_dict(),
        "skipped": _skipped(left_out, simulation.refused),
        "limits": [{"key": limit.key, "status": limit.status, "what": limit.text} for limit in settled.limits],
        "notes": notes,
    }
    return Run("simulated", recording.tables(trace.requests), settled.resolved.config, trace.start_unix_ns, info)


def _prefix_cache(simulation: Simulation) -> dict[str, int]:
    """Queries and hits of all engines as the version counts them (tokens; blocks up to 0.8), since the start."""
    names = ("requests", "queries", "hits", "preempted_requests", "preempted_queries", "preempted_hits")
    schedulers = [engine.scheduler for engine in simulation.engines.values()]
    caches = [scheduler.prefix_cache for scheduler in schedulers if isinstance(scheduler, Scheduler)]
    return {f"num_{name}": sum(getattr(cache, name) for cache in caches) for name in names}


def _sample_instants(trace: Run) -> list[int]:
    """The instants at which the observed engine printed its statistics; empty when it printed none."""
    if not trace.has("engine_stats"):
        return []
    return trace.engine_stats.filter(source="log")["time_ns"].unique().sort().to_list()


def _skipped(left_out: Counter[str], refused: Counter[str]) -> list[dict[str, Any]]:
    return [{"what": f"not replayed: {what}", "count": count} for what, count in sorted(left_out.items())] + [
        {"what": f"refused by vLLM: {what}", "count": count} for what, count in sorted(refused.items())
    ]
