# ruff: noqa: S311 - a fuzz, no secret
"""Damaged logs, scrapes, traces and results: ``python -m benchmarks.fuzz_reading --number 100000``.

Bytes are flipped, lines cut, joined, repeated and interleaved. Each input must be read, or refused with one of
tracekit's own errors, within ten seconds, and its account must add up: no crash, no hang, no silent loss. A log is read
twice, with and without the columns that settle usual request lines, and both must say the same.
"""

import argparse
import gzip
import json
import random
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from unittest import mock

import polars as pl

from benchmarks.reading import LOGS
from tracekit.errors import TracekitError
from tracekit.schema.parquet import conform
from tracekit.schema.tables import TABLES_BY_NAME
from tracekit.sources import any_table
from tracekit.sources.files import material_of
from tracekit.sources.ingest import SOURCES
from tracekit.sources.observation import Observation, Options
from tracekit.sources.vllm_log import SOURCE as VLLM_LOG
from tracekit.sources.vllm_log import block, request_lines

SAMPLE = Path(__file__).parents[1] / "sample_traces" / "vllm" / "0.33.0" / "storm_a"
MOST_S = 10
_OPTIONS = Options(hash_key=b"fuzz")
_COLUMNS = tuple(map(any_table.parse_column, ("arrival=t", "num_prompt_tokens=p", "num_output_tokens=o")))


def seeds(rng: random.Random) -> list[list[bytes]]:
    """Whole inputs, line by line, one of every shape that is read."""
    log = SAMPLE.joinpath("server.log").read_bytes().split(b"\n")
    made = [b"".join(line.encode() for line in LOGS[kind](rng, 40)).split(b"\n")[:60] for kind in LOGS]
    scrape = gzip.decompress(next(SAMPLE.joinpath("metrics").iterdir()).read_bytes()).split(b"\n")
    span = {"name": "llm_request", "startTimeUnixNano": "1700000000000000000", "attributes": [
        {"key": "gen_ai.usage.prompt_tokens", "value": {"intValue": "5"}},
        {"key": "gen_ai.usage.completion_tokens", "value": {"intValue": "5"}}]}  # fmt: skip
    turn = {"t": 1.0, "in": 130, "out": 5, "hash_ids": [1, 2], "api_time": 2.5, "think_time": 1.25}
    series = {"metric": {"__name__": "vllm:num_requests_running", "engine": "0"}, "values": [[1700000000, "3"]]}
    documents = [
        {"resourceSpans": [{"scopeSpans": [{"spans": [span] * 3}]}]},
        {"id": "a", "block_size": 64, "hash_id_scope": "local", "requests": [turn, turn, {"t": 2, "requests": [turn]}]},
        {"metadata": {"guidellm_version": "0.6.0"}, "benchmarks": [{"requests": {"successful": [
            {"prompt_tokens": 4, "output_tokens": 3, "info": {"timings": {"request_start": 100.5}}}] * 3}}]},
        {"status": "success", "data": {"resultType": "matrix", "result": [series, series]}},
        {"completed": 2, "total_input_tokens": 3, "request_throughput": 1.0, "input_lens": [1, 2], "output_lens": [3, 4],
         "ttfts": [0.5, 0.25], "itls": [[0.1], []], "start_times": [1.5, 2.5], "errors": ["", ""]},
    ]  # fmt: skip
    rows = [
        b'{"timestamp": 5, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]}',
        b'{"chat_id": 1, "parent_chat_id": -1, "timestamp": 1.5, "input_length": 33, "output_length": 4, "hash_ids": [1, 2]}',
        b'{"timestamp": 5, "requests": [{"Prompt Length": 5, "Output Length": 6}]}',
        b'{"metadata": {"request_start_ns": 5, "request_end_ns": 9}, "metrics": {"input_sequence_length": {"value": 3}}}',
        b'{"t": 1, "p": 2, "o": 3}',
    ]
    tables = [
        b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:04,3,4",
        b"Timestamp,Model,Request tokens,Response tokens\n5,x,472,18\n6,x,3,0",
        b"t,p,o\n1,2,3\n2.5,3,4",
    ]
    return [
        log[:150], log[150:260], *made, scrape[:200], *([json.dumps(d).encode()] for d in documents),
        *([row] * 4 for row in rows), *(table.split(b"\n") for table in tables),
    ]  # fmt: skip


def _flipped(rng: random.Random, lines: list[bytes]) -> list[bytes]:
    data = bytearray(b"\n".join(lines))
    for _ in range(rng.randrange(1, 12)):
        if data:
            data[rng.randrange(len(data))] = rng.choice((rng.randrange(256), 10, 13, 27, 34, 39, 44, 0, 0xFF))
    return bytes(data).split(b"\n")


def _cut(rng: random.Random, lines: list[bytes]) -> list[bytes]:
    return [line[: rng.randrange(len(line) + 1)] if rng.random() < 0.1 else line for line in lines]


