"""A batch of foreign rows to canonical request columns, each row good, blank or refused with a reason."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import polars as pl

from tracekit.errors import InputError
from tracekit.schema.parquet import polars_schema
from tracekit.schema.tables import REQUESTS
from tracekit.sources.block_hashes import chained_lists
from tracekit.sources.observation import ColumnMapping
from tracekit.sources.request_rows import finish_reason
from tracekit.sources.table_columns import DURATIONS, INSTANTS, LISTS, TARGETS, TIMES
from tracekit.sources.table_read import ROW
from tracekit.sources.table_values import (
    UNIX_FROM_NS,
    blank_to_null,
    infer_unit,
    lacks_zone,
    list_to_ns,
    to_count,
    to_ns,
    unit_of_name,
)

REASON: Final = "#reason"
BLANK: Final = "blank row"
_WORDS: Final = ("request_id", "source_request_id", "parent_request_id", "session_id")
_NO_LIMIT: Final = ("max_tokens", "priority", "engine")
_MAX_ID: Final = 200


@dataclass
class Converter:
    """Turns batches into canonical columns; remembers units and clocks that the first values showed.

    ``hashing``: tokens an id stands for and the block size to hash at; null keeps canonical hashes as they are.
    ``required``: targets that no row may lack.
    """

    mappings: Sequence[ColumnMapping]
    where: str
    hashing: tuple[int, int] | None = None
    required: frozenset[str] = frozenset()
    units: dict[str, str] = field(default_factory=dict)
    absolute: dict[str, bool] = field(default_factory=dict)
    zoneless: set[str] = field(default_factory=set)

    @property
    def wanted(self) -> list[str]:
        """The source columns needed, each once."""
        return list(dict.fromkeys(name for mapping in self.mappings for name in mapping.sources))

    def no_rows(self) -> pl.DataFrame:
        """The canonical columns of a table without rows."""
        schema = polars_schema(REQUESTS)
        return pl.DataFrame(
            schema={name: schema[name] for name in (TARGETS[mapping.target].name for mapping in self.mappings)}
        )

    def convert(self, batch: pl.DataFrame) -> pl.DataFrame:
        """The batch's rows with canonical columns, ``ROW`` and ``REASON`` (null: a good row)."""
        clean = {name: blank_to_null(batch[name]) for name in self.wanted}
        is_blank = pl.DataFrame(list(clean.values())).select(pl.all_horizontal(pl.all().is_null())).to_series()
        columns = {ROW: batch[ROW]}
        reasons: list[pl.Series] = [_reason(is_blank, BLANK)]
        lists = [mapping for mapping in self.mappings if mapping.target in LISTS]
        for mapping in self.mappings:
            if mapping in lists:
                continue
            given = self._first_given(mapping, clean)
            name = TARGETS[mapping.target].name
            columns[name], found = self._scalar(mapping, given)
            reasons.extend(found)
        for mapping in lists:
            name = TARGETS[mapping.target].name
            columns[name], found = self._list(mapping, clean[mapping.sources[0]], columns)
            reasons.extend(found)
        frame = pl.DataFrame([series.alias(name) for name, series in columns.items()])
        reasons.extend(
            _reason(frame[TARGETS[target].name].is_null(), f"{target}: missing") for target in sorted(self.required)
        )
        if "arrival_ns" in columns:
            lacks = frame["arrival_ns"].is_null()
            if "parent_request_id" in columns:
                lacks &= frame["parent_request_id"].is_null()
            if "think_ns" in columns:
                lacks &= frame["think_ns"].is_null()
            reasons.append(_reason(lacks, "no arrival time"))
        reason = (
            pl.DataFrame([series.alias(str(i)) for i, series in enumerate(reasons)])
            .select(pl.coalesce(pl.all()))
            .to_series()
        )
        return frame.with_columns(reason.alias(REASON))

    def _first_given(self, mapping: ColumnMapping, clean: Mapping[str, pl.Series]) -> pl.Series:
        present = [clean[name] for name in mapping.sources]
        if mapping.target == "finish_reason":
            present = [_reasons_of(series, name) for series, name in zip(present, mapping.sources, strict=True)]
        first = present[0]
        for other in present[1:]:
            as_other = other if other.dtype == first.dtype else other.cast(pl.String, strict=False)
            first = (first if other.dtype == first.dtype else first.cast(pl.String, strict=False)).zip_with(
                first.is_not_null(), as_other
            )
        return first

    def _scalar(self, mapping: ColumnMapping, given: pl.Series) -> tuple[pl.Series, list[pl.Series]]:
        target = mapping.target
        if target in TIMES:
            return self._time(mapping, given)
        if target == "finish_reason":
            return given, []
        if target in _WORDS:
            return given.cast(pl.String, strict=False).str.strip_chars().str.head(_MAX_ID), []
        values, absurd = to_count(given, largest=None) if target in _NO_LIMIT else to_count(given)
        if target in {"priority", "engine"}:
            absurd = pl.Series([False]).new_from_index(0, given.len())
            values = values.cast(pl.Int32, strict=False)
        bad = given.is_not_null() & values.is_null()
        return values.set(absurd, None), [
            _reason(bad, f"{target}: not a whole number"),
            _reason(absurd, f"{target}: negative or absurd"),
        ]

    def _time(self, mapping: ColumnMapping, given: pl.Series) -> tuple[pl.Series, list[pl.Series]]:
        target = mapping.target
        unit = mapping.unit or self.units.get(target)
        if unit is None:
            unit = infer_unit(given, mapping.sources[0], self.where, duration=target in DURATIONS)
            if unit is not None:
                self.units[target] = unit
        values = to_ns(given, unit or "s")
        if target in INSTANTS and lacks_zone(given, unit):
            self.zoneless.update(mapping.sources[:1])
        bad = given.is_not_null() & values.is_null()
        negative = (values < 0).fill_null(value=False)
        if target in INSTANTS and target not in self.absolute and (middle := values.median()) is not None:
            self.absolute[target] = float(str(middle)) >= UNIX_FROM_NS
        return values, [_reason(bad, f"{target}: not a time"), _reason(negative, f"{target}: negative")]

    def _list(
        self, mapping: ColumnMapping, given: pl.Series, columns: Mapping[str, pl.Series]
    ) -> tuple[pl.Series, list[pl.Series]]:
        lists, bad = _as_lists(given)
        reasons = [_reason(bad, f"{mapping.target}: not a list")]
        if mapping.target == "itl":
            unit = mapping.unit or self.units.setdefault("itl", unit_of_name(mapping.sources[0]) or "s")
            gaps = [list_to_ns(values, unit) for values in lists]
            return pl.Series(gaps, dtype=pl.List(pl.Int64)), reasons
        if self.hashing is None:
            return pl.Series(lists, dtype=pl.List(pl.UInt64), strict=False), reasons
        tokens_per_id, block_size = self.hashing
        tokens = columns["num_prompt_tokens"].to_list()
        return chained_lists(lists, tokens_per_id, block_size, tokens), reasons


