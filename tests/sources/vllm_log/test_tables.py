from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tests.sources.vllm_log.helpers import at, observe, preempted, record, start_up, stats, v0_stats
from tracekit.hashing import chain_tokens
from tracekit.schema.parquet import conform
from tracekit.schema.tables import TABLES_BY_NAME

PARAMS = "SamplingParams(n=1, temperature=0.5, stop=['max_tokens=9', ')'], max_tokens=64, min_tokens=0)"
KEY = b"k" * 32


def received(request_id: str, stamp: str, prompt: str = "'hello'", tokens: str = "None") -> str:
    message = f"Received request {request_id}: prompt: {prompt}, params: {PARAMS}, prompt_token_ids: {tokens}, lora_request: None."
    return record(message, stamp, "[logger.py:39]")


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (
            (
                "Avg prompt throughput: 1.0 tokens/s, Avg generation throughput: 2.0 tokens/s, Running: 3 reqs, "
                "Swapped: 1 reqs, Pending: 4 reqs, GPU KV cache usage: 50.0%, CPU KV cache usage: 7.0%"
            ),
            {"engine": 0, "num_running_reqs": 3, "num_waiting_reqs": 4, "num_swapped_reqs": 1, "kv_cache_usage": 0.5},
        ),
        (
            (
                "Avg prompt throughput: 1.0 tokens/s, Avg generation throughput: 2.0 tokens/s, Running: 3 reqs, "
                "Waiting: 4 reqs, GPU KV cache usage: 50.0%, Prefix cache hit rate: 25.0%       "
            ),
            {"engine": 0, "num_waiting_reqs": 4, "num_swapped_reqs": None, "prefix_hit_rate": 0.25},
        ),
        (
            (
                "Engine 012: Avg prompt throughput: 1.0 tokens/s, Avg generation throughput: 2.0 tokens/s, Running: 3 reqs, "
                "Waiting: 4 reqs, Deferred: 2 reqs, KV fetch: 1 waiting to start, 1 in progress, 0 completed waiting, "
                "CPU KV cache usage: 50.0%"
            ),
            {"engine": 12, "num_deferred_reqs": 2, "kv_cache_usage": 0.5, "prefix_hit_rate": None},
        ),
        (
            (
                "2 Engines Aggregated: Avg prompt throughput: 1.0 tokens/s, Avg generation throughput: 2.0 tokens/s, "
                "Running: 3 reqs, Waiting: 4 reqs, GPU KV cache usage: 50.0%, Prefix cache hit rate: 0.0%, "
                "External prefix cache hit rate: 9.0%, MM cache hit rate: 8.0%"
            ),
            {"engine": None, "num_running_reqs": 3, "prefix_hit_rate": 0.0},
        ),
    ],
)
def test_statistics_of_every_version_become_a_row(tmp_path: Path, message: str, expected: Any) -> None:
    table = observe(tmp_path, [record(message, "03-05 10:00:10")]).tables["engine_stats"]
    row = table.row(0, named=True)
    assert {name: row[name] for name in expected} == expected
    assert (row["prompt_tps"], row["generation_tps"], row["source"]) == (1.0, 2.0, "log")
    assert row["time_ns"] == at("2026-03-05T10:00:10")


def test_the_separate_hit_rate_line_of_v0_joins_the_statistics(tmp_path: Path) -> None:
    lines = [
        v0_stats("03-05 10:00:10"),
        record("Prefix cache hit rate: GPU: 12.50%, CPU: 0.00%", "03-05 10:00:10", "metrics.py:471]"),
    ]
    assert observe(tmp_path, lines).tables["engine_stats"]["prefix_hit_rate"].to_list() == [0.125]


