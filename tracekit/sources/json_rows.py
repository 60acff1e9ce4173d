"""Requests out of nested JSON: documents one by one, and rows that are checked and counted as they come."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, Final

import polars as pl

from tracekit.errors import InputError
from tracekit.schema.parquet import polars_schema
from tracekit.schema.tables import REQUESTS
from tracekit.sources.files import left_out_note, open_bytes
from tracekit.sources.observation import Accounting, ClockKind, Material, Observation, Options
from tracekit.sources.request_rows import finish
from tracekit.sources.table_read import json_lines, parse_json
from tracekit.sources.table_values import NS_PER_UNIT

_MAX_DOCUMENT: Final = 2 << 30
_MAX_ID: Final = 200
_MOST_TOKENS: Final = 1_000_000_000
_MOST_NS: Final = 1 << 62
_LENGTHS: Final = ("num_prompt_tokens", "num_output_tokens")


def documents(path: Path) -> Iterator[tuple[int, Any]]:
    """The JSON values of a file, each with its number from 1: one document, or one a line; null for a damaged line.

    Numbers with a point are their exact text. Raises ``InputError`` for one document that is damaged or too large.
    """
    with open_bytes(path) as stream:
        first = stream.read(_MAX_DOCUMENT + 1)
    if len(first) > _MAX_DOCUMENT:
        yield from _by_line(path)
        return
    whole = parse_json(first)
    if whole is not None:
        yield 1, whole
        return
    if first.rstrip().count(b"\n") == 0:
        msg = f"{path}: expected JSON; it is damaged or ends early"
        raise InputError(msg)
    del first
    yield from _by_line(path)


def _by_line(path: Path) -> Iterator[tuple[int, Any]]:
    for lines in json_lines(path):
        for number, line in lines:
            yield number, parse_json(line)


def nanoseconds(value: object, unit: str) -> int | None:
    """An instant or a duration in ns, exactly; null for what is no number or absurdly large."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        scaled = Decimal(str(value).strip()) * NS_PER_UNIT[unit]
    except InvalidOperation:
        return None
    return round(scaled) if scaled.is_finite() and abs(scaled) < _MOST_NS else None


def count(value: object) -> int | None:
    """A number of tokens; null for what is no whole number from 0 on (``21073.0`` is one)."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = Decimal(str(value).strip())
    except InvalidOperation:
        return None
    if not number.is_finite() or not 0 <= number <= _MOST_TOKENS or number != number.to_integral_value():
        return None
    return int(number)


def name_of(value: object) -> str | None:
    """An id as text, null for none; never more than an id's length of it."""
    return str(value)[:_MAX_ID] if isinstance(value, str | int) and not isinstance(value, bool) else None


def inner(value: object, *keys: str) -> Any:  # noqa: ANN401 - JSON
    """What stands below these keys; null where there is nothing."""
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


@dataclass
class RequestRows:
    """Rows of ``requests`` as they are found; every one that was read is counted."""

    observation: Observation
    where: str
    strict: bool
    rows: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def of(cls, material: Material, options: Options, name: str, clock: ClockKind) -> "RequestRows":
        """No rows yet of a source of that format."""
        observation = Observation(name, material.name, clock, accounting=Accounting("rows"))
        observation.notes.extend(left_out_note(material))
        return cls(observation, str(material.path), options.strict)

    def add(self, number: int, row: dict[str, Any]) -> None:
        """Take in a row; one without an arrival (or a turn before it) or with impossible lengths is unreadable."""
        account = self.observation.accounting
        if row.get("finish_reason") not in {"error", "rejected", "abort"}:
            for length in _LENGTHS:
                if row.get(length) is None:
                    self.refuse(number, f"{length}: missing or no whole number")
                    return
        if row.get("arrival_ns") is None and row.get("parent_request_id") is None:
            self.refuse(number, "no arrival time")
            return
        account.read += 1
        account.understood += 1
        self.rows.append(row)

    def refuse(self, number: int, reason: str) -> None:
        """Count an unreadable row; raises ``InputError`` under ``--strict``."""
        if self.strict:
            msg = f"{self.where}: row {number}: {reason}; --strict refuses it"
            raise InputError(msg)
        self.observation.accounting.read += 1
        self.observation.accounting.add_unreadable(number)
        self.skip(reason)

    def other(self, reason: str) -> None:
        """Count a row that is no request."""
        self.observation.accounting.read += 1
        self.observation.accounting.other += 1
        self.skip(reason)

    def skip(self, reason: str, more: int = 1) -> None:
        """Count what is left out by its reason."""
        self.observation.skipped[reason] = self.observation.skipped.get(reason, 0) + more

    def done(self) -> Observation:
        """The observation with its requests; raises ``InputError`` when none could be used."""
        if not self.rows:
            reasons = "; ".join(self.observation.skipped) or "it is empty"
            msg = f"{self.where}: no request in it can be used ({reasons})"
            raise InputError(msg)
        schema = polars_schema(REQUESTS)
        names = [name for name in schema if any(row.get(name) is not None for row in self.rows)]
        frame = pl.DataFrame([
            pl.Series(name, [row.get(name) for row in self.rows], dtype=schema[name]) for name in names
        ])  # fmt: skip
        self.observation.tables["requests"] = finish(frame, self.observation)
        return self.observation
