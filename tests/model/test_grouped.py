"""Groups of layers: what leaves a window is given back, nothing is lost, and the plain cache is the special case."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tracekit
from tests.replay.traces import step_time, trace
from tracekit.config import EngineConfig
from tracekit.errors import ConfigError
from tracekit.model.block_pool import BlockPool
from tracekit.model.grouped_kv_cache import GroupedKVCacheManager
from tracekit.model.request import Request
from tracekit.model.rules import rules_for
from tracekit.model.scheduler import Scheduler
from tracekit.replay.replay import replay

BLOCK = 4


def engine(windows: tuple[int | None, ...], **changes: object) -> EngineConfig:
    values: dict[str, object] = {
        "max_num_seqs": 6, "max_num_batched_tokens": 24, "max_model_len": 120, "num_gpu_blocks": 70, "block_size": BLOCK,
        "scheduler_reserve_full_isl": True, "kv_cache_windows": windows,
    }  # fmt: skip
    return EngineConfig(**{**values, **changes})  # type: ignore[arg-type]


def check(grouped: GroupedKVCacheManager, requests: list[Request], config: EngineConfig) -> None:
    """The pool adds up, and no table holds what its window left behind two steps ago."""
    held: dict[int, int] = {}
    for request in requests:
        for window, table in zip(config.kv_cache_windows, grouped.tables(request), strict=True):
            blocks = [block for block in table if block is not None]
            for block in blocks:
                held[block] = held.get(block, 0) + 1
            if window is None:
                assert None not in table
            elif table:
                reach = window - 1 + 2 * config.max_num_batched_tokens
                assert len(blocks) <= -(-reach // BLOCK) + 1
                assert None not in table[len(table) - len(blocks) :]
    assert {block: count for block, count in enumerate(grouped.pool.ref_counts) if count} == held
    assert grouped.pool.num_free_blocks == grouped.pool.num_usable_blocks - len(held)


def drain(scheduler: Scheduler, config: EngineConfig, after: Callable[[], None]) -> int:
    in_flight, most = [], 0
    for _ in range(2000):
        if not scheduler.has_requests:
            for plan in in_flight:
                scheduler.update(plan)
            return most
        plan = scheduler.schedule()
        in_flight.append(plan)
        most = max(most, len(scheduler.running))
        after()
        if len(in_flight) > config.async_scheduling or not plan.scheduled:
            scheduler.update(in_flight.pop(0))
            after()
    pytest.fail("the scheduler does not come to an end")


requests_of = st.lists(st.tuples(st.integers(1, 70), st.integers(1, 40), st.integers(0, 2)), min_size=1, max_size=14)
windows_of = st.lists(st.sampled_from([None, 5, 16, 33]), min_size=1, max_size=3).map(tuple)


@settings(max_examples=150, deadline=None)
@given(
    shapes=requests_of, windows=windows_of, is_async=st.booleans(), caching=st.booleans(),
    version=st.sampled_from(["0.10.2", "0.18.1", "0.23.0", "0.33.0"]),
)  # fmt: skip
def test_blocks_behind_a_window_are_free(
    *,
    shapes: list[tuple[int, int, int]],
    windows: tuple[int | None, ...],
    is_async: bool,
    caching: bool,
    version: str,
) -> None:
    config = engine(
        windows, async_scheduling=is_async, enable_prefix_caching=caching, num_gpu_blocks=29 * len(windows) + 1
    )
    scheduler = Scheduler(config, rules_for(version))
    requests = [
        Request(f"r{n}", prompt, output, output, [stem * 1000 + i for i in range(prompt // BLOCK)])
        for n, (prompt, output, stem) in enumerate(shapes)
    ]
    for request in requests:
        scheduler.add_request(request)
    grouped = scheduler.grouped
    if grouped is None:
        assert windows == (None,)
        return
    drain(scheduler, config, lambda: check(grouped, requests, config))
    assert grouped.pool.num_free_blocks == grouped.pool.num_usable_blocks
    assert not grouped.in_flight
    assert all(request.num_generated_tokens == request.num_output_tokens for request in requests)


@settings(max_examples=200, deadline=None)
@given(
    windows=windows_of, chunks=st.lists(st.integers(1, 30), min_size=1, max_size=12), in_flight=st.integers(0, 30),
    version=st.sampled_from(["0.18.1", "0.25.0", "0.26.0", "0.33.0"]),
)  # fmt: skip
def test_exactly_what_left_the_window_is_given_back(
    *, windows: tuple[int | None, ...], chunks: list[int], in_flight: int, version: str
) -> None:
    rules = rules_for(version)
    pool = BlockPool(1000, has_null_block=True, unhashed_blocks_first=True)
    grouped = GroupedKVCacheManager(
        pool, windows, BLOCK, rules, caching=False, watermark_blocks=0, max_in_flight_tokens=60, max_model_len=400
    )
    request = Request("r", sum(chunks), 1, 1)
    grouped.admit(request, [], chunks[0])
    request.num_computed_tokens = chunks[0]
    furthest = 0
    for chunk in chunks[1:]:
        grouped.in_flight["r"] = waiting = min(in_flight, request.num_computed_tokens)
        assert grouped.grow(request, chunk)
        processed = request.num_computed_tokens - (waiting if version in {"0.26.0", "0.33.0"} else 0)
        furthest = max(furthest, processed)
        for window, table in zip(windows, grouped.tables(request), strict=True):
            # The next token attends to itself and to window - 1 before it; a block with one of them is kept.
            behind = [window is not None and (i + 1) * BLOCK <= furthest - window + 1 for i in range(len(table))]
            assert [block is None for block in table] == behind
        request.num_computed_tokens += chunk
        assert all(len(table) == -(-request.num_computed_tokens // BLOCK) for table in grouped.tables(request))
    held = sum(block is not None for table in grouped.tables(request) for block in table)
    assert grouped.free(request) == held
    assert pool.num_free_blocks == pool.num_usable_blocks


@settings(max_examples=80, deadline=None)
@given(shapes=requests_of, is_async=st.booleans(), caching=st.booleans())
def test_a_window_longer_than_any_request_changes_nothing(
    *,
    shapes: list[tuple[int, int, int]],
    is_async: bool,
    caching: bool,
) -> None:
    found = []
    for windows in ((), (500,)):
        config = engine(windows, async_scheduling=is_async, enable_prefix_caching=caching, num_gpu_blocks=31)
        scheduler = Scheduler(config, rules_for("0.33.0"))
        requests = [Request(f"r{n}", prompt, output, output) for n, (prompt, output, _) in enumerate(shapes)]
        for request in requests:
            scheduler.add_request(request)
        seen: list[tuple[int, int, int]] = []
        pool = scheduler.kv_cache.pool
        drain(
            scheduler, config,
            lambda: seen.append((len(scheduler.running), len(scheduler.waiting), pool.num_free_blocks)),  # noqa: B023
        )  # fmt: skip
        found.append(seen)
    assert found[0] == found[1]


def test_a_sliding_window_lets_more_requests_run() -> None:
    most = {}
    for windows in ((), (16,)):
        config = engine(windows, max_num_seqs=32, num_gpu_blocks=61, scheduler_reserve_full_isl=False)
        scheduler = Scheduler(config, rules_for("0.33.0"))
        requests = [Request(f"r{n}", 60, 40, 40) for n in range(20)]
        for request in requests:
            scheduler.add_request(request)
        most[windows] = drain(scheduler, config, lambda: None)
    assert most[(16,)] > 1.5 * most[()]


def test_a_replay_of_a_sliding_window_model_has_its_groups() -> None:
    rows = [{"arrival_ns": n * 1_000_000, "num_prompt_tokens": 3000, "num_output_tokens": 50} for n in range(40)]
    found = trace(
        rows, model="google/gemma-3-27b-it", num_gpu_blocks=4000, max_num_batched_tokens=4096, max_model_len=8192
    )
    run = replay(found, step_time=step_time())
    assert run.info["replayed"]["engine"] == "model"
    plain = replay(found, step_time=step_time(), settings=["disable_hybrid_kv_cache_manager=true"])
    assert plain.steps["num_free_blocks"].min() != run.steps["num_free_blocks"].min()
    assert run.requests["finish_reason"].to_list() == ["length"] * 40


def test_tokens_of_a_hybrid_server_are_turned_into_its_blocks() -> None:
    rows = [{"arrival_ns": 0, "num_prompt_tokens": 100, "num_output_tokens": 5}]
    logged = {"model": "openai/gpt-oss-20b", "max_model_len": 131_072, "vllm_version": "0.25.1"}
    server = {"max_num_batched_tokens": 2048, "max_num_seqs": 32, "num_gpu_blocks": 20_000}
    printed = tracekit.capacity(settings={**logged, **server}).sizing.plan
    assert printed.num_blocks == 20_000
    assert len(printed.groups) == 2
    found = trace(rows, **logged, **server, kv_cache_tokens=printed.num_tokens)
    del found.config["num_gpu_blocks"]
    run = replay(found, step_time=step_time())
    assert run.config["num_gpu_blocks"].value == 20_000
    assert "2 groups of layers" in str(run.config["num_gpu_blocks"].where)


def test_groups_of_unlike_blocks_are_said_to_be_approximated() -> None:
    rows = [{"arrival_ns": 0, "num_prompt_tokens": 100, "num_output_tokens": 5}]
    run = replay(trace(rows, model="Qwen3-Next-80B-A3B", num_gpu_blocks=3000), step_time=step_time())
    assert any("gdn layers are approximated" in note for note in run.info["notes"])


@pytest.mark.parametrize(("version", "needed", "enough"), [("0.33.0", 514, 514), ("0.25.1", 385, 386)])
def test_a_sliding_pool_need_not_hold_the_whole_length(version: str, needed: int, enough: int) -> None:
    # One request of a window of 4,096: 4,095 + 2,048 tokens a step in flight, in blocks of 16, and one more; from 0.30
    # the null block. Before, exactly enough starts, and then holds no such request.
    rows = [{"arrival_ns": 0, "num_prompt_tokens": 12_000, "num_output_tokens": 5}]
    known = {"model": "mistralai/Mistral-7B-v0.1", "max_model_len": 16_384, "max_num_batched_tokens": 2048,
             "vllm_version": version}  # fmt: skip
    run = replay(trace(rows, **known, num_gpu_blocks=enough), step_time=step_time())
    assert run.requests["finish_reason"].to_list() == ["length"]
    with pytest.raises(ConfigError, match=f"less than the {needed} that one request"):
        replay(trace(rows, **known, num_gpu_blocks=needed - 1), step_time=step_time())
