"""Text and numbers of foreign tables to nanoseconds and counts, whole columns at a time and exactly."""

import re
from typing import Any, Final

import polars as pl

from tracekit.errors import InputError

NS_PER_UNIT: Final = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}
_DIGITS: Final = {"s": 9, "ms": 6, "us": 3, "ns": 0}
UNIX_FROM_NS: Final = 400_000_000_000_000_000
"""Instants from here on (1982) are read as Unix time, smaller ones as a clock with its own zero."""
_UNIX_WINDOW: Final = (1_000_000_000, 4_000_000_000)
_LARGEST_RELATIVE_S: Final = 400_000_000
_MAX_TOKENS: Final = 1_000_000_000
_NO_VALUE: Final = ("", " ", "null", "NULL", "Null", "none", "None", "NaN", "nan", "NA", "N/A", "n/a", "-")
_ISO_START: Final = r"^\s*\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d"
_ISO_FORMATS: Final = ("%Y-%m-%d %H:%M:%S%.f", "%Y-%m-%dT%H:%M:%S%.f")
_SUFFIX: Final = re.compile(r"(?:^|[_.\s(])(ns|us|ms|s|sec|secs|seconds|nanos|micros|millis)\)?$", re.IGNORECASE)
_SUFFIX_UNITS: Final = {"sec": "s", "secs": "s", "seconds": "s", "nanos": "ns", "micros": "us", "millis": "ms"}


def blank_to_null(series: pl.Series) -> pl.Series:
    """The usual words for no value (``null``, ``NaN``, ``n/a``, nothing at all) become null."""
    if series.dtype != pl.String:
        return series
    is_blank = series.is_in(_NO_VALUE)
    return series.set(is_blank.fill_null(value=False), None) if is_blank.any() else series


def to_ns(series: pl.Series, unit: str) -> pl.Series:
    """A column of instants or durations in ``unit`` as int64 ns; null where it is no number or does not fit.

    Decimal text and integers are exact; a float keeps what a float has (about 0.1 us of a Unix time in seconds).
    ``iso``: date and time, read as UTC when no zone is given.
    """
    dtype = series.dtype
    if isinstance(dtype, pl.Datetime):
        # Epochs by unit: a cast to ns first would overflow in silence for far dates.
        return series.dt.epoch("ns") if dtype.time_unit == "ns" else series.dt.epoch("us") * 1000
    if isinstance(dtype, pl.Duration):
        return series.dt.total_nanoseconds()
    if dtype == pl.String:
        return _iso_to_ns(series) if unit == "iso" else _decimal_to_ns(series.str.strip_chars(), unit)
    if unit != "iso" and dtype.is_float():
        return _float_to_ns(series, unit)
    if unit != "iso" and dtype.is_numeric():
        return _decimal_to_ns(series, unit)
    return pl.Series(series.name, [None], dtype=pl.Int64).new_from_index(0, series.len())


def _decimal_to_ns(series: pl.Series, unit: str) -> pl.Series:
    scaled = series.cast(pl.Decimal(38, _DIGITS[unit]), strict=False)
    return scaled.to_physical().cast(pl.Int64, strict=False)


def _float_to_ns(series: pl.Series, unit: str) -> pl.Series:
    values = series.cast(pl.Float64)
    whole = values.floor()
    # Whole units and the rest apart: a product of 1.8e9 s and 1e9 has no room for the last 8 bits of the fraction.
    large = _decimal_to_ns(whole.cast(pl.Int64, strict=False), unit)
    return large + ((values - whole) * NS_PER_UNIT[unit]).round().cast(pl.Int64, strict=False)


def _iso_to_ns(series: pl.Series) -> pl.Series:
    text = series.str.strip_chars()
    result: pl.Series | None = None
    for form in (*_ISO_FORMATS, *(form + "%z" for form in _ISO_FORMATS), *(form + "Z" for form in _ISO_FORMATS)):
        parsed = text.str.to_datetime(form, time_unit="ns", strict=False).dt.epoch("ns")
        result = parsed if result is None else result.zip_with(result.is_not_null(), parsed)
        if result.null_count() == series.null_count():
            break
    if result is None:
        msg = "no date format"
        raise AssertionError(msg)
    return result


