"""Random workloads under every rule set: the invariants hold after every step, everybody ends, nothing depends on luck."""

from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tracekit.config import EngineConfig
from tracekit.model.invariants import check
from tracekit.model.plan import StepPlan
from tracekit.model.request import Request
from tracekit.model.rules import Engine, EngineCrashError, rules_for
from tracekit.model.schedulers import scheduler_for

V0_VERSIONS = ("0.4.2", "0.5.3", "0.5.5", "0.6.2", "0.6.4", "0.6.6", "0.9.1", "0.10.2")
VERSIONS = ("0.7.3", "0.8.4", "0.8.5", "0.9.2", "0.10.2", "0.11.2", "0.12.0", "0.19.0", "0.24.0", "0.31.0", "0.33.0")


@dataclass(frozen=True)
class Arrival:
    step: int
    num_prompt_tokens: int
    max_tokens: int
    num_output_tokens: int
    prefix: int
    priority: int
    abort_step: int | None


@st.composite
def arrivals(draw: st.DrawFn, max_model_len: int) -> Arrival:
    prompt = draw(st.integers(1, max_model_len - 1))
    max_tokens = draw(st.integers(1, max_model_len))
    return Arrival(
        step=draw(st.integers(0, 12)),
        num_prompt_tokens=prompt,
        max_tokens=max_tokens,
        num_output_tokens=draw(st.integers(1, max_tokens)),
        prefix=draw(st.integers(0, 2)),
        priority=draw(st.integers(0, 2)),
        abort_step=draw(st.none() | st.integers(0, 30)),
    )


@st.composite
def cases(draw: st.DrawFn, versions: tuple[str, ...]) -> tuple[str, EngineConfig, list[Arrival]]:
    version = draw(st.sampled_from(versions))
    block_size = draw(st.sampled_from((1, 4, 16)))
    max_model_len = draw(st.integers(2, 64))
    chunked = draw(st.booleans())
    budget = draw(st.integers(1, 8)) * block_size if chunked else draw(st.integers(max_model_len, 128))
    blocks = -(-max_model_len // block_size) + draw(st.integers(1, 8))
    config = EngineConfig(
        max_num_seqs=draw(st.integers(1, 8)),
        max_num_batched_tokens=budget,
        max_model_len=max_model_len,
        num_gpu_blocks=blocks,
        block_size=block_size,
        enable_prefix_caching=draw(st.booleans()),
        enable_chunked_prefill=chunked,
        long_prefill_token_threshold=draw(st.sampled_from((0, 0, 3, 16))),
        long_prefill_token_threshold_adaptive=draw(st.booleans()),
        scheduling_policy=draw(st.sampled_from(("fcfs", "priority"))),
        async_scheduling=draw(st.booleans()),
        scheduler_reserve_full_isl=draw(st.booleans()),
        watermark=draw(st.sampled_from((0.0, 0.0, 0.3))),
        prefill_schedule_interval=draw(st.sampled_from((1, 1, 4))),
        max_num_active_seqs=draw(st.none() | st.integers(1, 4)),
        num_cpu_blocks=1000,
        preemption_mode=draw(st.sampled_from((None, None, "swap"))),
    )
    return version, config, draw(st.lists(arrivals(max_model_len), min_size=1, max_size=12))


def run(version: str, engine: Engine, config: EngineConfig, rows: list[Arrival]) -> list[object]:
    scheduler = scheduler_for(config, rules_for(version, engine))
    pending = sorted(enumerate(rows), key=lambda entry: (entry[1].step, entry[0]))
    log: list[object] = []
    in_flight: list[StepPlan] = []
    ended: dict[str, str | None] = {}
    for step in range(5000):
        while pending and pending[0][1].step <= step:
            number, row = pending.pop(0)
            hashes = [row.prefix * 1000 + block for block in range(row.num_prompt_tokens // config.block_size)]
            scheduler.add_request(
                Request(f"r{number}", row.num_prompt_tokens, row.max_tokens, row.num_output_tokens, hashes,
                        row.priority, number)
            )  # fmt: skip
        for number, row in enumerate(rows):
            if row.abort_step == step and scheduler.abort_request(f"r{number}"):
                ended[f"r{number}"] = "abort"
        check(scheduler)
        plan = scheduler.schedule()
        check(scheduler, plan)
        in_flight.append(plan)
        ended |= {request.request_id: request.finish_reason for request in plan.ignored}
        log.append((dict(plan.scheduled), plan.num_free_blocks, plan.bound_by))
        if len(in_flight) >= 1 + config.async_scheduling or not plan.scheduled:
            for request in scheduler.update(in_flight.pop(0)).finished:
                ended[request.request_id] = request.finish_reason
        check(scheduler)
        if not pending and not scheduler.has_requests and not any(p.scheduled for p in in_flight):
            break
        assert not plan.is_stalled or in_flight, "a request that fits starves"
    else:
        pytest.fail("the run does not end")
    assert set(ended) == {f"r{number}" for number in range(len(rows))}, "a request got lost"
    return [log, ended]


def repeats(version: str, engine: Engine, config: EngineConfig, rows: list[Arrival]) -> None:
    try:
        first = run(version, engine, config, rows)
    except EngineCrashError:
        assert config.scheduling_policy == "priority"
        return
    assert first == run(version, engine, config, rows)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(cases(VERSIONS))
def test_v1_keeps_its_invariants_and_runs_repeat(case: tuple[str, EngineConfig, list[Arrival]]) -> None:
    version, config, rows = case
    repeats(version, "v1", config, rows)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(cases(V0_VERSIONS))
def test_v0_keeps_its_invariants_and_runs_repeat(case: tuple[str, EngineConfig, list[Arrival]]) -> None:
    version, config, rows = case
    repeats(version, "v0", config, rows)
