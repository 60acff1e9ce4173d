"""The composed verbs: what the command line does, as library calls."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracekit.config import parse_setting
from tracekit.errors import ConfigError, OutputExistsError, TracekitError
from tracekit.progress import Progress, no_progress
from tracekit.replay.clients import ArrivalMode
from tracekit.replay.replay import replay as _replay
from tracekit.run import Run, load
from tracekit.sources.ingest import ingest as _ingest
from tracekit.step_time.parameters import StepTime, step_time_from_dict, step_time_from_file, write_step_time

if TYPE_CHECKING:
    import polars as pl

    from tracekit.capacity import Capacity
    from tracekit.compare.metrics import Comparison
    from tracekit.compare.run_sql import Parameters
    from tracekit.explain import Story
    from tracekit.fit.fit import Fit
    from tracekit.postmortem import Postmortem

RunLike = Run | str | Path
_MEASURED = ("num_gpu_blocks", "kv_cache_tokens", "available_kv_gib")


def _run(run: RunLike) -> Run:
    return run if isinstance(run, Run) else load(run)


def ingest(
    *paths: str | Path,
    format: str | None = None,  # noqa: A002 - the option's name
    columns: Sequence[str] = (),
    settings: Sequence[str] | Mapping[str, object] = (),
    timezone: str | None = None,
    start: int | None = None,
    hash_key: str | None = None,
    strict: bool = False,
    output: str | Path | None = None,
    force: bool = False,
    progress: Progress = no_progress,
) -> Run:
    """Read one incident's files (logs, scrapes, traces, any table) into an observed run; see ``tracekit ingest``.

    ``columns``: ``"arrival=t_send:s"`` and the like. ``output``: also save it there. Raises ``TracekitError``.
    """
    run = _ingest(
        paths,
        format=format,
        columns=columns,
        settings=_settings(settings),
        timezone=timezone,
        start=start,
        hash_key=hash_key,
        strict=strict,
        progress=progress,
    )
    if output is not None:
        run.save(output, force=force)
    return run


def replay(
    trace: RunLike,
    *,
    settings: Sequence[str] | Mapping[str, object] = (),
    step_time: StepTime | Mapping[str, Any] | str | Path | None = None,
    fit: bool = False,
    rules: str | None = None,
    gpu: str | None = None,
    model: str | None = None,
    closed_loop: bool = False,
    max_concurrency: int | None = None,
    rate: float = 1.0,
    engine: str = "auto",
    steps: str | None = None,
    output: str | Path | None = None,
    force: bool = False,
    progress: Progress = no_progress,
    announce: Callable[[str], None] | None = None,
) -> Run:
    """Replay a trace or run through the scheduler model; returns the simulated run. See ``tracekit replay``.

    ``settings``: ``{"max_num_seqs": 64}`` or ``["max_num_seqs=64"]``. ``step_time``: a file, an object such as
    ``{"t0_ms": 20, "per_token_us": 40, "per_seq_us": 25, "frontend_ms": 4}``, or ``"aiconfigurator"``: its measured
    tables. ``fit``: calibrate it on the trace's own observed latencies first, under its own settings. Raises
    ``TracekitError``.
    """
    short = [f"{key}={value}" for key, value in (("gpu", gpu), ("model", model)) if value is not None]
    loaded, all_settings = _run(trace), [*_settings(settings), *short]
    device = _step_time(step_time, loaded, all_settings, rules)
    if fit:
        if device is not None:
            msg = "replay: give either a step time or fit, not both"
            raise ConfigError(msg)
        device = _fitted(loaded, short, progress, announce)
    run = _replay(
        loaded,
        settings=all_settings,
        step_time=device,
        rules=rules,
        mode=ArrivalMode(closed_loop, max_concurrency),
        rate=rate,
        engine=engine,
        steps=steps,
        progress=progress,
        announce=announce,
    )
    if output is not None:
        run.save(output, force=force)
    return run


def fit(
    *runs: RunLike,
    first: float | None = None,
    form: str = "auto",
    settings: Sequence[str] | Mapping[str, object] = (),
    rules: str | None = None,
    gpu: str | None = None,
    model: str | None = None,
    output: str | Path | None = None,
    force: bool = False,
    progress: Progress = no_progress,
) -> "Fit":
    """Calibrate the step time on observed runs; ``fit(...).step_time`` is what ``replay`` takes. See ``tracekit fit``.

    ``first``: fit on the requests of the first share of the arrivals' span, score the rest apart. ``form``: auto,
    affine or physical. ``output``: also write the JSON file there. Raises ``TracekitError``.
    """
    from tracekit.fit.fit import fit as _fit

    if output is not None and Path(output).exists() and not force:
        msg = f"{output} exists; --force replaces it"
        raise OutputExistsError(msg)
    short = [f"{key}={value}" for key, value in (("gpu", gpu), ("model", model)) if value is not None]
    found = _fit(
        [_run(run) for run in runs],
        first=first,
        form=form,
        settings=[*_settings(settings), *short],
        rules=rules,
        progress=progress,
    )
    if output is not None:
        write_step_time(found.step_time, Path(output))
    return found


def _fitted(run: Run, settings: Sequence[str], progress: Progress, announce: Callable[[str], None] | None) -> StepTime:
    """The step time that fits a run's own latencies; ``settings``: its GPU and model, where it does not say."""
    from tracekit.fit.fit import fit as _fit

    found = _fit([run], settings=settings, progress=progress)
    if announce is not None:
        error = found.in_sample.largest()
        worst = f"; largest error in sample {error:.1%}" if error is not None else ""
        announce(f"note: step time {found.how}: {found.step_time.describe()}{worst}")
    return found.step_time


