"""CSV and TSV in pieces of some megabytes that end at a row's end; every value stays text."""

import csv
import io
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import polars as pl

from tracekit.errors import InputError
from tracekit.sources.files import open_bytes
from tracekit.sources.observation import Accounting

_DELIMITERS: Final = (",", "\t", ";", "|")
_PIECE_BYTES: Final = 32 << 20
_MAX_ROW_BYTES: Final = 256 << 20
_SURPLUS: Final = "#surplus"
_ROW: Final = "#row"
_BOM: Final = b"\xef\xbb\xbf"
_LINES_CHECKED: Final = 20


def looks_like_csv(head: bytes) -> bool:
    """Whether text starts with a header of two or more distinct names and rows of about as many fields."""
    if b"\0" in head:
        return False
    try:
        text = head.removeprefix(_BOM).decode("utf-8", errors="strict" if len(head) < 4 else "ignore")  # noqa: PLR2004
    except UnicodeDecodeError:
        return False
    lines = text.splitlines()[: _LINES_CHECKED + 1]
    if not lines or any(not character.isprintable() and character != "\t" for line in lines for character in line):
        return False
    delimiter = _delimiter(head)
    rows = [row for row in csv.reader(lines, delimiter=delimiter) if row]
    if not rows or len(rows[0]) < 2 or not _is_header(rows[0]):  # noqa: PLR2004 - a table has two columns
        return False
    body = rows[1:] if len(rows) < _LINES_CHECKED else rows[1:-1]
    fitting = sum(len(row) == len(rows[0]) for row in body)
    return not body or fitting * 2 >= len(body)


def _is_header(names: Sequence[str]) -> bool:
    filled = [name.strip() for name in names if name.strip()]
    return (
        len(filled) >= 2  # noqa: PLR2004 - a table has two columns
        and len(set(filled)) == len(filled)
        and not any(_is_number(name) for name in filled)
        and max(map(len, filled)) <= 100  # noqa: PLR2004 - longer is a sentence, not a name
    )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _delimiter(head: bytes) -> str:
    first = head.removeprefix(_BOM).lstrip(b"\r\n").split(b"\n", 1)[0]
    return max(_DELIMITERS, key=lambda mark: first.count(mark.encode()))


def csv_columns(head: bytes) -> list[str]:
    """The names in the header line; one that is empty or repeated gets its position."""
    text = head.removeprefix(_BOM).lstrip(b"\r\n").decode("utf-8", errors="replace")
    try:
        names = next(csv.reader(io.StringIO(text, newline=""), delimiter=_delimiter(head)), [])
    except csv.Error:
        names = []
    found: list[str] = []
    for position, raw in enumerate(names, start=1):
        name = raw.strip() or f"column_{position}"
        found.append(f"{name}_{position}" if name in found else name)
    return found


def csv_batches(
    path: Path, columns: Sequence[str], wanted: Sequence[str], accounting: Accounting, report: Callable[[int], None]
) -> Iterator[pl.DataFrame]:
    """The wanted columns of a CSV file with the row's number in ``#row``; rows with too many fields are unreadable."""
    header = True
    delimiter = ","
    for piece, is_closed in _pieces(path, report):
        body = piece
        if header:
            delimiter = _delimiter(piece)
            if set(csv_columns(piece)) != set(columns):
                msg = f"{path}: its header differs from the first file's"
                raise InputError(msg)
            body = _behind_header(piece)
            if not body and b"\r" in piece.strip():
                msg = f"{path}: expected lines that end with LF, found a bare CR; convert the line ends"
                raise InputError(msg)
            header = False
        if not body:
            continue
        frame = _parse(body, columns, wanted, delimiter, is_closed=is_closed)
        frame = frame.with_row_index(_ROW, offset=accounting.read + 1).with_columns(pl.col(_ROW).cast(pl.Int64))
        accounting.read += frame.height
        surplus = frame[_SURPLUS].is_not_null()
        if surplus.any():
            for number in frame.filter(surplus)[_ROW].to_list():
                accounting.add_unreadable(number)
            frame = frame.filter(~surplus)
        yield frame.drop(_SURPLUS)


