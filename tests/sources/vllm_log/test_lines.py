import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sources.vllm_log.helpers import at, material, observe, preempted, record, start_up, stats, v0_stats
from tracekit.sources.observation import Material, Options
from tracekit.sources.vllm_log import SOURCE
from tracekit.sources.vllm_log import lines as lines_module
from tracekit.sources.vllm_log.lines import pieces
from tracekit.sources.vllm_log.records import split_records

LOG = [
    *start_up(),
    stats("03-05 10:00:10"),
    'INFO:     1.2.3.4:5 - "POST /v1/completions HTTP/1.1" 200 OK',
    stats("03-05 10:00:20", running=5),
]


@pytest.mark.parametrize(
    "wrap",
    [
        lambda line: f"2026-03-05T09:00:00.250000000Z {line}",
        lambda line: f"2026-03-05T11:00:00.25+02:00 stdout F {line}",
        lambda line: f"vllm-1  | 2026-03-05T09:00:00.250Z {line}",
        lambda line: f"[pod/vllm-0/main] 2026-03-05T09:00:00.250Z {line}",
        lambda line: f"2026-03-05T10:00:00.25+0100 host vllm[12]: {line}",
        lambda line: json.dumps({"log": f"{line}\n", "stream": "stderr", "time": "2026-03-05T09:00:00.25Z"}),
    ],
    ids=["docker", "containerd", "compose", "kubectl", "journald", "docker-json"],
)
def test_an_outer_time_with_a_zone_is_absolute(tmp_path: Path, wrap: Callable[[str], str]) -> None:
    observation = observe(tmp_path, [wrap(line) for line in LOG])
    assert observation.clock == "unix"
    moment = at("2026-03-05T09:00:00") + 250_000_000
    assert observation.tables["engine_stats"]["time_ns"].to_list() == [moment, moment]
    assert observation.tables["events"].filter(pl.col("kind") == "access")["time_ns"].to_list() == [moment]
    assert observation.config["vllm_version"].value == "0.33.0"


def test_json_records_have_year_and_milliseconds_but_no_zone(tmp_path: Path) -> None:
    fields = {
        "asctime": "2024-02-29 10:00:10,250",
        "levelname": "INFO",
        "name": "vllm.v1.metrics.loggers",
        "process": 7,
    }
    message = stats().partition("] ")[2]
    observation = observe(tmp_path, [json.dumps(fields | {"processName": "MainProcess", "message": message})])
    assert observation.clock == "local"
    assert observation.tables["engine_stats"]["time_ns"].to_list() == [at("2024-02-29T10:00:10") + 250_000_000]


@pytest.mark.parametrize(
    "change",
    [
        lambda line: f"    {line}",
        lambda line: f"(vLLMHttpServer pid=5) {line}",
        lambda line: f"12.3s 45 {line}",
        lambda line: f"\x1b[1;36m(APIServer pid=7)\x1b[0;0m \x1b[32m{line}\x1b[0m",
        lambda line: f"{line}\r",
        lambda line: f"\rLoading: 100%|###| 4/4 [00:01<00:00]{line}" if line.startswith("(API") else line,
        lambda line: f"{line} [repeated 3x across cluster]" if "Engine 0" in line else line,
    ],
    ids=["indented", "ray", "notebook", "coloured", "crlf", "progress bar", "repeated"],
)
def test_what_stands_around_a_line_changes_nothing(tmp_path: Path, change: Callable[[str], str]) -> None:
    plain, changed = observe(tmp_path, LOG), observe(tmp_path, [change(line) for line in LOG])
    assert changed.tables["engine_stats"].equals(plain.tables["engine_stats"])
    assert changed.tables["events"].equals(plain.tables["events"])
    assert {n: v.value for n, v in changed.config.items()} == {n: v.value for n, v in plain.config.items()}


