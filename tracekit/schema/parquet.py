"""The only door to Parquet: every table is cast to its declared Arrow schema on the way out and checked on the way in.

polars' own writer drops field metadata; going through Arrow keeps units and meanings in the file.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from tracekit.errors import InputError
from tracekit.schema.column import Column, Table

_ARROW_TYPES: dict[str, pa.DataType] = {
    "int64": pa.int64(),
    "int32": pa.int32(),
    "float64": pa.float64(),
    "string": pa.string(),
    "list<uint64>": pa.list_(pa.uint64()),
    "list<int64>": pa.list_(pa.int64()),
}
_POLARS_TYPES: dict[str, Any] = {
    "int64": pl.Int64,
    "int32": pl.Int32,
    "float64": pl.Float64,
    "string": pl.String,
    "list<uint64>": pl.List(pl.UInt64),
    "list<int64>": pl.List(pl.Int64),
}
_ROWS_A_GROUP: Final = 1 << 20
_MAX_LIST_LENGTH = 10_000_000
_MAX_NS = 1 << 62
"""Instants and durations within 146 years, so that their sums and differences stay in 64 bits."""


def polars_schema(table: Table) -> dict[str, Any]:
    """The table's columns as a polars schema, in stored order."""
    return {column.name: _POLARS_TYPES[column.type] for column in table.columns}


def arrow_schema(table: Table) -> pa.Schema:
    """The table's Arrow schema, with each column's meaning and unit as field metadata."""
    return pa.schema([_field(column) for column in table.columns], metadata={"tracekit.table": table.name})


def _field(column: Column) -> pa.Field:
    metadata = {"doc": column.doc} | ({"unit": column.unit} if column.unit else {})
    return pa.field(column.name, _ARROW_TYPES[column.type], nullable=column.nullable, metadata=metadata)


def empty(table: Table) -> pl.DataFrame:
    """A frame with the table's columns and no rows."""
    return pl.DataFrame(schema=polars_schema(table))


def conform(table: Table, frame: pl.DataFrame, where: str, *, fill: bool = True) -> pl.DataFrame:
    """Give a frame the table's columns, order and types; missing columns become null, or stay away without ``fill``.

    Raises ``InputError`` for a column the table does not have, a type that does not fit without loss, or a null in a
    required column; ``where`` starts the message.
    """
    unknown = [name for name in frame.columns if name not in table.column_names]
    if unknown:
        msg = f"{where}: table {table.name} has no column '{unknown[0]}'"
        raise InputError(msg)
    columns = [column for column in table.columns if fill or column.name in frame.columns]
    selected = frame.select(_cast(column, frame, where) for column in columns)
    for column in columns:
        if not column.nullable and selected.height and selected[column.name].null_count():
            row = selected[column.name].is_null().arg_max()
            msg = f"{where}: {table.name}.{column.name} must not be null (row {row})"
            raise InputError(msg)
    return selected


def _cast(column: Column, frame: pl.DataFrame, where: str) -> pl.Series:
    wanted = _POLARS_TYPES[column.type]
    if column.name not in frame.columns:
        return _nulls(column, frame.height)
    series = frame[column.name]
    if series.dtype == wanted:
        return series
    if series.dtype == pl.Null or series.len() == 0:
        return _nulls(column, frame.height)
    is_text = series.dtype in (pl.String, pl.Categorical, pl.Binary)
    if is_text != (column.type == "string") or (series.dtype.is_nested() != column.type.startswith("list")):
        msg = f"{where}: {column.name} must be {column.type}, found {str(series.dtype).lower()}"
        raise InputError(msg)
    try:
        cast = series.cast(wanted)
    except (pl.exceptions.InvalidOperationError, pl.exceptions.ComputeError):
        cast = None
    fractional = series.dtype.is_float() and column.type.startswith("int")
    if cast is None or (fractional and not (series.drop_nulls() == cast.drop_nulls().cast(series.dtype)).all()):
        msg = f"{where}: {column.name} must be {column.type}; a value does not fit"
        raise InputError(msg)
    return cast


def _nulls(column: Column, count: int) -> pl.Series:
    return pl.Series(column.name, [None], dtype=_POLARS_TYPES[column.type]).new_from_index(0, count)


