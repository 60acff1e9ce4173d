"""From a trace to a simulated run: settle what it runs with, simulate, record."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import polars as pl

from tracekit.config import parse_version
from tracekit.errors import ConfigError
from tracekit.model.rules import EngineCrashError, Rules
from tracekit.model.scheduler import Scheduler
from tracekit.progress import Progress, no_progress
from tracekit.replay.clients import ArrivalMode, Clients
from tracekit.replay.compiled import replay_compiled, unsupported, why_never_sent
from tracekit.replay.endpoints import as_sent, held_in_frontend
from tracekit.replay.loop import Observer
from tracekit.replay.record import MOST_STEP_ROWS, ns_bound_by, sampled
from tracekit.replay.settings import Settled, settle
from tracekit.replay.simulate import Simulation
from tracekit.replay.workload import Workload, compressed, workload_of
from tracekit.run import NUMBERED, Run
from tracekit.step_time.coverage import RANGES, beyond
from tracekit.step_time.parameters import StepTime
from tracekit.window import IN_FLIGHT

ENGINES: Final = ("auto", "kernel", "model")
STEPS: Final = ("all", "none", "sample")
_KERNEL_FROM: Final = 5_000
_MAX_RATE = 1e6
_MAX_IN_FLIGHT = 10**9
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
    _check_arrivals(mode, rate)
    return _prepare(trace, settle(trace, settings, step_time, rules), mode, rate, progress, observer)


def _prepare(
    trace: Run, settled: Settled, mode: ArrivalMode, rate: float, progress: Progress, observer: Observer | None
) -> Prepared:
    requests = held_in_frontend(compressed(trace.requests, rate), settled.step_time.chat_ns)
    workload = workload_of(requests, settled.resolved.engine, settled.hash_block_size)
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


@dataclass
class Result:
    """What either engine gives: the tables, and what else ``run.json`` says of them."""

    tables: dict[str, pl.DataFrame]
    left_out: Counter[str]
    refused: Counter[str]
    notes: list[str]
    info: dict[str, Any]


def replay(
    trace: Run,
    *,
    settings: Sequence[str] = (),
    step_time: StepTime | None = None,
    rules: str | Rules | None = None,
    mode: ArrivalMode | None = None,
    rate: float = 1.0,
    engine: str = "auto",
    steps: str | None = None,
    progress: Progress = no_progress,
    announce: Callable[[str], None] | None = None,
) -> Run:
    """Replay a trace's arrivals through the scheduler; returns the simulated run.

    ``settings``: ``key=value``, before what the trace's run says; ``step_time``: of the device (else the one stored in
    the run, else a generic default, which is said); ``rules``: the vLLM version whose decisions are taken. ``engine``:
    model, kernel (compiled, the same decisions), or auto: the kernel for large traces. ``steps``: all, none or sample;
    null: all up to 2 million. ``announce`` is told when the kernel is compiled first. The simulated run keeps the
    trace's time axis. Raises ``ConfigError`` when something is missing or vLLM would refuse it.
    """
    mode = mode or ArrivalMode()
    _check_arrivals(mode, rate)
    settled = settle(trace, settings, step_time, rules)
    why_model = _why_model(engine, trace, settled, steps)
    if why_model is None:
        result = _with_kernel(trace, settled, mode, rate, steps, progress, announce)
    else:
        result = _with_model(_prepare(trace, settled, mode, rate, progress, None), trace, why_model, steps)
    result.tables["requests"] = as_sent(result.tables["requests"], settled.step_time.chat_ns)
    numbered = [note for note in trace.info.get("notes", []) if str(note).startswith(NUMBERED)]
    notes = settled.notes + numbered + result.notes
    if in_flight := trace.info.get(IN_FLIGHT):
        notes.append(
            f"{in_flight:,} requests were in the engine when this part of the run begins; the replay begins with an empty one"
        )
    if (extrapolated := beyond(settled.step_time.fit, _largest(result.tables["steps"]))) is not None:
        notes.append(extrapolated)
    unfinished = result.tables["requests"].filter(finish_reason="unfinished").height
    if unfinished:
        notes.append(f"{unfinished:,} requests were never finished")
    replayed = {
        "trace": trace.name,
        "rules": settled.version,
        "closed_loop": mode.closed_loop,
        "max_concurrency": mode.max_concurrency,
        "rate": rate,
        **result.info.pop("replayed"),
    }
    info: dict[str, Any] = {
        "replayed": replayed,
        **result.info,
        "step_time": settled.step_time.to_dict(),
        "skipped": _skipped(result.left_out, result.refused),
        "limits": [{"key": limit.key, "status": limit.status, "what": limit.text} for limit in settled.limits],
        "notes": notes,
    }
    return Run("simulated", result.tables, settled.resolved.config, trace.start_unix_ns, info)


def _largest(steps: pl.DataFrame) -> dict[str, float | None]:
    """The largest of each count that a step time depends on, over the steps that were kept."""
    return {name: steps[name].max() for name in RANGES}  # type: ignore[misc]


def _why_model(engine: str, trace: Run, settled: Settled, steps: str | None) -> str | None:
    """Why the model runs and not the kernel; None when the kernel does. Raises ``ConfigError`` for a kernel that cannot."""
    if engine not in ENGINES or steps not in {*STEPS, None}:
        msg = (
            f"--engine must be one of {', '.join(ENGINES)}" if engine not in ENGINES else f"--steps: {', '.join(STEPS)}"
        )
        raise ConfigError(msg)
    if engine == "model":
        return "asked for"
    missing = unsupported(settled.resolved.engine, settled.rules, trace.requests)
    if engine == "kernel" and missing is not None:
        msg = f"--engine kernel: {missing}; --engine auto falls back to the model"
        raise ConfigError(msg)
    if missing is None and engine == "auto" and trace.requests.height < _KERNEL_FROM and steps in {None, "all"}:
        return f"fewer than {_KERNEL_FROM:,} requests"
    return missing


def _with_kernel(
    trace: Run,
    settled: Settled,
    mode: ArrivalMode,
    rate: float,
    steps: str | None,
    progress: Progress,
    announce: Callable[[str], None] | None,
) -> Result:
    found = replay_compiled(
        trace.requests,
        settled.resolved.engine,
        settled.rules,
        settled.step_time,
        mode,
        hash_block_size=settled.hash_block_size,
        rate=rate,
        sample_at=_sample_instants(trace),
        books_computed_prompts=parse_version(settled.version) >= _BOOKS_COMPUTED_PROMPTS,
        steps=steps or "auto",
        progress=progress,
        announce=announce,
    )
    replayed = {"engine": "kernel", "steps": found.steps_kept, "num_steps": found.num_steps}
    info = {"replayed": replayed, "prefix_cache": found.prefix_cache, "ns_bound_by": found.ns_bound_by}
    return Result(found.tables, found.left_out, found.refused, found.notes, info)


def _with_model(prepared: Prepared, trace: Run, why: str, steps: str | None) -> Result:
    simulation = prepared.simulation
    notes = list(prepared.workload.notes)
    crashed = False
    try:
        simulation.run()
    except EngineCrashError as crash:
        crashed = True
        notes.append(f"the replay ends where the recorded version dies: {crash}")
    left_out = prepared.workload.left_out + simulation.clients.left_out
    if simulation.clients.num_never_sent:
        left_out[why_never_sent(crashed)] += simulation.clients.num_never_sent
    tables = simulation.recording.tables(trace.requests)
    num_steps, bound_by = tables["steps"].height, ns_bound_by(tables["steps"])
    kept = steps or ("all" if num_steps <= MOST_STEP_ROWS else "sample")
    if kept != "all":
        tables["steps"] = tables["steps"].clear() if kept == "none" else sampled(tables["steps"])
    replayed = {"engine": "model", "why_not_kernel": why, "steps": kept, "num_steps": num_steps}
    info = {"replayed": replayed, "prefix_cache": _prefix_cache(simulation), "ns_bound_by": bound_by}
    return Result(tables, left_out, simulation.refused, notes, info)


def _check_arrivals(mode: ArrivalMode, rate: float) -> None:
    if not 1 / _MAX_RATE <= rate <= _MAX_RATE:
        msg = f"--rate must be from {1 / _MAX_RATE:.6f} to {_MAX_RATE:,.0f}"
        raise ConfigError(msg)
    if mode.max_concurrency is not None and not 1 <= mode.max_concurrency <= _MAX_IN_FLIGHT:
        msg = f"--max-concurrency must be from 1 to {_MAX_IN_FLIGHT:,}"
        raise ConfigError(msg)


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