def test_glued_records_are_told_apart(tmp_path: Path) -> None:
    observation = observe(tmp_path, [stats("03-05 10:00:10") + stats("03-05 10:00:20") + stats("03-05 10:00:30")])
    assert observation.tables["engine_stats"].height == 3
    assert observation.accounting.read == observation.accounting.understood == 1


def test_a_line_that_a_terminal_wrapped_is_joined(tmp_path: Path) -> None:
    wrapped = "\n".join(line[i : i + 70] for line in LOG for i in range(0, len(line), 70)).split("\n")
    observation = observe(tmp_path, wrapped)
    assert observation.tables["engine_stats"].equals(observe(tmp_path, LOG).tables["engine_stats"])
    assert {"kv_cache_tokens", "max_num_batched_tokens", "vllm_version", "max_model_len"} <= set(observation.config)


def test_text_that_was_reflowed_is_joined(tmp_path: Path) -> None:
    first, second = v0_stats("03-05 10:00:10").split("Running"), preempted("03-05 10:00:12", 51).split(" is ", 1)
    lines = [
        first[0].rstrip(),
        "",
        f"Running{first[1]}",
        "",
        second[0],
        f"is {second[1]}",
        "",
        v0_stats("03-05 10:00:20"),
    ]
    observation = observe(tmp_path, lines)
    assert observation.tables["engine_stats"]["num_preemptions_min"].to_list() == [None, 51]


def test_a_first_line_that_lost_its_head_counts_with_the_next_time(tmp_path: Path) -> None:
    observation = observe(tmp_path, [v0_stats("03-05 10:00:10", running=9)[40:], v0_stats("03-05 10:00:15")])
    table = observation.tables["engine_stats"]
    assert table["num_running_reqs"].to_list() == [9, 3]
    assert table["time_ns"].to_list() == [at("2026-03-05T10:00:15")] * 2


def test_cut_and_broken_lines_are_unreadable_and_named(tmp_path: Path) -> None:
    broken = stats("03-05 10:00:20").replace("Running: 3", "Running: ?")
    cut = "(EngineCore pid=1) INFO 03-05 10:00:21 [core.py:1] Iteration(4): 1 context requests, 12 conte"
    text = "\n".join([stats("03-05 10:00:10"), broken, cut, stats("03-05 10:00:30")[:-60]])
    observation = observe(tmp_path, text.encode())
    assert observation.tables["engine_stats"].height == 1
    assert observation.accounting.unreadable_at == [2, 3, 4]


def test_foreign_lines_are_other(tmp_path: Path) -> None:
    foreign = [
        b"\rLoading:  50%\rLoading: 100%",
        b"",
        b"\xff\xfe\x80 caf\xe9",
        b"[Gloo] Rank 0 is connected",
        b"{}",
        b'{"a": [1',
        b"\0\0",
    ]
    observation = observe(tmp_path, b"\n".join([stats().encode(), *foreign, stats("03-05 10:00:20").encode()]))
    assert observation.tables["engine_stats"].height == 2
    assert (observation.accounting.other, observation.accounting.unreadable) == (len(foreign), 0)


def test_copies_of_records_count_once(tmp_path: Path) -> None:
    doubled = [line for line in LOG for _ in range(2)]
    observation, plain = observe(tmp_path, doubled), observe(tmp_path, LOG)
    assert observation.tables["engine_stats"].equals(plain.tables["engine_stats"])
    assert observation.accounting.duplicates == sum("] " in line for line in LOG)
    assert {n: v.value for n, v in observation.config.items()} == {n: v.value for n, v in plain.config.items()}
    # A poll repeated in one second is printed twice because it happened twice.
    assert observation.tables["events"].filter(pl.col("kind") == "access").height == 2


def test_pieces_do_not_change_the_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = observe(tmp_path, LOG * 3)
    for size in (200, 777):
        monkeypatch.setattr("tracekit.sources.vllm_log.observe.pieces", lambda stream, size=size: pieces(stream, size))
        cut = observe(tmp_path, LOG * 3)
        assert cut.accounting == whole.accounting
        assert all(cut.tables[name].equals(frame) for name, frame in whole.tables.items())


