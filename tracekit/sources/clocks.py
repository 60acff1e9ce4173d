"""Bring the clocks of several sources of one incident together.

A source's clock is absolute (``unix``), a wall clock of unknown zone (``local``, as vLLM's log prints it, truncated
to seconds) or ``relative``. With two absolute clocks nothing is to be found; a log's zone is given or found among the
quarter hours; a relative clock is placed by the best fit of running counts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import polars as pl

from tracekit.errors import InputError
from tracekit.sources.observation import Observation

_SECOND: Final = 1_000_000_000
_QUARTER_HOUR: Final = 900 * _SECOND
_ZONES_S: Final = (-12 * 3600, 14 * 3600)
_INSTANT_COLUMNS: Final = (
    "arrival_ns", "queued_ns", "scheduled_ns", "first_token_ns", "last_token_ns", "finished_ns", "client_send_ns",
    "client_first_token_ns", "client_last_token_ns", "start_ns", "time_ns",
)  # fmt: skip


@dataclass(frozen=True)
class Placement:
    """How a source's clock was brought to the run's: ``run instant = source instant + offset_ns``."""

    offset_ns: int
    how: str
    error: float | None = None


def shifted(tables: dict[str, pl.DataFrame], offset_ns: int) -> dict[str, pl.DataFrame]:
    """The tables with every instant moved."""
    if not offset_ns:
        return tables
    return {
        name: frame.with_columns(pl.col(c) + offset_ns for c in _INSTANT_COLUMNS if c in frame.columns)
        for name, frame in tables.items()
    }


def local_to_unix(tables: dict[str, pl.DataFrame], zone_name: str) -> dict[str, pl.DataFrame]:
    """Wall-clock instants of a named zone as instants since 1970 UTC, summer time observed.

    An hour that a clock change repeats is read as its first pass, one that it skips as if it had not been skipped.
    """
    zone = zone_of(zone_name)
    moved = {}
    for name, frame in tables.items():
        columns = [c for c in _INSTANT_COLUMNS if c in frame.columns]
        moved[name] = frame.with_columns(
            pl.Series(c, [_to_unix(value, zone) for value in frame[c]], dtype=pl.Int64) for c in columns
        )
    return moved


def zone_of(name: str) -> ZoneInfo:
    """The time zone of that name; raises ``InputError`` when there is none."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        msg = "--timezone: no such time zone; expected a name such as UTC, Europe/Berlin or Asia/Tokyo"
        raise InputError(msg) from error


def _to_unix(local_ns: int | None, zone: ZoneInfo) -> int | None:
    if local_ns is None:
        return None
    seconds, rest = divmod(local_ns, _SECOND)
    wall = datetime.fromtimestamp(seconds, tz=UTC).replace(tzinfo=zone)
    offset = wall.utcoffset() or timedelta()
    return (seconds - int(offset.total_seconds())) * _SECOND + rest


def place_local(source: Observation, reference: Sequence[Observation]) -> Placement | None:
    """Find a log's zone: the quarter-hour offset at which its samples fit the reference best; None if nothing fits."""
    log_span, span = _span([source]), _span(reference)
    if log_span is None or span is None:
        return None
    middle = (span[0] + span[1]) // 2 - (log_span[0] + log_span[1]) // 2
    length = (log_span[1] - log_span[0]) + (span[1] - span[0])
    first = (middle - length) // _QUARTER_HOUR
    last = (middle + length) // _QUARTER_HOUR + 1
    # Years are only guessed from the file's date, so the reference may lie any number of whole days away.
    candidates = [k * _QUARTER_HOUR for k in range(first, last + 1)]
    candidates = [c for c in candidates if _overlap(log_span, span, c) > 0] or candidates
    best = _best_offset([source], reference, candidates)
    if best is None:
        best = max(candidates, key=lambda c: _overlap(log_span, span, c)), None
    offset, error = best
    if _overlap(log_span, span, offset) <= 0:
        return None
    return Placement(offset, f"{_zone_text(-offset // _SECOND)} found by fit of running counts", error)


