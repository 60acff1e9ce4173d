import json
from pathlib import Path
from typing import Any

import pytest

from tests.sources.reading import SHARED, needs_shared, read, write
from tracekit.errors import InputError
from tracekit.hashing import chain_ids
from tracekit.sources import mooncake

TRACES = SHARED / "traces"


def lines(path: Path, *rows: Any) -> Path:
    return write(path, "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))


def row(
    timestamp: int | None = None, prompt: int = 1000, output: int = 5, ids: list[int] | None = None, **more: Any
) -> dict[str, Any]:
    found = {"timestamp": timestamp, "input_length": prompt, "output_length": output, "hash_ids": ids, **more}
    return {name: value for name, value in found.items() if value is not None}


def test_milliseconds_order_and_hashes_at_the_engines_block_size(tmp_path: Path) -> None:
    path = lines(tmp_path / "x", row(3000, 1000, ids=[7, 9]), row(0, 600, ids=[7, 8]), row(3000, 10, ids=[1]))
    found = read(mooncake.SOURCE, path)
    rows = found.tables["requests"]
    assert rows["arrival_ns"].to_list() == [0, 3_000_000_000, 3_000_000_000]
    assert rows["num_prompt_tokens"].to_list() == [600, 1000, 10]
    assert rows["block_hashes"].to_list() == [chain_ids([7, 8], 512, 16, 600), chain_ids([7, 9], 512, 16, 1000), []]
    assert found.hash_block_size == 16
    assert read(mooncake.SOURCE, path, block_size=128).hash_block_size == 128


def test_without_ids_a_prompt_is_unique(tmp_path: Path) -> None:
    found = read(mooncake.SOURCE, lines(tmp_path / "x", row(0), row(5, ids=[1, 2])))
    assert found.tables["requests"]["block_hashes"].is_null().to_list() == [True, False]
    without = read(mooncake.SOURCE, lines(tmp_path / "y", row(0), row(5)))
    assert "block_hashes" not in without.tables["requests"].columns
    assert without.hash_block_size is None


def test_a_header_says_the_block_size_and_is_no_request(tmp_path: Path) -> None:
    path = lines(tmp_path / "x", {"schema": "mooncake", "block_size": 64}, row(0, 130, ids=[1, 2, 3]))
    found = read(mooncake.SOURCE, path)
    assert found.tables["requests"]["block_hashes"].to_list() == [chain_ids([1, 2, 3], 64, 16, 130)]
    assert (found.accounting.read, found.accounting.other) == (2, 1)


def test_a_row_that_adds_to_a_session_gets_its_whole_prompt(tmp_path: Path) -> None:
    path = lines(
        tmp_path / "x",
        row(0, 40, 10, ids=[1], session_id="s", request_id="a"),
        row(9, 20, 4, ids=[2], session_id="s", request_id="b", delay=5),
        row(3, 40, 10, ids=[1], session_id="other", request_id="c"),
        row(None, 30, 4, ids=[3], session_id="s", request_id="d", delay=0.5),
    )
    rows = {each["request_id"]: each for each in read(mooncake.SOURCE, path).tables["requests"].to_dicts()}
    assert rows["b"]["num_prompt_tokens"] == 40 + 10 + 20
    assert rows["d"]["num_prompt_tokens"] == 70 + 4 + 30
    assert (rows["b"]["parent_request_id"], rows["d"]["parent_request_id"]) == ("a", "b")
    assert (rows["b"]["arrival_ns"], rows["b"]["think_ns"], rows["d"]["think_ns"]) == (None, 5_000_000, 500_000)
    assert rows["b"]["block_hashes"][:2] == rows["a"]["block_hashes"] == rows["c"]["block_hashes"]
    assert rows["d"]["block_hashes"][:4] == rows["b"]["block_hashes"]
    assert len(rows["d"]["block_hashes"]) == 104 // 16


def test_a_turn_with_its_whole_prompt_is_only_linked(tmp_path: Path) -> None:
    path = lines(
        tmp_path / "x", row(0, 1024, ids=[1, 2], session_id="s"), row(9, 1536, ids=[1, 2, 3], session_id="s", delay=5)
    )
    rows = read(mooncake.SOURCE, path).tables["requests"]
    assert rows["num_prompt_tokens"].to_list() == [1024, 1536]
    assert rows["parent_request_id"].to_list() == [None, "row-1"]
    assert rows["arrival_ns"].to_list() == [0, 9_000_000]


def test_a_turn_that_waits_for_one_completion_follows_it(tmp_path: Path) -> None:
    def after(trigger: str) -> list[dict[str, Any]]:
        return [{"request_id": "a", "trigger": trigger, "delay_ms": 7}]

    path = lines(
        tmp_path / "x",
        {"schema": "agentic_mooncake", "block_size": 16},
        row(None, 20, not_before_ms=2, request_id="a", dependencies=[]),
        row(None, 20, not_before_ms=0, request_id="b", dependencies=after("completion")),
        row(None, 20, not_before_ms=0, request_id="c", dependencies=after("dispatch")),
        row(None, 20, not_before_ms=0, request_id="d", dependencies=after("completion") * 2),
    )
    found = read(mooncake.SOURCE, path)
    assert found.tables["requests"].select("request_id", "arrival_ns", "parent_request_id", "think_ns").rows() == [
        ("a", 2_000_000, None, None),
        ("b", None, "a", 7_000_000),
    ]
    assert found.accounting.other == 3
    assert sum(found.skipped.values()) == 3


def test_bad_rows_are_counted_with_their_line(tmp_path: Path) -> None:
    bad = [
        row(0, -1),
        row(0, 10, output_length="x"),
        {"timestamp": 1, "output_length": 5},
        "null",
        '{"timestamp": 0, "in',
    ]
    found = read(mooncake.SOURCE, lines(tmp_path / "x", row(0), *bad))
    assert found.accounting.understood == 1
    assert sorted(found.accounting.unreadable_at) == [2, 3, 4, 5, 6]
    with pytest.raises(InputError, match="row 2"):
        read(mooncake.SOURCE, lines(tmp_path / "x", row(0), *bad), strict=True)


def test_a_first_prompt_longer_than_the_head_is_still_recognised(tmp_path: Path) -> None:
    path = lines(tmp_path / "x", row(0, 512 * 20_000, ids=list(range(20_000))))
    found = read(mooncake.SOURCE, path)
    assert found.tables["requests"]["block_hashes"].list.len().to_list() == [512 * 20_000 // 16]


@needs_shared
def test_the_released_trace() -> None:
    path = TRACES / "mooncake/synthetic_trace.jsonl"
    found = read(mooncake.SOURCE, path, strict=True).tables["requests"]
    rows = sorted((json.loads(line) for line in path.read_text().splitlines()), key=lambda each: each["timestamp"])
    assert found["num_prompt_tokens"].to_list() == [each["input_length"] for each in rows]
    for index in (0, 100, 3992):
        assert found["block_hashes"][index].to_list() == chain_ids(
            rows[index]["hash_ids"], 512, 16, rows[index]["input_length"]
        )


@needs_shared
@pytest.mark.parametrize(
    ("name", "understood", "other"),
    [("mooncake.jsonl", 2, 0), ("mooncake-delta.jsonl", 2, 0), ("production_trace.jsonl", 10, 0), ("mooncake_tiny.jsonl", 16, 0),
     ("precise_schedule.jsonl", 8, 0), ("agentic-mooncake.jsonl", 1, 3)],
)  # fmt: skip
def test_dialects(name: str, understood: int, other: int) -> None:
    account = read(mooncake.SOURCE, TRACES / "mooncake-dialects" / name).accounting
    assert (account.understood, account.other) == (understood, other)