def test_v0_warnings_bound_the_number_of_preemptions(tmp_path: Path) -> None:
    start = record(
        "Initializing an LLM engine (v0.6.6.post1) with config: model='m'", "03-05 09:00:00", "llm_engine.py:234]"
    )
    lines = [
        start,
        v0_stats("03-05 10:00:10"),
        preempted("03-05 10:00:12", 1),
        v0_stats("03-05 10:00:15"),
        preempted("03-05 10:00:16", 51),
        preempted("03-05 10:00:17", 101),
        v0_stats("03-05 10:00:20"),
    ]
    observation = observe(tmp_path, lines)
    table = observation.tables["engine_stats"]
    assert table["num_preemptions_min"].to_list() == [0, 1, 101]
    assert table["num_preemptions_max"].to_list() == [0, 50, 150]
    events = observation.tables["events"].filter(pl.col("kind") == "preemption_warning")
    assert events["value"].to_list() == [1, 51, 101]
    assert events["request_id"].to_list() == ["cmpl-1-0", "cmpl-51-0", "cmpl-101-0"]
    # Without the start, nobody knows what happened before.
    assert observe(tmp_path, lines[1:]).tables["engine_stats"]["num_preemptions_min"].to_list() == [None, 1, 101]
    assert any("101 to 150" in note for note in observation.notes)


def test_iteration_lines_become_steps_that_end_in_their_second(tmp_path: Path) -> None:
    def line(step: int, stamp: str, ms: float, rest: str = "") -> str:
        message = (
            f"Iteration({step}): 1 context requests, 100 context tokens, 3 generation requests, 4 generation tokens, "
            f"iteration elapsed time: {ms:.2f} ms{rest}"
        )
        return record(message, stamp, "[core.py:357]", before="(EngineCore_DP1 pid=3) ")

    lines = [line(i, "03-05 10:00:10", 300) for i in range(5)]
    lines += [line(5, "03-05 10:00:11", 8, " (dummy)"), line(6, "03-05 10:00:11", 20.5, ", GPU KV cache usage: 6.3%")]
    observation = observe(tmp_path, lines)
    steps = observation.tables["steps"]
    assert observation.skipped == {"dummy iterations": 1}
    assert steps["step"].to_list() == [0, 1, 2, 3, 4, 6]
    assert steps["engine"].unique().to_list() == [1]
    assert steps["num_scheduled_reqs"].unique().to_list() == [4]
    assert steps["num_scheduled_tokens"].unique().to_list() == [104]
    assert steps["num_decode_reqs"].unique().to_list() == [3]
    assert steps["duration_ns"].to_list() == [300_000_000] * 5 + [20_500_000]
    assert steps["kv_cache_usage"].to_list() == [None] * 5 + [0.063]
    starts = steps["start_ns"]
    assert starts.is_sorted()
    second = at("2026-03-05T10:00:10")
    assert all(second - 300_000_000 <= start < second + 10**9 for start in starts[:5])
    assert starts[5] == second + 10**9


def test_iteration_lines_name_the_engine_in_front_or_in_the_message(tmp_path: Path) -> None:
    body = "Iteration(7): 0 context requests, 0 context tokens, 1 generation requests, 1 generation tokens, iteration elapsed time: 5.00 ms"
    lines = [
        record(body, before="(EngineCore_DP3 pid=1) "),
        record(body, before="(EngineCore pid=1) "),
        record(f"Engine 002: {body}, GPU KV cache usage: 1.0%, encoder inputs: 2, encoder output embeddings: 40"),
    ]
    assert sorted(observe(tmp_path, lines).tables["steps"]["engine"]) == [0, 2, 3]


