"""Calibration: known devices are found again, from latencies and from steps, and the limits of a fit are said."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import polars as pl
import pytest

import tracekit
from tests.test_cli import call
from tracekit.config import ConfigValue
from tracekit.errors import ConfigError, InputError
from tracekit.fit.forms import affine_form, physical_form
from tracekit.fit.linearised import linearise, target_of
from tracekit.run import Run
from tracekit.step_time.duration import StepClock
from tracekit.step_time.parameters import step_time_from_dict

ROOT = Path(__file__).parents[2]
SAMPLE = ROOT / "sample_traces" / "vllm" / "0.33.0" / "storm_a" / "run"
DEVICE = {"t0_ms": 8.0, "per_token_us": 60.0, "per_seq_us": 50.0, "per_context_token_us": 0.02, "frontend_ms": 3.0}
SETTINGS = {"num_gpu_blocks": 400, "max_num_seqs": 32, "max_num_batched_tokens": 1024, "vllm_version": "0.19.0"}


def trace(count: int = 250, seed: int = 3) -> Run:
    source = np.random.default_rng(seed)
    requests = pl.DataFrame({
        "request_id": [f"r{n}" for n in range(count)],
        "arrival_s": np.cumsum(source.exponential(0.08, count)),
        "num_prompt_tokens": source.integers(10, 900, count),
        "num_output_tokens": source.integers(1, 150, count),
    })  # fmt: skip
    with TemporaryDirectory() as folder:
        path = Path(folder) / "trace.parquet"
        requests.write_parquet(path)
        return tracekit.load(path)


def observed(step_time: dict[str, Any] | None = None, **settings: object) -> Run:
    """What a server with this device leaves behind: requests with latencies, nothing else."""
    run = tracekit.replay(trace(), step_time=step_time or DEVICE, settings={**SETTINGS, **settings})
    config = {name: value for name, value in run.config.items() if value.origin != "default"}
    return Run("observed", {"requests": run.requests}, config)


@pytest.fixture(scope="module")
def server() -> Run:
    return observed()


def test_the_device_is_found_from_latencies_alone(server: Run) -> None:
    found = tracekit.fit(server)
    numbers = found.to_dict()
    assert found.how.startswith("end to end")
    for name, tolerance in (("t0_ms", 0.01), ("per_token_us", 0.02), ("per_seq_us", 0.1)):
        assert numbers[name] == pytest.approx(DEVICE[name], rel=tolerance), name
    assert numbers["frontend_ms"] == pytest.approx(3, abs=0.5)
    assert all(abs(error) < 0.005 for error in found.in_sample.errors.values() if error is not None)
    assert found.held_out is None


def test_the_rest_of_a_run_is_predicted_from_its_first_part(server: Run) -> None:
    found = tracekit.fit(server, first=0.3)
    assert found.held_out is not None
    assert found.in_sample.num_requests + found.held_out.num_requests == 250
    assert all(abs(error) < 0.02 for error in found.held_out.errors.values() if error is not None)


def test_outcomes_of_the_held_out_part_are_not_looked_at(server: Run) -> None:
    arrival = server.requests["arrival_ns"]
    cut = arrival.min() + 0.3 * (arrival.max() - arrival.min())  # type: ignore[operator]
    late = pl.col("arrival_ns") >= cut
    columns = ["first_token_ns", "last_token_ns", "finished_ns"]
    spoilt = server.requests.with_columns(
        [pl.when(late).then(pl.col(name) + 10**10).otherwise(pl.col(name)).alias(name) for name in columns]
    )
    other = Run("observed", {"requests": spoilt}, dict(server.config))
    one, two = tracekit.fit(server, first=0.3), tracekit.fit(other, first=0.3)
    assert one.step_time.parameters == two.step_time.parameters
    assert one.held_out is not None
    assert two.held_out is not None
    assert one.held_out.errors != two.held_out.errors


def test_a_fit_is_the_same_every_time(server: Run) -> None:
    assert tracekit.fit(server).to_dict() == tracekit.fit(server).to_dict()


def test_durations_of_steps_are_regressed_on_directly() -> None:
    run = tracekit.replay(trace(), step_time=DEVICE, settings=SETTINGS)
    found = tracekit.fit(run)
    assert found.how.startswith("from ")
    for name in ("t0_ms", "per_token_us", "per_seq_us", "per_context_token_us"):
        assert found.to_dict()[name] == pytest.approx(DEVICE[name], rel=0.001), name
    assert found.to_dict()["frontend_ms"] == pytest.approx(3, abs=0.1)


def test_chat_completions_have_a_frontend_of_their_own() -> None:
    requests = trace().requests.with_row_index("n")
    kind = pl.when(pl.col("n") % 3 == 0).then(pl.lit("chatcmpl-")).otherwise(pl.lit("cmpl-"))
    named = requests.with_columns(request_id=kind + pl.col("request_id")).drop("n")
    device = {**DEVICE, "frontend_chat_ms": 6.0}
    run = tracekit.replay(Run("observed", {"requests": named}), step_time=device, settings=SETTINGS)
    numbers = tracekit.fit(run).to_dict()
    # Which step a request joins is known to the length of a step (8 ms and more) only, and on average to much less.
    assert numbers["frontend_ms"] == pytest.approx(3, abs=1)
    assert numbers["frontend_chat_ms"] == pytest.approx(6, abs=2)
    alone = tracekit.fit(Run("observed", {"requests": run.requests}, dict(run.config))).to_dict()
    assert "frontend_chat_ms" not in alone


def test_the_physical_form_finds_the_scales_of_a_device() -> None:
    device = {"form": "physical", "gpu": "H100", "model": "Llama-3.1-8B", "max_num_seqs": 32, "bandwidth_scale": 0.8,
              "compute_scale": 1.2, "t0_ms": 2.0, "per_seq_us": 7.0}  # fmt: skip
    run = observed(device, gpu="H100", model="Llama-3.1-8B")
    found = tracekit.fit(run)
    numbers = found.to_dict()
    assert numbers["form"] == "physical"
    wanted, made = (
        StepClock(p) for p in (step_time_from_dict(device, "given", "test").parameters, found.step_time.parameters)
    )
    for step in ((1, 1, 400, 0), (16, 16, 8000, 0), (32, 32, 20_000, 0), (900, 20, 9000, 400_000)):
        assert made.duration_ns(*step) == pytest.approx(wanted.duration_ns(*step), rel=0.03), step
    assert all(abs(error) < 0.01 for error in found.in_sample.errors.values() if error is not None)


def test_slopes_are_those_of_the_replay_where_decisions_stay() -> None:
    lonely = trace(30).requests.with_columns(arrival_ns=pl.Series([n * 10**11 for n in range(30)]))
    run = tracekit.replay(Run("observed", {"requests": lonely}), step_time=DEVICE, settings=SETTINGS)
    run = Run("observed", {"requests": run.requests}, dict(run.config))
    target, form = target_of(run, None, (), None), affine_form()
    vector = np.array(list(DEVICE.values()))
    here = linearise(target, form, vector)
    for place in range(5):
        moved = vector.copy()
        moved[place] *= 1.001
        there = linearise(target, form, moved)
        for metric in ("ttft", "tpot", "e2e"):
            found = there.residuals[metric] - here.residuals[metric]
            predicted = here.slopes[metric][:, place] * (moved[place] - vector[place])
            assert np.allclose(found, predicted, atol=1e-6), (place, metric)


def test_several_runs_are_fitted_together(server: Run) -> None:
    other = tracekit.replay(trace(seed=9), step_time=DEVICE, settings=SETTINGS)
    both = tracekit.fit(server, Run("observed", {"requests": other.requests}, dict(server.config)))
    assert both.in_sample.num_requests == 500
    assert both.to_dict()["t0_ms"] == pytest.approx(8, rel=0.02)


def test_nothing_to_fit_on_is_said() -> None:
    bare = trace(20)
    with pytest.raises(InputError, match="0 requests with latencies"):
        tracekit.fit(bare, settings=SETTINGS)
    with pytest.raises(ConfigError, match="at least one run"):
        tracekit.fit()
    with pytest.raises(ConfigError, match="--first"):
        tracekit.fit(bare, first=1.5)


def named(run: Run, gpu: str, model: str) -> Run:
    names = {"gpu": ConfigValue(gpu, "logged"), "model": ConfigValue(model, "logged")}
    return Run("observed", {"requests": run.requests}, {**run.config, **names})


def test_physical_needs_gpu_and_model(server: Run) -> None:
    with pytest.raises(ConfigError, match="--gpu and --model"):
        tracekit.fit(server, form="physical")
    unknown = named(server, "H100", "no such model")
    assert tracekit.fit(unknown).notes[0].startswith("affine form: model")
    with pytest.raises(ConfigError, match="no such model"):
        tracekit.fit(unknown, form="physical")


def test_a_device_far_from_its_catalogue_is_noted(server: Run) -> None:
    found = tracekit.fit(named(server, "B200", "Qwen3-0.6B"))
    assert any("far from the catalogue" in note for note in found.notes)


def test_a_fit_is_not_carried_over(server: Run) -> None:
    found = tracekit.fit(named(server, "L4", "Qwen3-8B"), form="affine")
    with pytest.raises(ConfigError, match="fitted with model"):
        tracekit.replay(named(server, "L4", "Llama-3.1-8B"), step_time=found.step_time)
    with pytest.raises(ConfigError, match="fitted with gpu"):
        tracekit.replay(named(server, "L40S", "Qwen3-8B"), step_time=found.step_time)


def test_a_replay_beyond_what_was_fitted_says_so(server: Run) -> None:
    found = tracekit.fit(server)
    larger = tracekit.replay(
        server, step_time=found.step_time, settings={"max_num_batched_tokens": 4096, "num_gpu_blocks": 4000}, rate=9
    )
    assert any("extrapolated" in note for note in larger.info["notes"])
    assert larger.info["step_time"]["fit"]["coverage"]["num_scheduled_tokens"][1] <= 1024
    again = tracekit.replay(server, step_time=found.step_time)
    assert not any("extrapolated" in note for note in again.info["notes"])


def test_replay_fits_first(server: Run) -> None:
    said: list[str] = []
    run = tracekit.replay(server, fit=True, announce=said.append)
    assert tracekit.compare(server, run).get("tpot_ms", "p50").error == pytest.approx(0, abs=0.005)
    assert any("step time end to end" in line for line in said)
    assert run.info["step_time"]["origin"] == "inferred"
    with pytest.raises(ConfigError, match="not both"):
        tracekit.replay(server, fit=True, step_time=DEVICE)


def test_the_recorded_device_is_found_from_client_latencies() -> None:
    run = tracekit.load(SAMPLE)
    numbers = tracekit.fit(run, first=0.25).to_dict()
    assert numbers["t0_ms"] == pytest.approx(20, rel=0.002)
    assert numbers["per_token_us"] == pytest.approx(40, rel=0.01)
    assert numbers["per_seq_us"] == pytest.approx(25, rel=0.05)
    assert max(abs(v) for k, v in numbers["fit"]["held_out"].items() if k != "num_requests") < 0.005


def test_forms_make_the_step_time_that_they_start_from() -> None:
    form = physical_form({"gpu": "H100", "model": "Llama-3.1-8B", "tensor_parallel_size": 2})
    assert "allreduce_scale" in form.names
    made = form.step_time(form.start).parameters
    assert made == step_time_from_dict({"form": "physical", **form.beside}, "given", "test").parameters
    assert affine_form().slowed(affine_form().start, 2.0)[0] == 20


def test_the_command_writes_what_replay_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "step_time.json"
    assert call("fit", SAMPLE, "--first", "0.25", "-o", file, "-v") == 0
    printed = capsys.readouterr().out
    assert "held out" in printed
    assert "covers" in printed
    assert all(len(line) <= 80 for line in printed.splitlines())
    assert call("replay", SAMPLE / "requests.parquet", "--step-time", file, "--json", "-q") == 0
    rows = json.loads(capsys.readouterr().out)["comparison"]
    assert all(abs(r["error"]) < 0.01 for r in rows if (r["metric"], r["stat"]) == ("e2e_ms", "p50"))
    assert call("fit", SAMPLE, "-o", file) == 2
    assert "--force" in capsys.readouterr().err
    assert call("fit", SAMPLE, "--json", "-q") == 0
    assert json.loads(capsys.readouterr().out)["form"] == "affine"
