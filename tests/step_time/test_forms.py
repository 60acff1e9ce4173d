"""The step time's forms, files and look-ups."""

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracekit.catalogue.gpus import find_gpu
from tracekit.catalogue.models import find_model
from tracekit.errors import ConfigError
from tracekit.step_time.affine import AffineParameters, affine_duration_ns
from tracekit.step_time.catalogued import gpu_candidates, physical_of_config
from tracekit.step_time.coverage import beyond, check_identity
from tracekit.step_time.duration import StepClock, of_reqs, of_tokens
from tracekit.step_time.parameters import step_time_from_dict, step_time_from_file, write_step_time
from tracekit.step_time.physical import Gemm, Law, PhysicalParameters, law_ns, padded, physical_of_tokens
from tracekit.step_time.work import Deployment, graph_sizes, physical_parameters

LLAMA_ON_H100 = {"form": "physical", "gpu": "H100", "model": "Llama-3.1-8B"}
counts = st.integers(1, 10**6)
sizes = st.floats(0, 1e8)


def physical(gpu: str, model: str, **deployment: object) -> PhysicalParameters:
    shape = find_model(model)
    given_bits = {"weight_bits": shape.bits, **deployment}
    return physical_parameters(find_gpu(gpu).gpu, shape.shape, Deployment(**given_bits))  # type: ignore[arg-type]


@given(st.tuples(sizes, sizes, sizes, sizes), counts, counts, counts, counts)
def test_the_one_formula_is_the_affine_one_to_the_nanosecond(
    numbers: tuple[float, float, float, float], tokens: int, reqs: int, context: int, pairs: int
) -> None:
    parameters = AffineParameters(*numbers)
    clock = StepClock(parameters)
    assert clock.duration_ns(tokens, reqs, context, pairs) == affine_duration_ns(parameters, tokens, reqs, context)


def test_a_law_is_a_floor_and_a_smooth_maximum() -> None:
    law = Law(1000.0, 2.0, 4.0)
    assert law_ns(law, 2000, 0) == 2000
    assert law_ns(law, 0, 4000) == 2000
    assert law_ns(law, 2000, 4000) == pytest.approx(1000 + 1000 * 2**0.25)


def test_steps_are_padded_to_the_sizes_of_cuda_graphs() -> None:
    sizes_128 = graph_sizes(64)
    assert sizes_128[:6] == (1, 2, 4, 8, 16, 24)
    assert (padded(sizes_128, 3), padded(sizes_128, 65), padded(sizes_128, 128), padded(sizes_128, 129)) == (
        4,
        72,
        128,
        129,
    )
    assert graph_sizes(256)[-1] == graph_sizes(1024)[-1] == 512
    p = physical("H100", "Llama-3.1-8B")
    free = p._replace(prefill_per_token=0.0)
    assert physical_of_tokens(free, 65) == physical_of_tokens(free, 72) < physical_of_tokens(free, 73)


def test_experts_are_read_as_far_as_tokens_touch_them() -> None:
    gemm = Gemm(1.0, 8e9, 0.0, 0.0, 8, 2)
    p = physical("H100", "Llama-3.1-8B")._replace(
        gemms=(gemm,), gemm=Law(0.0, 1.0, 1e9), t0=0.0, attention_floor=0.0, elementwise_per_token=0.0,
        prefill_per_token=0.0, padding=(),
    )  # fmt: skip
    assert [physical_of_tokens(p, n) / 8e9 for n in (1, 2, 3)] == pytest.approx([1 - 0.75**n for n in (1, 2, 3)])
    assert physical_of_tokens(p, 1000) == pytest.approx(8e9)


# (gpu, model, TP, decode step of 1 request with 1,000 tokens of context: ms between)
@pytest.mark.parametrize(
    ("gpu", "model", "tp", "low", "high"),
    [
        ("H100", "Llama-3.1-8B", 1, 5.5, 9), ("A100", "Llama-3.1-8B", 1, 9, 15), ("H100", "Llama-3.1-70B", 4, 13, 20),
        ("H200", "Llama-3.1-70B", 8, 6, 14), ("H100", "Qwen3-30B-A3B", 1, 2, 9), ("L40S", "Qwen2.5-7B", 1, 19, 30),
        ("T4", "Qwen2.5-0.5B", 1, 3, 12),
    ],
)  # fmt: skip
def test_a_lone_decode_takes_about_the_time_of_reading_the_weights(
    gpu: str, model: str, tp: int, low: float, high: float
) -> None:
    clock = StepClock(physical(gpu, model, tensor_parallel_size=tp))
    assert low < clock.duration_ns(1, 1, 1000, 0) / 1e6 < high


