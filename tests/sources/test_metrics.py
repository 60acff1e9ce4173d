import json
import os
from pathlib import Path

import polars as pl
import pytest

from tests.sources.reading import SHARED, detected, needs_shared, read, write
from tracekit.errors import InputError
from tracekit.sources import metrics
from tracekit.sources.metrics_scrape import time_of_name
from tracekit.sources.observation import Observation
from tracekit.window import histograms_between

START = 1_796_090_000


def scrape(
    *,
    running: int = 1,
    preemptions: int = 0,
    prompt: int = 0,
    fast: int = 0,
    slow: int = 0,
    seconds: float | None = None,
    created: float = 1.7e9,
    engine: str = "0",
    stamp: str = "",
) -> str:
    labels = f'engine="{engine}",model_name="m/x"'
    total = "" if seconds is None else f"vllm:time_to_first_token_seconds_sum{{{labels}}} {seconds}{stamp}\n"
    return f"""# HELP python_info Python
# TYPE python_info gauge
python_info{{version="3"}} 1.0
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{{labels}}} {running}.0{stamp}
# TYPE vllm:num_requests_waiting_by_reason gauge
vllm:num_requests_waiting_by_reason{{{labels},reason="capacity"}} 4.0{stamp}
vllm:num_requests_waiting_by_reason{{{labels},reason="deferred"}} 3.0{stamp}
vllm:kv_cache_usage_perc{{{labels}}} 0.5{stamp}
vllm:prefix_cache_queries_total{{{labels}}} 100.0{stamp}
vllm:prefix_cache_hits_total{{{labels}}} 25.0{stamp}
# TYPE vllm:num_preemptions counter
vllm:num_preemptions_total{{{labels}}} {preemptions}.0{stamp}
vllm:num_preemptions_created{{{labels}}} {created}{stamp}
vllm:prompt_tokens_total{{{labels}}} {prompt}.0{stamp}
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{{{labels},le="0.25"}} {fast}.0{stamp}
vllm:time_to_first_token_seconds_bucket{{{labels},le="+Inf"}} {fast + slow}.0{stamp}
{total}vllm:cache_config_info{{block_size="16",num_gpu_blocks="1024",enable_prefix_caching="True",gpu_memory_utilization="0.92",num_gpu_blocks_override="None",hash_block_size="64",engine="{engine}"}} 1.0{stamp}
"""


def series(folder: Path, *texts: str) -> Path:
    for i, text in enumerate(texts):
        write(folder / f"{i:03}_{START + 10 * i}.250.prom", text)
    return folder


def newest(found: Observation) -> pl.DataFrame:
    """The histograms as of the last scrape."""
    rows = found.tables["distributions"]
    return rows.filter(pl.col("time_ns") == rows["time_ns"].max())


def test_each_scrape_is_a_sample_with_the_time_in_its_name(tmp_path: Path) -> None:
    found = read(metrics.SOURCE, series(tmp_path, scrape(running=2), scrape(running=3, preemptions=7, prompt=500)))
    stats = found.tables["engine_stats"]
    assert stats["time_ns"].to_list() == [START * 10**9 + 250_000_000, (START + 10) * 10**9 + 250_000_000]
    assert stats["num_running_reqs"].to_list() == [2, 3]
    assert stats["num_deferred_reqs"].to_list() == [3, 3]
    assert stats["num_waiting_reqs"].to_list() == [None, None]
    assert stats["num_preemptions"].to_list() == [0, 7]
    assert stats["kv_cache_usage"].to_list() == [0.5, 0.5]
    assert stats["prefix_hit_rate"].to_list() == [0.25, 0.25]
    assert stats["prompt_tps"].to_list() == [None, 50.0]
    assert set(stats["source"]) == {"metrics"}
    assert found.clock == "unix"


def test_settings_come_from_labels_of_the_same_meaning_only(tmp_path: Path) -> None:
    config = read(metrics.SOURCE, series(tmp_path / "", scrape())).config
    assert {name: value.value for name, value in config.items()} == {
        "model": "m/x", "block_size": 16, "num_gpu_blocks": 1024, "enable_prefix_caching": True, "gpu_memory_utilization": 0.92,
    }  # fmt: skip
    assert {value.origin for value in config.values()} == {"logged"}


