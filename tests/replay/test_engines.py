import pytest

from tests.replay.traces import step_time, trace
from tests.test_storm import SAMPLE
from tracekit.compare.metrics import compare
from tracekit.compare.summary import summarise
from tracekit.errors import ConfigError
from tracekit.replay.clients import ArrivalMode
from tracekit.replay.replay import replay
from tracekit.run import Run, load

TABLES = ("requests", "steps", "preemptions", "engine_stats", "distributions")


@pytest.fixture(scope="module")
def observed() -> Run:
    return load(SAMPLE / "run")


@pytest.mark.parametrize("version", ["0.33.0", "0.20.2", "0.11.2", "0.8.5"])
def test_kernel_and_model_give_the_same_tables(observed: Run, version: str) -> None:
    by_model = replay(observed, rules=version, engine="model")
    by_kernel = replay(observed, rules=version, engine="kernel")
    for name in TABLES:
        assert by_kernel.table(name).equals(by_model.table(name)), name
    assert by_kernel.info["prefix_cache"] == by_model.info["prefix_cache"]
    assert by_kernel.info["replayed"]["engine"] == "kernel"


def test_they_agree_on_bounded_clients_and_rates(observed: Run) -> None:
    mode = ArrivalMode(max_concurrency=20)
    one, two = (replay(observed, mode=mode, rate=1.5, engine=engine) for engine in ("model", "kernel"))
    for name in TABLES:
        assert one.table(name).equals(two.table(name)), name


def test_a_small_trace_is_left_to_the_model_and_the_run_says_so() -> None:
    run = replay(trace([{"arrival_ns": 0, "num_prompt_tokens": 5, "num_output_tokens": 2}]), step_time=step_time())
    assert run.info["replayed"]["engine"] == "model"
    assert "fewer than" in run.info["replayed"]["why_not_kernel"]


def test_what_the_kernel_cannot_do_is_refused_when_it_is_asked_for() -> None:
    found = trace(
        [{"arrival_ns": 0, "num_prompt_tokens": 5, "num_output_tokens": 2}],
        vllm_version="0.6.6", max_num_batched_tokens=4096,
    )  # fmt: skip
    with pytest.raises(ConfigError, match="V0"):
        replay(found, step_time=step_time(), engine="kernel")
    assert replay(found, step_time=step_time()).info["replayed"]["engine"] == "model"


def test_steps_are_kept_as_asked(observed: Run) -> None:
    assert replay(observed, engine="kernel", steps="none").steps.height == 0
    sample = replay(observed, engine="kernel", steps="sample")
    assert 0 < sample.steps.height < 1500
    assert sample.info["replayed"]["steps"] == "sample"
    assert sample.steps["num_preempted_reqs"].sum() == sample.preemptions.height


def test_the_model_keeps_the_same_sample_of_its_steps(observed: Run) -> None:
    for steps in ("sample", "none"):
        by_model, by_kernel = (replay(observed, engine=engine, steps=steps) for engine in ("model", "kernel"))
        for name in TABLES:
            assert by_kernel.table(name).equals(by_model.table(name)), name
        for key in ("steps", "num_steps"):
            assert by_kernel.info["replayed"][key] == by_model.info["replayed"][key]
        assert by_kernel.info["ns_bound_by"] == by_model.info["ns_bound_by"]


def test_a_sample_of_the_steps_does_not_change_what_is_compared(observed: Run) -> None:
    everything, sample = (replay(observed, engine="kernel", steps=steps) for steps in ("all", "sample"))
    expected, found = compare(observed, everything), compare(observed, sample)
    assert found.get("peak_running_reqs", "max").right == expected.get("peak_running_reqs", "max").right
    for metric in ("num_running_reqs", "num_waiting_reqs", "kv_cache_usage"):
        for stat in ("mean", "max"):
            value = expected.get(metric, stat).right
            assert found.get(metric, stat).right == pytest.approx(value, rel=0.05), (metric, stat)
    quantiles = [summarise(run)["concurrency_quantiles"] for run in (everything, sample)]
    assert quantiles[0] == quantiles[1]
