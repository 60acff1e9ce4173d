"""Files as they lie about: plain or compressed (told by content, not by name), alone or in a directory."""

import bz2
import gzip
import hashlib
import io
import lzma
import os
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol, cast

import pyarrow as pa

from tracekit.errors import InputError
from tracekit.sources.observation import STDIN, Material

_MAGIC: Final = (
    (b"\x1f\x8b", "gzip"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
    (b"\xfd7zXZ\x00", "xz"),
    (b"BZh", "bz2"),
)
MAX_BYTES: Final = 1 << 38
"""Most decompressed bytes of one file (256 GiB)."""
MAX_RATIO: Final = 300
"""Most bytes out per byte in, once more than ``RATIO_FREE_BYTES`` came out; real logs reach about 100."""
RATIO_FREE_BYTES: Final = 1 << 28
_HEAD_BYTES: Final = 65_536
_DATE_FROM: Final = 10_000_000
_DATE_TO: Final = 10**15
_FILES_FOR_HEAD: Final = 20
"""A first scrape may be empty: the head is that of the first file with content."""


def open_bytes(path: Path) -> BinaryIO:
    """Open a file for reading bytes; gzip, zstd, xz and bz2 are recognised by content and decompressed.

    The stream raises ``InputError`` when the compressed data are damaged, end early, or unpack to absurdly much.
    """
    try:
        raw = path.open("rb")
        start = raw.read(8)
        raw.seek(0)
    except OSError as error:
        raise _cannot_open(path, error) from error
    kind = next((kind for magic, kind in _MAGIC if start.startswith(magic)), None)
    if kind is None:
        return raw
    return cast("BinaryIO", io.BufferedReader(_Unpacked(path, raw, kind), buffer_size=1 << 20))


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


class _Unpacked(io.RawIOBase):
    """A decompressing stream that counts what comes out and stops at a bomb."""

    def __init__(self, path: Path, raw: BinaryIO, kind: str) -> None:
        super().__init__()
        self._path, self._raw, self._kind = path, raw, kind
        self._packed_bytes = max(path.stat().st_size, 1)
        self._done = 0
        self._stream = _unpacker(raw, kind)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:  # noqa: ANN401 - any writable buffer, as io says
        view = memoryview(buffer)
        try:
            # One call may unpack at most what was asked for: a bomb is met a piece at a time.
            data = self._stream.read(len(view))
        except (OSError, EOFError, ValueError, lzma.LZMAError, pa.ArrowException) as error:
            msg = f"{self._path}: the {self._kind} data are damaged or end early (after {self._done} bytes)"
            raise InputError(msg) from error
        self._done += len(data)
        if self._done > MAX_BYTES or (self._done > RATIO_FREE_BYTES and self._done > MAX_RATIO * self._packed_bytes):
            msg = (
                f"{self._path}: {self._packed_bytes} bytes of {self._kind} unpack to more than {self._done - len(data)}; "
                "unpack it yourself if that is right"
            )
            raise InputError(msg)
        view[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._raw.close()
        super().close()


def _unpacker(raw: BinaryIO, kind: str) -> _Readable:
    if kind == "gzip":
        return gzip.GzipFile(fileobj=raw, mode="rb")
    if kind == "xz":
        return lzma.LZMAFile(raw, mode="rb")
    if kind == "bz2":
        return bz2.BZ2File(raw, mode="rb")
    return cast("_Readable", pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), "zstd"))


def read_head(path: Path, size: int = _HEAD_BYTES) -> bytes:
    """The first ``size`` bytes of a file, decompressed; raises ``InputError`` when it cannot be read."""
    with open_bytes(path) as stream:
        return stream.read(size)


