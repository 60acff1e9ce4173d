"""What the V1 model decides in situations small enough to check by hand."""

from dataclasses import replace

import pytest

from tracekit.config import EngineConfig
from tracekit.errors import ConfigError
from tracekit.model.request import Request
from tracekit.model.rules import rules_for
from tracekit.model.scheduler import Scheduler

CONFIG = EngineConfig(
    max_num_seqs=8, max_num_batched_tokens=64, max_model_len=128, num_gpu_blocks=17, block_size=16
)  # fmt: skip


def scheduler_with(*requests: Request, version: str = "0.33.0", **changes: object) -> Scheduler:
    scheduler = Scheduler(replace(CONFIG, **changes), rules_for(version))  # type: ignore[arg-type]
    for request in requests:
        scheduler.add_request(request)
    return scheduler


def run(scheduler: Scheduler, steps: int) -> None:
    for _ in range(steps):
        scheduler.update(scheduler.schedule())


def test_a_long_prompt_is_computed_in_chunks_and_samples_after_the_last() -> None:
    request = Request("a", 100, 5, 5)
    scheduler = scheduler_with(request)
    first, second = scheduler.schedule(), None
    assert first.scheduled == {"a": 64}
    assert scheduler.update(first).sampled == []
    second = scheduler.schedule()
    assert second.scheduled == {"a": 36}
    assert (second.num_long_extend, second.num_context_tokens) == (1, 64)
    assert scheduler.update(second).sampled == [request]
    third = scheduler.schedule()
    assert (third.scheduled, third.num_decode) == ({"a": 1}, 1)


def test_a_request_ends_by_length_or_by_a_stop_nobody_foresaw() -> None:
    short, stopped = Request("a", 10, 3, 3), Request("b", 10, 9, 2)
    scheduler = scheduler_with(short, stopped)
    run(scheduler, 4)
    assert (short.finish_reason, short.num_generated_tokens) == ("length", 3)
    assert (stopped.finish_reason, stopped.num_generated_tokens) == ("stop", 2)
    assert not scheduler.has_requests


def test_max_model_len_bounds_a_request_without_max_tokens() -> None:
    request = Request("a", 120, None, 1000)
    scheduler = scheduler_with(request)
    run(scheduler, 20)
    assert (request.num_tokens, request.finish_reason) == (128, "length")


def test_the_last_admitted_request_is_preempted_and_nobody_is_admitted_in_that_step() -> None:
    first, second = Request("a", 60, 60, 60), Request("b", 33, 60, 60)
    scheduler = scheduler_with(first, second, num_gpu_blocks=8, scheduler_reserve_full_isl=False)
    plan = scheduler.schedule()
    while not plan.preemptions:
        scheduler.update(plan)
        plan = scheduler.schedule()
    preemption = plan.preemptions[0]
    assert (preemption.victim, preemption.needed_by) == (second, first)
    assert (preemption.num_computed_tokens, preemption.num_blocks) == (36, 3)
    assert (plan.bound_by, plan.admitted, plan.resumed) == ("preempted", [], [])
    assert next(iter(scheduler.waiting)) is second


def test_the_reason_for_not_admitting_the_head_is_named() -> None:
    budget = scheduler_with(Request("a", 64, 9, 9), Request("b", 10, 9, 9)).schedule()
    assert budget.bound_by == "token_budget"
    seqs = scheduler_with(Request("a", 10, 9, 9), Request("b", 10, 9, 9), max_num_seqs=1).schedule()
    assert seqs.bound_by == "max_num_seqs"
    waiting = (Request("a", 30, 9, 9), Request("b", 60, 9, 9))
    blocks = scheduler_with(*waiting, num_gpu_blocks=4, scheduler_reserve_full_isl=False).schedule()
    assert blocks.bound_by == "kv_blocks"
    gate = scheduler_with(Request("a", 30, 9, 9), Request("b", 100, 9, 9), num_gpu_blocks=8,
                          scheduler_reserve_full_isl=True).schedule()  # fmt: skip
    assert gate.bound_by == "full_prompt_reservation"
    marked = scheduler_with(Request("a", 30, 9, 9), Request("b", 20, 9, 9), num_gpu_blocks=6, watermark=0.5).schedule()
    assert marked.bound_by == "watermark"
    assert scheduler_with(Request("a", 10, 9, 9)).schedule().bound_by == "none"


def test_equal_prefixes_share_blocks_and_the_last_token_is_never_a_hit() -> None:
    hashes = [1, 2, 3, 4]
    first, second = Request("a", 64, 9, 9, hashes), Request("b", 64, 9, 9, hashes)
    scheduler = scheduler_with(first, second, max_num_batched_tokens=128)
    plan = scheduler.schedule()
    assert plan.cached == {"a": 0, "b": 48}
    assert plan.scheduled == {"a": 64, "b": 16}
    assert first.block_ids[:3] == second.block_ids[:3]
    assert (scheduler.prefix_cache.queries, scheduler.prefix_cache.hits) == (128, 48)


