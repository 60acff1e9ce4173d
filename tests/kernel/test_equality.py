import os

import polars as pl
from hypothesis import HealthCheck, given, settings

from tests.kernel.workloads import Case, by_model, cases
from tests.replay.traces import step_time
from tracekit.config import EngineConfig
from tracekit.replay.clients import ArrivalMode
from tracekit.replay.compiled import replay_compiled, unsupported

EXAMPLES = int(os.environ.get("TRACEKIT_KERNEL_EXAMPLES", "1500"))


def assert_equal_to_model(case: Case, *, lockstep: bool) -> None:
    expected, left_out, refused, notes, prefix_cache = by_model(case)
    found = replay_compiled(
        case.frame, case.config, case.rules, case.step_time, case.mode, rate=case.rate, sample_at=case.sample_at,
        steps="all", lockstep=lockstep,
    )  # fmt: skip
    for name in ("preemptions", "steps", "requests", "distributions", "engine_stats"):
        assert (name in expected) == (name in found.tables), name
        if name in expected:
            left, right = expected[name], found.tables[name]
            assert left.schema == right.schema
            assert left.equals(right), f"{name}\n{first_difference(left, right)}"
    assert (found.left_out, found.refused, found.notes) == (left_out, refused, notes)
    assert found.prefix_cache == prefix_cache
    assert found.num_steps == expected["steps"].height
    by_bound = dict(expected["steps"].group_by("bound_by").agg(pl.col("duration_ns").sum()).iter_rows())
    assert found.ns_bound_by == {name: ns for name, ns in by_bound.items() if ns}


def first_difference(left: object, right: object) -> str:
    for number, (one, other) in enumerate(zip(left.iter_rows(named=True), right.iter_rows(named=True), strict=False)):  # type: ignore[attr-defined]
        if one != other:
            return f"row {number}: " + ", ".join(f"{k}: {one[k]} != {other[k]}" for k in one if one[k] != other[k])
    return f"{left.height} rows, {right.height} rows"  # type: ignore[attr-defined]


def test_requests_that_preempt_each_other_for_ever_end_the_replay() -> None:
    rows = tuple(
        {"request_id": name, "arrival_ns": 0, "num_prompt_tokens": 16, "num_output_tokens": 37} for name in ("a", "b")
    )
    config = EngineConfig(
        max_num_seqs=6, max_num_batched_tokens=52, max_model_len=54, num_gpu_blocks=56, block_size=1,
        enable_prefix_caching=False, long_prefill_token_threshold=3, scheduling_policy="priority",
        async_scheduling=True, scheduler_reserve_full_isl=False,
    )  # fmt: skip
    case = Case(rows, config, "0.33.0", step_time(10), ArrivalMode())
    assert any("preempt each other for ever" in note for note in by_model(case)[3])
    for lockstep in (True, False):
        assert_equal_to_model(case, lockstep=lockstep)


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(cases())
def test_lockstep_decides_as_the_model(case: Case) -> None:
    assert unsupported(case.config, case.rules, case.frame) is None
    assert_equal_to_model(case, lockstep=True)


@settings(max_examples=EXAMPLES // 3, deadline=None, suppress_health_check=list(HealthCheck))
@given(cases())
def test_the_plain_loop_decides_as_the_model(case: Case) -> None:
    assert_equal_to_model(case, lockstep=False)
