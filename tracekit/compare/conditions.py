"""What people demand of a run or of a comparison: objectives (``--slo``) and conditions (``--fail-if``)."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tracekit.errors import ConfigError

if TYPE_CHECKING:
    from tracekit.compare.metrics import Comparison

OBJECTIVES: Final = ("ttft_ms", "tpot_ms", "e2e_ms", "queue_ms")
_CONDITION: Final = re.compile(
    r"\s*(?P<metric>[a-z0-9_]+)(?:\.(?P<stat>[a-z0-9]+))?\s*(?P<sign>[<>])\s*(?P<value>[+-]?\d+(?:\.\d+)?)\s*(?P<percent>%?)\s*"
)
_SLO_EXAMPLE: Final = "ttft_ms=500,tpot_ms=50"
_EXAMPLE: Final = '"ttft_ms.p99>+10%" (the error) or "num_preemptions.total>0" (the right side\'s value)'


@dataclass(frozen=True)
class Condition:
    """A figure that must not lie beyond a limit: the error of the right side (``is_relative``) or its value."""

    text: str
    metric: str
    stat: str | None
    is_above: bool
    limit: float
    is_relative: bool


@dataclass(frozen=True)
class Verdict:
    """One condition against a comparison: ``failed`` when it holds, or when the figure is unknown (``found`` null).

    ``is_guess``: all that is known of the figure is a wide bucket of a histogram.
    """

    condition: Condition
    found: float | None
    failed: bool
    is_guess: bool = False


def parse_objectives(given: str | Mapping[str, float]) -> dict[str, float]:
    """Read ``ttft_ms=500,tpot_ms=50`` into milliseconds by metric; raises ``ConfigError``."""
    if isinstance(given, Mapping):
        pairs = [(name, str(value)) for name, value in given.items()]
    else:
        pairs = [(name.strip(), value.strip()) for name, _, value in (p.partition("=") for p in given.split(","))]
    objectives: dict[str, float] = {}
    for name, value in pairs:
        if name not in OBJECTIVES:
            msg = f"--slo: expected {', '.join(OBJECTIVES)} with milliseconds, such as {_SLO_EXAMPLE}"
            raise ConfigError(msg)
        if name in objectives:
            msg = f"--slo: {name} is given twice"
            raise ConfigError(msg)
        try:
            limit = float(value)
        except ValueError:
            limit = math.nan
        if not 0 < limit < math.inf:
            msg = f"--slo: {name} must be a number of milliseconds above 0, such as {_SLO_EXAMPLE}"
            raise ConfigError(msg)
        objectives[name] = limit
    return objectives


def parse_condition(text: str) -> Condition:
    """Read ``ttft_ms.p99>+10%``; raises ``ConfigError``. A metric with a single stat needs none."""
    found = _CONDITION.fullmatch(text)
    if found is None:
        msg = f"--fail-if: expected METRIC.STAT, then > or <, then a number or percentage, such as {_EXAMPLE}"
        raise ConfigError(msg)
    is_relative = found["percent"] == "%"
    limit = float(found["value"]) / (100 if is_relative else 1)
    return Condition(text.strip(), found["metric"], found["stat"], found["sign"] == ">", limit, is_relative)


def judge(comparison: "Comparison", conditions: Sequence[Condition]) -> list[Verdict]:
    """Hold a comparison against conditions; raises ``ConfigError`` for a metric or stat that it does not have."""
    return [_judged(comparison, condition) for condition in conditions]


def _judged(comparison: "Comparison", condition: Condition) -> Verdict:
    rows = [row for row in comparison.rows if row.metric == condition.metric]
    if not rows:
        known = ", ".join(dict.fromkeys(row.metric for row in comparison.rows))
        msg = f"--fail-if: no metric {condition.metric}; there are {known} (goodput_rps and slo_share with --slo)"
        raise ConfigError(msg)
    chosen = [row for row in rows if row.stat == condition.stat] if condition.stat else rows
    if len(chosen) != 1:
        msg = f"--fail-if: {condition.metric} needs one of the stats {', '.join(row.stat for row in rows)}"
        raise ConfigError(msg)
    row = chosen[0]
    found = row.error if condition.is_relative else row.right
    if condition.is_relative and found is None and row.left == 0 and row.right is not None:
        # From nothing to nothing is no growth; from nothing to something is more than any percentage.
        found = 0.0 if row.right == 0 else math.copysign(math.inf, row.right)
    if found is None:
        return Verdict(condition, None, failed=True)
    bounds = (row.left_bounds, row.right_bounds) if condition.is_relative else (row.right_bounds,)
    is_guess = any(each is not None and each.is_wide for each in bounds)
    failed = found > condition.limit if condition.is_above else found < condition.limit
    return Verdict(condition, found, failed, is_guess)