@pytest.mark.parametrize(
    "model", ["Llama-3.1-8B", "DeepSeek-V3", "Qwen3-235B-A22B", "Falcon-H1-7B", "gpt-oss-20b", "OPT-125M"]
)
def test_the_weights_read_are_those_of_the_model(model: str) -> None:
    shape = find_model(model).shape
    p = physical_parameters(find_gpu("H100").gpu, shape, Deployment(weight_bits=16))
    read = sum(gemm.times * gemm.weight_bytes for gemm in p.gemms)
    assert read == pytest.approx(2 * (shape.num_parameters - shape.num_embedding_parameters), rel=0.02)


@given(st.integers(1, 8191), st.integers(1, 511), st.integers(0, 10**7), st.integers(0, 10**8))
def test_more_work_never_takes_less_time(tokens: int, reqs: int, context: int, pairs: int) -> None:
    clock = StepClock(physical("B200", "Qwen3-30B-A3B", max_num_seqs=512))
    here = clock.duration_ns(tokens, reqs, context, pairs)
    assert here > 0
    assert clock.duration_ns(tokens + 1, reqs, context, pairs) >= here
    assert clock.duration_ns(tokens, reqs, context + 1000, pairs + 1000) > here
    assert clock.duration_ns(tokens + 1, reqs + 1, context, pairs) >= here


def test_a_synchronous_or_eager_engine_is_slower() -> None:
    usual, synchronous, eager = (
        StepClock(physical("H100", "Llama-3.1-8B", **flags)).duration_ns(8, 8, 8000, 0)
        for flags in ({}, {"async_scheduling": False}, {"enforce_eager": True})
    )
    assert usual < synchronous < eager


def test_scales_of_a_calibration_act_on_their_part() -> None:
    base = step_time_from_dict(LLAMA_ON_H100, "given", "test").parameters
    half = step_time_from_dict({**LLAMA_ON_H100, "bandwidth_scale": 0.5}, "given", "test").parameters
    weak = step_time_from_dict({**LLAMA_ON_H100, "compute_scale": 0.5}, "given", "test").parameters
    assert of_tokens(half, 1) > 1.6 * of_tokens(base, 1)
    assert of_tokens(weak, 1) == pytest.approx(of_tokens(base, 1), rel=0.01)
    assert of_tokens(weak, 8192) > 1.8 * of_tokens(base, 8192)
    assert of_reqs(half, 64) > of_reqs(base, 64)


