"""Each source knows its own by content, whatever the file is called, and leaves the others alone."""

import gzip
import random
from pathlib import Path

import pytest

from tests.sources.reading import SHARED, detected, needs_shared, write

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:17:03.9799600,4808,10"
MOONCAKE = '{"timestamp": 0, "input_length": 6755, "output_length": 500, "hash_ids": [0, 1]}\n'
BENCH = '{"date": "x", "completed": 1, "total_input_tokens": 5, "request_throughput": 1.0, "input_lens": [5]}'
SCRAPE = '# HELP vllm:num_requests_running x\n# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{engine="0"} 1.0\n'
TABLE = "t,p,o\n1,2,3\n"


@pytest.mark.parametrize(
    ("text", "name"),
    [(AZURE, "azure"), (MOONCAKE, "mooncake"), (BENCH, "bench-serve"), (SCRAPE, "metrics"), (TABLE, "table")],
)
def test_by_content_alone_plain_or_compressed(tmp_path: Path, text: str, name: str) -> None:
    assert detected(write(tmp_path / "a.png", text)) == [name]
    assert detected(write(tmp_path / "b.log", gzip.compress(text.encode()))) == [name]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n\n",
        b"\x89PNG\r\n\x1a\n" + bytes(100),
        b"%PDF-1.4",
        b"{",
        b"[",
        b"hello",
        b"\0" * 50,
        b'{"a": 1,\n "b": 2}',
        b"\xff\xfet\0,\0p\0",
    ],
)
def test_garbage_is_nobodys(tmp_path: Path, data: bytes) -> None:
    assert detected(write(tmp_path / "x", data)) in ([], ["table"] if data == b"{" else [])


def test_random_bytes_and_flipped_files_never_crash_and_never_match_two(tmp_path: Path) -> None:
    chance = random.Random(7)  # noqa: S311 - a fuzz, no secret
    for text in (AZURE, MOONCAKE, BENCH, SCRAPE, TABLE):
        for _ in range(40):
            data = bytearray(text.encode())
            for _ in range(chance.randrange(1, 6)):
                data[chance.randrange(len(data))] = chance.randrange(256)
            assert len(detected(write(tmp_path / "x", bytes(data[: chance.randrange(len(data))])))) <= 1


@needs_shared
def test_every_shared_trace_has_at_most_one_source() -> None:
    expected = {
        "azure": "azure",
        "mooncake": "mooncake",
        "vllm-bench-serve": "bench-serve",
        "llmservingsim-rtxpro6000-llama8b": "table",
    }
    for path in sorted((SHARED / "traces").rglob("*")):
        if path.is_file():
            names = detected(path)
            assert len(names) <= 1, path
            if names and path.parent.name in expected:
                assert names == [expected[path.parent.name]], path
