from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tests.sources.vllm_log.helpers import at, observe, record, start_up, stats
from tracekit.errors import InputError
from tracekit.sources.observation import Observation
from tracekit.sources.vllm_log.starts import exact_blocks


def values(observation: Observation) -> dict[str, Any]:
    return {name: value.value for name, value in observation.config.items()}


def test_the_last_start_that_served_is_the_run(tmp_path: Path) -> None:
    lines = [
        *start_up("03-05 08:00:00", max_num_seqs=1),
        stats("03-05 08:00:10", running=1),
        *start_up("03-05 09:00:00", max_num_seqs=2),
        stats("03-05 09:00:10", running=2),
        'INFO:     1.2.3.4:5 - "POST /v1/completions HTTP/1.1" 200 OK',
        *start_up("03-05 10:00:00", max_num_seqs=3)[:2],
        "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`.",
    ]
    observation = observe(tmp_path, lines)
    assert observation.config["max_num_seqs"].value == 2
    assert observation.tables["engine_stats"]["num_running_reqs"].to_list() == [2]
    kinds = observation.tables["events"].filter(pl.col("kind") != "access")["kind"].to_list()
    assert kinds == ["start", "ready", "restart", "ready", "restart", "startup_failed"]
    assert observation.skipped == {"statistics lines of another start": 1}
    first = observe(tmp_path, lines, start=1)
    assert first.config["max_num_seqs"].value == 1
    assert first.tables["engine_stats"]["num_running_reqs"].to_list() == [1]
    with pytest.raises(InputError, match="holds 3 starts"):
        observe(tmp_path, lines, start=4)


def test_ranks_of_one_start_are_one_start(tmp_path: Path) -> None:
    lines = start_up()
    lines[3:4] = [lines[3].replace("EngineCore pid=9", f"EngineCore_DP{rank} pid={90 + rank}") for rank in range(4)]
    kinds = observe(tmp_path, lines).tables["events"]["kind"].to_list()
    assert kinds == ["start", "ready"]


def test_a_log_cut_before_its_start_has_no_arguments_but_statistics(tmp_path: Path) -> None:
    observation = observe(tmp_path, [stats(), stats("03-05 10:00:20")])
    assert observation.tables["engine_stats"].height == 2
    assert values(observation) == {"engine_generation": "v1", "vllm_version": "0.33.0"}
    version = observation.config["vllm_version"]
    assert (version.origin, version.where) == ("inferred", "server.log:1 [loggers.py:335]")


def test_only_known_settings_are_kept(tmp_path: Path) -> None:
    arguments = {
        "api_key": "sk-secret",
        "hf_token": "hf_secret",
        "download_dir": "/home/someone/models",
        "model": "/home/someone/models/Small-1B",
        "served_model_name": ["small", "other"],
        "speculative_config": {"model": "/home/someone/draft", "num_speculative_tokens": 3},
        "gpu_memory_utilization": 0.85,
        "scheduling_policy": "priority",
        "enable_prefix_caching": False,
    }
    lines = start_up(**arguments)
    lines[3] = (
        lines[3]
        .replace("model='org/Small-1B'", "model='/home/someone/models/Small-1B'")
        .replace("enable_prefix_caching=True", "served_model_name=small, enable_prefix_caching=False")
    )
    observation = observe(tmp_path, lines)
    found = values(observation)
    assert "someone" not in repr(observation)
    assert "secret" not in repr(observation)
    assert found["model"] == "small"
    assert found["num_speculative_tokens"] == 3
    assert (found["gpu_memory_utilization"], found["scheduling_policy"]) == (0.85, "priority")
    assert found["enable_prefix_caching"] is False
    assert observation.config["gpu_memory_utilization"].where == "server.log:2"


def test_a_path_without_a_served_name_gives_its_last_part(tmp_path: Path) -> None:
    lines = [
        record(
            "args: Namespace(model='/home/someone/models/Small-1B', served_model_name=None, max_num_seqs=64, block_size=None)"
        )
    ]
    assert values(observe(tmp_path, lines)) == {"model": "Small-1B", "max_num_seqs": 64}


def test_arguments_hold_enums_commas_and_quotes(tmp_path: Path) -> None:
    text = (
        "non-default args: {'model': 'm', 'kv_transfer_config': KVTransferConfig(a='x, y=1', b={'max_num_seqs': 5}), "
        "'mode': <Mode.FAST: 'fast'>, 'chat_template': \"it's, 'max_num_seqs': 7}\", 'max_num_seqs': 9, 'dtype': 'half'}"
    )
    found = values(observe(tmp_path, [record(text)]))
    assert (found["max_num_seqs"], found["dtype"]) == (9, "half")


def test_blocks_forced_while_graphs_are_profiled_are_not_the_users(tmp_path: Path) -> None:
    trap = record("Overriding num_gpu_blocks=0 with num_gpu_blocks_override=512")
    meant = record("Overriding num_gpu_blocks=3000 with num_gpu_blocks_override=129")
    assert "num_gpu_blocks_override" not in observe(tmp_path, [trap]).config
    assert observe(tmp_path, [trap, meant]).config["num_gpu_blocks_override"].value == 129


