"""Stream a query's answer to a file or to stdout as CSV, JSON or Parquet."""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final, Literal

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from tracekit.compare.database import connect
from tracekit.compare.run_sql import Parameters, errors_for_people, last_relation, plain_integers
from tracekit.errors import InputError
from tracekit.run import Run

Format = Literal["csv", "json", "jsonl", "parquet"]

_BATCH_ROWS: Final = 65_536


def write_sql(
    runs: Mapping[str, Run],
    query: str,
    target: str | Path | IO[bytes],
    format: Format,  # noqa: A002 - the option's name
    *,
    parameters: Parameters | None = None,
) -> int:
    """Stream the answer to a file or an open binary stream; returns the number of rows.

    ``json`` is one list of objects, ``jsonl`` an object a line. Raises ``InputError`` as ``sql`` does.
    """
    with connect(runs) as connection, errors_for_people():
        relation = last_relation(connection, query, parameters or {})
        if relation is None:
            return 0
        with _opened(target) as stream:
            return _WRITERS[format](relation.to_arrow_reader(_BATCH_ROWS), stream)


def _write_csv(reader: pa.RecordBatchReader, stream: IO[bytes]) -> int:
    count = 0
    header = True
    for frame in _frames(reader):
        frame.select(_flat(frame)).write_csv(stream, include_header=header)
        count, header = count + frame.height, False
    return count


def _write_jsonl(reader: pa.RecordBatchReader, stream: IO[bytes]) -> int:
    count = 0
    for frame in _frames(reader):
        for row in frame.iter_rows(named=True):
            stream.write(_json_row(row) + b"\n")
        count += frame.height
    return count


def _write_json(reader: pa.RecordBatchReader, stream: IO[bytes]) -> int:
    count = 0
    stream.write(b"[")
    for frame in _frames(reader):
        for row in frame.iter_rows(named=True):
            stream.write((b",\n " if count else b"\n ") + _json_row(row))
            count += 1
    stream.write(b"\n]\n")
    return count


def _write_parquet(reader: pa.RecordBatchReader, stream: IO[bytes]) -> int:
    count = 0
    with pq.ParquetWriter(stream, reader.schema, compression="zstd") as writer:
        for batch in reader:
            writer.write_batch(batch)
            count += batch.num_rows
    return count


_WRITERS: Final = {"csv": _write_csv, "json": _write_json, "jsonl": _write_jsonl, "parquet": _write_parquet}


def _frames(reader: pa.RecordBatchReader) -> Iterator[pl.DataFrame]:
    """The batches as polars frames; at least one, so that a header is written for an empty answer."""
    is_empty = True
    for batch in reader:
        yield plain_integers(pl.DataFrame(pa.Table.from_batches([batch])))
        is_empty = False
    if is_empty:
        yield plain_integers(pl.DataFrame(reader.schema.empty_table()))


def _flat(frame: pl.DataFrame) -> list[pl.Expr]:
    """Lists and structs as JSON text, since CSV has no nesting."""
    return [
        pl.col(name).map_elements(lambda v: _json_text(_plain(v)), return_dtype=pl.String)
        if dtype.is_nested()
        else pl.col(name)
        for name, dtype in frame.schema.items()
    ]


def _json_row(row: Mapping[str, Any]) -> bytes:
    return _json_text(_plain(row)).encode()


def _json_text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, default=str)


def _plain(value: Any) -> Any:  # noqa: ANN401 - any value that a query can produce
    """NaN and infinities become null: JSON does not have them."""
    if isinstance(value, float):
        return value if abs(value) < float("inf") else None
    if isinstance(value, Mapping):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, pl.Series | list | tuple):
        return [_plain(entry) for entry in value]
    return value.hex() if isinstance(value, bytes) else value


@contextmanager
def _opened(target: str | Path | IO[bytes]) -> Iterator[IO[bytes]]:
    """The stream itself, or a file that takes its place only when all of it is written."""
    if not isinstance(target, str | Path):
        yield target
        return
    path = Path(target)
    sibling = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        with sibling.open("wb") as stream:
            yield stream
        sibling.replace(path)
    except OSError as error:
        msg = f"{path}: cannot be written ({error.strerror})"
        raise InputError(msg) from error
    finally:
        sibling.unlink(missing_ok=True)
