"""The main path on the recorded storms: raw files -> run -> replay -> compare, against what the real engine did."""

from pathlib import Path

import polars as pl
import pytest

import tracekit
from tracekit.run import Run
from tracekit.window import IN_FLIGHT, windowed

ROOT = Path(__file__).parents[1]
SAMPLE = ROOT / "sample_traces" / "vllm" / "0.33.0" / "storm_a"
ENGINE_RUNS = ROOT.parent / "shared" / "data" / "engine-runs"
COLUMNS = (
    "request_id=id",
    "session_id=session",
    "arrival=t_send",
    "first_token=t_first",
    "last_token=t_end",
    "num_prompt_tokens=usage.prompt_tokens",
    "num_output_tokens=usage.completion_tokens",
    "max_tokens=max_tokens",
    "block_hashes=hash_ids:16",
)


def ingest(folder: Path) -> Run:
    return tracekit.ingest(folder / "server.log", folder / "metrics", folder / "client.jsonl", columns=COLUMNS)


@pytest.fixture(scope="module")
def observed() -> Run:
    return ingest(SAMPLE)


def errors(observed: Run, step_time: dict[str, float]) -> dict[tuple[str, str], float]:
    simulated = tracekit.replay(observed, step_time=step_time)
    rows = tracekit.compare(observed, simulated).to_rows()
    return {(row["metric"], row["stat"]): row["error"] for row in rows if row["error"] is not None}


def test_every_request_line_and_setting_of_the_sample_is_there(observed: Run) -> None:
    assert observed.requests.height == 1168
    assert observed.requests["first_token_ns"].null_count() == 0
    config = {name: value.value for name, value in observed.config.items()}
    assert config["vllm_version"] == "0.33.0"
    assert config["model"] == "meta-llama/Llama-3.1-8B-Instruct"
    assert (config["max_model_len"], config["max_num_seqs"], config["max_num_batched_tokens"]) == (4096, 128, 8192)
    assert (config["kv_cache_tokens"], config["num_gpu_blocks"], config["block_size"]) == (16384, 1024, 16)
    lines = (SAMPLE / "server.log").read_text().splitlines()
    stats = observed.engine_stats
    assert stats.filter(source="log").height == sum("Avg prompt throughput" in line for line in lines)
    assert stats.filter(source="metrics").height == len(list((SAMPLE / "metrics").iterdir()))
    assert stats["num_preemptions"].max() == 335


def test_the_run_beside_the_sample_is_what_ingest_makes_of_it(observed: Run) -> None:
    beside = tracekit.load(SAMPLE / "run")
    for name, table in observed.tables.items():
        assert table.equals(beside.table(name)), name
    assert beside.config == observed.config


def test_all_sources_share_one_clock(observed: Run) -> None:
    clocks = {source["format"]: source["clock"] for source in observed.info["sources"]}
    assert "UTC+00:00" in clocks["vllm-log"]["how"]
    assert observed.start_unix_ns is not None
    assert observed.requests["arrival_ns"].min() == 0


def test_the_replayed_storm_is_the_recorded_one(observed: Run) -> None:
    found = errors(observed, {"t0_ms": 20, "per_token_us": 40, "per_seq_us": 25, "frontend_ms": 4})
    assert abs(found["num_preemptions", "total"]) < 0.03
    assert abs(found["num_running_reqs", "mean"]) < 0.02
    assert abs(found["num_running_reqs", "max"]) < 0.10
    for metric in ("ttft_ms", "tpot_ms", "e2e_ms"):
        for stat in ("p50", "p90", "p99"):
            assert abs(found[metric, stat]) < 0.01, (metric, stat)


@pytest.mark.skipif(not ENGINE_RUNS.is_dir(), reason="the recordings are not here")
def test_a_synchronous_engine_is_as_close() -> None:
    # This engine's Python adds 0.55 ms + 19 us a request to each step of the device (20 ms + 40 us + 25 us), by the
    # recording's own step trace; a synchronous engine does not hide it.
    step_time = {"t0_ms": 20.55, "per_token_us": 40, "per_seq_us": 44, "frontend_ms": 4}
    found = errors(ingest(ENGINE_RUNS / "0.11.2" / "storm_a"), step_time)
    assert abs(found["num_preemptions", "total"]) < 0.08
    assert abs(found["num_running_reqs", "mean"]) < 0.05
    assert abs(found["num_running_reqs", "max"]) < 0.10
    for metric in ("ttft_ms", "tpot_ms", "e2e_ms"):
        for stat in ("p50", "p90", "p99"):
            assert abs(found[metric, stat]) < 0.02, (metric, stat)


@pytest.mark.skipif(not ENGINE_RUNS.is_dir(), reason="the recordings are not here")
def test_turns_hit_what_their_parents_generated_while_it_is_still_there() -> None:
    folder = ENGINE_RUNS / "0.33.0" / "echo_a"
    columns = (*COLUMNS, "parent_request_id=parent_id")
    observed = tracekit.ingest(folder / "server.log", folder / "metrics", folder / "client.jsonl", columns=columns)
    step_time = {"t0_ms": 15, "per_token_us": 40, "per_seq_us": 25, "frontend_ms": 4}
    simulated = tracekit.replay(observed, step_time=step_time)
    cache = simulated.info["prefix_cache"]
    # The server's counters at the last scrape: 108,352 hits of 598,292 queried tokens, 80 preemptions.
    assert cache["num_queries"] == 598_292
    assert abs(cache["num_hits"] / 108_352 - 1) < 0.03
    assert abs(simulated.preemptions.height / 80 - 1) < 0.10
    found = {(r["metric"], r["stat"]): r["error"] for r in tracekit.compare(observed, simulated).to_rows()}
    assert abs(found["e2e_ms", "p50"]) < 0.02
    assert abs(found["e2e_ms", "p90"]) < 0.02


def test_a_part_of_a_storm_begins_in_an_empty_engine_and_says_so(observed: Run) -> None:
    part = windowed(observed, last="100s")
    cut = observed.requests.filter(pl.col("arrival_ns") < part.requests["arrival_ns"].min())
    began = part.info[IN_FLIGHT]
    assert 0 < began <= cut.height
    notes = tracekit.replay(part, step_time={"t0_ms": 20}).info["notes"]
    assert any(note.startswith(f"{began} requests were in the engine") for note in notes)
