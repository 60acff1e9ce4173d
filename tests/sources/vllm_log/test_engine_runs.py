"""Recordings of real servers: what they were given is what is read; skipped where ``../shared`` is not there."""

import gzip
import json
import re
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tracekit.hashing import chain_tokens
from tracekit.sources.observation import Material, Observation, Options
from tracekit.sources.vllm_log import SOURCE

RUNS = Path(__file__).parents[3] / "../shared/data/engine-runs"
CASES = sorted(str(path.parent.relative_to(RUNS)) for path in RUNS.glob("*/*/server.log")) if RUNS.is_dir() else []
pytestmark = pytest.mark.skipif(not CASES, reason="needs ../shared")
SWITCHES = {
    "enable-log-requests",
    "enable-logging-iteration-details",
    "no-enable-prefix-caching",
    "no-async-scheduling",
    "kv-cache-metrics",
}


def read(case: str, key: bytes | None = None) -> Observation:
    path = RUNS / case / "server.log"
    return SOURCE.read(Material(path, (path,), path.read_bytes()[: 1 << 16]), Options(hash_key=key))


def client(case: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (RUNS / case / "client.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("case", CASES)
def test_the_configuration_is_what_the_server_was_given(case: str) -> None:
    observation = read(case)
    found = {name: value.value for name, value in observation.config.items()}
    flags = re.findall(r"--([a-z-]+)(?: ([^-\s]\S*))?", (RUNS / case / "args.txt").read_text().splitlines()[0])
    for flag, value in flags:
        name = flag.removeprefix("no-").replace("-", "_")
        if name == "kv_cache_metrics":
            continue
        expected = value or str(not flag.startswith("no-"))
        assert str(found[name]).removesuffix(".0") == expected, flag
    version = case.split("/", maxsplit=1)[0]
    assert found["vllm_version"] == version
    assert found["model"] == "meta-llama/Llama-3.1-8B-Instruct"
    memory = re.search(r"ORACLE_KV_GIB=([\d.]+)", (RUNS / case / "args.txt").read_text())
    blocks = int(float(memory[1]) * 512)
    assert found["num_gpu_blocks"] == blocks
    assert found.get("kv_cache_tokens", blocks * 16) == blocks * 16
    assert observation.accounting.unreadable == 0


@pytest.mark.parametrize("case", CASES)
def test_each_statistics_line_is_a_row(case: str) -> None:
    text = (RUNS / case / "server.log").read_text(errors="replace")
    printed = sum(
        bool(re.search(r"\] (Engine \d+: )?Avg prompt throughput: [\d.]+ tokens/s, Avg gen", line))
        for line in text.splitlines()
    )
    rows = read(case).tables.get("engine_stats")
    assert (rows.height if rows is not None else 0) == printed


@pytest.mark.parametrize("case", [case for case in CASES if case.endswith(("/default", "/swap", "/iter_details"))])
def test_every_request_that_entered_the_engine_is_there(case: str) -> None:
    sent = client(case)
    requests = read(case).tables["requests"]
    # One is refused with HTTP 400 before it is logged.
    assert requests.height == sum(row["status"] != 400 for row in sent)
    assert requests["max_tokens"].null_count() == 0
    aborted = requests.filter(pl.col("finish_reason") == "abort")
    assert aborted.height == 2


@pytest.mark.skipif("0.33.0/iter_details" not in CASES, reason="needs ../shared")
def test_steps_are_the_engines_own() -> None:
    steps = read("0.33.0/iter_details").tables["steps"]
    with gzip.open(RUNS / "0.33.0/iter_details/steps_trace.jsonl.gz", "rt") as lines:
        truth = [json.loads(line) for line in lines]
    first = [row for row in truth if row["n"]]
    assert steps["num_scheduled_tokens"].to_list() == [row["tokens"] for row in first][: steps.height]
    assert steps["num_scheduled_reqs"].to_list() == [row["n"] for row in first][: steps.height]
    errors = (steps["start_ns"] / 1e9 - pl.Series([row["t"] for row in first][: steps.height])).abs()
    assert errors.max() < 1.1
    assert steps["start_ns"].is_sorted()


@pytest.mark.skipif("0.33.0/iter_details" not in CASES, reason="needs ../shared")
def test_printed_token_ids_give_lengths_and_hashes() -> None:
    requests = read("0.33.0/iter_details", b"key").tables["requests"]
    by_id = {row["id"]: row for row in client("0.33.0/iter_details") if row.get("usage")}
    for row in requests.iter_rows(named=True):
        sent = by_id.get(row["request_id"].removesuffix("-0"))
        if sent is not None:
            assert row["num_prompt_tokens"] == sent["usage"]["prompt_tokens"]
    text = (RUNS / "0.33.0/iter_details/server.log").read_text(errors="replace")
    tokens = json.loads(
        re.search(r"cmpl-a7c35db2b811c692-0 details: prompt: None, prompt_token_ids: (\[[^]]*\])", text)[1]
    )
    assert requests["block_hashes"][0].to_list() == chain_tokens(tokens, 16, b"key")


@pytest.mark.skipif("0.33.0/engine_crash" not in CASES, reason="needs ../shared")
def test_the_death_of_an_engine_is_an_event() -> None:
    observation = read("0.33.0/engine_crash")
    kinds = observation.tables["events"]["kind"].to_list()
    assert "engine_dead" in kinds
    assert kinds.count("start") == 1
    assert "restart" not in kinds
    assert observation.tables["requests"]["finish_reason"].to_list() == ["error"]
