"""Tables for a terminal of 80 columns: data in, text out; nothing is read or printed here."""

import re
import unicodedata
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    import polars as pl

    from tracekit.compare.bands import Bounds
    from tracekit.compare.conditions import Verdict
    from tracekit.compare.metrics import Comparison

UNKNOWN: Final = "-"

_SECTIONS: Final = (
    ("concurrency", ("num_running_reqs", "num_waiting_reqs", "kv_cache_usage", "peak_running_reqs")),
    ("preemptions", ("num_preemptions",)),
    ("latency", ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms", "queue_ms")),
    ("throughput", ("num_requests", "output_tps")),
    ("objectives", ("slo_share", "goodput_rps")),
)
_LABELS: Final = {
    "num_running_reqs": "running requests",
    "num_waiting_reqs": "waiting requests",
    "kv_cache_usage": "KV cache usage",
    "peak_running_reqs": "peak running",
    "num_preemptions": "preemptions",
    "ttft_ms": "TTFT",
    "tpot_ms": "TPOT",
    "itl_ms": "ITL",
    "e2e_ms": "E2E",
    "queue_ms": "queue",
    "num_requests": "requests",
    "output_tps": "output tokens/s",
    "slo_share": "requests in SLO",
    "goodput_rps": "goodput, requests/s",
}
_STATS: Final = {"mae": "mean abs. difference", "total": ""}
_LABEL_WIDTH: Final = 20
_STAT_WIDTH: Final = 21
_VALUE_WIDTH: Final = 13
_NEWLINE: Final = "\n"
_BLOCKS: Final = " ▁▂▃▄▅▆▇█"
_ESCAPES: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_CUT: Final = "…"


class _Row(Protocol):
    """What a row of a comparison shows."""

    @property
    def metric(self) -> str: ...
    @property
    def stat(self) -> str: ...
    @property
    def left(self) -> float | None: ...
    @property
    def right(self) -> float | None: ...
    @property
    def n_left(self) -> int: ...
    @property
    def n_right(self) -> int: ...
    @property
    def error(self) -> float | None: ...
    @property
    def left_band(self) -> tuple[float, float] | None: ...
    @property
    def left_bounds(self) -> "Bounds | None": ...
    @property
    def right_bounds(self) -> "Bounds | None": ...


def sanitise(text: str) -> str:
    """Strip terminal escapes and every control or direction-changing character; newlines and tabs stay."""
    plain = _ESCAPES.sub("", text)
    return "".join(
        c for c in plain if c in "\n\t" or unicodedata.category(c) not in {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}
    )


def comparison_text(comparison: "Comparison", left_name: str, right_name: str, width: int = 80) -> str:
    """The comparison as people read it, in sections, with the error of the right side; ``-`` is unknown.

    Behind a latency's mean stands the number of values, behind a percentile of the left side how far chance alone moves
    it (95 %, relative), or the bucket in which it lies; ``~`` marks guesses within a wide bucket.
    """
    names = [_fitted(one_line(name), _VALUE_WIDTH).rjust(_VALUE_WIDTH) for name in (left_name, right_name)]
    lines = [" " * (_LABEL_WIDTH + _STAT_WIDTH) + "  ".join([*names, "   error"])]
    for title, metrics in _SECTIONS:
        rows = [row for row in comparison.rows if row.metric in metrics]
        if not rows:
            continue
        shown = [row for row in rows if row.left is not None or row.right is not None]
        unknown = sorted({row.metric for row in rows} - {row.metric for row in shown}, key=metrics.index)
        instants = max((row.n_left for row in rows if row.stat == "mean"), default=0) if title == "concurrency" else 0
        lines.append(f"{title} at {instants:,} instant{'' if instants == 1 else 's'}" if instants else title)
        previous = None
        for row in sorted(shown, key=lambda r: metrics.index(r.metric)):
            lines.append(_comparison_line(row, is_first=row.metric != previous))
            previous = row.metric
        lines += [
            f"  {_LABELS[metric]:{_LABEL_WIDTH - 2}}{UNKNOWN:>{_STAT_WIDTH + _VALUE_WIDTH}}" for metric in unknown
        ]
    lines += _legend(lines)
    return _NEWLINE.join(line.rstrip()[:width] for line in lines)


def _legend(lines: Sequence[str]) -> list[str]:
    """What the marks in a table mean, of those that stand in it."""
    marks = {"±": "± how far chance alone moves it (95 %)", "~": "~ a guess within a bucket of a histogram"}
    used = [meaning for mark, meaning in marks.items() if any(mark in line for line in lines[1:])]
    return ["", *(f"  {meaning}" for meaning in used)] if used else []


def _comparison_line(row: _Row, *, is_first: bool) -> str:
    label = _LABELS[row.metric] if is_first else ""
    stat = _STATS.get(row.stat, row.stat)
    if row.stat == "max":
        stat = "max of all steps" if row.metric == "peak_running_reqs" else "max at the samples"
    if row.stat == "mean" and row.metric.endswith("_ms"):
        stat += f"  n {_compact(row.n_left)}" + (f"/{_compact(row.n_right)}" if row.n_right != row.n_left else "")
    elif row.left_bounds is not None and row.left_bounds.is_wide and row.left is not None:
        stat += f"  in {_bucket(row.left_bounds)}"
    elif row.left_band is not None and row.left:
        stat += f"  ±{(row.left_band[1] - row.left_band[0]) / 2 / row.left:.1%}"
    if row.stat == "mae":
        left, right = "", f"{row.right:.1%} of max" if row.right is not None else UNKNOWN
    else:
        left, right = guessed(row.metric, row.left, row.left_bounds), guessed(row.metric, row.right, row.right_bounds)
    start = f"  {label:{_LABEL_WIDTH - 2}}{stat:{_STAT_WIDTH}}"
    error = signed_percent(row.error)
    if "~" in left + right and row.error is not None:
        error = f"~{error}"
    return f"{start}{left:>{_VALUE_WIDTH}}  {right:>{_VALUE_WIDTH}}  {error:>8}"


def guessed(metric: str, value: float | None, bounds: "Bounds | None") -> str:
    """A value, with ``~`` where all that is known of it is a wide bucket."""
    mark = "~" if value is not None and bounds is not None and bounds.is_wide else ""
    return mark + humanised(metric, value)


def _bucket(bounds: "Bounds") -> str:
    """The edges of a bucket of milliseconds, in one unit."""
    low, high = bounds
    largest = low if high is None else high
    unit, scale = ("s", 1000) if largest >= 1000 else ("ms", 1)  # noqa: PLR2004 - ms in a second
    return f"{low / scale:.4g} to {high / scale:.4g} {unit}" if high is not None else f"{low / scale:.4g} {unit} up"


def _compact(count: int) -> str:
    """A count in at most six characters."""
    if count < 100_000:  # noqa: PLR2004
        return f"{count:,}"
    return f"{count / 1e3:,.0f}k" if count < 10_000_000 else f"{count / 1e6:,.0f}M"  # noqa: PLR2004


def verdicts_text(verdicts: "Sequence[Verdict]") -> str:
    """One line a condition: what was demanded to fail, what was found, and whether it failed."""
    lines = []
    for verdict in verdicts:
        if verdict.found is None:
            found = "unknown, which cannot pass"
        elif verdict.condition.is_relative:
            found = f"{verdict.found:+.2%}"
        else:
            found = f"{verdict.found:,.6g}"
        if verdict.is_guess:
            found += " (a guess within a bucket of a histogram)"
        lines.append(f"{'FAIL' if verdict.failed else 'ok  '}  {verdict.condition.text}: {found}")
    return _NEWLINE.join(lines)


def humanised(metric: str, value: float | None) -> str:
    """A value with its unit: ms below one second, else s; shares in percent; counts with separators."""
    if value is None:
        return UNKNOWN
    if metric.endswith("_ms"):
        return f"{value:,.1f} ms" if abs(value) < 1000 else f"{value / 1000:,.2f} s"  # noqa: PLR2004 - ms in a second
    if metric in {"kv_cache_usage", "slo_share"}:
        return f"{value:.1%}"
    return f"{value:,.0f}" if float(value).is_integer() or abs(value) >= 1000 else f"{value:,.1f}"  # noqa: PLR2004


def signed_percent(error: float | None) -> str:
    """An error with its sign, in percent; ``-`` when unknown."""
    if error is None:
        return UNKNOWN
    if abs(error) >= 10:  # noqa: PLR2004 - beyond this a factor says more
        return f"x{error + 1:,.0f}"
    shown = f"{error:+.1%}"
    return shown[1:] if shown[1:] == "0.0%" else shown


def sparkline(values: Sequence[float | None], highest: float | None = None) -> str:
    """One block a value, scaled to ``highest`` (else the maximum); unknown values are gaps."""
    top = highest if highest is not None else max((v for v in values if v is not None), default=0)
    if top <= 0:
        return " " * len(values)
    last = len(_BLOCKS) - 1
    return "".join(" " if v is None else _BLOCKS[max(0, min(last, round(v / top * last)))] for v in values)


def frame_text(frame: "pl.DataFrame", width: int = 80, max_rows: int = 40) -> str:
    """A query's result as an aligned table of at most ``width`` columns of text.

    Numbers stand right, text left; what does not fit is cut with an ellipsis, columns that do not fit are named below,
    rows after ``max_rows`` are counted.
    """
    shown = frame.head(max_rows)
    columns = [_column(shown, name) for name in frame.columns]
    kept = _fitting_columns(columns, width)
    lines = [_table_line([cells[place] for cells, _ in kept], kept).rstrip() for place in range(shown.height + 1)]
    if kept:
        lines.insert(1, "  ".join("-" * size for _, size in kept))
    if len(kept) < len(columns):
        dropped = ", ".join(one_line(name) for name in frame.columns[len(kept) :])
        lines.append(_fitted(f"... and {len(columns) - len(kept)} more columns: {dropped}", width))
    if frame.height > shown.height:
        lines.append(f"... {frame.height:,} rows, the first {shown.height:,} shown")
    else:
        lines.append(f"{frame.height:,} row{'' if frame.height == 1 else 's'}")
    return _NEWLINE.join(lines)


_Column = tuple[list[str], bool]


def _column(frame: "pl.DataFrame", name: str) -> _Column:
    """A column's cells with its name on top, and whether they are numbers."""
    is_number = frame.schema[name].is_numeric()
    return [one_line(name), *(_cell(value) for value in frame[name].to_list())], is_number


def _cell(value: object) -> str:
    if value is None:
        return UNKNOWN
    if isinstance(value, float):
        return f"{value:.6g}" if abs(value) < 1e15 else f"{value:g}"  # noqa: PLR2004
    return one_line(str(value))


def one_line(text: str) -> str:
    """Sanitised, without a break."""
    return sanitise(text).replace("\n", " ").replace("\t", " ")


def _fitting_columns(columns: Sequence[_Column], width: int) -> list[tuple[list[str], int]]:
    """As many leading columns as fit, wide texts narrowed; cells aligned and cut to their column's size."""
    sizes = [max(map(_display_width, cells)) for cells, _ in columns]
    narrowest = [size if is_number else min(size, 12) for size, (_, is_number) in zip(sizes, columns, strict=True)]
    count, used = 0, 0
    while count < len(columns) and used + min(narrowest[count], width) + 2 * bool(count) <= width:
        used += min(narrowest[count], width) + 2 * bool(count)
        count += 1
    spare = width - used
    kept = []
    for (cells, is_number), size, least in zip(columns[:count], sizes, narrowest, strict=False):
        given = min(size, width, least + spare)
        spare -= given - min(least, given)
        fitted = [_fitted(cell, given) for cell in cells]
        kept.append(([_padded(cell, given, right=is_number) for cell in fitted], given))
    return kept


def _table_line(cells: Sequence[str], kept: Sequence[tuple[list[str], int]]) -> str:
    return "  ".join(cells) if kept else ""


def _padded(cell: str, size: int, *, right: bool) -> str:
    blanks = " " * max(0, size - _display_width(cell))
    return blanks + cell if right else cell + blanks


def _display_width(text: str) -> int:
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def _fitted(text: str, size: int) -> str:
    if _display_width(text) <= size:
        return text
    while text and _display_width(text) > size - 1:
        text = text[:-1]
    return text + _CUT if size else ""