def test_of_an_endless_line_only_the_start_is_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines_module, "MAX_LINE_BYTES", 4096)
    monkeypatch.setattr("tracekit.sources.vllm_log.observe.pieces", lambda stream: pieces(stream, 1024))
    observation = observe(tmp_path, [stats(), "x" * 100_000, stats("03-05 10:00:20")])
    assert observation.tables["engine_stats"].height == 2
    assert observation.accounting.read == 3


def test_compressed_and_rotated_files_are_read_in_order(tmp_path: Path) -> None:
    first, second = tmp_path / "a.log", tmp_path / "b.log.gz"
    first.write_text("\n".join(LOG[:7]) + "\n")
    second.write_bytes(gzip.compress("\n".join(LOG[7:]).encode()))
    observation = SOURCE.read(Material(tmp_path, (first, second), first.read_bytes()), Options())
    assert observation.tables["engine_stats"]["num_running_reqs"].to_list() == [3, 5]
    access = observation.tables["events"].filter(pl.col("kind") == "access").row(0, named=True)
    assert (access["file"], access["line"]) == ("b.log.gz", 1)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("\n".join(LOG), True),
        ("tqdm\n" * 50 + v0_stats("03-05 10:00:10"), True),
        (v0_stats("03-05 10:00:10")[40:], True),
        ('INFO:     1.2.3.4:5 - "POST /v1/chat/completions HTTP/1.1" 200 OK', True),
        ("", False),
        ("arrival_s,num_prompt_tokens\n1,2\n", False),
        (json.dumps({"prompt": f"x\n{stats()}"}), False),
        ('# HELP vllm:num_requests_running x\nvllm:num_requests_running{engine="0"} 3.0\n', False),
        ("\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + stats(), False),
        ("INFO 2026-03-05 10:00:00 something else\nWARN 03-05 nothing\n", False),
    ],
)
def test_detection_looks_at_the_content(tmp_path: Path, content: str, expected: Any) -> None:
    path = tmp_path / "anything.csv"
    path.write_text(content)
    assert SOURCE.detects(material(path)) is expected


def test_glued_heads_inside_a_prompt_are_no_records() -> None:
    line = record(f"Received request r-0: prompt: '{stats()}', params: SamplingParams(n=1)")
    assert len(split_records(line)) == 1
    assert split_records(f"'{line}") == []


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_no_input_crashes_or_loses_lines(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    raw = bytearray("\n".join([*LOG, v0_stats("03-05 10:00:30"), preempted("03-05 10:00:31", 1)]).encode())
    for _ in range(data.draw(st.integers(0, 12))):
        place = data.draw(st.integers(0, len(raw)))
        action = data.draw(st.sampled_from(["flip", "cut", "repeat", "insert"]))
        length = data.draw(st.integers(1, 120))
        if action == "flip" and place < len(raw):
            raw[place] ^= data.draw(st.integers(1, 255))
        elif action == "cut":
            del raw[place : place + length]
        elif action == "repeat":
            raw[place:place] = raw[place : place + length]
        else:
            raw[place:place] = data.draw(
                st.sampled_from([b"\n", b"\r", b"\x1b[1m", b"{", b"'", b'"', b"(", b"\xff", b"INFO:     "])
            )
    observation = observe(tmp_path_factory.mktemp("fuzz"), bytes(raw))
    assert observation.accounting.read == raw.count(b"\n") + bool(raw and not raw.endswith(b"\n"))


def test_a_letter_close_to_something_like_a_stamp(tmp_path: Path) -> None:
    quoted = "(p pid=1) INFO 01-01 00:00:00 aaé " + record("fine", "03-05 10:00:11")
    observation = observe(tmp_path, [*LOG[:-1], quoted, stats("03-05 10:00:20")])
    assert observation.tables["engine_stats"].height == 2