def material_of(path: Path) -> Material:
    """A source as given: a file, or a directory of files in natural name order (``9`` before ``10``).

    ``-`` is standard input, which is held in memory: a temporary file might keep somebody's prompts.
    Hidden files, ``_SUCCESS``-like markers and ``__MACOSX`` copies are left out (``left_out`` names them). Raises
    ``InputError`` when the path is missing, is no file or directory, or the directory holds no file.
    """
    if path == STDIN:
        return _from_stdin()
    if path.is_dir():
        files = tuple(sorted((file for file in _files_below(path) if not _is_junk(file, path)), key=_natural))
        if not files:
            msg = f"{path}: the directory holds no file"
            raise InputError(msg)
        heads = (read_head(file) for file in files[:_FILES_FOR_HEAD])
        return Material(path, files, next((head for head in heads if head), b""))
    if not path.exists():
        msg = f"{path}: no such file or directory"
        raise InputError(msg)
    if not path.is_file():
        msg = f"{path}: expected a file or a directory, found something else"
        raise InputError(msg)
    return Material(path, (path,), read_head(path))


def _from_stdin() -> Material:
    """Standard input as a file in memory, so that it can be read twice: to tell its format, and to read it."""
    if not hasattr(os, "memfd_create"):
        msg = "-: standard input can be read on Linux only; give a file"
        raise InputError(msg)
    held = os.memfd_create("stdin")
    with os.fdopen(os.dup(held), "wb") as copy:
        shutil.copyfileobj(sys.stdin.buffer, copy, 1 << 20)
    path = Path(f"/proc/self/fd/{held}")
    return Material(STDIN, (path,), read_head(path))


def oldest_first(files: Sequence[Path]) -> tuple[Path, ...]:
    """Files in the order in which a log was written: of ``a.log``, ``a.log.1``, ``a.log.2.gz`` the last is the oldest.

    A number of eight digits or more is a date, and grows. Files of different names keep their order.
    """
    order = list(dict.fromkeys(_rotation(file)[0] for file in files))

    def age(file: Path) -> tuple[int, int]:
        name, number = _rotation(file)
        if number is None:
            return order.index(name), 1
        return order.index(name), -number if number < _DATE_FROM else number - _DATE_TO

    return tuple(sorted(files, key=age))


def _rotation(file: Path) -> tuple[Path, int | None]:
    """The log that a file is a part of, and the number that a rotation gave it; None for the newest part."""
    found = re.fullmatch(r"(.+?)(?:\.(\d{1,14})|-(\d{8,14}))(?:\.(?:gz|zst|xz|bz2))?", file.name)
    if found is None:
        return file, None
    return file.with_name(found[1]), int(found[2] or found[3])


def left_out(material: Material) -> tuple[Path, ...]:
    """The files of a directory that ``material_of`` leaves out as junk."""
    if not material.path.is_dir():
        return ()
    return tuple(sorted(file for file in _files_below(material.path) if _is_junk(file, material.path)))


def left_out_note(material: Material) -> list[str]:
    """One sentence about the files left out, or none."""
    count = len(left_out(material))
    return [f"{material.path.name}: {count} hidden or system files left out"] if count else []


def sha256_of(files: Path | Sequence[Path]) -> str:
    """SHA-256 of a file's bytes as stored, or of several files' bytes one after the other."""
    digest = hashlib.sha256()
    for path in (files,) if isinstance(files, Path) else files:
        try:
            with path.open("rb") as stream:
                while piece := stream.read(1 << 20):
                    digest.update(piece)
        except OSError as error:
            raise _cannot_open(path, error) from error
    return digest.hexdigest()


def _files_below(path: Path) -> list[Path]:
    return [file for file in path.rglob("*") if file.is_file()]


def _is_junk(file: Path, root: Path) -> bool:
    parts = file.relative_to(root).parts
    return any(part.startswith(".") or part == "__MACOSX" for part in parts) or parts[-1].startswith("_")


def _natural(path: Path) -> list[tuple[int, int | str]]:
    pieces = re.split(r"([0-9]+)", str(path))
    return [(0, int(piece)) if piece.isascii() and piece.isdigit() else (1, piece) for piece in pieces if piece]


def _cannot_open(path: Path, error: OSError) -> InputError:
    reason = "no such file" if isinstance(error, FileNotFoundError) else type(error).__name__
    return InputError(f"{path}: cannot be read ({reason})")
