import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.replay.traces import MS, step_time, trace
from tracekit.errors import ConfigError, InputError
from tracekit.replay.clients import ArrivalMode
from tracekit.replay.replay import replay
from tracekit.step_time.parameters import step_time_from_dict


def one(arrival_ms: float = 0, prompt: int = 100, output: int = 5, **more: object) -> dict[str, object]:
    return {"arrival_ns": round(arrival_ms * MS), "num_prompt_tokens": prompt, "num_output_tokens": output, **more}


def test_a_lone_request_takes_one_step_a_token() -> None:
    run = replay(trace([one()], async_scheduling=False), step_time=step_time(10, frontend_ms=4))
    row = run.requests.row(0, named=True)
    assert row["queued_ns"] == row["scheduled_ns"] == 4 * MS
    assert row["first_token_ns"] == 14 * MS
    assert row["last_token_ns"] == row["finished_ns"] == 54 * MS
    assert row["num_generated_tokens"] == 5
    assert row["finish_reason"] == "length"
    assert run.steps["num_scheduled_tokens"].to_list() == [100, 1, 1, 1, 1]
    assert run.steps["num_finished_reqs"].to_list() == [0, 0, 0, 0, 1]


def test_a_chat_completion_reaches_the_engine_later_and_keeps_its_arrival() -> None:
    rows = [one(request_id="chatcmpl-a"), one(arrival_ms=1, request_id="cmpl-b"), one(4, request_id="chatcmpl-c")]
    slower = step_time_from_dict({"t0_ms": 10, "frontend_ms": 4, "frontend_chat_ms": 2}, "given", "test")
    for engine in ("model", "kernel"):
        run = replay(trace(rows, async_scheduling=False), step_time=slower, engine=engine)
        assert run.requests["request_id"].to_list() == ["chatcmpl-a", "cmpl-b", "chatcmpl-c"]
        assert run.requests["arrival_ns"].to_list() == [0, 1 * MS, 4 * MS]
        # The completion overtakes the chat in the API server.
        assert run.requests["first_token_ns"].to_list() == [25 * MS, 15 * MS, 25 * MS]
        assert run.info["step_time"]["frontend_chat_ms"] == 2
    same = replay(trace(rows, async_scheduling=False), step_time=step_time(10, frontend_ms=4))
    assert "frontend_chat_ms" not in same.info["step_time"]


def test_what_a_crash_leaves_unsent_says_so() -> None:
    # Up to 0.11 two requests of one priority and one arrival cannot be compared, and vLLM dies of it.
    rows = [one(priority=1), one(priority=1), one(arrival_ms=900)]
    run = trace(rows, vllm_version="0.11.0", scheduling_policy="priority")
    for engine in ("model", "kernel"):
        dead = replay(run, step_time=step_time(10), engine=engine)
        assert any("recorded version dies" in note for note in dead.info["notes"])
        assert {"what": "not replayed: the engine had died before it was sent", "count": 1} in dead.info["skipped"]


def test_asynchronous_steps_are_decided_while_the_device_runs() -> None:
    run = replay(trace([one()], async_scheduling=True), step_time=step_time(10))
    steps = run.steps
    assert steps["start_ns"].to_list() == [0, 10 * MS, 20 * MS, 30 * MS, 40 * MS]
    assert steps["scheduled_ns"].to_list() == [0, 0, 10 * MS, 20 * MS, 30 * MS]
    assert run.requests["last_token_ns"].to_list() == [50 * MS]


def test_an_arrival_during_a_step_joins_the_next_free_one() -> None:
    rows = [one(), one(arrival_ms=12)]
    sync = replay(trace(rows, async_scheduling=False), step_time=step_time(10))
    both = replay(trace(rows, async_scheduling=True), step_time=step_time(10))
    assert sync.requests["scheduled_ns"].to_list()[1] == 20 * MS
    # Asynchronous: step 2 (20..30 ms) was decided at 10 ms, so the arrival at 12 ms is on the device at 30 ms.
    assert both.requests["first_token_ns"].to_list()[1] == 40 * MS


def test_step_time_counts_tokens_requests_and_context() -> None:
    affine = step_time_from_dict(
        {"t0_ms": 1, "per_token_us": 10, "per_seq_us": 100, "per_context_token_us": 1}, "given", "x"
    )
    run = replay(trace([one(output=2), one(prompt=50, output=2)], async_scheduling=False), step_time=affine)
    assert run.steps["duration_ns"].to_list() == [
        1_000_000 + 1_500_000 + 200_000,
        1_000_000 + 20_000 + 200_000 + 150_000,
    ]
    assert run.steps["num_context_tokens"].to_list() == [0, 150]