def _reasons_of(series: pl.Series, source: str) -> pl.Series:
    texts = series.cast(pl.String, strict=False)
    known = {text: finish_reason(text, source) for text in texts.drop_nulls().unique().to_list()}
    return texts.replace_strict(known, default=None, return_dtype=pl.String)


def _reason(where: pl.Series, text: str) -> pl.Series:
    return (
        pl.Series([text])
        .new_from_index(0, where.len())
        .zip_with(where, pl.Series([None], dtype=pl.String).new_from_index(0, where.len()))
    )


def _as_lists(given: pl.Series) -> tuple[list[list[Any] | None], pl.Series]:
    """A column of lists, native or as JSON text, and where a value is no list."""
    if given.dtype.is_nested() or given.dtype == pl.Null:
        return given.to_list(), pl.Series([False]).new_from_index(0, given.len())
    lists: list[list[Any] | None] = []
    bad: list[bool] = []
    for text in given.to_list():
        found = None
        if isinstance(text, str):
            try:
                found = json.loads(text, parse_float=str)
            except (ValueError, RecursionError):
                found = None
        lists.append(found if isinstance(found, list) else None)
        bad.append(text is not None and not isinstance(found, list))
    return lists, pl.Series(bad, dtype=pl.Boolean)


def one_clock(absolute: Mapping[str, bool], mappings: Sequence[ColumnMapping], where: str) -> bool:
    """Whether the instants are Unix times; raises ``InputError`` that names the columns when only some are."""
    if len(set(absolute.values())) > 1:
        sources = {mapping.target: mapping.sources[0] for mapping in mappings}
        unix, own = (
            [f"{name} ({sources[name]})" for name, kind in absolute.items() if kind is wanted]
            for wanted in (True, False)
        )
        msg = (
            f"{where}: {', '.join(unix)} is Unix time but {', '.join(own)} is on another clock; map all instants from columns "
            "of one clock, e.g. --column arrival= from the column the others are measured on"
        )
        raise InputError(msg)
    return next(iter(absolute.values()), False)
