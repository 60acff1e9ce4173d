"""Results and traces that hold requests a level down: guidellm, AIPerf, OTLP, agent sessions, event traces."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.sources.reading import SHARED, needs_shared, read, write
from tracekit.errors import InputError
from tracekit.hashing import chain_ids
from tracekit.sources import agent_sessions, aiperf, bailian, burstgpt, event_traces, guidellm, otlp
from tracekit.sources.json_rows import count, nanoseconds

S = 1_000_000_000


def jsonl(path: Path, *rows: Any) -> Path:
    return write(path, "".join(json.dumps(row) + "\n" for row in rows))


@pytest.mark.parametrize(
    ("value", "unit", "expected"),
    [
        ("1776978294.5128021", "s", 1_776_978_294_512_802_100), (5, "ms", 5_000_000), ("1e3", "us", 1_000_000),
        (True, "s", None), ("nan", "s", None), ("1e40", "s", None), ("x", "s", None), (None, "s", None), ([1], "s", None),
    ],
)  # fmt: skip
def test_times_are_exact_or_nothing(value: object, unit: str, expected: int | None) -> None:
    assert nanoseconds(value, unit) == expected


def test_counts_are_whole_or_nothing() -> None:
    values = (3, "21073.0", 0, -1, 1.5, "x", True, None, 10**12)
    assert [count(value) for value in values] == [3, 21073, 0, *[None] * 6]


def guidellm_request(**changes: Any) -> dict[str, Any]:
    timings = {
        "request_start": 100.5,
        "first_token_iteration": 100.75,
        "last_token_iteration": 102.5,
        "request_end": 102.625,
    }
    return {
        "request_id": "a",
        "request_args": "secret prompt",
        "output": "secret answer",
        "prompt_tokens": 7,
        "output_tokens": 3,
        "info": {"timings": timings},
    } | changes


def guidellm_file(path: Path, old: dict[str, Any] | None = None, **requests: list[Any]) -> Path:
    metadata = {"version": 1, "guidellm_version": "0.6.0"}
    found = {"successful": [], "errored": [], "incomplete": [], "total": None} | requests
    whole = {"metadata": metadata, "benchmarks": [{"requests": found}]} if old is None else old
    return write(path, json.dumps(whole))


def test_guidellm_with_nested_times(tmp_path: Path) -> None:
    path = guidellm_file(
        tmp_path / "x",
        successful=[guidellm_request(request_id="b"), guidellm_request()],
        errored=[guidellm_request(request_id="c", prompt_tokens=None, output_tokens=None)],
        incomplete=[guidellm_request(request_id="d")],
    )
    found = read(guidellm.SOURCE, path)
    rows = {row["request_id"]: row for row in found.tables["requests"].to_dicts()}
    assert found.accounting.read == found.accounting.understood == 4
    assert rows["a"]["arrival_ns"] == 100 * S + 500_000_000
    assert rows["a"]["first_token_ns"] == 100 * S + 750_000_000
    assert rows["a"]["last_token_ns"] == 102 * S + 500_000_000
    assert (rows["a"]["num_prompt_tokens"], rows["a"]["num_output_tokens"]) == (7, 3)
    assert (rows["c"]["finish_reason"], rows["c"]["first_token_ns"]) == ("error", None)
    assert (rows["d"]["finish_reason"], rows["d"]["num_output_tokens"]) == ("abort", None)
    assert "secret" not in repr(found)


def test_guidellm_with_flat_times(tmp_path: Path) -> None:
    request = {
        "request_id": "a", "prompt": "secret", "start_time": 10.0, "end_time": 12.0, "first_token_time": 10.5,
        "last_token_time": 11.75, "prompt_tokens": 5, "output_tokens": 4,
    }  # fmt: skip
    old = {
        "benchmarks": [{"type_": "x", "run_id": "r", "args": {"profile": {}}, "requests": {"successful": [request]}}]
    }
    row = read(guidellm.SOURCE, guidellm_file(tmp_path / "x", old)).tables["requests"].row(0, named=True)
    assert (row["arrival_ns"], row["first_token_ns"], row["last_token_ns"]) == (10 * S, 10_500_000_000, 11_750_000_000)


def test_a_csv_of_guidellm_is_refused_with_what_to_give(tmp_path: Path) -> None:
    path = write(tmp_path / "x", "Run Info,Benchmark,Request Counts\n,,Successful\n,,\na,b,3\n")
    with pytest.raises(InputError, match=r"give the benchmark\.json"):
        read(guidellm.SOURCE, path)


def aiperf_record(**changes: Any) -> dict[str, Any]:
    metadata = {
        "x_request_id": "a",
        "request_start_ns": 5 * S,
        "request_end_ns": 7 * S,
        "benchmark_phase": "profiling",
        "was_cancelled": False,
    }
    metrics = {
        "input_sequence_length": {"value": 9, "unit": "tokens"}, "output_sequence_length": {"value": 3, "unit": "tokens"},
        "time_to_first_token": {"value": 250.5, "unit": "ms"}, "inter_chunk_latency": {"value": [1.5, 2], "unit": "ms"},
    }  # fmt: skip
    return {"metadata": metadata | changes.pop("metadata", {}), "metrics": metrics, "error": None} | changes


def test_aiperf_records(tmp_path: Path) -> None:
    path = jsonl(
        tmp_path / "x",
        aiperf_record(),
        aiperf_record(metadata={"benchmark_phase": "warmup"}),
        aiperf_record(metadata={"x_request_id": "b"}, metrics={}, error={"message": "secret"}),
        aiperf_record(metadata={"x_request_id": "c", "was_cancelled": True}),
        3,
    )
    found = read(aiperf.SOURCE, path)
    account = found.accounting
    assert (account.read, account.understood, account.other, account.unreadable_at) == (5, 3, 1, [5])
    rows = found.tables["requests"].sort("request_id").to_dicts()
    assert (rows[0]["first_token_ns"], rows[0]["last_token_ns"]) == (5 * S + 250_500_000, 7 * S)
    assert rows[0]["itl_ns"] == [1_500_000, 2_000_000]
    assert [row["finish_reason"] for row in rows] == [None, "error", "abort"]
    assert "secret" not in repr(found)


def span(name: str = "llm_request", **attributes: Any) -> dict[str, Any]:
    def value(given: Any) -> dict[str, Any]:
        kinds = {int: "intValue", float: "doubleValue", str: "stringValue"}
        return {kinds[type(given)]: str(given) if isinstance(given, int) else given}

    return {
        "name": name,
        "startTimeUnixNano": str(1_700_000_000 * S),
        "endTimeUnixNano": str(1_700_000_002 * S),
        "attributes": [{"key": key, "value": value(given)} for key, given in attributes.items()],
    }


def test_otlp_spans_one_document_or_lines(tmp_path: Path) -> None:
    known = {
        "gen_ai.request.id": "cmpl-1", "gen_ai.usage.prompt_tokens": 12, "gen_ai.usage.completion_tokens": 4,
        "gen_ai.latency.time_to_first_token": 0.25, "gen_ai.latency.e2e": 1.5, "gen_ai.request.max_tokens": 99,
    }  # fmt: skip
    document = {"resourceSpans": [{"scopeSpans": [{"spans": [span(**known), span("POST /v1")]}]}]}
    for path in (write(tmp_path / "x", json.dumps(document, indent=1)), jsonl(tmp_path / "y", document)):
        found = read(otlp.SOURCE, path)
        assert (found.accounting.understood, found.accounting.other) == (1, 1)
        row = found.tables["requests"].row(0, named=True)
        assert row["arrival_ns"] == 1_700_000_000 * S
        assert row["first_token_ns"] - row["arrival_ns"] == 250_000_000
        assert row["last_token_ns"] - row["arrival_ns"] == 1_500_000_000
        assert (row["request_id"], row["num_prompt_tokens"], row["max_tokens"]) == ("cmpl-1", 12, 99)


def conversation(name: str) -> dict[str, Any]:
    def turn(t: float, **more: Any) -> dict[str, Any]:
        return {"t": t, "in": 130, "out": 5, "hash_ids": [1, 2], "api_time": 2.5, "think_time": 1.25} | more

    nested = {"t": 10.0, "type": "subagent", "agent_id": "g1", "requests": [turn(0.0), turn(4.0)]}
    turns = [turn(0.0), turn(5.0, ttft=0.5, **{"in": 200, "hash_ids": [1, 2, 3]}), nested]
    return {"id": name, "block_size": 64, "hash_id_scope": "local", "requests": turns}


def test_ids_of_one_conversation_mean_nothing_in_another(tmp_path: Path) -> None:
    found = read(agent_sessions.SOURCE, jsonl(tmp_path / "x", conversation("one"), conversation("two")))
    rows = {row["request_id"]: row for row in found.tables["requests"].to_dicts()}
    assert (found.accounting.understood, found.accounting.other) == (8, 2)
    assert found.hash_block_size == 16
    first, second, third = rows["one:1"], rows["one:2"], rows["one/g1:4"]
    assert first["block_hashes"] == second["block_hashes"][:8]
    assert len({first["block_hashes"][0], third["block_hashes"][0], rows["two:6"]["block_hashes"][0]}) == 3
    assert (second["parent_request_id"], second["think_ns"]) == ("one:1", 1_250_000_000)
    assert (second["first_token_ns"], second["last_token_ns"]) == (5_500_000_000, 7_500_000_000)
    assert (third["arrival_ns"], third["parent_request_id"]) == (10 * S, None)


@needs_shared
def test_recorded_conversations_hold_the_tokens_they_say() -> None:
    for path in sorted((SHARED / "traces" / "coding-sessions").iterdir()):
        rows = read(agent_sessions.SOURCE, path).tables["requests"]
        totals = json.loads(path.read_text())["totals"]["combined_tokens"]
        assert (rows["num_prompt_tokens"].sum(), rows["num_output_tokens"].sum()) == (totals["input"], totals["output"])


def test_events_of_dynamo_and_lists_of_aibrix_and_plans(tmp_path: Path) -> None:
    replay = {"trace_block_size": 16, "input_length": 40, "input_sequence_hashes": [8, 9]}
    request = {"request_id": "d", "output_tokens": 2, "request_received_ms": 20, "total_time_ms": 10, "replay": replay}
    event = {"schema": "dynamo.request.trace.v1", "event_type": "request_end", "request": request}
    found = read(event_traces.SOURCE, jsonl(tmp_path / "x", event, {"event_type": "tool_end"}))
    row = found.tables["requests"].row(0, named=True)
    assert (row["arrival_ns"], row["finished_ns"], found.accounting.other) == (20_000_000, 30_000_000, 1)
    assert row["block_hashes"] == chain_ids([8, 9], 16, 16, 40)
    lists = {"timestamp": 21, "requests": [{"Prompt Length": 9, "Output Length": 2, "prompt": "secret"}] * 2}
    found = read(event_traces.SOURCE, jsonl(tmp_path / "y", lists))
    assert found.tables["requests"]["arrival_ns"].to_list() == [21_000_000] * 2
    assert "secret" not in repr(found)
    plan = {
        "num_turns": 2, "input_prompt_length": 16, "assistant_response_length": [4, 4], "tool_call_output_length": [8, 8],
        "tool_call_latency": [0.01, 0.02], "final_assistant_response_length": 5,
    }  # fmt: skip
    rows = read(event_traces.SOURCE, jsonl(tmp_path / "z", plan)).tables["requests"].sort("request_id")
    assert rows["num_prompt_tokens"].to_list() == [16, 28, 40]
    assert rows["num_output_tokens"].to_list() == [4, 4, 5]
    assert rows["think_ns"].to_list() == [None, 10_000_000, 20_000_000]


def test_burstgpt_of_both_headers(tmp_path: Path) -> None:
    plain = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,472,18,490,API log\n45.5,x,9,0,9,y\n"
    rows = read(burstgpt.SOURCE, write(tmp_path / "x", plain)).tables["requests"]
    assert rows["arrival_ns"].to_list() == [5 * S, 45_500_000_000]
    assert rows["finish_reason"].to_list() == [None, "error"]
    assert rows["num_output_tokens"].to_list() == [18, None]
    with_sessions = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,,1,C,4,1,5,API log\n6,77,1,C,4,1,5,C\n"
    rows = read(burstgpt.SOURCE, write(tmp_path / "y", with_sessions)).tables["requests"]
    assert rows["session_id"].to_list() == [None, "77"]


def test_bailian_times_are_seconds_and_parents_are_chats(tmp_path: Path) -> None:
    def row(chat: int, parent: int, time: float, ids: list[int]) -> dict[str, Any]:
        return {
            "chat_id": chat, "parent_chat_id": parent, "timestamp": time, "input_length": 33, "output_length": 4,
            "type": "text", "turn": 1, "hash_ids": ids,
        }  # fmt: skip

    found = read(
        bailian.SOURCE,
        jsonl(tmp_path / "x", row(1, -1, 0.5, [7, 8, 9]), row(2, 1, 61.25, [7, 8]), row(3, 99, 62, [1])),
    )
    rows = found.tables["requests"]
    assert rows["arrival_ns"].to_list() == [500_000_000, 61_250_000_000, 62 * S]
    assert rows["parent_request_id"].to_list() == [None, "1", None]
    assert rows["block_hashes"][0].to_list() == rows["block_hashes"][1].to_list()
    assert found.hash_block_size == 16


@pytest.mark.parametrize("source", [guidellm, aiperf, otlp, agent_sessions, event_traces])
def test_nothing_usable_is_an_error(tmp_path: Path, source: Any) -> None:
    with pytest.raises(InputError):
        read(source.SOURCE, write(tmp_path / "x", '{"a": 1}'))