def _calibrated(
    run: Run,
    settings: Sequence[str],
    rules: str | None,
    progress: Progress,
    announce: Callable[[str], None] | None,
) -> StepTime | None:
    """A step time fitted on the run's own latencies where nothing else is known of the device; null where something is.

    Findings in a replay are worth what its clock is worth: a note says which one it is.
    """
    from tracekit.replay.settings import settle

    if run.kind != "observed" or not run.requests.height:
        return None
    try:
        if settle(run, settings, None, rules).step_time.origin != "default":
            return None
        # What the run says itself it was recorded under; a changed limit is a question, not the recording.
        logged = {name for name, value in run.config.items() if value.origin != "default"}
        missing = [entry for entry in settings if parse_setting(entry)[0] not in logged]
        return _fitted(run, missing, progress, announce)
    except TracekitError as error:
        if announce is not None:
            announce(
                "note: the step time of the device is not known and cannot be fitted on this run "
                f"({error}): times and preemptions of the replay may be far off; give --step-time or --gpu and --model"
            )
        return None


def compare(
    left: RunLike, right: RunLike, *, skip_first: float = 0.0, slo: str | Mapping[str, float] | None = None
) -> "Comparison":
    """Put two runs side by side: concurrency, preemptions, latency percentiles, throughput. See ``tracekit compare``.

    ``slo``: ``{"ttft_ms": 500, "tpot_ms": 50}`` or the same as text; adds goodput and the share of requests that meet all.
    """
    from tracekit.compare.conditions import parse_objectives
    from tracekit.compare.metrics import compare as _compare

    objectives = parse_objectives(slo) if slo is not None else None
    return _compare(_run(left), _run(right), skip_first=skip_first, objectives=objectives)


def explain(
    run: RunLike,
    *,
    request: str | None = None,
    step: int | tuple[int, int] | None = None,
    engine: int = 0,
    settings: Sequence[str] | Mapping[str, object] = (),
    step_time: StepTime | Mapping[str, Any] | str | Path | None = None,
) -> "Story":
    """Tell one request's story, or the decisions of a step or of a window of steps. See ``tracekit explain``.

    ``settings`` and ``step_time`` are those of ``replay``, for an observed run. Raises ``TracekitError``.
    """
    from tracekit.explain import explain_request, explain_steps

    if (request is None) == (step is None):
        msg = "explain: give either a request or a step"
        raise ConfigError(msg)
    loaded, given = _run(run), _settings(settings)
    device = _step_time(step_time, loaded, given)
    if request is not None:
        return explain_request(loaded, request, settings=given, step_time=device)
    first, last = step if isinstance(step, tuple) else (step or 0, step or 0)
    return explain_steps(loaded, first, last, engine=engine, settings=given, step_time=device)


def capacity(
    run: RunLike | None = None,
    *,
    model: str | None = None,
    gpu: str | None = None,
    rules: str | None = None,
    settings: Sequence[str] | Mapping[str, object] = (),
    lengths: str | None = None,
    trace: RunLike | None = None,
) -> "Capacity":
    """Size the KV cache of a server: estimated from model, GPU and flags, or moved from what a run's server logged.

    ``lengths``: ``"1000:200,8000:500"`` (tokens in and out), or a ``trace`` whose lengths count. See
    ``tracekit capacity``. Raises ``TracekitError``.
    """
    from tracekit.capacity import Lengths, capacity_of, parse_lengths

    short = (("model", model), ("gpu", gpu), ("vllm_version", rules))
    given = dict(parse_setting(f"{name}={value}") for name, value in short if value is not None)
    given |= dict(parse_setting(setting) for setting in _settings(settings))
    found = _run(run) if run is not None else None
    logged = {name: value for name, value in found.config.items() if value.origin != "default"} if found else {}
    known = None if lengths is None else parse_lengths(lengths)
    if trace is not None:
        columns = _run(trace).requests.select("num_prompt_tokens", "num_output_tokens").drop_nulls()
        known = [Lengths(prompt, output) for prompt, output in columns.iter_rows()]
    sized = any(name in {**logged, **given} for name in ("num_gpu_blocks", "kv_cache_tokens", "available_kv_gib"))
    # A block count, tokens or memory that the user gives is a measured point like a logged one.
    measured = {**logged, **{n: v for n, v in given.items() if n in _MEASURED or not logged}} if sized else None
    return capacity_of({**logged, **given}, measured, known)


