"""Calibrate a step time on observed runs, and say how well it reproduces them, in and out of sample."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import polars as pl

from tracekit.compare.metrics import compare
from tracekit.errors import ConfigError, InputError
from tracekit.fit.forms import Form, affine_form, physical_form
from tracekit.fit.linearised import Target, target_of
from tracekit.fit.search import ALL_BUT_FRONTEND, Found, search
from tracekit.fit.steps import fit_steps, usable_steps
from tracekit.progress import Progress, no_progress
from tracekit.replay.endpoints import is_chat
from tracekit.replay.settings import settle
from tracekit.run import Run
from tracekit.step_time.catalogued import physical_of_config
from tracekit.step_time.coverage import IDENTITY, RANGES
from tracekit.step_time.parameters import StepTime

FORMS: Final = ("auto", "affine", "physical")
METRICS: Final = ("ttft_ms", "tpot_ms", "e2e_ms")
STATS: Final = ("mean", "p50", "p90", "p99")
_INSTANTS: Final = ("first_token_ns", "last_token_ns")
_MOST_REQUESTS: Final = 20_000
_FAR: Final = 1.6
_ENOUGH_BUSY_SECONDS: Final = 15
_ENOUGH_OF_A_KIND: Final = 10


@dataclass(frozen=True)
class Errors:
    """Simulated over observed minus 1 by ``(metric, stat)``, null where unknown, and the requests behind it."""

    num_requests: int
    errors: Mapping[tuple[str, str], float | None]

    def largest(self) -> float | None:
        """The largest of them, without its sign; null when none is known."""
        return max((abs(error) for error in self.errors.values() if error is not None), default=None)

    def to_dict(self) -> dict[str, Any]:
        """The same for JSON."""
        by_name = {f"{metric}.{stat}": error for (metric, stat), error in self.errors.items()}
        return {"num_requests": self.num_requests, **by_name}


@dataclass(frozen=True)
class Fit:
    """A calibrated step time; ``how``: from what. ``held_out``: null when everything was fitted on."""

    step_time: StepTime
    how: str
    num_replays: int
    in_sample: Errors
    held_out: Errors | None
    notes: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """The step time's file, with what was found under ``fit``."""
        return self.step_time.to_dict()


def fit(
    runs: Sequence[Run],
    *,
    first: float | None = None,
    form: str = "auto",
    settings: Sequence[str] = (),
    rules: str | None = None,
    progress: Progress = no_progress,
) -> Fit:
    """Fit one step time to the runs.

    ``first``: fit on the requests of the first share of the arrivals' span, score the rest too. ``form``: affine,
    physical (around the catalogue's, needs GPU and model), or auto: physical where both are known. ``settings``,
    ``rules``: as of ``replay``. Raises ``InputError`` where there is nothing to fit on, ``ConfigError``.
    """
    if not runs or form not in FORMS:
        msg = "fit: expected at least one run" if not runs else f"--form must be one of {', '.join(FORMS)}"
        raise ConfigError(msg)
    if first is not None and not 0 < first < 1:
        msg = f"--first must be above 0 and below 1, found {first:g}"
        raise ConfigError(msg)
    given = tuple(settings)
    cuts = [_cut(run, first) for run in runs]
    start, notes = _start_form(runs[0], form, given, rules)
    targets = [target_of(_bounded(run, cut, notes), cut, given, rules) for run, cut in zip(runs, cuts, strict=True)]
    found, how = _found(runs, cuts, targets, start, progress)
    in_sample = _errors([(t.run, r.simulated) for t, r in zip(targets, found.rounds, strict=True)], cuts, before=True)
    held_out = None
    if first is not None:
        pairs = [(t.run, r.simulated) for t, r in zip(targets, found.rounds, strict=True)]
        held_out = _errors(pairs, cuts, before=False)
    notes += _far_from_catalogue(found)
    names = ", ".join(run.name for run in runs)
    step_time = found.form.step_time(found.vector, f"fitted on {names}")
    about = {
        "runs": [run.name for run in runs],
        "how": how,
        "first": first,
        "config": _identity(runs[0], given, rules, step_time),
        "coverage": _coverage(found, cuts),
        "in_sample": in_sample.to_dict(),
        "held_out": held_out.to_dict() if held_out is not None else None,
    }
    return Fit(replace(step_time, fit=about), how, found.num_replays, in_sample, held_out, notes)


def _found(
    runs: Sequence[Run], cuts: Sequence[int | None], targets: Sequence[Target], form: Form, progress: Progress
) -> tuple[Found, str]:
    """From the durations of steps where they were observed, then the frontend alone; else everything end to end."""
    steps = [usable_steps(run, cut) for run, cut in zip(runs, cuts, strict=True)]
    place = max(range(len(runs)), key=lambda number: steps[number].height if steps[number] is not None else 0)  # type: ignore[union-attr]
    chosen = steps[place]
    if chosen is None:
        found = search(targets, form, progress)
        return found, f"end to end, {found.num_replays} replays"
    from_steps = fit_steps(runs[place], chosen, form)
    if runs[place].kind != "simulated" and from_steps.num_busy_seconds < _ENOUGH_BUSY_SECONDS:
        # Lines alone leave the host's share of each step out, and too few busy seconds tell it.
        found = search(targets, replace(form, start=from_steps.vector), progress)
        return found, f"end to end, {found.num_replays} replays (too few busy seconds to trust the iteration lines)"
    form = replace(form, start=from_steps.vector)
    if _tells_chat_apart(targets):
        form = form.with_chat()
    found = search(targets, form, progress, fixed=ALL_BUT_FRONTEND)
    how = f"from {from_steps.num_steps:,} observed steps"
    if from_steps.num_busy_seconds:
        how += f" and {from_steps.num_busy_seconds:,} busy seconds"
    return found, f"{how}; the frontend by {found.num_replays} replays"