def _joined(rng: random.Random, lines: list[bytes]) -> list[bytes]:
    made: list[bytes] = []
    for line in lines:
        if made and rng.random() < 0.1:
            made[-1] += line
        else:
            made.append(line)
    return made


def _repeated(rng: random.Random, lines: list[bytes]) -> list[bytes]:
    return [line for line in lines for _ in range(2 if rng.random() < 0.1 else 1)]


def _shuffled(rng: random.Random, lines: list[bytes]) -> list[bytes]:
    at = rng.randrange(len(lines) + 1)
    return lines[at:] + lines[:at]


MUTATIONS: tuple[Callable[[random.Random, list[bytes]], list[bytes]], ...] = (
    _flipped,
    _cut,
    _joined,
    _repeated,
    _shuffled,
)


def made_input(rng: random.Random, known: list[list[bytes]]) -> bytes:
    """One damaged input: one or two whole ones, interleaved, then damaged up to three times."""
    lines = list(rng.choice(known))
    if rng.random() < 0.3:
        for line in rng.choice(known)[:80]:
            lines.insert(rng.randrange(len(lines) + 1), line)
    for _ in range(rng.randrange(4)):
        lines = rng.choice(MUTATIONS)(rng, lines)
    data = b"\n".join(lines)
    return data[: rng.randrange(len(data) + 1)] if rng.random() < 0.1 else data


class TookTooLongError(Exception):
    """An input that is not done after ``MOST_S``."""


def _alarm(_number: int, _frame: FrameType | None) -> None:
    raise TookTooLongError


def _checked(found: Observation) -> None:
    account = found.accounting
    assert account.read == account.understood + account.other + account.unreadable, asdict(account)
    assert account.duplicates <= account.understood, asdict(account)
    for name, frame in found.tables.items():
        conform(TABLES_BY_NAME[name], frame, name)


def _read_log(path: Path, data: bytes) -> str:
    with mock.patch.object(request_lines, "_EDGE_LINES", -1):
        quick = VLLM_LOG.read(material_of(path), _OPTIONS)
    with mock.patch.object(block, "usual_requests", _nothing_usual):
        singly = VLLM_LOG.read(material_of(path), _OPTIONS)
    _checked(quick)
    assert quick.accounting.read == len(data.removesuffix(b"\n").split(b"\n")), "a line is not counted"
    assert asdict(quick.accounting) == asdict(singly.accounting)
    assert quick.skipped == singly.skipped
    assert quick.tables.keys() == singly.tables.keys()
    for name, frame in quick.tables.items():
        assert frame.equals(singly.tables[name]), f"{name} differs"
    return "vllm-log"


def _nothing_usual(_line: pl.Series, text: pl.Series, *_others: object) -> tuple[pl.DataFrame, pl.Series]:
    return request_lines.NO_LINES, pl.repeat(value=False, n=text.len(), dtype=pl.Boolean, eager=True)


def read_one(path: Path, data: bytes) -> str:
    """Read one input as whatever it is detected to be; returns what that was, or that it was refused."""
    path.write_bytes(data)
    try:
        material = material_of(path)
        if not material.head:
            return "empty"
        for source in SOURCES:
            if source.detects(material):
                break
        else:
            return "no known format"
        if source is VLLM_LOG:
            return _read_log(path, data)
        columns = _COLUMNS if source is any_table.SOURCE and b'"t"' in data[:99] + data[:2] else ()
        _checked(source.read(material, Options(columns=columns, hash_key=b"fuzz")))
    except TracekitError:
        return "refused"
    return source.name


def main() -> None:
    """Print how many inputs were read as what; the first that fails is kept and its seed named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--number", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    signal.signal(signal.SIGALRM, _alarm)
    known = seeds(random.Random(0))
    counts: Counter[str] = Counter()
    began, slowest = time.perf_counter(), 0.0
    with tempfile.TemporaryDirectory() as folder:
        for number in range(given.seed, given.seed + given.number):
            data = made_input(random.Random(number), known)
            signal.alarm(MOST_S)
            start = time.perf_counter()
            try:
                counts[read_one(Path(folder, "input"), data)] += 1
            except BaseException:
                Path("fuzz-failure.bin").write_bytes(data)
                print(f"seed {number} fails; its input is in fuzz-failure.bin")
                raise
            finally:
                signal.alarm(0)
            slowest = max(slowest, time.perf_counter() - start)
            if (number - given.seed + 1) % 1000 == 0:
                print(f"{number - given.seed + 1:,} inputs, none failed", flush=True)
    print(
        f"{given.number:,} inputs in {time.perf_counter() - began:.0f} s, the slowest in {slowest:.2f} s: none failed"
    )
    for name, count in counts.most_common():
        print(f"  {count:8,}  {name}")


if __name__ == "__main__":
    main()