def write_table(table: Table, frame: pl.DataFrame, path: Path, metadata: Mapping[str, str] | None = None) -> None:
    """Write a frame as this table; ``metadata`` goes into the file's key-value metadata."""
    schema = arrow_schema(table)
    schema = schema.with_metadata({**(schema.metadata or {}), **(metadata or {})})
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        # Part by part, so that the columns that a table has and the frame lacks never stand in memory as a whole.
        for start in range(0, max(frame.height, 1), _ROWS_A_GROUP):
            part = conform(table, frame.slice(start, _ROWS_A_GROUP), str(path))
            writer.write_table(part.to_arrow().cast(schema))


def read_table(table: Table, path: Path) -> pl.DataFrame:
    """Read a table that may come from a stranger, checked against the declaration.

    Columns that the table does not have are left out; raises ``InputError`` when the file is no Parquet, a type does
    not fit, a required value is null, a count or duration is negative, or a list is absurdly long.
    """
    frame = read_frame(path)
    known = frame.select(name for name in frame.columns if name in table.column_names)
    checked = conform(table, known, str(path))
    check_values(table, checked, str(path))
    return checked


def num_rows(path: Path) -> int:
    """How many rows a Parquet file has, from its footer alone; raises ``InputError``."""
    try:
        return int(pq.read_metadata(path).num_rows)
    except (OSError, pa.ArrowException) as error:
        msg = f"{path}: not a Parquet file"
        raise InputError(msg) from error


def read_frame(path: Path) -> pl.DataFrame:
    """Read any Parquet file as it is; raises ``InputError`` when it is missing or no Parquet."""
    try:
        table = pq.ParquetFile(path).read()
        table.validate(full=True)
        # Without the file's own metadata, which may be damaged too; polars panics at text that is no UTF-8.
        frame = pl.from_arrow(table.replace_schema_metadata(None))
    except (pa.ArrowException, OSError, ValueError, pl.exceptions.PanicException) as error:
        hint = "" if path.suffix == ".parquet" else "; a log, a CSV or JSON file first goes through tracekit ingest"
        msg = f"{path}: cannot be read as Parquet ({type(error).__name__}){hint}"
        raise InputError(msg) from error
    if not isinstance(frame, pl.DataFrame):
        msg = f"{path}: expected a table"
        raise InputError(msg)
    return frame


def read_metadata(path: Path) -> dict[str, Any] | None:
    """The ``run.json`` in a Parquet file's key-value metadata, or None when it carries none that can be read."""
    try:
        raw = (pq.read_metadata(path).metadata or {}).get(b"tracekit.run")
        found = json.loads(raw) if raw else None
    except (pa.ArrowException, OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def check_values(table: Table, frame: pl.DataFrame, where: str) -> None:
    """Refuse values that no run can hold: negative counts, numbers that are none, absurdly long lists, an id twice."""
    if table.name == "requests" and frame["request_id"].is_duplicated().any():
        row = frame["request_id"].is_duplicated().arg_max()
        msg = f"{where}: requests.request_id must be unique (row {row} stands again)"
        raise InputError(msg)
    for column in table.columns:
        series = frame[column.name]
        if _never_negative(column) and (low := series.min()) is not None and low < 0:  # type: ignore[operator]
            row = (series < 0).fill_null(value=False).arg_max()
            msg = f"{where}: {table.name}.{column.name} must not be negative (row {row})"
            raise InputError(msg)
        if column.unit == "ns" and column.type == "int64" and (far := (series > _MAX_NS) | (series < -_MAX_NS)).any():
            msg = f"{where}: {table.name}.{column.name} is further than 146 years away (row {far.arg_max()})"
            raise InputError(msg)
        if series.dtype.is_float() and (strange := ~series.is_finite().fill_null(value=True)).any():
            msg = f"{where}: {table.name}.{column.name} must be a finite number or null (row {strange.arg_max()})"
            raise InputError(msg)
        if column.type.startswith("list"):
            longest = series.list.len().max()
            if isinstance(longest, int) and longest > _MAX_LIST_LENGTH:
                msg = f"{where}: {table.name}.{column.name} holds a list of {longest} entries"
                raise InputError(msg)


def _never_negative(column: Column) -> bool:
    if column.name in {"think_ns", "duration_ns", "step", "line", "count"}:
        return True
    return column.name.startswith("num_") or column.name in {"max_tokens", "kv_cache_usage", "prefix_hit_rate"}
