"""From bytes to physical lines: pieces of whole lines, without colour codes and wrappings."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, Final

import numpy as np
import polars as pl
import pyarrow as pa

from tracekit.sources.vllm_log.records import HEAD

PIECE_BYTES: Final = 12 << 20
MAX_LINE_BYTES: Final = 32 << 20
_BACK_LINES: Final = 100
_MANY_CR: Final = 10_000
_HEAD_BYTES: Final = 500
_INLINE_BYTES: Final = 12
_COLOUR: Final = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]")
_HEAD: Final = re.compile(HEAD.replace("(?: |$)", "").encode())


@dataclass
class Physical:
    """What the bytes are, before anything is read into them."""

    num_bytes: int = 0
    num_lf: int = 0
    num_crlf: int = 0
    num_bare_cr: int = 0
    has_ansi: bool = False

    def add(self, piece: bytes, num_lines: int) -> None:
        """Count a piece of that many whole lines."""
        crlf, cr = _count_cr(piece)
        self.num_bytes += len(piece)
        self.num_lf += num_lines - (not piece.endswith(b"\n"))
        self.num_crlf += crlf
        self.num_bare_cr += cr - crlf
        self.has_ansi = self.has_ansi or (b"\x1b" in piece and b"\x1b[" in piece)


def _count_cr(piece: bytes) -> tuple[int, int]:
    """How many CR stand before an LF, and how many there are; carriage returns are rare, so they are leapt to."""
    crlf = cr = 0
    at = piece.find(b"\r")
    while at >= 0:
        cr += 1
        crlf += piece[at + 1 : at + 2] == b"\n"
        if cr > _MANY_CR:
            return piece.count(b"\r\n"), piece.count(b"\r")
        at = piece.find(b"\r", at + 1)
    return crlf, cr


def pieces(stream: BinaryIO, size: int = PIECE_BYTES) -> Iterator[bytes]:
    """Cut a stream into pieces of whole lines, if possible in front of a record.

    A record that a terminal wrapped thereby stays in one piece with its continuation. Of a line longer than
    ``MAX_LINE_BYTES`` only the start is given.
    """
    rest = b""
    while block := stream.read(size):
        held = rest + block
        end = held.rfind(b"\n") + 1
        if end:
            end = _before_last_record(held, end) if len(block) == size else len(held)
            yield held[:end]
            rest = held[end:]
        elif len(held) >= MAX_LINE_BYTES:
            yield held[:MAX_LINE_BYTES] + b"\n"
            rest = _behind_line(stream, size)
        else:
            rest = held
    if rest:
        yield rest


def _behind_line(stream: BinaryIO, size: int) -> bytes:
    while block := stream.read(size):
        end = block.find(b"\n") + 1
        if end:
            return block[end:]
    return b""


def _before_last_record(held: bytes, end: int) -> int:
    stop = end
    for _ in range(_BACK_LINES):
        start = held.rfind(b"\n", 0, stop - 1) + 1
        if start == 0:
            return end
        # Behind CR LF it may be a further line of one record.
        if held[start - 2 : start - 1] != b"\r" and _HEAD.search(held, start, min(stop, start + _HEAD_BYTES)):
            return start
        stop = start
    return end


@dataclass
class Lines:
    """Lines ready to be classified; ``ends_cr`` marks those that ended in CR LF and still hold the CR (None: none did)."""

    text: pl.Series
    ends_cr: pl.Series | None


def split_lines(piece: bytes) -> Lines:
    """Split a piece into lines of text: colour codes removed, JSON wrappings opened, bytes that are no UTF-8 replaced."""
    raw = _utf8(_without_colour(piece.removesuffix(b"\n")))
    text = _views(raw)
    ends_cr = text.str.ends_with("\r") if b"\r" in raw else None
    json_lines = text.str.starts_with("{").arg_true()
    if json_lines.len():
        text = _unwrapped(text, json_lines)
    return Lines(text, ends_cr)


def _utf8(raw: bytes) -> bytes:
    if raw.isascii():
        return raw
    try:
        raw.decode()
    except UnicodeDecodeError:
        return raw.decode("utf-8", "replace").encode()
    return raw


def _views(raw: bytes) -> pl.Series:
    """The lines of valid UTF-8, each a view into it (Arrow's string view layout), so that no text is copied."""
    data = np.frombuffer(raw + bytes(_INLINE_BYTES), np.uint8)
    ends = np.append(np.flatnonzero(data[: len(raw)] == ord("\n")), len(raw))
    starts = np.append(0, ends[:-1] + 1)
    lengths = ends - starts
    windows = np.lib.stride_tricks.sliding_window_view(data, _INLINE_BYTES)
    # Four 32-bit words a view: length, first four bytes, number of the buffer (0), offset in it.
    views = np.zeros((len(starts), 4), np.uint32)
    views[:, 0] = lengths
    views[:, 1] = np.ascontiguousarray(windows[starts, :4]).view(np.uint32)[:, 0]
    views[:, 3] = starts
    short = np.flatnonzero(lengths <= _INLINE_BYTES)
    if len(short):
        # A short text stands in the view itself, filled up with zeros.
        inside = np.arange(_INLINE_BYTES) < lengths[short, None]
        views.view(np.uint8)[short, 4:] = windows[starts[short]] * inside
    buffers = [None, pa.py_buffer(views), pa.py_buffer(raw)]
    return pl.Series(pa.Array.from_buffers(pa.string_view(), len(starts), buffers))


def _without_colour(raw: bytes) -> bytes:
    if b"\x1b" not in raw:
        return raw
    # A log uses few codes, and bytes.replace is many times faster than an expression.
    for _ in range(16):
        found = _COLOUR.search(raw)
        if found is None:
            return raw
        raw = raw.replace(found[0], b"")
    return _COLOUR.sub(b"", raw)


def _unwrapped(text: pl.Series, at: pl.Series) -> pl.Series:
    """Open JSON lines: docker's ``{"log": ..., "time": ...}`` and records that a JSON formatter wrote."""
    opened = [_open(line) for line in text.gather(at).to_list()]
    return text.scatter(at, opened)


def _open(line: str) -> str:
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        return line
    if not isinstance(fields, dict):
        return line
    if isinstance(fields.get("log"), str):
        stamp = fields.get("time")
        log = str(fields["log"]).rstrip("\r\n")
        # Colour codes stand escaped in JSON, so they were not seen before.
        log = _COLOUR.sub(b"", log.encode("utf-8", "replace")).decode()
        return f"{stamp} {log}" if isinstance(stamp, str) else log
    return _record(fields) or line


def _record(fields: dict[str, Any]) -> str | None:
    """The record's usual form, with its time in front, which has the year and milliseconds here."""
    stamp, level, message = fields.get("asctime"), fields.get("levelname"), fields.get("message")
    found = re.match(r"(\d{4})-(\d\d-\d\d) (\d\d:\d\d:\d\d)(?:[,.](\d+))?$", stamp) if isinstance(stamp, str) else None
    if found is None or not isinstance(level, str) or not isinstance(message, str):
        return None
    name = re.sub(r"[^\w.]", "_", str(fields.get("name", "json")))
    process = re.sub(r"\W", "_", str(fields.get("processName", "")))
    number = fields.get("process")
    who = f"({process} pid={number}) " if process and isinstance(number, int) else ""
    outer = f"{found[1]}-{found[2]}T{found[3]}.{found[4] or 0}"
    return f"{outer} {who}{level} {found[2]} {found[3]} [{name}:0] {message.splitlines()[0] if message else ''}"