def test_requests_are_joined_over_their_lines(tmp_path: Path) -> None:
    tokens = list(range(100, 140))
    lines = [
        record(
            f"Request cmpl-a-0 details: prompt: None, prompt_token_ids: {tokens}, prompt_embeds shape: None.",
            "03-05 10:00:00",
            level="DEBUG",
        ),
        record(f"Received request cmpl-a-0: params: {PARAMS}, lora_request: None.", "03-05 10:00:00"),
        record("Added request cmpl-a-0-0123abcd.", "03-05 10:00:00"),
        received("cmpl-b-0", "03-05 10:00:00"),
        record("Added request cmpl-b-0.", "03-05 10:00:00"),
        record("Added request 1_cmpl-b-0.", "03-05 10:00:00"),
        record("Aborted request(s) cmpl-a-0-0123abcd,cmpl-unknown-0.", "03-05 10:00:05"),
        record("Request cmpl-a-0 aborted.", "03-05 10:00:05"),
        record("Finished request cmpl-b-0.", "03-05 10:00:06"),
        received("cmpl-b-0", "03-05 10:00:07", tokens="[1, 2, 3]"),
        record("Request cmpl-b-0 failed (engine dead).", "03-05 10:00:08"),
    ]
    observation = observe(tmp_path, lines, hash_key=KEY)
    table = observation.tables["requests"]
    assert table["request_id"].to_list() == ["cmpl-a-0", "cmpl-b-0", "cmpl-b-0#2"]
    assert table["source_request_id"].to_list() == [None, None, "cmpl-b-0"]
    assert table["max_tokens"].to_list() == [64, 64, 64]
    assert table["num_prompt_tokens"].to_list() == [40, None, 3]
    assert table["block_hashes"].to_list() == [chain_tokens(tokens, 16, KEY), None, []]
    assert observation.hash_block_size == 16
    assert table["finish_reason"].to_list() == ["abort", None, "error"]
    arrival = at("2026-03-05T10:00:00")
    # Lines in one second keep their order.
    assert table["arrival_ns"].to_list() == [arrival, arrival + 1, arrival + 7 * 10**9]
    assert table["finished_ns"].to_list() == [arrival + 5 * 10**9, arrival + 6 * 10**9, arrival + 8 * 10**9]
    assert observation.tables["events"].filter(pl.col("kind") == "abort")["request_id"].to_list() == ["cmpl-a-0"]
    assert sum(observation.skipped.values()) == 1


def test_token_ids_cut_by_max_log_len_are_not_a_length(tmp_path: Path) -> None:
    lines = [
        record("args: Namespace(model='m', max_log_len=20)"),
        received("r-0", "03-05 10:00:00", tokens=str(list(range(20)))),
    ]
    row = observe(tmp_path, lines, hash_key=KEY).tables["requests"].row(0, named=True)
    assert row["num_prompt_tokens"] is None
    assert len(row["block_hashes"]) == 1


def test_a_prompt_cannot_pass_for_log_lines(tmp_path: Path) -> None:
    hostile = repr(
        f"x\n{stats()} {preempted('03-05 10:00:00', 999)}', params: SamplingParams(n=7, max_tokens=1), "
        'prompt_token_ids: [1, 2] "quoted" INFO:     1.2.3.4:5 - "POST /v1/completions HTTP/1.1" 500 secret words'
    )
    observation = observe(tmp_path, [received("cmpl-h-0", "03-05 10:00:00", prompt=hostile)])
    assert set(observation.tables) == {"requests"}
    row = observation.tables["requests"].row(0, named=True)
    assert (row["max_tokens"], row["num_prompt_tokens"]) == (64, None)
    assert "secret" not in repr(observation)


def test_access_lines_take_the_time_of_the_record_before(tmp_path: Path) -> None:
    lines = [
        *start_up(),
        stats("03-05 10:00:10"),
        'INFO:     127.0.0.1:5000 - "POST /v1/completions HTTP/1.1" 200 OK',
        '(APIServer pid=7) INFO:     ::1:46788 - "GET /metrics HTTP/1.1" 400 Bad Request',
        record('10.0.0.1:5000 - "POST /v1/chat/completions HTTP/1.1" 503', "03-05 10:00:20", "[h11_impl.py:483]"),
    ]
    events = observe(tmp_path, lines).tables["events"].filter(pl.col("kind") == "access")
    assert events["value"].to_list() == [200, 400, 503]
    assert events["line"].to_list() == [8, 9, 10]
    second = at("2026-03-05T10:00:10")
    assert events["time_ns"].to_list() == [second, second, second + 10 * 10**9]


def test_every_table_fits_the_schema(tmp_path: Path) -> None:
    body = "Iteration(7): 0 context requests, 0 context tokens, 1 generation requests, 1 generation tokens, iteration elapsed time: 5.00 ms"
    lines = [*start_up(), received("r-0", "03-05 10:00:00", tokens="[1, 2]"), record(body, "03-05 10:00:01"), stats()]
    observation = observe(tmp_path, lines)
    assert set(observation.tables) == {"engine_stats", "events", "requests", "steps"}
    for name, frame in observation.tables.items():
        assert conform(TABLES_BY_NAME[name], frame, name).height == frame.height
