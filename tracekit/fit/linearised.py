"""One replay as a linear model: how every observed latency answers to every number of the step time.

With the scheduler's decisions held fixed, an instant is the start of its busy period plus the durations of the steps
since: its derivative is the sum of theirs. So one replay gives the residuals and their exact slopes, without the noise
that differences between replays have (a slightly longer step changes who is admitted with whom).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import polars as pl

from tracekit.errors import InputError
from tracekit.fit.forms import OUTSIDE_STEPS, Form, Vector
from tracekit.replay.compiled import unsupported
from tracekit.replay.endpoints import is_chat
from tracekit.replay.replay import replay
from tracekit.replay.settings import settle
from tracekit.run import Run
from tracekit.step_time.duration import StepParameters, of_context, of_reqs, of_tokens
from tracekit.step_time.parameters import CHAT, FRONTEND

METRICS: Final = ("tpot", "ttft", "e2e")
_WEIGHTS: Final = {"tpot": 1.0, "ttft": 0.5, "e2e": 0.5}
"""Queueing amplifies every error of the step time in TTFT and E2E, and a client's jitter stands in TTFT."""
_DIFFERENCE: Final = 0.01

Matrix = np.ndarray[Any, np.dtype[np.float64]]
Integers = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class Target:
    """An observed run to be reproduced, which of its requests count, and the settings of its replays."""

    run: Run
    latencies: pl.DataFrame
    settings: tuple[str, ...] = ()
    rules: str | None = None


class Linearised(NamedTuple):
    """Per metric the weighted log errors (simulated over observed) and their slopes, and the simulated run."""

    residuals: dict[str, Vector]
    slopes: dict[str, Matrix]
    simulated: Run


def target_of(run: Run, until_ns: int | None, settings: tuple[str, ...], rules: str | None) -> Target:
    """The requests served to their end that arrived before an instant; raises ``InputError`` when there are too few."""
    served = run.requests.filter(
        pl.col("arrival_ns").is_not_null(),
        pl.col("finish_reason").is_null() | pl.col("finish_reason").is_in(["stop", "length"]),
        pl.col("first_token_ns").is_not_null() | pl.col("last_token_ns").is_not_null(),
        pl.col("num_generated_tokens") > 0,
    )
    if until_ns is not None:
        served = served.filter(pl.col("arrival_ns") < until_ns)
    columns = ["request_id", "arrival_ns", "first_token_ns", "last_token_ns", "num_generated_tokens"]
    if served.height < _FEWEST:
        msg = f"{run.name}: {served.height} requests with latencies to fit on, expected at least {_FEWEST}"
        raise InputError(msg)
    return Target(run, served.select(columns), settings, rules)


_FEWEST: Final = 10


def linearise(target: Target, form: Form, vector: Vector) -> Linearised:
    """Replay with the step time of ``vector`` and compare request by request."""
    simulated = _replayed(target, form, vector)
    seen = simulated.requests.select("request_id", "arrival_ns", "engine", "first_token_ns", "last_token_ns")
    both = target.latencies.join(seen, on="request_id", suffix="_simulated").filter(
        pl.col("first_token_ns_simulated").is_not_null()
    )
    slopes_first = _zeros(both.height, len(form.names))
    slopes_last = _zeros(both.height, len(form.names))
    engines = both["engine"].fill_null(0).to_numpy()
    for engine, steps in _steps_of(simulated, engines):
        rows = np.flatnonzero(engines == engine)
        ends, sums = _slopes_of_ends(steps, form, vector)
        for slopes, column in ((slopes_first, "first_token_ns_simulated"), (slopes_last, "last_token_ns_simulated")):
            places = np.searchsorted(ends, both[column].to_numpy()[rows])
            slopes[rows] = sums[np.minimum(places, len(ends) - 1)]
    if CHAT in form.names:
        held = np.where(both.select(is_chat()).to_series().to_numpy(), 1e6, 0.0)
        for slopes in (slopes_first, slopes_last):
            slopes[:, form.names.index(CHAT)] = held
    return Linearised(*_by_metric(both, slopes_first, slopes_last), simulated)


def _replayed(target: Target, form: Form, vector: Vector) -> Run:
    step_time = form.step_time(vector)
    settled = settle(target.run, target.settings, step_time, target.rules)
    missing = unsupported(settled.resolved.engine, settled.rules, target.run.requests)
    engine = "kernel" if missing is None else "model"
    return replay(
        target.run, settings=target.settings, step_time=step_time, rules=target.rules, engine=engine, steps="all"
    )


def _zeros(rows: int, columns: int) -> Matrix:
    return np.zeros((rows, columns))