def test_files_say_what_they_were_given(tmp_path: Path) -> None:
    for content in (
        {
            "form": "affine",
            "t0_ms": 20,
            "per_token_us": 40,
            "per_seq_us": 25,
            "per_context_token_us": 0,
            "frontend_ms": 4,
        },
        {**LLAMA_ON_H100, "bandwidth_scale": 0.9, "t0_ms": 2, "frontend_ms": 1, "fit": {"how": "test"}},
    ):
        made = step_time_from_dict(content, "given", "test")
        write_step_time(made, tmp_path / "step_time.json")
        again = step_time_from_file(tmp_path / "step_time.json")
        assert again.parameters == made.parameters
        assert again.to_dict() == {**made.to_dict(), "where": str(tmp_path / "step_time.json")}
        assert set(content) <= set(json.loads((tmp_path / "step_time.json").read_text()))
        assert made.describe()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], "JSON object"), ({"form": "cubic"}, "form affine, physical or tabulated"), ({"t0_ms": -1}, "t0_ms"), ({}, "take time"),
        ({"t0_ms": 1, "gpu": "H100"}, "unknown key 'gpu'"), ({"form": "physical"}, "names its gpu"),
        ({**LLAMA_ON_H100, "per_token_us": 1}, "unknown key"), ({**LLAMA_ON_H100, "gpu": "H1000"}, "catalogue"),
        ({**LLAMA_ON_H100, "bandwidth_scale": 0}, "bandwidth_scale"), ({**LLAMA_ON_H100, "enforce_eager": 1}, "enforce_eager"),
        ({**LLAMA_ON_H100, "t0_ms": math.nan}, "t0_ms"), ({**LLAMA_ON_H100, "fit": 3}, "fit"),
        ({**LLAMA_ON_H100, "tensor_parallel_size": "2"}, "tensor_parallel_size"),
    ],
)  # fmt: skip
def test_a_bad_step_time_is_refused_with_what_is_expected(content: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        step_time_from_dict(content, "given", "test")


def test_settings_lead_to_the_catalogue_and_say_how_good_it_is() -> None:
    found = physical_of_config(
        {"gpu": "NVIDIA H100 80GB HBM3", "model": "meta-llama/Llama-3.1-8B-Instruct-FP8", "kv_cache_dtype": "fp8"}
    )
    assert found is not None
    described, notes = found
    assert (described["gpu"], described["model"], described["weight_bits"], described["kv_bits"]) == (
        "H100-SXM", "Llama-3.1-8B", 8, 8,
    )  # fmt: skip
    assert any("15%" in note for note in notes)
    other = physical_of_config({"gpu": "T4", "model": "Qwen2.5-0.5B"})
    assert other is not None
    assert any("30%" in note for note in other[1])
    assert physical_of_config({"gpu": "H100"}) is None
    with pytest.raises(ConfigError, match="nearest"):
        physical_of_config({"gpu": "H101", "model": "Llama-3.1-8B"})


def test_memory_lines_name_the_gpus_that_fit() -> None:
    lines = {"available_kv_gib": 52.0, "model_load_gib": 15.0, "gpu_memory_utilization": 0.9}
    names = {gpu.name for gpu in gpu_candidates(lines)}
    assert {"H100-SXM", "A100-80-SXM"} <= names
    assert not {"H200-SXM", "L40S", "A100-40-SXM"} & names
    assert gpu_candidates({"available_kv_gib": 52.0}) == []


def test_another_device_is_refused_and_another_version_is_noted() -> None:
    fit = {"config": {"model": "Llama-3.1-8B", "gpu": "H100", "vllm_version": "0.19.0"}}
    assert check_identity(fit, {"model": "llama-3.1-8b"}, "file") == []
    assert "0.33.0" in check_identity(fit, {"vllm_version": "0.33.0"}, "file")[0]
    for name, value in (("model", "Qwen3-8B"), ("gpu", "A100")):
        with pytest.raises(ConfigError, match=f"file: .*{name}"):
            check_identity(fit, {name: value}, "file")
    assert check_identity({}, {"model": "x"}, "file") == []


def test_steps_beyond_the_coverage_are_named() -> None:
    fit = {"coverage": {"num_scheduled_reqs": [1, 32], "num_scheduled_tokens": [1, 2048]}}
    assert beyond(fit, {"num_scheduled_reqs": 35, "num_scheduled_tokens": 2000, "num_context_tokens": 1e9}) is None
    found = beyond(fit, {"num_scheduled_reqs": 64, "num_scheduled_tokens": None})
    assert found is not None
    assert "64 requests in a step (fitted up to 32)" in found
    assert beyond({}, {"num_scheduled_reqs": 64}) is None


@pytest.mark.parametrize(
    ("name", "layers"),
    [("gpt-oss-120b", 36), ("Mixtral-8x7B", 32), ("Llama-4-Scout-17B-16E", 48), ("MiniMax-M2.5", 62), ("Qwen3-30B-A3B", 48)],
)  # fmt: skip
def test_experts_are_read_as_such_however_a_model_names_their_width(name: str, layers: int) -> None:
    experts = [gemm for gemm in physical("H200", name).gemms if gemm.num_experts]
    assert [gemm.times for gemm in experts] == [pytest.approx(layers, rel=0.02)] * 2
    p = physical("H200", name)
    # One token touches few of the experts' weights, 64 tokens many.
    assert physical_of_tokens(p, 64) > 1.3 * physical_of_tokens(p, 1)


@pytest.mark.parametrize(
    ("fit", "message"),
    [
        ([], "fit must be an object"),
        ({"config": []}, r"fit\.config must be an object"),
        ({"coverage": {"num_scheduled_reqs": "x"}}, r"fit\.coverage\.num_scheduled_reqs must be two numbers"),
    ],
)
def test_a_fit_that_cannot_be_checked_is_refused(fit: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        step_time_from_dict({"form": "affine", "t0_ms": 20, "fit": fit}, "given", "st.json")