def test_a_resumed_request_hits_its_own_blocks() -> None:
    first, second = Request("a", 60, 60, 60), Request("b", 60, 60, 60)
    scheduler = scheduler_with(first, second, num_gpu_blocks=10, scheduler_reserve_full_isl=False)
    run(scheduler, 70)
    assert second.num_preemptions > 0
    assert second.num_recomputed_tokens < second.num_preemptions * 64


def test_an_output_in_flight_at_a_preemption_is_delivered() -> None:
    first, second = Request("a", 60, 60, 60), Request("b", 60, 60, 60)
    scheduler = scheduler_with(
        first, second, num_gpu_blocks=10, scheduler_reserve_full_isl=False, async_scheduling=True
    )  # fmt: skip
    before, plan = scheduler.schedule(), scheduler.schedule()
    while not plan.preemptions:
        scheduler.update(before)
        before, plan = plan, scheduler.schedule()
    known = second.num_tokens
    assert second in scheduler.update(before).sampled
    assert second.num_tokens == known + 1
    assert second.num_output_placeholders == 0


def test_asynchronous_scheduling_wastes_one_decode_on_an_unforeseen_stop_only() -> None:
    stopped, short = Request("a", 10, 9, 2), Request("b", 10, 2, 2)
    scheduler = scheduler_with(stopped, short, async_scheduling=True)
    plans = [scheduler.schedule()]
    scheduled: list[dict[str, int]] = []
    for _ in range(3):
        plans.append(scheduler.schedule())
        scheduled.append(plans[-1].scheduled)
        scheduler.update(plans.pop(0))
    assert scheduled == [{"a": 1, "b": 1}, {"a": 1}, {}]


def test_before_0_11_1_a_decode_past_max_tokens_is_wasted_too() -> None:
    scheduler = scheduler_with(Request("b", 10, 2, 2), version="0.11.0", async_scheduling=True)
    plans = [scheduler.schedule(), scheduler.schedule()]
    scheduler.update(plans[0])
    assert scheduler.schedule().scheduled == {"b": 1}


def test_an_abort_frees_the_blocks_at_once_even_with_a_step_in_flight() -> None:
    scheduler = scheduler_with(Request("a", 30, 9, 9), async_scheduling=True)
    plan = scheduler.schedule()
    assert scheduler.abort_request("a")
    assert not scheduler.abort_request("a")
    assert scheduler.kv_cache.pool.num_free_blocks == 16
    assert scheduler.update(plan).sampled == []


def test_a_head_that_can_never_be_admitted_is_a_stall() -> None:
    plan = scheduler_with(Request("a", 100, 5, 5), num_gpu_blocks=4, scheduler_reserve_full_isl=False).schedule()
    assert (plan.is_stalled, plan.bound_by) == (True, "kv_blocks")
    admitted = scheduler_with(Request("a", 100, 5, 5), num_gpu_blocks=6, scheduler_reserve_full_isl=False).schedule()
    assert (admitted.is_stalled, admitted.scheduled) == (False, {"a": 64})
    gated = scheduler_with(Request("a", 100, 5, 5), num_gpu_blocks=6, scheduler_reserve_full_isl=True).schedule()
    assert (gated.is_stalled, gated.bound_by) == (True, "full_prompt_reservation")


def test_priority_evicts_the_least_important_and_gives_its_tokens_back() -> None:
    minor, major = Request("a", 60, 60, 60, priority=1), Request("b", 60, 60, 60, priority=0)
    scheduler = scheduler_with(minor, num_gpu_blocks=10, scheduler_reserve_full_isl=False, scheduling_policy="priority")
    run(scheduler, 1)
    scheduler.add_request(major)
    plan = scheduler.schedule()
    while not plan.preemptions:
        scheduler.update(plan)
        plan = scheduler.schedule()
    assert plan.preemptions[0].victim is minor
    assert "a" not in plan.scheduled


def test_0_11_2_forgets_the_threshold_when_chunking_and_caching_are_off() -> None:
    limits = {"enable_chunked_prefill": False, "enable_prefix_caching": False, "max_num_batched_tokens": 128}
    cleared = scheduler_with(
        Request("a", 40, 5, 5), Request("b", 40, 5, 5), version="0.11.2", long_prefill_token_threshold=16, **limits
    )
    assert cleared.schedule().scheduled == {"a": 40, "b": 40}
    kept = scheduler_with(
        Request("a", 40, 5, 5), Request("b", 40, 5, 5), version="0.12.0", long_prefill_token_threshold=16, **limits
    )
    assert kept.schedule().scheduled == {"a": 16, "b": 16}


def test_a_reset_can_throw_running_requests_out_from_0_12_on() -> None:
    request = Request("a", 40, 5, 5)
    scheduler = scheduler_with(request)
    run(scheduler, 2)
    assert scheduler.reset_prefix_cache() == (False, [])
    assert scheduler.reset_prefix_cache(preempt_running=True) == (True, [request])
    assert scheduler.schedule().cached == {"a": 0}
    with pytest.raises(ConfigError, match=r"0\.12\.0"):
        scheduler_with(version="0.11.2").reset_prefix_cache(preempt_running=True)