def _start_form(run: Run, form: str, settings: Sequence[str], rules: str | None) -> tuple[Form, list[str]]:
    config = {name: value.value for name, value in settle(run, settings, None, rules).resolved.config.items()}
    if form == "affine":
        return affine_form(), []
    try:
        described = physical_of_config(config)
    except ConfigError as error:
        if form == "physical":
            raise
        return affine_form(), [f"affine form: {error}"]
    if described is not None:
        return physical_form(described[0]), []
    if form == "physical":
        msg = "--form physical needs the GPU and the model: give --gpu and --model"
        raise ConfigError(msg)
    return affine_form(), []


def _tells_chat_apart(targets: Sequence[Target]) -> bool:
    """Whether both endpoints served enough of the requests that are fitted on."""
    chats = pl.concat([target.latencies.select(is_chat()) for target in targets]).to_series()
    return min(int(chats.sum()), int((~chats).sum())) >= _ENOUGH_OF_A_KIND


def _far_from_catalogue(found: Found) -> list[str]:
    far = [
        f"{name} {value:.2f}"
        for name, value in zip(found.form.names, found.vector, strict=True)
        if name.endswith("_scale") and not 1 / _FAR < value < _FAR
    ]
    if not far:
        return []
    return [f"far from the catalogue ({', '.join(far)}): is it another GPU or model than {found.form.beside['gpu']}?"]


def _cut(run: Run, first: float | None) -> int | None:
    """The instant before which a request belongs to the first share of the arrivals' span."""
    low, high = run.requests["arrival_ns"].min(), run.requests["arrival_ns"].max()
    if not isinstance(low, int) or not isinstance(high, int):
        msg = f"{run.name}: no request with an arrival time to fit on"
        raise InputError(msg)
    return None if first is None else int(low + first * (high - low))


def _bounded(run: Run, cut: int | None, notes: list[str]) -> Run:
    """A run of bearable size: a fit replays it a few dozen times."""
    if cut is not None or run.requests.height <= _MOST_REQUESTS:
        return run
    until = run.requests["arrival_ns"].sort()[_MOST_REQUESTS]
    notes.append(f"{run.name}: fitted on its first {_MOST_REQUESTS:,} of {run.requests.height:,} requests")
    tables = {"requests": run.requests.filter(pl.col("arrival_ns").is_null() | (pl.col("arrival_ns") < until))}
    bounded = Run(run.kind, tables, dict(run.config), run.start_unix_ns, dict(run.info))
    bounded.label = run.name
    return bounded


def errors_between(observed: Run, simulated: Run) -> Errors:
    """The errors of a replay over the requests, and the instants of each, that were observed."""
    return _errors([(observed, simulated)], [None], before=True)


def _errors(pairs: Sequence[tuple[Run, Run]], cuts: Sequence[int | None], *, before: bool) -> Errors:
    observed: list[pl.DataFrame] = []
    simulated: list[pl.DataFrame] = []
    for place, ((left, right), cut) in enumerate(zip(pairs, cuts, strict=True)):
        named = pl.concat_str(pl.lit(f"{place}:"), pl.col("request_id"))
        seen = _part(left, cut, before=before).with_columns(request_id=named)
        observed.append(seen)
        simulated.append(_as_far_as_observed(right.requests.with_columns(request_id=named), seen))
    sides = [Run("simulated", {"requests": pl.concat(tables)}) for tables in (observed, simulated)]
    comparison = compare(*sides)
    errors = {(metric, stat): comparison.get(metric, stat).error for metric in METRICS for stat in STATS}
    return Errors(sides[0].requests.height, errors)


def _as_far_as_observed(simulated: pl.DataFrame, observed: pl.DataFrame) -> pl.DataFrame:
    """The simulated requests that were observed served, without the instants that were not observed of them."""
    served = observed.filter(pl.col("finish_reason").is_null() | pl.col("finish_reason").is_in(["stop", "length"]))
    known = served.select("request_id", **{f"has_{name}": pl.col(name).is_not_null() for name in _INSTANTS})
    joined = simulated.join(known, on="request_id", how="inner", maintain_order="left")
    masked = [pl.when(pl.col(f"has_{name}")).then(pl.col(name)).alias(name) for name in _INSTANTS]
    return joined.with_columns(masked).select(simulated.columns)


def _part(run: Run, cut: int | None, *, before: bool) -> pl.DataFrame:
    if cut is None:
        return run.requests
    arrival = pl.col("arrival_ns")
    return run.requests.filter(arrival < cut if before else arrival >= cut)


def _identity(run: Run, settings: Sequence[str], rules: str | None, step_time: StepTime) -> dict[str, Any]:
    config = settle(run, settings, step_time, rules).resolved.config
    return {name: config[name].value for name in (*IDENTITY, "vllm_version") if name in config}


def _coverage(found: Found, cuts: Sequence[int | None]) -> dict[str, list[int]]:
    """The range of each count over the steps that carried what was fitted on."""
    frames = []
    for one, cut in zip(found.rounds, cuts, strict=True):
        steps = one.simulated.steps
        frames.append(steps if cut is None else steps.filter(pl.col("start_ns") < cut))
    steps = pl.concat(frames)
    return {name: [int(steps[name].min() or 0), int(steps[name].max() or 0)] for name in RANGES}  # type: ignore[arg-type]
