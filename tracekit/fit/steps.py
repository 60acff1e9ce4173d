"""Find the step time from the durations of observed steps (iteration lines, or a recorder).

An iteration line's elapsed time runs from the host's scheduling of a step to its result. Under asynchronous scheduling
the device is then still busy with the step before, and the host books its output first; in both cases the time that the
host takes between steps is not in it. So a logged duration is that of the step less ``a + b * requests``. What is left
out shows in the number of steps that a busy second holds: the durations of the steps that end in it add up to one
second. Both are fitted together.
"""

from typing import Final, NamedTuple

import numpy as np
import polars as pl

from tracekit.fit.forms import OUTSIDE_STEPS, Form, Vector
from tracekit.fit.linearised import Integers, Matrix, durations, slopes_of_durations
from tracekit.run import Run

FEWEST_STEPS: Final = 50
_BUSY: Final = 0.75
_ROUNDS: Final = 20
_TRUST_IN_IDLE: Final = 0.1
_SECOND_NS: Final = 1_000_000_000
_FEWEST_SECONDS: Final = 5
_STEP_WIDTH: Final = 0.05
_SECOND_WIDTH: Final = 0.01


class FromSteps(NamedTuple):
    """The vector (its frontend untouched), how many steps and busy seconds it rests on."""

    vector: Vector
    num_steps: int
    num_busy_seconds: int


def usable_steps(run: Run, until_ns: int | None) -> pl.DataFrame | None:
    """The steps with a duration that started before an instant; null when there are too few."""
    if not run.has("steps"):
        return None
    steps = run.steps.filter(
        pl.col("duration_ns") > 0, pl.col("num_scheduled_tokens") > 0, pl.col("num_scheduled_reqs") > 0
    )
    if until_ns is not None:
        steps = steps.filter(pl.col("start_ns") < until_ns)
    return steps if steps.height >= FEWEST_STEPS else None


def fit_steps(run: Run, steps: pl.DataFrame, form: Form) -> FromSteps:
    """Fit the form to the steps; numbers that the steps cannot tell (an unknown context) keep their start."""
    from scipy.optimize import least_squares

    logged = steps["duration_ns"].to_numpy().astype(np.float64)
    has_context = steps["num_context_tokens"].null_count() == 0
    hidden = OUTSIDE_STEPS if has_context else OUTSIDE_STEPS | {"per_context_token_us"}
    free = np.array([name not in hidden for name in form.names])
    # A simulated run's durations are exact; a log's lack the host's share.
    host = np.stack([np.ones(steps.height), steps["num_scheduled_reqs"].to_numpy()], axis=1) * 1e6
    if run.kind == "simulated":
        host = host[:, :0]
    seconds = _busy_seconds(run, steps) if run.kind != "simulated" else None
    num_busy = 0 if seconds is None else int(seconds.max()) + 1
    if seconds is None:
        host = host[:, :0]
    vector = form.start.copy()
    scale, lowest = form.scale[free], form.lowest[free]
    shares = np.zeros(host.shape[1])
    for _ in range(_ROUNDS):
        modelled = durations(steps, form.step_time(vector).parameters)
        slopes = slopes_of_durations(steps, form, vector)[:, free] * scale
        here = vector[free] / scale
        rows, offsets = _equations(logged, modelled, slopes, host, here, seconds)
        # Shifted by 1: the first trust region is as wide as the start is large.
        low = np.concatenate([lowest / scale, np.zeros(len(shares))]) + 1
        start = np.maximum(np.concatenate([here, shares]) + 1, low + 1e-9)
        solved = least_squares(
            lambda point, rows=rows, offsets=offsets: rows @ (point - 1) + offsets, start,
            jac=lambda _, rows=rows: rows, bounds=(low, np.inf), loss="soft_l1", x_scale="jac", max_nfev=200,
        )  # fmt: skip
        moved, shares = solved.x[: len(here)] - 1, solved.x[len(here) :] - 1
        is_settled = bool(np.all(np.abs(moved - here) < 1e-6))  # noqa: PLR2004
        vector[free] = moved * scale
        if is_settled:
            break
    return FromSteps(vector, steps.height, num_busy)


def _equations(
    logged: Vector, modelled: Vector, slopes: Matrix, host: Matrix, here: Vector, seconds: Integers | None
) -> tuple[Matrix, Vector]:
    """Linear errors ``rows @ (vector, shares) + offsets``, in units of their usual size."""
    constant = modelled - slopes @ here
    width = _STEP_WIDTH * logged
    rows = np.concatenate([slopes, -host], axis=1) / width[:, None]
    offsets = (constant - logged) / width
    if seconds is None:
        return rows, offsets
    known = seconds >= 0
    count = int(seconds.max()) + 1
    summed = np.zeros((count, slopes.shape[1] + host.shape[1]))
    np.add.at(summed[:, : slopes.shape[1]], seconds[known], slopes[known])
    totals = np.bincount(seconds[known], constant[known], minlength=count)
    off = totals + summed[:, : len(here)] @ here - _SECOND_NS
    # Every second weighs as its steps do together: it is the only witness of what their lines leave out. One that the
    # steps do not fill was idle for a while and says little; one that they overfill cannot be.
    trust = np.where(off < -_SECOND_WIDTH * _SECOND_NS, _TRUST_IN_IDLE, 1.0)
    weight = trust * np.sqrt(len(logged) / count) / (_SECOND_WIDTH * _SECOND_NS)
    return (
        np.concatenate([rows, summed * weight[:, None]]),
        np.concatenate([offsets, (totals - _SECOND_NS) * weight]),
    )


def _busy_seconds(run: Run, steps: pl.DataFrame) -> Integers | None:
    """For each step the number of the busy wall-clock second it ended in, -1 for none; null when there are too few."""
    if steps["engine"].n_unique() > 1:
        return None
    zero = run.start_unix_ns or 0
    ends = steps["start_ns"].to_numpy() + steps["duration_ns"].to_numpy() + zero - 1
    second = ends // _SECOND_NS
    numbers, places = np.unique(second, return_inverse=True)
    filled = np.bincount(places, steps["duration_ns"].to_numpy()) / _SECOND_NS
    is_busy = filled >= _BUSY
    # Its neighbours work too, so that no step hangs over an idle edge unseen.
    for side in (-1, 1):
        is_busy &= np.isin(numbers + side, numbers)
    if int(is_busy.sum()) < _FEWEST_SECONDS:
        return None
    order = np.where(is_busy, np.cumsum(is_busy) - 1, -1)
    found: Integers = order[places]
    return found
