"""``--step-time aiconfigurator``: the optional package's measured tables as a step time."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tracekit
from tracekit.errors import ConfigError
from tracekit.replay.aiconfigurator import aiconfigurator_step_time
from tracekit.step_time.catalogued import physical_of_config
from tracekit.step_time.duration import StepClock
from tracekit.step_time.parameters import step_time_from_dict
from tracekit.step_time.tabulated import TabulatedParameters

needs_package = pytest.mark.skipif(
    importlib.util.find_spec("aiconfigurator_core") is None, reason="needs the extra tracekit[aiconfigurator]"
)
CONFIG: dict[str, Any] = {
    "gpu": "NVIDIA H100 80GB HBM3", "model": "meta-llama/Llama-3.1-8B-Instruct", "max_num_seqs": 256,
    "max_num_batched_tokens": 2048, "max_model_len": 8192,
}  # fmt: skip


def trace(folder: Path) -> Path:
    path = folder / "trace.jsonl"
    rows = [{"t": 0.02 * number, "p": 100 + 37 * number, "o": 20 + number} for number in range(30)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    tracekit.ingest(
        path,
        columns=("arrival=t", "num_prompt_tokens=p", "num_output_tokens=o"),
        settings={"vllm_version": "0.24.0", "num_gpu_blocks": 4000, **CONFIG},
        output=folder / "run",
    )
    return folder / "run"


@needs_package
@pytest.mark.parametrize(
    ("gpu", "model", "tensor_parallel_size"),
    [("H100", "Llama-3.1-8B", 1), ("RTX PRO 6000", "Llama-3.1-8B", 1), ("A100-SXM", "Qwen3-32B", 2), ("H200", "Llama-3.1-70B", 4)],
)  # fmt: skip
def test_it_agrees_with_the_catalogue_on_dense_models(gpu: str, model: str, tensor_parallel_size: int) -> None:
    config = {**CONFIG, "gpu": gpu, "model": model, "tensor_parallel_size": tensor_parallel_size}
    found = aiconfigurator_step_time(config)
    described = physical_of_config(config)
    assert described is not None
    measured = StepClock(found.parameters)
    laws = StepClock(step_time_from_dict({"form": "physical", **described[0]}, "default", "here").parameters)
    for step in ((1, 1, 1000, 0), (64, 64, 64_000, 0), (256, 256, 256_000, 0), (2048, 1, 0, 2048 * 2049 // 2)):
        assert measured.duration_ns(*step) == pytest.approx(laws.duration_ns(*step), rel=0.2)
    assert found.fit["decode_error"] < 0.05
    assert found.fit["prefill_error"] < 0.06


@needs_package
def test_experts_and_latent_attention_are_read_off_too() -> None:
    for model, gpu, tp in (("Qwen3-30B-A3B", "H100", 8), ("DeepSeek-V3", "H200", 8), ("gpt-oss-120b", "B200", 1)):
        found = aiconfigurator_step_time({**CONFIG, "model": model, "gpu": gpu, "tensor_parallel_size": tp})
        clock = StepClock(found.parameters)
        times = [clock.duration_ns(n, n, 1000 * n, 0) for n in (1, 16, 64, 256)]
        assert times == sorted(times)
        assert 2e6 < times[0] < times[-1] < 2e8


@needs_package
def test_model_and_kernel_replay_with_the_same_tables(tmp_path: Path) -> None:
    run = trace(tmp_path)
    model, kernel = (tracekit.replay(run, step_time="aiconfigurator", engine=one) for one in ("model", "kernel"))
    assert model.requests.equals(kernel.requests)
    stored = step_time_from_dict(model.info["step_time"], "given", "run.json")
    assert isinstance(stored.parameters, TabulatedParameters)
    assert model.info["step_time"]["where"] == "aiconfigurator-core 0.12.0: Llama-3.1-8B on H100-SXM"
    assert tracekit.replay(run, step_time=model.info["step_time"]).requests.equals(model.requests)
    model.save(tmp_path / "simulated")
    with pytest.raises(ConfigError, match="replay has A100"):
        tracekit.replay(tmp_path / "simulated", gpu="A100-80-SXM")


@needs_package
@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"gpu": "L4"}, "no tables for L4; there are some for A100-80-SXM"),
        ({"model": "Mistral-7B"}, "no tables for Mistral-7B"),
        ({"model": "Mixtral-8x7B"}, "no tables for Mixtral-8x7B"),
        ({"model": "Qwen3-8B", "quantization": "awq"}, "has weights of"),
        ({"gpu": None}, "needs the GPU and the model"),
        ({"gpu": "A100-80-SXM", "model": "Llama-3.1-8B", "quantization": "fp8"}, "says nothing of"),
    ],
)
def test_what_the_tables_lack_is_said(change: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        aiconfigurator_step_time({**CONFIG, **change})


def test_without_the_package_one_line_says_what_to_install(tmp_path: Path) -> None:
    # A finder that hides the package, as on a machine without it.
    code = (
        "import sys\n"
        "import importlib.util as u\n"
        "find = u.find_spec\n"
        "u.find_spec = lambda name, *rest: None if name == 'aiconfigurator_core' else find(name, *rest)\n"
        "from tracekit.cli.main import main\n"
        f"sys.argv = ['tracekit', 'replay', {str(trace(tmp_path))!r}, '--step-time', 'aiconfigurator']\n"
        "main()\n"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert found.returncode == 2
    assert "pip install 'tracekit[aiconfigurator]'" in found.stderr
    assert "Traceback" not in found.stderr