def test_of_several_workers_the_smallest_cache_counts(tmp_path: Path) -> None:
    lines = []
    for rank, tokens in enumerate((1_594_928, 1_590_736, 1_611_664)):
        before = f"(VllmWorker rank={rank} pid={rank + 5}) "
        lines.append(record(f"Available KV cache memory: {35.0 + rank} GiB", before=before))
        lines.append(record(f"GPU KV cache size: {tokens:,} tokens", before=before))
        lines.append(record(f"Maximum concurrency for 32,768 tokens per request: {tokens / 32768:.2f}x", before=before))
    found = values(observe(tmp_path, lines))
    assert (found["kv_cache_tokens"], found["max_concurrency"], found["available_kv_gib"]) == (1_590_736, 48.55, 35.0)
    assert found["num_gpu_blocks"] == 1_590_736 // 16


@pytest.mark.parametrize(
    ("tokens", "length", "concurrency", "by_concurrency", "blocks"),
    [
        (16_384, 4096, 4.0, False, 1024),
        (129_504, 8196, 15.78, False, 8094),
        (123_088, 50_000, 9.42, False, None),
        (94_135, 65_536, 1.44, True, None),
        (57_120, 8192, 6.97, True, 3570),
        (int(3000 / 513 * 8196), 8196, 5.85, True, 3000),
        (16_384, None, None, False, 1024),
        (16_385, None, None, False, None),
    ],
)
def test_blocks_follow_from_tokens_only_where_that_is_exact(
    *, tokens: int, length: int | None, concurrency: float | None, by_concurrency: bool, blocks: int | None
) -> None:
    assert exact_blocks(tokens, 16, length, concurrency, by_concurrency=by_concurrency) == blocks


def test_printed_blocks_are_logged_and_derived_ones_inferred(tmp_path: Path) -> None:
    lines = [
        record("GPU KV cache size: 16,384 tokens"),
        record("Engine 000: vllm cache_config_info with initialization after num_gpu_blocks is: 1024"),
    ]
    assert observe(tmp_path, lines).config["num_gpu_blocks"].origin == "logged"
    assert observe(tmp_path, lines[:1]).config["num_gpu_blocks"].origin == "inferred"


def test_records_of_several_lines_are_one(tmp_path: Path) -> None:
    banner = ["\r", "   \u2588  version 0.20.2\r", "   \u2588  model   org/Small\r", ""]
    failure = [
        "EngineCore encountered a fatal error.\r",
        "Traceback (most recent call last):\r",
        "RuntimeError: no\r",
        stats(),
    ]
    memory = [
        "Memory profiling takes 3 seconds\r",
        "total (44.52GiB) x gpu_memory_utilization (0.80) = 35GiB\r",
        "the rest of the memory reserved for KV Cache is 35.55GiB.",
    ]
    lines = [record(line, place="[utils.py:1]") for line in banner] + [
        record(line, place="[worker.py:2]") for line in memory
    ]
    lines += [record(line, place="[core.py:3]", level="ERROR") for line in failure]
    observation = observe(tmp_path, lines)
    assert observation.tables["events"]["kind"].to_list() == ["start", "engine_dead", "traceback"]
    # What an exception says is not a statistics line.
    assert "engine_stats" not in observation.tables
    assert values(observation) == {"vllm_version": "0.20.2", "gpu_memory_utilization": 0.8, "available_kv_gib": 35.55}


def test_a_new_year_goes_on(tmp_path: Path) -> None:
    lines = [
        stats("12-31 23:59:50"),
        stats("01-01 00:00:00"),
        stats("12-31 23:59:59", engine=1),
        stats("01-01 00:00:10"),
    ]
    observation = observe(tmp_path, lines, written="2027-01-02T00:00:00")
    expected = [
        at("2026-12-31T23:59:50"),
        at("2027-01-01T00:00:00"),
        at("2026-12-31T23:59:59"),
        at("2027-01-01T00:00:10"),
    ]
    assert observation.tables["engine_stats"]["time_ns"].to_list() == expected
    assert any("New Year" in note for note in observation.notes)


def test_a_leap_day_needs_a_leap_year(tmp_path: Path) -> None:
    lines = [stats("02-29 12:00:00"), stats("03-01 12:00:00")]
    observation = observe(tmp_path, lines[:1], written="2026-03-06T00:00:00")
    assert observation.tables["engine_stats"]["time_ns"].to_list() == [at("2024-02-29T12:00:00")]


def test_an_hour_that_the_clock_repeats_goes_on(tmp_path: Path) -> None:
    lines = [stats("10-25 02:59:50"), stats("10-25 02:00:00"), stats("10-25 02:00:10")]
    observation = observe(tmp_path, lines, written="2026-10-26T00:00:00")
    expected = [at("2026-10-25T02:59:50"), at("2026-10-25T03:00:00"), at("2026-10-25T03:00:10")]
    assert observation.tables["engine_stats"]["time_ns"].to_list() == expected
    assert any("set back an hour" in note for note in observation.notes)


def test_other_ways_back_are_told(tmp_path: Path) -> None:
    observation = observe(tmp_path, [stats("03-05 12:00:00"), stats("03-05 09:00:00")])
    assert any(note.startswith("server.log:2: the log's clock goes back") for note in observation.notes)


def test_a_dated_line_of_another_program_tells_the_year(tmp_path: Path) -> None:
    lines = ["2023-03-05 09:59:58.853794: I tensorflow/core/util/port.cc:153] oneDNN", stats("03-05 10:00:00")]
    assert observe(tmp_path, lines).tables["engine_stats"]["time_ns"].to_list() == [at("2023-03-05T10:00:00")]