def test_histograms_are_what_was_counted_between_first_and_last(tmp_path: Path) -> None:
    found = read(
        metrics.SOURCE, series(tmp_path, scrape(fast=5, slow=1), scrape(fast=6, slow=2), scrape(fast=9, slow=4))
    )
    rows = newest(found).select("metric", "engine", "bucket_low", "bucket_high", "count").rows()
    assert rows == [("ttft_ns", 0, None, 250_000_000.0, 4), ("ttft_ns", 0, 250_000_000.0, None, 3)]


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        ((1.0, 2.5), 1.5e9),
        ((None, None), None),
        # Four of at most 0.25 s and one of more cannot make 0.1 s together.
        ((1.0, 1.1), None),
        ((1.0, float("nan")), None),
    ],
)
def test_the_sum_of_a_histogram_is_kept_where_its_buckets_allow_it(
    tmp_path: Path, seconds: tuple[float | None, float | None], expected: float | None
) -> None:
    first, last = (scrape(fast=n, slow=n // 4, seconds=s) for n, s in zip((4, 8), seconds, strict=True))
    found = read(metrics.SOURCE, series(tmp_path, first, last))
    sums = newest(found)["sum"]
    assert sums.to_list() == pytest.approx([expected] * 2)


def test_the_sum_grows_over_a_restart(tmp_path: Path) -> None:
    texts = [
        scrape(fast=4, seconds=0.4, preemptions=3), scrape(fast=6, seconds=0.6, preemptions=3),
        scrape(fast=1, seconds=0.2, preemptions=0, created=1.7e9 + 50),
    ]  # fmt: skip
    found = newest(read(metrics.SOURCE, series(tmp_path, *texts)))
    assert found["count"].to_list() == [3, 0]
    assert found["sum"].to_list() == pytest.approx([0.4e9] * 2)


def test_of_two_names_of_a_histogram_the_newest_counts_alone(tmp_path: Path) -> None:
    old, new = "vllm:time_per_output_token_seconds", "vllm:inter_token_latency_seconds"
    one = '{name}_bucket{{le="1.0"}} 2\n{name}_bucket{{le="+Inf"}} 4\n{name}_sum {total}\n'
    texts = {total: one.format(name=name, total=total) for name, total in ((old, 9.0), (new, 4.0))}
    for text, total in ((texts[9.0] + texts[4.0], 4e9), (texts[4.0] + texts[9.0], 4e9), (texts[9.0], 9e9)):
        rows = read(metrics.SOURCE, write(tmp_path / "m.txt", scrape() + text)).tables["distributions"]
        rows = rows.filter(metric="itl_ns")
        assert rows["count"].to_list() == [2, 2]
        assert rows["sum"].to_list() == pytest.approx([total] * 2)


@pytest.mark.parametrize("number", [2, 5, 128, 129, 300])
def test_a_part_of_the_run_is_told_by_readings_in_between(tmp_path: Path, number: int) -> None:
    found = read(
        metrics.SOURCE, series(tmp_path, *(scrape(fast=n, slow=2 * n, seconds=3.0 * n) for n in range(number)))
    )
    rows = found.tables["distributions"]
    times = rows["time_ns"].unique().sort()
    assert min(number, 65) <= times.len() <= 129
    assert (times[0], times[-1]) == (START * 10**9 + 250_000_000, (START + 10 * number - 10) * 10**9 + 250_000_000)
    assert rows.filter(time_ns=times[0])["count"].to_list() == [0, 0]
    assert newest(found)["count"].to_list() == [number - 1, 2 * number - 2]
    middle = times[len(times) // 2]
    before = (middle - times[0]) // (10 * 10**9)
    part = histograms_between(rows, middle, None)
    assert part["count"].to_list() == ([number - 1 - before, 2 * (number - 1 - before)] if middle < times[-1] else [])
    assert part["sum"].to_list() == pytest.approx([3e9 * (number - 1 - before)] * part.height)


def test_two_scrapes_of_one_instant_are_one_reading(tmp_path: Path) -> None:
    for name, count in (("a", 1), ("b", 4), ("c", 6)):
        write(tmp_path / f"{name}_{START + 9 * (name > 'a')}.prom", scrape(fast=count))
    assert newest(read(metrics.SOURCE, tmp_path))["count"].to_list() == [5, 0]


def test_a_single_scrape_tells_all_since_the_engines_start(tmp_path: Path) -> None:
    found = read(metrics.SOURCE, write(tmp_path / "m.txt", scrape(fast=5, slow=1)))
    assert newest(found)["count"].to_list() == [5, 1]
    assert any("single scrape" in note for note in found.notes)


@pytest.mark.parametrize(
    "later", [{"preemptions": 2, "created": 1.7e9}, {"preemptions": 9, "created": 1.7e9 + 50}], ids=["fewer", "created"]
)
def test_counters_grow_over_a_restart(tmp_path: Path, later: dict[str, float]) -> None:
    texts = [scrape(preemptions=5, fast=2), scrape(preemptions=8, fast=6), scrape(fast=3, **later)]  # type: ignore[arg-type]
    found = read(metrics.SOURCE, series(tmp_path, *texts))
    assert found.tables["engine_stats"]["num_preemptions"].to_list() == [5, 8, 8 + later["preemptions"]]
    assert newest(found)["count"].sum() == (6 - 2) + 3
    assert found.tables["events"].select("kind", "engine", "file").rows() == [
        ("restart", 0, f"002_{START + 20}.250.prom")
    ]
    assert any("restarted" in note for note in found.notes)


def test_engines_stay_apart(tmp_path: Path) -> None:
    both = scrape(running=2, engine="0") + scrape(running=5, engine="1")
    found = read(metrics.SOURCE, series(tmp_path, both))
    assert found.tables["engine_stats"].select("engine", "num_running_reqs").rows() == [(0, 2), (1, 5)]
    assert found.config["data_parallel_size"].value == 2


def test_one_file_may_hold_several_scrapes_with_timestamps(tmp_path: Path) -> None:
    stamps = (f" {START}123", f" {START + 5}123")
    found = read(
        metrics.SOURCE, write(tmp_path / "m", "".join(scrape(running=i, stamp=stamp) for i, stamp in enumerate(stamps)))
    )
    assert found.tables["engine_stats"]["time_ns"].to_list() == [
        START * 10**9 + 123_000_000,
        (START + 5) * 10**9 + 123_000_000,
    ]
    with pytest.raises(InputError, match="several scrapes without timestamps"):
        read(metrics.SOURCE, write(tmp_path / "n", scrape() + scrape(running=2)))


def test_without_any_time_the_files_date_counts_and_is_said(tmp_path: Path) -> None:
    path = write(tmp_path / "m", scrape())
    os.utime(path, ns=(0, START * 10**9 + 5))
    found = read(metrics.SOURCE, path)
    assert found.tables["engine_stats"]["time_ns"].to_list() == [START * 10**9 + 5]
    assert any("dates" in note for note in found.notes)


def test_v0_names_and_its_value_for_no_cache(tmp_path: Path) -> None:
    text = 'vllm:num_requests_running{model_name="m"} 3.0\nvllm:num_requests_swapped{model_name="m"} 2.0\n'
    text += 'vllm:gpu_cache_usage_perc{model_name="m"} 0.25\nvllm:gpu_prefix_cache_hit_rate{model_name="m"} -1.0\n'
    row = read(metrics.SOURCE, write(tmp_path / "m", text)).tables["engine_stats"].row(0, named=True)
    assert (row["engine"], row["num_running_reqs"], row["num_swapped_reqs"], row["kv_cache_usage"]) == (
        None,
        3,
        2,
        0.25,
    )
    assert row["prefix_hit_rate"] is None
    assert row["num_preemptions"] is None


def test_damaged_lines_are_counted_and_the_rest_is_read(tmp_path: Path) -> None:
    text = scrape(running=2) + "vllm:num_requests_waiting{engine=\nvllm:kv_cache_usage_perc{engine=} x\n<html>\n"
    found = read(metrics.SOURCE, write(tmp_path / "m", text))
    assert found.accounting.unreadable == 3
    assert found.tables["engine_stats"]["num_running_reqs"].to_list() == [2]


def test_values_that_are_none_stay_null(tmp_path: Path) -> None:
    text = 'vllm:num_requests_running{engine="0"} NaN\nvllm:num_requests_waiting{engine="0"} 1e300\nvllm:kv_cache_usage_perc{engine="0"} 0.5\n'
    row = read(metrics.SOURCE, write(tmp_path / "m", text)).tables["engine_stats"].row(0, named=True)
    assert (row["num_running_reqs"], row["num_waiting_reqs"], row["kv_cache_usage"]) == (None, None, 0.5)


def test_empty_scrapes_in_between_are_counted(tmp_path: Path) -> None:
    found = read(metrics.SOURCE, series(tmp_path, "", scrape(), "curl: (7) refused\n"))
    assert found.skipped == {"file without vLLM metrics": 2}
    assert found.tables["engine_stats"].height == 1
    other = tmp_path / "none"
    other.mkdir()
    with pytest.raises(InputError, match="found none"):
        read(metrics.SOURCE, series(other, "python_info 1.0\n"))


def test_times_in_names() -> None:
    assert time_of_name("012_1796090943.274.prom") == 1_796_090_943_274_000_000
    assert time_of_name("metrics-1796090943274.txt") == 1_796_090_943_274_000_000
    assert time_of_name("metrics_12.prom") is None


@needs_shared
@pytest.mark.parametrize(
    ("case", "preemptions", "finished"),
    [
        ("0.33.0/storm_a", 335, 1168),
        ("0.11.2/storm_a", 341, 1174),
        ("0.8.5.post1/default", 77, 265),
        ("0.6.6.post1/swap", 66, 265),
    ],
)
def test_recorded_servers_of_four_versions(case: str, preemptions: int, finished: int) -> None:
    path = SHARED / "engine-runs" / case / "metrics"
    found = read(metrics.SOURCE, path)
    stats = found.tables["engine_stats"]
    assert stats.height == len(list(path.iterdir()))
    assert stats["num_preemptions"][-1] == preemptions
    counts = newest(found).group_by("metric").agg(pl.col("count").sum())
    by_metric = dict(counts.rows())
    assert by_metric["e2e_ns"] == by_metric["request_prompt_tokens"] == finished
    assert {
        "ttft_ns",
        "itl_ns",
        "queue_ns",
        "prefill_ns",
        "decode_ns",
        "inference_ns",
        "iteration_tokens",
    } <= by_metric.keys()
    assert found.config["block_size"].value == 16
    assert found.config["model"].value == "meta-llama/Llama-3.1-8B-Instruct"
    assert found.accounting.unreadable == 0


def answer(name: str, values: list[object], **labels: str) -> dict[str, object]:
    return {"metric": {"__name__": name, "job": "vllm", "engine": "0", **labels}, "values": values}


def test_an_answer_to_query_range_is_a_series_of_scrapes(tmp_path: Path) -> None:
    bucket = "vllm:time_to_first_token_seconds_bucket"
    result = [
        answer("vllm:num_requests_running", [[START, "2"], [START + 15.5, "3"], [START + 30, "NaN"]]),
        answer("vllm:num_preemptions_total", [[START, "5"], [START + 15.5, "9"]]),
        answer(bucket, [[START, "1"], [START + 15.5, "4"]], le="0.25"),
        answer(bucket, [[START, "1"], [START + 15.5, "6"]], le="+Inf"),
        answer("vllm:num_requests_waiting", [[START, "x"]]),
        {"metric": {"engine": "0"}, "values": [[START, "0.5"]]},
    ]
    document = {"status": "success", "data": {"resultType": "matrix", "result": result}}
    one = write(tmp_path / "one", json.dumps(document, indent=2))
    halves = [document | {"data": {"resultType": "matrix", "result": result[i::2]}} for i in (0, 1)]
    two = write(tmp_path / "two", "".join(json.dumps(half) + "\n" for half in halves))
    for path in (one, two):
        assert detected(path) == ["metrics"]
        found = read(metrics.SOURCE, path)
        account = found.accounting
        assert (account.read, account.understood, account.other, account.unreadable) == (11, 9, 1, 1)
        stats = found.tables["engine_stats"]
        assert stats["time_ns"].to_list()[:2] == [START * 10**9, START * 10**9 + 15_500_000_000]
        assert stats["num_running_reqs"].to_list()[:2] == [2, 3]
        assert stats["num_preemptions"].to_list()[:2] == [5, 9]
        rows = newest(found).select("bucket_low", "bucket_high", "count").rows()
        assert rows == [(None, 250_000_000.0, 3), (250_000_000.0, None, 2)]