def _pieces(path: Path, report: Callable[[int], None]) -> Iterator[tuple[bytes, bool]]:
    """Pieces that end with a row; false with the last one when a quote in it is never closed."""
    with open_bytes(path) as stream:
        rest = b""
        done = 0
        while piece := stream.read(_PIECE_BYTES):
            done += len(piece)
            report(done)
            data = rest + piece
            end = _row_end(data)
            if end == 0 and len(data) > _MAX_ROW_BYTES:
                msg = f"{path}: a row (or a quoted field) is longer than {_MAX_ROW_BYTES} bytes"
                raise InputError(msg)
            rest = data[end:]
            if end:
                yield data[:end], True
        if rest:
            yield rest, rest.count(b'"') % 2 == 0


def _row_end(data: bytes) -> int:
    """Where the last whole row ends: behind the last newline outside quotes."""
    is_quoted = data.count(b'"') % 2 == 1
    end = len(data)
    while (newline := data.rfind(b"\n", 0, end)) >= 0:
        is_quoted ^= data.count(b'"', newline, end) % 2 == 1
        if not is_quoted:
            return newline + 1
        end = newline
    return 0


def _behind_header(piece: bytes) -> bytes:
    data = piece.removeprefix(_BOM).lstrip(b"\r\n")
    end = data.find(b"\n")
    while end >= 0 and data.count(b'"', 0, end) % 2:
        end = data.find(b"\n", end + 1)
    return data[end + 1 :] if end >= 0 else b""


def _parse(
    body: bytes, columns: Sequence[str], wanted: Sequence[str], delimiter: str, *, is_closed: bool
) -> pl.DataFrame:
    names = [*columns, _SURPLUS]
    try:
        return (
            pl.scan_csv(
                body,
                has_header=False,
                separator=delimiter,
                quote_char='"' if is_closed else None,
                schema=dict.fromkeys(names, pl.String),
                truncate_ragged_lines=True,
                missing_columns="insert",
                extra_columns="ignore",
                encoding="utf8-lossy",
                raise_if_empty=False,
            )
            .select(*wanted, _SURPLUS)
            .collect()
        )
    except pl.exceptions.PolarsError:
        # A stray quote inside a field stops polars; Python's reader takes it as it stands.
        return _parse_slowly(body, names, wanted, delimiter)


def _parse_slowly(body: bytes, names: Sequence[str], wanted: Sequence[str], delimiter: str) -> pl.DataFrame:
    positions = [names.index(name) for name in (*wanted, _SURPLUS)]
    values: list[list[str | None]] = [[] for _ in positions]
    for row in _tolerant_rows(body, delimiter):
        for target, position in zip(values, positions, strict=True):
            target.append((row[position] or None) if position < len(row) else None)
    return pl.DataFrame(
        {name: pl.Series(column, dtype=pl.String) for name, column in zip((*wanted, _SURPLUS), values, strict=True)}
    )


def _tolerant_rows(body: bytes, delimiter: str) -> list[list[str]]:
    """The rows as Python reads them; behind a quote that is never closed every line is a row of its own."""
    csv.field_size_limit(_MAX_ROW_BYTES)
    text = body.decode("utf-8", errors="replace").replace("\0", "")
    # A bare CR would end a row for Python; here it is a blank.
    lines = [f"{line.removesuffix(chr(13)).replace(chr(13), ' ')}\n" for line in text.removesuffix("\n").split("\n")]
    reader = csv.reader(lines, delimiter=delimiter)
    rows: list[list[str]] = []
    start = end = 0
    for row in reader:
        rows.append(row)
        start, end = end, reader.line_num
    try:
        list(csv.reader(lines[start:], delimiter=delimiter, strict=True))
    except csv.Error:
        if end - start > 1:
            rows[-1:] = csv.reader(lines[start:], delimiter=delimiter, quoting=csv.QUOTE_NONE)
    return rows