def test_an_idle_engine_waits_for_the_next_arrival() -> None:
    run = replay(trace([one(output=1), one(arrival_ms=500, output=1)]), step_time=step_time(10))
    assert run.requests["first_token_ns"].to_list() == [10 * MS, 510 * MS]


def test_a_month_of_silence_costs_nothing() -> None:
    run = replay(trace([one(output=1), one(arrival_ms=30 * 86_400e3, output=1)]), step_time=step_time(10))
    assert run.requests["first_token_ns"].count() == 2
    assert run.engine_stats.height <= 4


def test_preemptions_are_recorded_with_victim_cause_and_resumption() -> None:
    rows = [one(prompt=60, output=100), one(arrival_ms=1, prompt=60, output=100)]
    run = replay(
        trace(rows, num_gpu_blocks=16, max_model_len=200, max_num_seqs=8, async_scheduling=False),
        step_time=step_time(10),
    )
    assert run.preemptions.height > 0
    first = run.preemptions.row(0, named=True)
    assert first["request_id"] == "r1"
    assert first["needed_by_request_id"] in {"r0", "r1"}
    assert first["num_computed_tokens"] > 60
    assert first["resumed_step"] is not None
    assert run.requests["num_preemptions"].sum() == run.preemptions.height == run.steps["num_preempted_reqs"].sum()
    assert run.requests["num_generated_tokens"].to_list() == [100, 100]


def test_shared_prefixes_hit_the_cache() -> None:
    rows = [
        one(prompt=64, output=2, block_hashes=[1, 2, 3, 4]),
        one(arrival_ms=100, prompt=64, output=2, block_hashes=[1, 2, 3, 9]),
    ]
    run = replay(trace(rows), step_time=step_time(10))
    assert run.requests["num_cached_tokens"].to_list() == [0, 48]
    off = replay(trace(rows, enable_prefix_caching=False), step_time=step_time(10))
    assert off.requests["num_cached_tokens"].to_list() == [0, 0]


def test_a_later_turn_hits_the_blocks_its_parent_generated() -> None:
    parent = one(prompt=32, output=33, block_hashes=[1, 2])
    child = one(arrival_ms=1000, prompt=80, output=2, block_hashes=[1, 2, 3, 4, 5], parent_request_id="r0")
    run = replay(trace([parent, child]), step_time=step_time(10))
    assert run.requests["num_cached_tokens"].to_list() == [0, 64]


def test_a_turn_without_arrival_follows_its_parent() -> None:
    rows = [
        one(output=3),
        {"num_prompt_tokens": 10, "num_output_tokens": 1, "parent_request_id": "r0", "think_ns": 7 * MS},
    ]
    run = replay(trace(rows), step_time=step_time(10))
    assert run.requests.filter(request_id="r1")["arrival_ns"].to_list() == [37 * MS]


def test_closed_loop_keeps_the_recorded_think_time() -> None:
    rows = [
        one(output=3, finished_ns=20 * MS, last_token_ns=20 * MS),
        one(arrival_ms=50, output=1, parent_request_id="r0"),
    ]
    run = replay(trace(rows), step_time=step_time(100), mode=ArrivalMode(closed_loop=True))
    assert run.requests.filter(request_id="r1")["arrival_ns"].to_list() == [(300 + 30) * MS]


def test_a_bounded_client_never_has_more_in_flight() -> None:
    run = replay(trace([one(output=4) for _ in range(9)]), step_time=step_time(10), mode=ArrivalMode(max_concurrency=2))
    assert run.steps["num_running_reqs"].max() == 2
    assert set(run.requests["finish_reason"]) == {"length"}


def test_rate_compresses_arrivals() -> None:
    run = replay(trace([one(arrival_ms=100), one(arrival_ms=300)]), step_time=step_time(10), rate=2.0)
    assert run.requests["arrival_ns"].to_list() == [100 * MS, 200 * MS]


def test_sessions_keep_their_think_times_when_arrivals_are_compressed() -> None:
    rows = [one(arrival_ms=0), one(arrival_ms=100), one(arrival_ms=140, parent_request_id="r1")]
    run = replay(trace(rows), step_time=step_time(10), rate=2.0)
    assert run.requests["arrival_ns"].to_list() == [0, 50 * MS, 90 * MS]