def _steps_of(simulated: Run, engines: Integers) -> list[tuple[int, pl.DataFrame]]:
    steps = simulated.steps.with_columns(pl.col("engine").fill_null(0))
    return [(int(engine), steps.filter(pl.col("engine") == engine)) for engine in np.unique(engines)]


def _slopes_of_ends(steps: pl.DataFrame, form: Form, vector: Vector) -> tuple[Integers, Matrix]:
    """The end of each step, and its derivatives: the sums over the steps of its busy period; the frontend moves all."""
    start, duration = steps["start_ns"].to_numpy(), steps["duration_ns"].to_numpy()
    ends = start + duration
    slopes = slopes_of_durations(steps, form, vector)
    sums = np.cumsum(slopes, axis=0)
    is_first = np.r_[True, start[1:] > ends[:-1]]
    first = np.maximum.accumulate(np.where(is_first, np.arange(len(start)), 0))
    before = np.where((first > 0)[:, None], sums[np.maximum(first - 1, 0)], 0.0)
    sums -= before
    sums[:, form.names.index(FRONTEND)] = 1e6
    return ends, sums


def slopes_of_durations(steps: pl.DataFrame, form: Form, vector: Vector) -> Matrix:
    """Derivative of each step's duration (ns) by each number of the form, by differences of the formula."""
    slopes = _zeros(steps.height, len(form.names))
    for place, name in enumerate(form.names):
        if name in OUTSIDE_STEPS:
            continue
        width = _DIFFERENCE * max(float(vector[place]), float(form.scale[place]))
        high, low = vector.copy(), vector.copy()
        high[place] += width
        low[place] = max(low[place] - width, float(form.lowest[place]))
        difference = durations(steps, form.step_time(high).parameters) - durations(
            steps, form.step_time(low).parameters
        )
        slopes[:, place] = difference / (high[place] - low[place])
    return slopes


def durations(steps: pl.DataFrame, parameters: StepParameters) -> Vector:
    """What the formula says of each step, ns, not rounded.

    Attention pairs are no column: a step's prefills are taken as one prompt of their mean length each.
    """
    context = of_context(parameters)
    tokens = _tabulated(steps["num_scheduled_tokens"].to_numpy(), lambda count: of_tokens(parameters, count))
    reqs = _tabulated(steps["num_scheduled_reqs"].to_numpy(), lambda count: of_reqs(parameters, count))
    held = steps["num_context_tokens"].fill_null(0).to_numpy()
    prefills = (steps["num_prefill_reqs"] + steps["num_long_extend_reqs"]).fill_null(0).to_numpy()
    new = (steps["num_scheduled_tokens"] - steps["num_scheduled_reqs"]).to_numpy() + prefills
    pairs = np.where(prefills > 0, new * (new / np.maximum(prefills, 1) + 1) / 2, 0.0)
    found: Vector = (
        tokens
        + reqs
        + context.per_context_token * held
        + context.per_attention_pair * pairs
        + context.per_prefill_step * (prefills > 0)
    )
    return found


def _tabulated(counts: Integers, law: Callable[[int], float]) -> Vector:
    unique, places = np.unique(counts, return_inverse=True)
    table: Vector = np.array([law(int(count)) for count in unique])
    found: Vector = table[places]
    return found


def _by_metric(
    both: pl.DataFrame, slopes_first: Matrix, slopes_last: Matrix
) -> tuple[dict[str, Vector], dict[str, Matrix]]:
    arrival = both["arrival_ns"].to_numpy()
    many = (both["num_generated_tokens"] > 1).to_numpy()

    def since(column: str) -> Vector:
        """Nanoseconds from the arrival; not a number where unknown."""
        instants: Vector = both[column].cast(pl.Float64).fill_null(float("nan")).to_numpy()
        since_arrival: Vector = np.subtract(instants, arrival)
        return since_arrival

    first, last = since("first_token_ns"), since("last_token_ns")
    first_simulated, last_simulated = since("first_token_ns_simulated"), since("last_token_ns_simulated")
    kinds = {
        "ttft": (first, first_simulated, slopes_first, np.ones_like(many)),
        "e2e": (last, last_simulated, slopes_last, np.ones_like(many)),
        "tpot": (last - first, last_simulated - first_simulated, slopes_last - slopes_first, many),
    }
    residuals, slopes = {}, {}
    for metric, (observed, found, slope, applies) in kinds.items():
        known = applies & (np.nan_to_num(observed) > 0) & (found > 0)
        weight = _WEIGHTS[metric]
        residuals[metric] = weight * np.log(found[known] / observed[known])
        slopes[metric] = weight * slope[known] / found[known, None]
    return residuals, slopes
