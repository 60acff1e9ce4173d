"""Cut a run to a span of time, given as wall clock or as an offset from the run's start."""

import re
from datetime import UTC, datetime
from typing import Final

import polars as pl

from tracekit.errors import ConfigError
from tracekit.run import Run

LEFT_OUT: Final = "histograms_left_out"
"""Under this key a part's ``info`` has the metrics of histograms of the whole run, which cannot be cut to a part."""

IS_PART: Final = "is_part"
"""This key of ``info`` marks a part of a run."""

IN_FLIGHT: Final = "in_flight_before"
"""Under this key a part's ``info`` has how many requests of before were still in the engine when it begins."""

_UNITS: Final = {"d": 86_400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6}
_SPAN: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|us|d|h|m|s)")
_INSTANTS: Final = {"requests": "arrival_ns", "steps": "start_ns", "distributions": None}


def windowed(run: Run, *, since: str | None = None, until: str | None = None, last: str | None = None) -> Run:
    """The run between two instants; requests count by their arrival, everything else by its time.

    ``since``, ``until``: an offset (``90s``, ``5m``, ``1h30m``, plain seconds) or a wall-clock time (ISO, UTC unless
    it names a zone), the latter only where the run knows its start. ``last``: a span before the run's end. The time
    axis stays. Histograms are cut as ``histograms_between`` says. Raises ``ConfigError`` for text that is neither and
    for a span in which nothing happened.
    """
    if since is None and until is None and last is None:
        return run
    low = _instant(since, run, "--from") if since is not None else None
    high = _instant(until, run, "--until") if until is not None else None
    if last is not None:
        end = max((m for name in _names(run) if (m := _last(run, name)) is not None), default=0)
        low = max(low or 0, (high if high is not None else end) - _span(last, "--last"))
    tables = {}
    info = {**run.info, IS_PART: True}
    for name in _names(run):
        frame, column = run.table(name), _INSTANTS.get(name, "time_ns")
        if name == "distributions":
            frame = histograms_between(frame, low, high)
            info[LEFT_OUT] = [*info.get(LEFT_OUT, ()), *left_out(run.table(name), frame)]
        if column is not None:
            if low is not None:
                frame = frame.filter(pl.col(column).is_null() | (pl.col(column) >= low))
            if high is not None:
                frame = frame.filter(pl.col(column).is_null() | (pl.col(column) < high))
        tables[name] = frame
    if not any(frame.height for frame in tables.values()) and any(run.table(name).height for name in tables):
        end = max((m for name in tables if (m := _last(run, name)) is not None), default=0)
        msg = f"{run.name}: nothing happened in that span of time; the run ends at {end / 1e9:.1f} s"
        raise ConfigError(msg)
    if low is not None:
        info[IN_FLIGHT] = _in_flight(run, low)
    cut = Run(run.kind, tables, dict(run.config), run.start_unix_ns, info, None)
    cut.label = run.name
    return cut


def _in_flight(run: Run, instant: int) -> int:
    """How many requests arrived before an instant and ended after it."""
    ends = run.requests.select(
        (pl.col("arrival_ns") < instant) & (pl.max_horizontal("last_token_ns", "finished_ns") > instant)
    )
    return int(ends.sum().item() or 0)


def histograms_between(frame: pl.DataFrame, low: int | None, high: int | None) -> pl.DataFrame:
    """Rows of ``distributions`` for what happened between two instants, ns; null is the run's own start or end.

    Cumulative histograms: the newest reading before ``high`` less the newest one at or before ``low``, by metric and
    engine. Where there is no reading at or before ``low``, where the counters started again in between, and where
    readings have no time (those of a whole run), the histogram cannot be cut and is left out.
    """
    if low is None and high is None:
        return frame
    timed = frame.filter(pl.col("time_ns").is_not_null())
    if high is not None:
        timed = timed.filter(pl.col("time_ns") < high)
    newest = pl.col("time_ns") == pl.col("time_ns").max().over("metric", "engine")
    end = timed.filter(newest)
    if low is None or not end.height:
        return end
    start = timed.filter(pl.col("time_ns") <= low).filter(newest)
    key = ["metric", "engine", "bucket_low", "bucket_high"]
    before = start.select(
        *key, pl.col("count").alias("_before"), pl.col("sum").alias("_sum"), pl.col("time_ns").alias("_start")
    )
    both = end.join(before, on=key, how="inner", nulls_equal=True)
    is_later = (pl.col("time_ns") > pl.col("_start")) & ((pl.col("count") >= pl.col("_before")).all())
    kept = both.filter(is_later.over("metric", "engine"))
    grown = {"count": pl.col("count") - pl.col("_before"), "sum": pl.col("sum") - pl.col("_sum")}
    return kept.with_columns(**grown).select(frame.columns)


def left_out(whole: pl.DataFrame, part: pl.DataFrame) -> list[str]:
    """The metrics of ``distributions`` whose histograms could not be cut and are missing in the part."""
    has = pl.col("count") > 0
    return sorted(set(whole.filter(has)["metric"]) - set(part["metric"]))


def _names(run: Run) -> list[str]:
    from tracekit.schema.tables import TABLES

    return [table.name for table in TABLES if run.has(table.name)]


def _last(run: Run, name: str) -> int | None:
    column = _INSTANTS.get(name, "time_ns")
    found = run.table(name)[column].max() if column is not None else None
    return found if isinstance(found, int) else None


def _span(text: str, where: str) -> int:
    compact = text.strip().lower().replace(" ", "")
    if re.fullmatch(r"\d+(\.\d+)?", compact):
        return round(float(compact) * 1e9)
    if compact and _SPAN.sub("", compact) == "":
        return round(sum(float(number) * _UNITS[unit] for number, unit in _SPAN.findall(compact)) * 1e9)
    msg = f"{where}: expected a span such as 90s, 30m or 1h30m"
    raise ConfigError(msg)


def _instant(text: str, run: Run, where: str) -> int:
    compact = text.strip()
    if re.fullmatch(r"[\d. ]+|([\d.]+(d|h|m|s|ms|us))+", compact.lower()):
        return _span(compact, where)
    try:
        wall = datetime.fromisoformat(compact)
    except ValueError:
        msg = f"{where}: expected an offset such as 90s or a time such as 2026-12-01T02:09:00+00:00"
        raise ConfigError(msg) from None
    if run.start_unix_ns is None:
        msg = f"{where}: the run does not know its wall-clock start; give an offset such as 90s"
        raise ConfigError(msg)
    if wall.tzinfo is None:
        wall = wall.replace(tzinfo=UTC)
    return round(wall.timestamp() * 1e6) * 1000 - run.start_unix_ns
