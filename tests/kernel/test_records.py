"""What is kept of the steps, tables that grow, and what the kernel says it cannot do."""

from dataclasses import replace

import polars as pl
import pytest

from tests.kernel.random_cases import random_case
from tests.kernel.test_equality import assert_equal_to_model
from tests.kernel.workloads import Case
from tracekit.kernel import memory
from tracekit.model.rules import Rules, rules_for
from tracekit.replay.compiled import CompiledReplay, replay_compiled, unsupported
from tracekit.replay.record import bucket_low, sampled

STORM = 7


def replayed(case: Case, steps: str) -> CompiledReplay:
    return replay_compiled(case.frame, case.config, case.rules, case.step_time, case.mode, steps=steps)


@pytest.fixture
def case() -> Case:
    return random_case(STORM)


def test_a_sample_is_one_step_a_second_and_every_step_that_preempts(case: Case) -> None:
    everything = replayed(case, "all")
    assert everything.tables["preemptions"].height > 0
    sample = replayed(case, "sample")
    assert sample.tables["steps"].equals(sampled(everything.tables["steps"]))
    assert sample.steps_kept == "sample"
    assert sample.num_steps == everything.tables["steps"].height
    assert sample.ns_bound_by == everything.ns_bound_by
    for name in ("requests", "preemptions", "distributions"):
        assert sample.tables[name].equals(everything.tables[name])


def test_no_steps_leave_everything_else_as_it_is(case: Case) -> None:
    everything, nothing = replayed(case, "all"), replayed(case, "none")
    assert nothing.tables["steps"].height == 0
    assert nothing.tables["steps"].schema == everything.tables["steps"].schema
    assert nothing.tables["requests"].equals(everything.tables["requests"])


def test_too_many_steps_become_a_sample(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    everything = replayed(case, "auto")
    assert everything.steps_kept == "all"
    monkeypatch.setattr(memory, "MOST_STEP_ROWS", 20)
    thinned = replayed(case, "auto")
    assert thinned.steps_kept == "sample"
    assert thinned.tables["steps"].equals(sampled(everything.tables["steps"]))


def test_full_tables_grow(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_FIRST_ROWS", 2)
    assert_equal_to_model(case, lockstep=True)


def test_time_by_number_running_is_the_device_time(case: Case) -> None:
    found = replayed(case, "all")
    by_running = found.tables["steps"].group_by("num_running_reqs").agg(pl.col("duration_ns").sum())
    booked = found.tables["distributions"].filter(metric="num_running_reqs").select("bucket_high", "count")
    assert dict(booked.iter_rows()) == dict(by_running.iter_rows())


@pytest.mark.parametrize("gap", [0, 1, 127, 128, 129, 255, 256, 1000, 10**7, 10**7 + 1, 2**40 - 1, 2**40])
def test_histogram_buckets_are_the_models(gap: int) -> None:
    from tracekit.kernel.recording import itl_bucket
    from tracekit.replay.compiled_tables import bucket_low_of

    assert bucket_low_of(itl_bucket.py_func(gap)) == bucket_low(gap)  # type: ignore[attr-defined]


def test_what_is_not_supported_has_a_reason(case: Case) -> None:
    assert unsupported(case.config, rules_for("0.33.0")) is None
    assert unsupported(case.config, rules_for("0.6.6")) == "the kernel has no V0 scheduler"
    assert unsupported(replace(case.config, data_parallel_size=2), case.rules) == "the kernel has one engine"
    two = case.frame.with_columns(engine=pl.int_range(pl.len()).cast(pl.Int32) % 2)
    assert unsupported(case.config, case.rules, two) == "the kernel has one engine"


def test_every_v1_rule_is_known_to_the_kernel() -> None:
    from tracekit.replay.compiled import _RULES

    v1_rules = {name for name in Rules.__dataclass_fields__ if not name.startswith("v0_")}
    assert v1_rules == _RULES