def export_anonymous(run: RunLike, output: str | Path, *, force: bool = False) -> Run:
    """Write a run's trace without names, text or wall clock, prefixes hashed anew; see ``tracekit export``."""
    from tracekit.anonymous import anonymous

    written = anonymous(_run(run))
    written.save(output, force=force)
    return written


def report(
    *runs: RunLike,
    output: str | Path,
    settings: Sequence[str] | Mapping[str, object] = (),
    step_time: StepTime | Mapping[str, Any] | str | Path | None = None,
    remedies: bool = True,
    images: Sequence[tuple[str, str | Path]] = (),
    force: bool = False,
    progress: Progress = no_progress,
    announce: Callable[[str], None] | None = None,
) -> Path:
    """Write one self-contained HTML page about a run, or about an observed and a simulated one; see ``tracekit report``.

    An observed run alone is replayed where it can be. Raises ``TracekitError``.
    """
    from tracekit.report.write import write_report

    loaded, given = [_run(run) for run in runs], _settings(settings)
    device = _step_time(step_time, loaded[0], given) if loaded else None
    if device is None and len(loaded) == 1:
        device = _calibrated(loaded[0], given, None, progress, announce)
    return write_report(
        loaded,
        Path(output),
        settings=given,
        step_time=device,
        remedies=remedies,
        images=images,
        force=force,
        progress=progress,
    )


def export_perfetto(run: RunLike, output: str | Path, *, force: bool = False) -> int:
    """Write a run for ui.perfetto.dev; returns the number of events. See ``tracekit export``."""
    from tracekit.report.perfetto import write_perfetto

    return write_perfetto(_run(run), output, force=force)


def postmortem(
    run: RunLike,
    *,
    settings: Sequence[str] | Mapping[str, object] = (),
    rules: str | None = None,
    step_time: StepTime | Mapping[str, Any] | str | Path | None = None,
    closed_loop: bool = False,
    max_concurrency: int | None = None,
    remedies: bool = True,
    progress: Progress = no_progress,
    announce: Callable[[str], None] | None = None,
) -> "Postmortem":
    """Why it happened and what would have helped: findings, causes, remedies tested by replay.

    Arguments as of ``replay``; ``remedies`` False tests none. See ``tracekit postmortem``. Raises ``TracekitError``.
    """
    from tracekit.postmortem import postmortem as _postmortem

    loaded, given = _run(run), _settings(settings)
    device = _step_time(step_time, loaded, given, rules)
    if device is None:
        device = _calibrated(loaded, given, rules, progress, announce)
    return _postmortem(
        loaded,
        settings=given,
        step_time=device,
        rules=rules,
        mode=ArrivalMode(closed_loop, max_concurrency),
        remedies=remedies,
        progress=progress,
        announce=announce,
    )


def sql(
    runs: RunLike | Sequence[RunLike] | Mapping[str, RunLike],
    query: str,
    parameters: "Parameters | None" = None,
) -> "pl.DataFrame":
    """Ask one run, several, or named ones in DuckDB SQL; returns a polars frame. See ``tracekit sql``."""
    from tracekit.compare.run_sql import aliases_for
    from tracekit.compare.run_sql import sql as _sql

    if isinstance(runs, Mapping):
        named = {alias: _run(run) for alias, run in runs.items()}
    else:
        many = [runs] if isinstance(runs, Run | str | Path) else list(runs)
        named = dict(aliases_for([_run(run) for run in many]))
    return _sql(named, query, parameters=parameters)


def _settings(settings: Sequence[str] | Mapping[str, object]) -> list[str]:
    if isinstance(settings, Mapping):
        return [f"{name}={value}" for name, value in settings.items()]
    return list(settings)


def _step_time(
    given: StepTime | Mapping[str, Any] | str | Path | None, run: Run, settings: Sequence[str], rules: str | None = None
) -> StepTime | None:
    """The step time as given; ``aiconfigurator`` is read off that package's tables for what the run is replayed with."""
    if given is None or isinstance(given, StepTime):
        return given
    if isinstance(given, Mapping):
        return step_time_from_dict(given, "given", "step_time")
    from tracekit.replay.aiconfigurator import NAME, aiconfigurator_step_time
    from tracekit.replay.settings import settle

    if given == NAME:
        config = settle(run, settings, None, rules).resolved.config
        return aiconfigurator_step_time({name: value.value for name, value in config.items()})
    return step_time_from_file(Path(given))
