import bz2
import gzip
import lzma
from pathlib import Path

import pyarrow as pa
import pytest

from tests.sources.reading import write
from tracekit.errors import InputError
from tracekit.sources.files import left_out, material_of, oldest_first, open_bytes, read_head, sha256_of

DATA = b"INFO a line\n" * 5000


def zstd(data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return sink.getvalue().to_pybytes()


PACKERS = {"gzip": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress, "zstd": zstd, "plain": bytes}


@pytest.mark.parametrize("kind", PACKERS)
def test_compression_is_told_by_content_not_by_name(tmp_path: Path, kind: str) -> None:
    path = write(tmp_path / "server.txt", PACKERS[kind](DATA))
    with open_bytes(path) as stream:
        assert stream.read() == DATA
    assert read_head(path, 11) == b"INFO a line"


@pytest.mark.parametrize("kind", ["gzip", "bz2", "xz", "zstd"])
def test_several_compressed_streams_behind_each_other_are_one_file(tmp_path: Path, kind: str) -> None:
    path = write(tmp_path / "rotated", PACKERS[kind](DATA) + PACKERS[kind](b"more"))
    with open_bytes(path) as stream:
        assert stream.read() == DATA + b"more"


@pytest.mark.parametrize("kind", ["gzip", "bz2", "xz", "zstd"])
def test_a_cut_compressed_file_is_a_clear_error(tmp_path: Path, kind: str) -> None:
    packed = PACKERS[kind](DATA)
    path = write(tmp_path / "cut", packed[: len(packed) - 5])
    with pytest.raises(InputError, match="damaged or end early"), open_bytes(path) as stream:
        stream.read()


def test_a_bomb_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracekit.sources.files.RATIO_FREE_BYTES", 1 << 20)
    path = write(tmp_path / "bomb", gzip.compress(bytes(8 << 20)))
    with pytest.raises(InputError, match="unpack to more than"), open_bytes(path) as stream:
        stream.read()


def test_a_missing_path_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        material_of(tmp_path / "nothing")
    with pytest.raises(InputError, match="no such file"):
        open_bytes(tmp_path / "nothing")


def test_a_directory_is_its_files_in_natural_order_without_junk(tmp_path: Path) -> None:
    for name in ("9.prom", "10.prom", ".hidden", "_SUCCESS"):
        write(tmp_path / name, "x")
    (tmp_path / "__MACOSX").mkdir()
    write(tmp_path / "__MACOSX" / "._9.prom", "x")
    material = material_of(tmp_path)
    assert [path.name for path in material.files] == ["9.prom", "10.prom"]
    assert {path.name for path in left_out(material)} == {".hidden", "_SUCCESS", "._9.prom"}


def test_the_head_is_that_of_the_first_file_with_content(tmp_path: Path) -> None:
    write(tmp_path / "0", "")
    write(tmp_path / "1", "text")
    assert material_of(tmp_path).head == b"text"


def test_an_empty_directory_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no file"):
        material_of(tmp_path)


def test_the_hash_of_several_files_is_that_of_their_bytes_in_order(tmp_path: Path) -> None:
    one, two, both = write(tmp_path / "1", "a"), write(tmp_path / "2", "b"), write(tmp_path / "3", "ab")
    assert sha256_of((one, two)) == sha256_of(both)


def test_rotated_logs_are_in_the_order_in_which_they_were_written() -> None:
    def order(*names: str) -> list[str]:
        return [path.name for path in oldest_first([Path("d", name) for name in names])]

    assert order("a.log", "a.log.1", "a.log.2.gz", "a.log.10") == ["a.log.10", "a.log.2.gz", "a.log.1", "a.log"]
    assert order("a.log", "a.log-20260301.gz", "a.log-20260228") == ["a.log-20260228", "a.log-20260301.gz", "a.log"]
    assert order("b.log", "a.log", "c.txt") == ["b.log", "a.log", "c.txt"]
    assert order("pod-0", "pod-1") == ["pod-0", "pod-1"]