def _zone_text(ahead_s: int) -> str:
    """A clock's distance from UTC as a zone, and whole days where it is more than a zone can be."""
    days = 0 if _ZONES_S[0] <= ahead_s <= _ZONES_S[1] else round(ahead_s / 86_400)
    in_day = ahead_s - days * 86_400
    hours, minutes = divmod(abs(in_day) // 60, 60)
    moved = f", {days:+d} days" if days else ""
    return f"zone UTC{'-' if in_day < 0 else '+'}{hours:02d}:{minutes:02d}{moved}"


def place_relative(source: Observation, reference: Sequence[Observation]) -> Placement | None:
    """Place a relative clock by the best fit of running counts against the reference; None if there is no fit."""
    own, span = _span([source]), _span(reference)
    if own is None or span is None:
        return None
    low, high = span[0] - own[1], span[1] - own[0]
    step = max((high - low) // 4000, 50_000_000)
    best: tuple[int, float | None] | None = None
    while True:
        candidates = list(range(low, high + 1, step))
        found = _best_offset([source], reference, candidates)
        if found is None:
            return None
        best = found
        if step <= 50_000_000:  # noqa: PLR2004 - finer than the samples tell
            break
        low, high = found[0] - 2 * step, found[0] + 2 * step
        step = max(step // 20, 50_000_000)
    return Placement(best[0], "best fit of running counts", best[1])


def _best_offset(
    source: Sequence[Observation], reference: Sequence[Observation], candidates: Sequence[int]
) -> tuple[int, float | None] | None:
    """The offset for ``source`` at which requests in flight and sampled running + waiting agree best."""
    flights, samples, sign = _in_flight(source), _samples(reference), 1
    if flights is None or samples is None:
        flights, samples, sign = _in_flight(reference), _samples(source), -1
    if flights is None or samples is None:
        return None
    starts, ends = flights
    times, counts = samples
    highest = counts.max()
    scale = max(highest, 1) if isinstance(highest, int) else 1
    best: tuple[float, int] | None = None
    for offset in candidates:
        at = times - sign * offset
        in_flight = starts.search_sorted(at, side="right").cast(pl.Int64) - ends.search_sorted(at, side="right").cast(
            pl.Int64
        )
        error = float((in_flight - counts).abs().mean() or 0.0) / scale  # type: ignore[arg-type]
        if best is None or (error, abs(offset)) < (best[0], abs(best[1])):
            best = error, offset
    return (best[1], best[0]) if best else None


def _in_flight(observations: Sequence[Observation]) -> tuple[pl.Series, pl.Series] | None:
    for observation in observations:
        requests = observation.tables.get("requests")
        if requests is None or not {"arrival_ns", "last_token_ns"} <= set(requests.columns):
            continue
        done = requests.filter(pl.col("arrival_ns").is_not_null() & pl.col("last_token_ns").is_not_null())
        if done.height:
            return done["arrival_ns"].sort(), done["last_token_ns"].sort()
    return None


def _samples(observations: Sequence[Observation]) -> tuple[pl.Series, pl.Series] | None:
    frames = []
    for observation in observations:
        stats = observation.tables.get("engine_stats")
        if stats is None or not stats.height or "num_running_reqs" not in stats.columns:
            continue
        # A log prints whole seconds: the sample was taken up to one second later, on average half of one.
        late = _SECOND // 2 if observation.clock == "local" else 0
        frames.append(
            stats.filter(pl.col("num_running_reqs").is_not_null())
            .group_by(pl.col("time_ns") + late)
            .agg((pl.col("num_running_reqs") + pl.col("num_waiting_reqs").fill_null(0)).sum().alias("count"))
            .sort("time_ns")
        )
    frames = [frame for frame in frames if frame.height]
    if not frames:
        return None
    return frames[0]["time_ns"], frames[0]["count"].cast(pl.Int64)


def _span(observations: Sequence[Observation]) -> tuple[int, int] | None:
    edges = [
        edge
        for observation in observations
        for name, frame in observation.tables.items()
        for column in _INSTANT_COLUMNS
        if column in frame.columns and name != "distributions"
        for edge in (frame[column].min(), frame[column].max())
        if isinstance(edge, int)
    ]
    return (min(edges), max(edges)) if edges else None


def _overlap(log_span: tuple[int, int], span: tuple[int, int], offset: int) -> int:
    return min(log_span[1] + offset, span[1]) - max(log_span[0] + offset, span[0])
