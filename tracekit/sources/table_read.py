"""Foreign tables as batches of rows: CSV and TSV, JSON lines, a JSON list, Parquet; compressed or not, in bounded memory.

A batch is a polars frame of the wanted columns as the file has them (text for CSV and JSON, so that no decimal passes
through a float) with the row's number, from 1, in ``ROW``. Lists come as JSON text, hashed or parsed by their reader.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from tracekit.errors import InputError
from tracekit.progress import Progress, no_progress
from tracekit.sources.files import open_bytes
from tracekit.sources.observation import Accounting
from tracekit.sources.table_csv import csv_batches, csv_columns, looks_like_csv

ROW: Final = "#row"
TableKind = Literal["parquet", "jsonl", "json", "csv"]
_PIECE_BYTES: Final = 16 << 20
_MAX_LINE: Final = 256 << 20
_MAX_DOCUMENT: Final = 2 << 30
_PARQUET_ROWS: Final = 500_000
_DEPTH: Final = 5
_LINES_LOOKED_AT: Final = 3
_DECODER: Final = json.JSONDecoder(parse_float=str)


@dataclass(frozen=True)
class TableFiles:
    """A table in one file or in several with the same columns, and its columns (``a.b`` for nested ones)."""

    kind: TableKind
    files: tuple[Path, ...]
    columns: tuple[str, ...]


def table_kind(head: bytes) -> TableKind | None:
    """What kind of table the start of a file may be, or null when it is none."""
    if head.startswith(b"PAR1"):
        return "parquet"
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if text.startswith(b"["):
        inner = text[1:].lstrip()
        return "json" if inner.startswith((b"{", b"]")) else None
    if text.startswith(b"{"):
        lines = text.split(b"\n", _LINES_LOOKED_AT)
        # A first line that the head cuts off may be an object; of several, one that is damaged says nothing.
        return "jsonl" if len(lines) == 1 or any(isinstance(_parse(line), dict) for line in lines[:-1]) else None
    return "csv" if looks_like_csv(text) else None


def open_table(files: tuple[Path, ...], head: bytes) -> TableFiles:
    """Find out the kind and columns of a table; raises ``InputError`` when the files are none."""
    kind = table_kind(head)
    where = files[0]
    if kind is None:
        msg = f"{where}: expected a table (CSV, JSON lines, a JSON list or Parquet), found {kind_of_bytes(head)}"
        raise InputError(msg)
    if kind == "parquet":
        columns = _parquet_columns(_parquet(where).schema_arrow)
    elif kind == "csv":
        columns = csv_columns(head)
    else:
        columns = _json_columns(where, kind)
    return TableFiles(kind, files, tuple(columns))


def kind_of_bytes(head: bytes) -> str:
    """What the start of a file is, in a word, for a message; never its text."""
    if head.startswith((b"\x89PNG", b"\xff\xd8\xff", b"GIF8")):
        return "an image"
    if head.startswith(b"PK\x03\x04"):
        return "a zip archive (unpack it first)"
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "UTF-16 text (save it as UTF-8)"
    if b"\0" in head[:4096]:
        return "binary data"
    if head.lstrip().startswith((b"{", b"[")):
        return "a JSON document that is no list of rows"
    return "text without columns" if head.strip() else "nothing but blanks"


def batches(
    table: TableFiles, wanted: Sequence[str], accounting: Accounting, progress: Progress = no_progress
) -> Iterator[pl.DataFrame]:
    """The rows of the wanted columns, in order; a row that cannot be parsed is counted and left out.

    Every row is counted in ``accounting.read``; raises ``InputError`` for a file that is not what its start said.
    """
    total = sum(path.stat().st_size for path in table.files)
    done = 0
    for path in table.files:
        before = done

        def report(size: int, path: Path = path, before: int = before) -> None:
            progress(path.name, min(before + size, total), total)

        if table.kind == "csv":
            yield from csv_batches(path, table.columns, wanted, accounting, report)
        elif table.kind == "parquet":
            yield from _parquet_batches(path, wanted, accounting, report)
        elif table.kind == "jsonl":
            yield from _jsonl_batches(path, wanted, accounting, report)
        else:
            yield _frame_of(enumerate(_document(path), start=accounting.read + 1), wanted, accounting)
        done += path.stat().st_size
    progress(table.files[-1].name, total, total)


def json_lines(path: Path, report: Callable[[int], None] = lambda _size: None) -> Iterator[list[tuple[int, bytes]]]:
    """The lines of a file in lists of some megabytes, each with its number from 1; blank lines are left out."""
    number = 0
    with open_bytes(path) as stream:
        rest = b""
        while piece := stream.read(_PIECE_BYTES):
            lines = (rest + piece).split(b"\n")
            rest = lines.pop()
            if len(rest) > _MAX_LINE:
                msg = f"{path}: line {number + len(lines) + 1} is longer than {_MAX_LINE} bytes"
                raise InputError(msg)
            yield [(number + i, line) for i, line in enumerate(lines, start=1) if line.strip()]
            number += len(lines)
            report(stream.tell() if stream.seekable() else 0)
        if rest.strip():
            yield [(number + 1, rest)]


def _jsonl_batches(
    path: Path, wanted: Sequence[str], accounting: Accounting, report: Callable[[int], None]
) -> Iterator[pl.DataFrame]:
    for lines in json_lines(path, report):
        if lines:
            yield _frame_of(((number, _parse(line)) for number, line in lines), wanted, accounting)


def parse_json(line: bytes) -> Any:  # noqa: ANN401 - JSON
    """A JSON value, numbers with a point or exponent as their exact text; null for what is no JSON."""
    return _parse(line)


def _parse(line: bytes) -> Any:  # noqa: ANN401 - JSON
    try:
        return _DECODER.decode(line.removeprefix(b"\xef\xbb\xbf").strip(b"\0 \t\r\n").decode("utf-8", errors="replace"))
    except (ValueError, RecursionError):
        return None


def _frame_of(
    rows: Iterator[tuple[int, Any]] | enumerate[Any], wanted: Sequence[str], accounting: Accounting
) -> pl.DataFrame:
    numbers: list[int] = []
    columns: dict[str, list[str | None]] = {name: [] for name in wanted}
    paths = [(name, name.split("."), columns[name].append) for name in wanted]
    for number, row in rows:
        accounting.read += 1
        if not isinstance(row, dict):
            accounting.add_unreadable(number)
            continue
        numbers.append(number)
        for name, path, append in paths:
            value = row.get(name)
            if value is None and len(path) > 1:
                value = _nested(row, path)
            append(value if isinstance(value, str) or value is None else _text(value))
    return pl.DataFrame(
        [pl.Series(ROW, numbers, dtype=pl.Int64), *(_text_series(name, values) for name, values in columns.items())]
    )


def _text_series(name: str, values: list[str | None]) -> pl.Series:
    try:
        return pl.Series(name, values, dtype=pl.String)
    except UnicodeEncodeError:
        # JSON may escape half of a surrogate pair, which no text can hold.
        clean = [value.encode("utf-8", "replace").decode() if value is not None else None for value in values]
        return pl.Series(name, clean, dtype=pl.String)


def _nested(row: Any, path: Sequence[str]) -> Any:  # noqa: ANN401 - JSON
    for key in path:
        if not isinstance(row, dict):
            return None
        row = row.get(key)
    return row


def _text(value: Any) -> str:  # noqa: ANN401 - JSON
    if type(value) is int:
        return str(value)
    # An object is never carried on: it may hold a prompt. That it was there is all a reader needs to know.
    return "{...}" if isinstance(value, dict) else json.dumps(value)


def _document(path: Path) -> list[Any]:
    with open_bytes(path) as stream:
        data = stream.read(_MAX_DOCUMENT + 1)
    if len(data) > _MAX_DOCUMENT:
        msg = f"{path}: a JSON list of more than {_MAX_DOCUMENT} bytes; make it JSON lines (one object a line)"
        raise InputError(msg)
    found = _parse(data)
    if not isinstance(found, list):
        msg = f"{path}: expected a JSON list of objects; it is damaged or ends early"
        raise InputError(msg)
    return found


def _json_columns(path: Path, kind: TableKind) -> list[str]:
    rows: list[Any] = []
    if kind == "json":
        rows = _document(path)[:1000]
    else:
        for lines in json_lines(path):
            rows.extend(_parse(line) for _, line in lines[:1000])
            if rows:
                break
    names: dict[str, None] = {}
    for row in rows:
        if isinstance(row, dict):
            names.update(dict.fromkeys(_paths(row)))
    return list(names)


def _paths(row: dict[str, Any], prefix: str = "", depth: int = 0) -> Iterator[str]:
    for key, value in row.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict) and depth < _DEPTH:
            yield from _paths(value, f"{name}.", depth + 1)
        yield name


def _parquet(path: Path) -> pq.ParquetFile:
    try:
        with open_bytes(path) as stream:
            seekable = stream.seekable()
            data = None if seekable else stream.read(_MAX_DOCUMENT)
        return pq.ParquetFile(pa.BufferReader(data) if data is not None else path)
    except (pa.ArrowException, OSError, ValueError) as error:
        msg = f"{path}: cannot be read as Parquet ({type(error).__name__})"
        raise InputError(msg) from error


def _parquet_columns(schema: pa.Schema) -> list[str]:
    def walk(fields: Any, prefix: str, depth: int) -> Iterator[str]:  # noqa: ANN401 - Arrow has no stubs
        for field in fields:
            if pa.types.is_struct(field.type) and depth < _DEPTH:
                yield from walk(field.type, f"{prefix}{field.name}.", depth + 1)
            else:
                yield f"{prefix}{field.name}"

    return list(walk(schema, "", 0))


def _parquet_batches(
    path: Path, wanted: Sequence[str], accounting: Accounting, report: Callable[[int], None]
) -> Iterator[pl.DataFrame]:
    file = _parquet(path)
    top = {field.name for field in file.schema_arrow}
    expressions = [_column(name, top).alias(name) for name in wanted]
    size = path.stat().st_size
    done = 0
    try:
        for batch in file.iter_batches(_PARQUET_ROWS, columns=sorted({_top(name, top) for name in wanted})):
            # polars takes text and metadata on trust: damaged bytes would stop it hard.
            batch.validate(full=True)
            plain = pa.RecordBatch.from_arrays(batch.columns, names=batch.schema.names)
            frame = pl.DataFrame(pl.from_arrow(plain)).select(expressions)
            yield frame.with_row_index(ROW, offset=accounting.read + 1).with_columns(pl.col(ROW).cast(pl.Int64))
            accounting.read += frame.height
            done += frame.height
            report(size * done // max(file.metadata.num_rows, 1))
    except (pa.ArrowException, pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, ValueError) as error:
        msg = f"{path}: cannot be read as Parquet ({type(error).__name__})"
        raise InputError(msg) from error


def _top(name: str, top: set[str]) -> str:
    return name if name in top else name.split(".", 1)[0]


def _column(name: str, top: set[str]) -> pl.Expr:
    if name in top:
        return pl.col(name)
    first, *rest = name.split(".")
    column = pl.col(first)
    for part in rest:
        column = column.struct.field(part)
    return column
