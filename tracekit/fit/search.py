"""Find the step time that reproduces observed latencies: Gauss-Newton over linearised replays.

Each round replays once, then moves to the best point of the linear model (robust loss, bounds, damped towards where it
stands). Decode rates come first: they hardly depend on queueing, which amplifies what is still wrong. The best round
by the true errors counts, since decisions change from round to round.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from tracekit.fit.forms import Form, Vector
from tracekit.fit.linearised import METRICS, Linearised, Matrix, Target, linearise
from tracekit.progress import Progress
from tracekit.step_time.parameters import FRONTEND

_ROUNDS: Final = 24
_RATES_FIRST: Final = 4
_PATIENCE: Final = 5
_SCALING_ROUNDS: Final = 6
_SCALED_ENOUGH: Final = 0.02
_JUDGED_AT: Final = 0.02
_SMALLEST_NOISE: Final = 2e-4
_DAMPING: Final = {True: 0.05, False: 0.02}


@dataclass(frozen=True)
class Found:
    """The best vector and its form, its loss, how many replays it took, and its replays (one a target)."""

    form: Form
    vector: Vector
    loss: float
    num_replays: int
    rounds: tuple[Linearised, ...]


def search(targets: Sequence[Target], form: Form, progress: Progress, *, fixed: frozenset[str] = frozenset()) -> Found:
    """Fit the numbers of ``form`` to the targets, but for those named in ``fixed``."""
    replays = 0

    def at(vector: Vector) -> tuple[Linearised, ...]:
        nonlocal replays
        replays += len(targets)
        progress("fit", min(replays, _ROUNDS * len(targets)), 0)
        return tuple(linearise(target, form, vector) for target in targets)

    vector = form.start if fixed else _scaled(form, at)
    best: tuple[float, Vector, tuple[Linearised, ...]] | None = None
    since_best = 0
    has_rates = True
    metrics: tuple[str, ...] = METRICS
    for number in range(_ROUNDS):
        rounds = at(vector)
        if fixed and number == 0 and len(_together(rounds, ("ttft",))[0]) >= len(form.names):
            # What is left free stands in every TTFT; an E2E would tell it what is wrong with the steps.
            metrics = ("ttft",)
        residuals, slopes = _together(rounds, metrics)
        loss = float(np.mean(_soft(residuals, _JUDGED_AT)))
        since_best += 1
        if best is None or loss < best[0]:
            best, since_best = (loss, vector, rounds), 0
        if since_best > _PATIENCE:
            break
        rates_alone = number < _RATES_FIRST and has_rates and not fixed
        if rates_alone:
            rates = _together(rounds, ("tpot",))
            has_rates = len(rates[0]) >= len(form.names)
            residuals, slopes = rates if has_rates else (residuals, slopes)
        moved = _moved(form, vector, residuals, slopes, _DAMPING[rates_alone], fixed)
        if not rates_alone and np.all(np.abs(moved - vector) <= 1e-5 * form.scale):
            break
        vector = moved
    assert best is not None  # noqa: S101 - the loop ran
    return Found(form, best[1], best[0], replays, best[2])


def _scaled(form: Form, at: Callable[[Vector], tuple[Linearised, ...]]) -> Vector:
    """Bring the whole step time to the right size first: nothing linear holds where the engine is idle by mistake."""
    vector = form.start
    for _ in range(_SCALING_ROUNDS):
        rounds = at(vector)
        rates = _together(rounds, ("tpot",))[0]
        off = float(np.median(rates if len(rates) else _together(rounds, ("e2e",))[0]))
        if abs(off) < _SCALED_ENOUGH:
            break
        vector = form.slowed(vector, float(np.exp(-off)))
    return vector


def _together(rounds: Sequence[Linearised], metrics: Sequence[str]) -> tuple[Vector, Matrix]:
    residuals = [one.residuals[metric] for one in rounds for metric in metrics]
    slopes = [one.slopes[metric] for one in rounds for metric in metrics]
    return np.concatenate(residuals), np.concatenate(slopes)


def _soft(residuals: Vector, width: float) -> Vector:
    """A loss that is quadratic for small errors and linear for large ones."""
    found: Vector = 2 * (np.sqrt(1 + (residuals / width) ** 2) - 1)
    return found


def _moved(
    form: Form, vector: Vector, residuals: Vector, slopes: Matrix, damping: float, fixed: frozenset[str]
) -> Vector:
    """The best point of the linear model around ``vector``."""
    from scipy.optimize import least_squares

    free = np.array([name not in fixed for name in form.names])
    scale, lowest = form.scale[free], form.lowest[free]
    here = vector[free] / scale
    noise = max(float(np.median(np.abs(residuals))), _SMALLEST_NOISE)
    prior = noise * form.prior[free] * scale
    wanted = form.start[free] / scale
    slope = np.concatenate([slopes[:, free] * scale, damping * np.eye(len(here)), np.diag(prior)])

    def errors(shifted: Vector) -> Vector:
        point = shifted - 1
        moved = residuals + slopes[:, free] @ ((point - here) * scale)
        found: Vector = np.concatenate([moved, damping * (point - here), prior * (point - wanted)])
        return found

    def constant_slope(_: Vector) -> Matrix:
        return slope

    # The first trust region is as wide as the start is large: shifted by 1, a start of 0 can move too.
    low = lowest / scale + 1
    arguments: dict[str, Any] = {"bounds": (low, np.inf), "loss": "soft_l1", "f_scale": noise, "x_scale": "jac"}
    start = np.maximum(here + 1, low + 1e-9)
    solved = least_squares(errors, start, jac=constant_slope, max_nfev=100, **arguments)
    moved = vector.copy()
    moved[free] = (solved.x - 1) * scale
    return moved


ALL_BUT_FRONTEND: Final = frozenset({
    "t0_ms", "per_token_us", "per_seq_us", "per_context_token_us", "bandwidth_scale", "compute_scale", "allreduce_scale",
}) - {FRONTEND}  # fmt: skip