def test_turns_of_a_cycle_are_counted_and_never_sent() -> None:
    rows = [one(), *({"num_prompt_tokens": 3, "num_output_tokens": 3, "parent_request_id": p} for p in ("r2", "r1"))]
    run = replay(trace(rows), step_time=step_time(10))
    assert [s["count"] for s in run.info["skipped"] if "never sent" in s["what"]] == [2]


def test_an_aborted_request_is_aborted_at_the_same_distance() -> None:
    rows = [one(output=5, max_tokens=1000, finish_reason="abort", finished_ns=55 * MS)]
    run = replay(trace(rows), step_time=step_time(10))
    row = run.requests.row(0, named=True)
    assert row["finish_reason"] == "abort"
    assert row["finished_ns"] == 55 * MS
    assert 0 < row["num_generated_tokens"] < 10


def test_an_unforeseen_stop_costs_an_asynchronous_engine_one_decode() -> None:
    foreseen = replay(trace([one(output=5, max_tokens=5)]), step_time=step_time(10))
    stopped = replay(trace([one(output=5, max_tokens=100)]), step_time=step_time(10))
    assert stopped.requests["finish_reason"].to_list() == ["stop"]
    assert stopped.steps.height == foreseen.steps.height + 1


@pytest.mark.parametrize(
    ("row", "what"),
    [
        ({"arrival_ns": 0, "num_output_tokens": 3, "finish_reason": "rejected"}, "HTTP 4xx"),
        ({"arrival_ns": 0, "num_output_tokens": 3}, "prompt length unknown"),
        ({"arrival_ns": 0, "num_prompt_tokens": 3}, "output length unknown"),
        ({"num_prompt_tokens": 3, "num_output_tokens": 3}, "no arrival time"),
        ({"num_prompt_tokens": 3, "num_output_tokens": 3, "parent_request_id": "x"}, "no arrival time"),
    ],
)
def test_what_cannot_be_replayed_is_counted(row: dict[str, object], what: str) -> None:
    run = replay(trace([one(), row]), step_time=step_time(10))
    assert [s["count"] for s in run.info["skipped"] if what in s["what"]] == [1]
    assert run.requests.filter(finish_reason="length").height == 1


@pytest.mark.parametrize(("prompt", "output"), [(4096, 1), (4200, 1)])
def test_a_prompt_without_room_for_output_is_refused_as_vllm_does(prompt: int, output: int) -> None:
    run = replay(trace([one(), one(prompt=prompt, output=output)]), step_time=step_time(10))
    assert run.requests["finish_reason"].to_list() == ["length", "rejected"]
    assert run.info["skipped"][0]["count"] == 1


def test_output_ends_at_max_model_len() -> None:
    run = replay(trace([one(prompt=4090, output=50)]), step_time=step_time(10))
    assert run.requests["num_generated_tokens"].to_list() == [6]


def test_a_request_larger_than_the_pool_is_refused_and_the_rest_goes_on() -> None:
    rows = [one(prompt=300, output=5), one(arrival_ms=1, prompt=20, output=5)]
    found = trace(rows, num_gpu_blocks=17)
    del found.config["max_model_len"]
    run = replay(found, step_time=step_time(10))
    assert run.requests["finish_reason"].to_list() == ["rejected", "length"]


def test_output_of_length_zero_gets_its_one_token() -> None:
    run = replay(trace([one(output=0), one(output=1)]), step_time=step_time(10))
    assert run.requests["num_generated_tokens"].to_list() == [1, 1]
    assert any("output length 0" in note for note in run.info["notes"])


def test_no_requests_is_an_empty_run_not_an_error() -> None:
    run = replay(trace([]), step_time=step_time(10))
    assert (run.requests.height, run.steps.height, run.preemptions.height) == (0, 0, 0)


def test_a_run_without_requests_table_says_what_is_missing() -> None:
    found = trace([])
    found.tables.clear()
    with pytest.raises(InputError, match="no requests to replay"):
        replay(found)


def test_an_unknown_step_time_is_said() -> None:
    run = replay(trace([one()]))
    assert run.info["step_time"]["origin"] == "default"
    assert sum("step time of the device is not known" in note for note in run.info["notes"]) == 1