def lacks_zone(series: pl.Series, unit: str | None) -> bool:
    """Whether instants given as date and time name no zone, judged by the first."""
    if isinstance(series.dtype, pl.Datetime):
        return series.dtype.time_zone is None
    if unit != "iso" or series.dtype != pl.String:
        return False
    first = series.drop_nulls().head(1).to_list()
    return bool(first) and not re.search(r"(?:Z|[+-]\d\d:?\d\d)$", str(first[0]).strip())


def unit_of_name(source: str) -> str | None:
    """The unit that a column's name ends with (``send_time_us``, ``latency (ms)``)."""
    named = _SUFFIX.search(source)
    return _SUFFIX_UNITS.get(named[1].lower(), named[1].lower()) if named else None


def infer_unit(series: pl.Series, source: str, where: str, *, duration: bool = False) -> str | None:
    """The unit of a column of times without a given one; null while every value is null.

    By type (date and time), by form (ISO text), by the name's ending (``_us``), by the size of a Unix time (years 2001
    to 2096), else seconds. Raises ``InputError`` where the size fits no reading.
    """
    if isinstance(series.dtype, pl.Datetime | pl.Duration):
        return "ns"
    values = series.drop_nulls()
    if values.dtype == pl.String and values.len() and bool(values.head(100).str.contains(_ISO_START).any()):
        return "iso"
    numbers = _as_numbers(values)
    if not numbers.len():
        return None
    return unit_of_name(source) or ("s" if duration else _unit_by_size(numbers, source, where))


def _as_numbers(values: pl.Series) -> pl.Series:
    if values.dtype == pl.String:
        values = values.str.strip_chars().cast(pl.Float64, strict=False).drop_nulls()
    elif not values.dtype.is_numeric():
        return pl.Series([], dtype=pl.Float64)
    values = values.cast(pl.Float64)
    return values.filter(values.is_finite())


def _unit_by_size(numbers: pl.Series, source: str, where: str) -> str:
    size = float(str(numbers.abs().median()))
    for unit, per_second in (("s", 1), ("ms", 10**3), ("us", 10**6), ("ns", 10**9)):
        if _UNIX_WINDOW[0] * per_second <= size <= _UNIX_WINDOW[1] * per_second:
            return unit
    if size <= _LARGEST_RELATIVE_S:
        return "s"
    msg = f"{where}: the unit of column '{source}' cannot be told from its size (about {size:.3g}); give it, e.g. :ms"
    raise InputError(msg)


def to_count(series: pl.Series, *, largest: int | None = _MAX_TOKENS) -> tuple[pl.Series, pl.Series]:
    """A column of whole numbers as int64 (``21073.0`` is one) and whether each is negative or beyond ``largest``."""
    text = series.str.strip_chars() if series.dtype == pl.String else series
    if series.dtype == pl.Boolean or series.dtype.is_temporal() or series.dtype.is_nested():
        text = pl.Series(series.name, [None] * series.len(), dtype=pl.Int64)
    if text.dtype.is_float() or text.dtype.is_decimal():
        text = text.cast(pl.Decimal(38, 9), strict=False).cast(pl.String)
    whole = text.cast(pl.Int64, strict=False)
    if whole.null_count() > text.null_count():
        # A fraction of zeros does not make a count less whole; one beyond 9e9 does not occur with a fraction.
        scaled = text.cast(pl.Decimal(38, 9), strict=False).to_physical().cast(pl.Int64, strict=False)
        whole = whole.zip_with(
            whole.is_not_null(), (scaled // 10**9).set((scaled % 10**9 != 0).fill_null(value=False), None)
        )
    absurd = whole < 0
    if largest is not None:
        absurd |= whole > largest
    return whole, absurd.fill_null(value=False)


def list_to_ns(values: list[Any] | None, unit: str) -> list[int] | None:
    """A list of durations (numbers or decimal text) in ns; null when any of them is no number."""
    if values is None:
        return None
    texts = pl.Series([None if isinstance(value, bool | list | dict) else value for value in values], strict=False)
    converted = to_ns(texts, unit)
    return None if converted.null_count() else converted.to_list()
