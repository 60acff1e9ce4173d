"""A calibration as people read it: the step time, what it rests on, and its errors in and out of sample."""

from typing import TYPE_CHECKING, Final

from tracekit.report.text import sanitise, signed_percent

if TYPE_CHECKING:
    from tracekit.fit.fit import Fit

_LABELS: Final = {"ttft_ms": "TTFT", "tpot_ms": "TPOT", "e2e_ms": "E2E"}
_WORDS: Final = {
    "num_scheduled_reqs": "requests", "num_scheduled_tokens": "tokens", "num_context_tokens": "context tokens",
}  # fmt: skip
_NEWLINE: Final = "\n"


def fit_text(fit: "Fit", *, verbose: bool = False) -> str:
    """At most 80 columns: the fit, its coverage, and the error of each statistic; ``-`` is unknown.

    ``verbose``: also which configuration it holds for.
    """
    about = fit.step_time.fit
    covers = ", ".join(f"{low:,} to {high:,} {_WORDS[name]}" for name, (low, high) in about["coverage"].items())
    lines = [
        f"step time   {fit.step_time.describe()}",
        f"fitted      {fit.how}",
        f"covers      {covers} a step",
    ]
    if verbose:
        lines.append("holds for   " + ", ".join(f"{name} {value}" for name, value in about["config"].items()))
    sides = [("in sample", fit.in_sample)] + ([("held out", fit.held_out)] if fit.held_out is not None else [])
    lines += ["", "error of the replay" + "".join(f"{name:>20}" for name, _ in sides)]
    lines.append("  requests" + " " * 9 + "".join(f"{side.num_requests:>20,}" for _, side in sides))
    previous = None
    for metric, stat in fit.in_sample.errors:
        label = _LABELS[metric] if metric != previous else ""
        previous = metric
        figures = "".join(f"{signed_percent(side.errors[metric, stat]):>20}" for _, side in sides)
        lines.append(f"  {label:8}{stat:9}{figures}")
    return sanitise(_NEWLINE.join(_wrapped(line) for line in lines))


def _wrapped(line: str, width: int = 80) -> str:
    """Break a long line at a blank, indented as its text."""
    if len(line) <= width:
        return line
    cut = line.rfind(" ", 0, width + 1)
    return line[:cut] + _NEWLINE + _wrapped(" " * 12 + line[cut + 1 :], width)
