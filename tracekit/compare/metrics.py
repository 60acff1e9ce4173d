"""Two runs side by side: latencies, concurrency, preemptions and throughput, each with the error of the right side.

Every figure comes from a named query; this module decides which side is sampled, puts the rows together and says what
could not be known and why.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from tracekit.compare.bands import Band, Bounds, Values, band, bounds_of
from tracekit.compare.conditions import OBJECTIVES
from tracekit.compare.database import connect, view_sql
from tracekit.compare.queries import named_query
from tracekit.errors import InputError
from tracekit.run import Run
from tracekit.window import IS_PART, LEFT_OUT, histograms_between, left_out

if TYPE_CHECKING:
    import duckdb

MAE: Final = "mae"

_WHY_NULL: Final = {
    "ttft_ms": "no first-token instants",
    "tpot_ms": "no first and last token of a request with more than one",
    "itl_ms": "no gaps between tokens (itl_ns or a histogram)",
    "e2e_ms": "no last-token instants",
    "queue_ms": "no instants of queueing and first scheduling",
    "peak_running_reqs": "no steps and no scheduling instants; periodic samples miss a peak by 15 to 20 %",
    "num_requests": "no requests, though it served some",
    "num_preemptions": "no preemptions and no two readings of the cumulative counter; a V1 log does not say it",
    "output_tps": "no output tokens with their instants and no throughput samples",
    "slo_share": "a latency with an objective is known of no request",
    "goodput_rps": "a latency with an objective is known of no request",
}
_FROM_ELSEWHERE: Final = {
    ("", "distributions"): "from histograms, interpolated within a bucket",
    ("peak_running_reqs", "requests"): "from the requests' scheduling instants",
    ("num_preemptions", "engine_stats"): "the growth of the cumulative counter",
    ("num_preemptions", "requests"): "the sum of the requests' counts",
    ("output_tps", "engine_stats"): "the mean of the busy periodic samples",
}


@dataclass(frozen=True)
class Row:
    """One figure on both sides, null where unknown; ``n`` is the number of values or instants behind it.

    ``mae`` belongs to neither side alone: ``right`` holds the distance, ``left`` is null. The bands (``compare.bands``)
    are those of percentiles over requests, null elsewhere. The bounds are those of figures read from a histogram, null
    where the figure is exact.
    """

    metric: str
    stat: str
    left: float | None
    right: float | None
    n_left: int
    n_right: int
    left_band: Band | None = None
    right_band: Band | None = None
    left_bounds: Bounds | None = None
    right_bounds: Bounds | None = None

    @property
    def error(self) -> float | None:
        """``right/left - 1``; null when a side is unknown or left is 0."""
        return self.right / self.left - 1 if self.left and self.right is not None else None


@dataclass(frozen=True)
class Comparison:
    """Every metric of two runs, and notes on what is unknown, inexact or unmatched.

    ``warnings``: what the options left out that the runs do tell.
    """

    rows: tuple[Row, ...]
    notes: list[str] = field(default_factory=list)
    left_name: str = "left"
    right_name: str = "right"
    warnings: list[str] = field(default_factory=list)

    def to_rows(self) -> list[dict[str, Any]]:
        """The contract of ``compare --json``: a list of ``{metric, stat, left, right, error}``, with ``n_left, n_right``
        ``left_band, right_band`` and ``left_bounds, right_bounds`` (``[low, high]``, or null) behind them.
        """
        return [
            {
                "metric": r.metric, "stat": r.stat, "left": r.left, "right": r.right, "error": r.error,
                "n_left": r.n_left, "n_right": r.n_right,
                "left_band": r.left_band, "right_band": r.right_band,
                "left_bounds": r.left_bounds, "right_bounds": r.right_bounds,
            }
            for r in self.rows
        ]  # fmt: skip

    @property
    def frame(self) -> pl.DataFrame:
        """The same as a polars frame, with ``n_left`` and ``n_right``."""
        schema = {
            "metric": pl.String,
            "stat": pl.String,
            "left": pl.Float64,
            "right": pl.Float64,
            "error": pl.Float64,
            "n_left": pl.Int64,
            "n_right": pl.Int64,
        }
        rows = [(r.metric, r.stat, r.left, r.right, r.error, r.n_left, r.n_right) for r in self.rows]
        return pl.DataFrame(rows, schema=schema, orient="row")

    def get(self, metric: str, stat: str) -> Row:
        """One row; raises ``KeyError`` when there is none of that name."""
        for row in self.rows:
            if (row.metric, row.stat) == (metric, stat):
                return row
        msg = f"{metric}.{stat}"
        raise KeyError(msg)

    def _repr_html_(self) -> str:
        return self.frame._repr_html_()


def compare(
    left: Run, right: Run, *, skip_first: float = 0.0, objectives: Mapping[str, float] | None = None
) -> Comparison:
    """Compare two runs, observed or simulated, on one time axis (ns from each run's first arrival).

    ``skip_first``: share of the arrivals' span to leave out as warm-up, 0 up to 1. ``objectives``: most milliseconds by
    metric (``compare.conditions``); adds ``slo_share`` and ``goodput_rps``. Raises ``InputError``.
    """
    if not 0 <= skip_first < 1:
        msg = f"skip_first must be at least 0 and less than 1, found {skip_first:g}"
        raise InputError(msg)
    sampled, other = _sampled_first(left, right)
    from_ns = _cut(sampled, other, skip_first) if skip_first else None
    if from_ns is not None:
        is_same, first = right is left, sampled is left
        left = _cut_from(left, from_ns)
        right = left if is_same else _cut_from(right, from_ns)
        sampled, other = (left, right) if first else (right, left)
    left_rows, left_values = _side(left, from_ns, objectives)
    right_rows, right_values = (left_rows, left_values) if right is left else _side(right, from_ns, objectives)
    with connect({"observed": sampled, "simulated": other}, locked=False) as connection:
        _ensure_samples(connection)
        concurrency = _ask(connection, "concurrency_error", from_ns=from_ns)
        matched = _ask(connection, "matched_requests")[0]
        in_buckets = _ask(connection, "latency_stats_in_buckets", from_ns=from_ns) if _is_coarse(connection) else []
    unlike = _unlike((left, left_rows), (right, right_rows))
    for rows_of_side in (left_rows, right_rows):
        for row in rows_of_side:
            if row["metric"] in unlike and row["source"] != "requests":
                row.update(value=None, n=0, low=None, high=None, source=None)
    in_buckets = [row for row in in_buckets if row["metric"] not in unlike]
    names = _labels(left, right)
    per_side = [_joined(one, two) for one, two in zip(left_rows, right_rows, strict=True)]
    rows = [row for row in per_side if row.metric.endswith("_ms")]
    rows = [_with_bands(row, left_values, right_values) for row in rows]
    rows = _like_with_like(rows, in_buckets, is_swapped=sampled is not left)
    rows += [_concurrency_row(row, is_swapped=sampled is not left) for row in concurrency]
    rows += [row for row in per_side if not row.metric.endswith("_ms")]
    notes = _side_notes(names, (left_rows, right_rows))
    if bucketed := sorted({row["metric"] for row in in_buckets}):
        notes.append(f"{', '.join(bucketed)}: both sides are read from the buckets of the coarser histogram")
    if any(bounds is not None and bounds.is_wide for row in rows for bounds in (row.left_bounds, row.right_bounds)):
        notes.append("~ is a guess within a bucket of a histogram, whose edges --json has: a request table tells more")
    notes += _concurrency_notes(concurrency)
    notes += _matched_notes(matched, names)
    if from_ns is not None:
        notes.append(f"the first {skip_first:.0%} of the arrivals' span ({from_ns / 1e9:.1f} s) is left out")
    warnings = [
        f"{run.name}: {', '.join(lost)} unknown: a histogram of the whole run cannot be cut to a part of it"
        for run, side in ((left, left_rows), (right, right_rows))
        if (lost := _lost(run, side))
    ]
    if skip_first and from_ns is None:
        warnings.append("neither run tells when requests arrived: nothing is left out; --from and --last cut by time")
    if unlike:
        why = "of a part of a run scrapes and logs tell what happened in it, but requests count by their arrival"
        warnings.append(f"{', '.join(unlike)} not compared: {why}")
    return Comparison(tuple(rows), notes, left.name, right.name, list(dict.fromkeys(warnings)))


def _unlike(*sides: tuple[Run, Iterable[dict[str, Any]]]) -> list[str]:
    """The figures that requests tell of one side, and the histogram or the samples of a part of a run of the other."""
    if not any(run.info.get(IS_PART) for run, _ in sides):
        return []
    sources: dict[str, set[str]] = {}
    for _, rows in sides:
        for row in rows:
            is_told_so = row["metric"].endswith("_ms") or row["metric"] == "output_tps"
            if is_told_so and row["source"] is not None:
                sources.setdefault(row["metric"], set()).add(row["source"])
    return [metric for metric, found in sources.items() if "requests" in found and len(found) > 1]


def _lost(run: Run, rows: Iterable[dict[str, Any]]) -> list[str]:
    """The unknown latencies of a side that a histogram told before the run was cut."""
    told = {name.replace("_ns", "_ms") for name in run.info.get(LEFT_OUT, ())}
    return [row["metric"] for row in rows if row["metric"] in told and row["stat"] == "mean" and row["value"] is None]


def _sampled_first(left: Run, right: Run) -> tuple[Run, Run]:
    """The side whose sample instants count, then the other: the observed one, else the one that has samples."""
    left_observed, right_observed = left.kind == "observed", right.kind == "observed"
    if left_observed != right_observed:
        return (left, right) if left_observed else (right, left)
    if right.has("engine_stats") and not left.table("engine_stats").height and right.table("engine_stats").height:
        return right, left
    return left, right


def _ensure_samples(connection: "duckdb.DuckDBPyConnection") -> None:
    """Give the sampled side a grid of instants when it has no periodic samples."""
    if connection.execute("SELECT COUNT(num_running_reqs) FROM observed.samples").fetchone() != (0,):
        return
    source = connection.execute("SELECT MIN(source) FROM observed.states").fetchone()
    if source in {("steps",), ("requests",)}:
        connection.execute(f"CREATE OR REPLACE VIEW observed.samples AS {view_sql('samples_from_states')}")


def _is_coarse(connection: "duckdb.DuckDBPyConnection") -> bool:
    found = connection.execute(
        "SELECT COUNT(*) FROM (FROM observed.histograms UNION ALL FROM simulated.histograms) WHERE is_coarse"
    ).fetchone()
    return found != (0,)


def _cut(sampled: Run, other: Run, share: float) -> int | None:
    for run in (sampled, other):
        with connect({"run": run}) as connection:
            span = _ask(connection, "arrivals_span")[0]
        if span["first_ns"] is not None:
            return int(span["first_ns"] + share * (span["last_ns"] - span["first_ns"]))
    return None


def _cut_from(run: Run, from_ns: int) -> Run:
    """The run with what its histograms counted from an instant on: a part is never compared with a whole."""
    if not run.has("distributions"):
        return replace(run, info={**run.info, IS_PART: True})
    whole = run.table("distributions")
    part = histograms_between(whole, from_ns, None)
    info = {**run.info, IS_PART: True, LEFT_OUT: [*run.info.get(LEFT_OUT, ()), *left_out(whole, part)]}
    cut = replace(run, tables={**run.tables, "distributions": part}, info=info)
    cut.label = run.name
    return cut


def _side(
    run: Run, from_ns: int | None, objectives: Mapping[str, float] | None
) -> tuple[list[dict[str, Any]], dict[str, Values]]:
    """One run's figures, and its latencies in order of size by metric."""
    with connect({"run": run}) as connection:
        rows = [
            *_ask(connection, "latency_stats", from_ns=from_ns),
            *_ask(connection, "totals", from_ns=from_ns),
        ]
        if objectives:
            limits = {name: objectives.get(name) for name in OBJECTIVES}
            met = _ask(connection, "goodput", from_ns=from_ns, **limits)
            rows += [{**row, "stat": "total", "source": "requests"} for row in met]
        found = connection.execute(named_query("latency_values").sql, {"from_ns": from_ns}).fetchnumpy()
    return rows, {metric: found["value_ms"][found["metric"] == metric] for metric in OBJECTIVES}


def _with_bands(row: Row, left: Mapping[str, Values], right: Mapping[str, Values]) -> Row:
    left_band, right_band = (band(row.metric, row.stat, values) for values in (left, right))
    return replace(row, left_band=left_band, right_band=right_band)


def _ask(connection: "duckdb.DuckDBPyConnection", name: str, **parameters: float | None) -> list[dict[str, Any]]:
    result = connection.execute(named_query(name).sql, parameters or None)
    columns = [column[0] for column in result.description or ()]
    return [dict(zip(columns, row, strict=True)) for row in result.fetchall()]


def _joined(left: dict[str, Any], right: dict[str, Any]) -> Row:
    bounds = (bounds_of(side.get("low"), side.get("high")) for side in (left, right))
    return Row(left["metric"], left["stat"], left["value"], right["value"], left["n"], right["n"], None, None, *bounds)


def _concurrency_row(row: dict[str, Any], *, is_swapped: bool) -> Row:
    one, two = row["observed"], row["simulated"]
    if is_swapped and row["stat"] != MAE:
        one, two = two, one
    return Row(row["metric"], row["stat"], one, two, row["n"], row["n"])


def _like_with_like(rows: list[Row], in_buckets: Iterable[dict[str, Any]], *, is_swapped: bool) -> list[Row]:
    """Put in the figures of both sides in the same buckets where one side has only a coarse histogram."""
    found = {
        (row["metric"], row["stat"]): tuple(
            (row[side], bounds_of(row[f"{side}_low"], row[f"{side}_high"])) for side in ("observed", "simulated")
        )
        for row in in_buckets
    }
    replaced = []
    for row in rows:
        if (row.metric, row.stat) not in found:
            replaced.append(row)
            continue
        one, two = found[row.metric, row.stat]
        if is_swapped:
            one, two = two, one
        (left, left_bounds), (right, right_bounds) = one, two
        replaced.append(
            Row(row.metric, row.stat, left, right, row.n_left, row.n_right, None, None, left_bounds, right_bounds)
        )
    return replaced


def _labels(left: Run, right: Run) -> tuple[str, str]:
    return (left.kind, right.kind) if left.kind != right.kind else ("left", "right")


def _side_notes(names: tuple[str, str], sides: tuple[Iterable[dict[str, Any]], ...]) -> list[str]:
    """What is unknown or comes from a second-best source, one note for both sides where it is true of both."""
    found: dict[str, list[str]] = {}
    for name, rows in zip(names, sides, strict=True):
        for row in rows:
            metric, source = row["metric"], row["source"]
            if row["stat"] not in {"mean", "max", "total"}:
                continue
            if row["value"] is None:
                found.setdefault(f"{metric} unknown: {_WHY_NULL[metric]}", []).append(name)
            elif how := _FROM_ELSEWHERE.get((metric, source)) or _FROM_ELSEWHERE.get(("", source)):
                found.setdefault(f"{metric} is {how}", []).append(name)
    return [f"{' and '.join(names)}: {note}" for note, names in found.items()]


def _concurrency_notes(rows: Iterable[dict[str, Any]]) -> list[str]:
    means = [row for row in rows if row["stat"] == "mean"]
    unknown = [row["metric"] for row in means if row["observed"] is None]
    notes = [f"{', '.join(unknown)} unknown: no instants at which both sides know them"] if unknown else []
    if any(row["source"] == "grid" for row in means):
        notes.append("no periodic samples: concurrency is compared at 1,000 instants evenly over the common span")
    return notes


def _matched_notes(matched: dict[str, Any], names: tuple[str, str]) -> list[str]:
    both, only_one, only_two = (matched[k] for k in ("num_matched", "num_only_observed", "num_only_simulated"))
    if not (only_one or only_two):
        return []
    if not both:
        return [f"no request_id is in both {names[0]} and {names[1]}: distributions are compared, not requests"]
    return [f"{both:,} requests are in both runs, {only_one + only_two:,} in one only"]
