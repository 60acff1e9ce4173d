"""The tables behind the charts: means by time, engines added up, idle shown as idle, unknown left out."""

import polars as pl
import pytest

from tests.postmortem.incidents import preemption_storm
from tracekit.report.series import BUCKETS, GANTT_REQUESTS, Series, Window, series_of, window_of
from tracekit.run import Run

S = 1_000_000_000
TEN_SECONDS = Window(0, 10 * S, bucket_ns=S, eviction_ns=S)


def run_of(**tables: dict[str, list[object]]) -> Run:
    return Run(kind="observed", tables={name: pl.DataFrame(columns) for name, columns in tables.items()})


def of(run: Run, window: Window = TEN_SECONDS) -> Series:
    return series_of(run, "observed", window)


def test_a_mean_is_weighted_by_time() -> None:
    run = run_of(steps={
        "step": [0, 1], "start_ns": [0, S // 4], "duration_ns": [S // 4, 3 * S // 4], "num_running_reqs": [8, 4],
        "num_waiting_reqs": [0, 2], "kv_cache_usage": [0.0, 1.0], "num_finished_reqs": [0, 4],
    })  # fmt: skip
    first = of(run).states.row(0, named=True)
    assert first == {"time_s": 0.0, "running": 5.0, "waiting": 1.5, "kv_percent": 75.0}


def test_engines_are_added_up_and_an_idle_time_is_idle() -> None:
    run = run_of(steps={
        "step": [0, 0, 1], "engine": [0, 1, 0], "start_ns": [0, 0, 5 * S], "duration_ns": [S, S, S],
        "num_running_reqs": [3, 4, 1], "num_finished_reqs": [3, 4, 1], "num_decode_reqs": [3, 4, 1],
        "num_scheduled_tokens": [3, 104, 1],
    })  # fmt: skip
    found = of(run)
    assert found.states.filter(pl.col("time_s") < 6)["running"].to_list() == [7, 0, 0, 0, 0, 1]
    assert found.composition["decode"].to_list()[:6] == [3.5, 0, 0, 0, 0, 1]
    assert found.composition["prompt_tps"].to_list()[:6] == [100, 0, 0, 0, 0, 0]


def test_a_counter_tells_preemptions_and_silence_is_not_none() -> None:
    stats = {"time_ns": [0, 2 * S, 4 * S], "num_running_reqs": [1, 1, 1], "source": ["metrics"] * 3}
    assert of(run_of(engine_stats=stats)).evictions.height == 0
    counted = of(run_of(engine_stats={**stats, "num_preemptions": [0, 5, 5]})).evictions
    assert counted["preemptions"].to_list() == [0, 0, 5, *[0] * 8]
    assert counted["time_s"].to_list() == [float(n) for n in range(11)]


def test_a_storm_gives_small_tables_about_its_victims() -> None:
    storm = preemption_storm()
    window = window_of([storm])
    found = of(storm, window)
    assert 0 < found.states.height <= BUCKETS + 1
    assert found.evictions["preemptions"].sum() == storm.preemptions.height
    victims = set(storm.preemptions["request_id"])
    shown = set(found.gantt["request_id"])
    assert shown <= victims
    assert len(shown) == min(GANTT_REQUESTS, len(victims))
    assert found.gantt.filter(pl.col("end_s") < pl.col("start_s")).height == 0
    assert found.bound_by["seconds"].sum() == pytest.approx(storm.steps["duration_ns"].sum() / 1e9)


def test_both_sides_share_a_window() -> None:
    early = run_of(requests={"request_id": ["a"], "arrival_ns": [2 * S], "last_token_ns": [3 * S]})
    late = run_of(requests={"request_id": ["a"], "arrival_ns": [5 * S], "last_token_ns": [402 * S]})
    assert window_of([early, late]) == Window(2 * S, 402 * S, bucket_ns=S, eviction_ns=5 * S)
    assert window_of([run_of()]) == Window(0, 1, bucket_ns=1, eviction_ns=1_000_000)