def test_step_time_settings_are_no_config() -> None:
    run = replay(trace([one()]), settings=["t0_ms=7", "per_token_us=0"])
    assert run.steps["duration_ns"].to_list()[0] == 7 * MS
    assert "t0_ms" not in run.config


@pytest.mark.parametrize(
    ("keywords", "message"),
    [({"rate": 0.0}, "--rate"), ({"mode": ArrivalMode(max_concurrency=0)}, "--max-concurrency")],
)
def test_impossible_options_are_refused(keywords: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        replay(trace([one()]), **keywords)  # type: ignore[arg-type]


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(
        st.tuples(st.integers(0, 300), st.integers(1, 150), st.integers(0, 60), st.integers(1, 80)),
        min_size=1,
        max_size=12,
    ),
    blocks=st.integers(16, 40),
    asynchronous=st.booleans(),
    version=st.sampled_from(["0.11.2", "0.33.0"]),
    caching=st.booleans(),
)
def test_nothing_is_lost_and_instants_are_in_order(
    rows: list[tuple[int, int, int, int]],
    blocks: int,
    asynchronous: bool,  # noqa: FBT001
    version: str,
    caching: bool,  # noqa: FBT001
) -> None:
    found = trace(
        [one(a, p, o, max_tokens=m) for a, p, o, m in rows],
        num_gpu_blocks=blocks, max_model_len=240, max_num_seqs=6, max_num_batched_tokens=64,
        async_scheduling=asynchronous, vllm_version=version, enable_prefix_caching=caching,
    )  # fmt: skip
    run = replay(found, step_time=step_time(10, 40, 25))
    again = replay(found, step_time=step_time(10, 40, 25))
    assert run.requests.equals(again.requests)
    assert run.steps.equals(again.steps)
    assert run.requests.height == len(rows)
    assert set(run.requests["finish_reason"]) <= {"length", "stop"}
    ordered = run.requests.filter(
        (pl.col("arrival_ns") <= pl.col("queued_ns"))
        & (pl.col("queued_ns") <= pl.col("scheduled_ns"))
        & (pl.col("scheduled_ns") < pl.col("first_token_ns"))
        & (pl.col("first_token_ns") <= pl.col("last_token_ns"))
        & (pl.col("last_token_ns") == pl.col("finished_ns"))
    )
    assert ordered.height == len(rows)
    steps = run.steps
    assert (steps["start_ns"] + steps["duration_ns"]).shift(1).fill_null(0).le(steps["start_ns"]).all()
    assert steps["num_finished_reqs"].sum() == len(rows)
    assert steps["num_preempted_reqs"].sum() == run.preemptions.height
    assert steps["num_scheduled_tokens"].max() <= 64
    assert steps["num_running_reqs"].max() <= 6
    expected = [min(max(o, 1), m, 240 - p) for _, p, o, m in sorted(rows, key=lambda r: r[0])]
    assert sorted(run.requests["num_generated_tokens"].to_list()) == sorted(expected)


def test_v0_admits_prefills_first_and_waits_for_every_step() -> None:
    rows = [one(prompt=60, output=4), one(arrival_ms=12, prompt=60, output=4)]
    run = replay(
        trace(rows, vllm_version="0.6.6", enforce_eager=True, max_num_batched_tokens=4096), step_time=step_time(10)
    )
    steps = run.steps
    assert steps["num_scheduled_tokens"].to_list() == [60, 1, 60, 2, 2, 1]
    assert steps["start_ns"].to_list() == [k * 10 * MS for k in range(6)]
    assert run.requests["finish_reason"].to_list() == ["length", "length"]
    assert run.config["engine_generation"].value == "v0"


def test_v0_processes_output_while_the_next_step_runs() -> None:
    rows = [one(prompt=60, output=4)]
    run = replay(trace(rows, vllm_version="0.6.6", max_num_batched_tokens=4096), step_time=step_time(10))
    assert run.requests["last_token_ns"].to_list() == [40 * MS]
    assert run.steps.height == 5


def test_v0_ignores_a_prompt_over_its_budget() -> None:
    rows = [one(prompt=3000, output=4), one(prompt=60, output=4)]
    found = trace(rows, vllm_version="0.6.6", max_num_batched_tokens=4096)
    run = replay(found, settings=["num_gpu_blocks=260"], step_time=step_time(10))
    assert set(run.requests["finish_reason"]) == {"length"}
