"""From stamps without a year to instants.

A stamp is kept as ns of the year 2024 (which has every day). Walking the records in order, months that go back are a
New Year, and an hour that repeats in the small hours of spring or autumn is a clock change. The year of the last record
is the latest that is not after the file's own date.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import polars as pl

BASE_YEAR: Final = 2024
_S: Final = 1_000_000_000
_HOUR: Final = 3600 * _S
_DAY: Final = 24 * _HOUR
_MARCH: Final = 60 * _DAY
_SLACK: Final = 600 * _S


def _new_year(year: int) -> int:
    return int(datetime(year, 1, 1, tzinfo=UTC).timestamp()) * _S


_BASE: Final = _new_year(BASE_YEAR)


@dataclass(frozen=True)
class Break:
    """From ``line`` on, ``years`` New Years have passed and ``shift_ns`` is to be added for clock changes."""

    line: int
    years: int
    shift_ns: int


@dataclass(frozen=True)
class Calendar:
    """How stamps become instants; ``goes_back``: lines at which the clock went back without a known reason."""

    breaks: tuple[Break, ...]
    last_year: int
    goes_back: tuple[int, ...]
    num_clock_changes: int

    def instants(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Replace ``time`` (a stamp) by the instant in ns since 1970, read as if UTC; ``line`` tells the order."""
        lines = pl.Series([b.line for b in self.breaks], dtype=pl.Int64)
        years = [self.last_year - self.breaks[-1].years + b.years for b in self.breaks]
        moves = [_new_year(year) - _BASE + b.shift_ns for year, b in zip(years, self.breaks, strict=True)]
        leap_days = [0 if _is_leap(year) else _DAY for year in years]
        at = lines.search_sorted(rows["line"], side="right") - 1
        move, leap_day = (pl.Series(values, dtype=pl.Int64).gather(at) for values in (moves, leap_days))
        after_february = (rows["time"] >= _BASE + _MARCH).fill_null(value=False)
        return rows.with_columns(time=rows["time"] + (move - leap_day).zip_with(after_february, move))


def calendar(times: pl.DataFrame, file_date_ns: int, known: tuple[int, int] | None = None) -> Calendar:
    """Find New Years and clock changes in the records' stamps (``line``, ``time``), and the year of the last.

    ``known``: a line and the year at it, where another line of the log tells it.
    """
    breaks = [Break(-1, 0, 0)]
    goes_back: list[int] = []
    jumps = times.with_columns(jump=pl.col("time").diff()).filter(
        (pl.col("jump") < -_SLACK) | (pl.col("jump") > 300 * _DAY)
    )
    changes = 0
    for line, time, jump in jumps.select("line", "time", "jump").iter_rows():
        years, shift = breaks[-1].years, breaks[-1].shift_ns
        if jump < -300 * _DAY:
            years += 1
        elif jump > 300 * _DAY:
            # A late line of the old year among those of the new one.
            years -= 1
        elif abs(jump + _HOUR) <= _SLACK // 2 and _may_change(time):
            shift += _HOUR
            changes += 1
        else:
            goes_back.append(line)
            continue
        breaks.append(Break(line, years, shift))
    last = times["time"][-1] if times.height else _BASE
    year = _last_year(int(last), file_date_ns)
    if known is not None:
        at = [b.years for b in breaks if b.line <= known[0]][-1]
        year = known[1] - at + breaks[-1].years
    return Calendar(tuple(breaks), year, tuple(goes_back), changes)


def _may_change(stamp: int) -> bool:
    when = datetime.fromtimestamp(stamp // _S, tz=UTC)
    return when.month in {3, 4, 9, 10, 11} and when.hour < 4  # noqa: PLR2004 - clocks change in the small hours


def _last_year(stamp: int, file_date_ns: int) -> int:
    """The latest year in which the stamp is not after the file's date; a day of slack, for the zone is unknown."""
    when = datetime.fromtimestamp(stamp // _S, tz=UTC)
    year = datetime.fromtimestamp(file_date_ns // _S, tz=UTC).year + 1
    while True:
        exists = (when.month, when.day) != (2, 29) or _is_leap(year)
        if exists and int(when.replace(year=year).timestamp()) * _S <= file_date_ns + _DAY:
            return year
        year -= 1


def _is_leap(year: int) -> bool:
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
