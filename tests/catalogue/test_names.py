"""Names as people and logs write them."""

import pytest

from tracekit.catalogue.gpus import Gpu, GpuMatch, all_gpus, find_gpu, gpus_with
from tracekit.catalogue.models import ModelShape, all_models, find_model
from tracekit.errors import ConfigError


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "H100-SXM"), ("h100", "H100-SXM"), ("H100-SXM", "H100-SXM"), ("H100 PCIe", "H100-PCIe"),
        ("NVIDIA A100-SXM4-80GB", "A100-80-SXM"), ("a100 40gb", "A100-40-SXM"), ("Tesla T4", "T4"), ("l40s", "L40S"),
        ("NVIDIA L4", "L4"), ("RTX PRO 6000", "RTXPRO6000-Server"), ("RTX 4090", "RTX4090"), ("4090", "RTX4090"),
        ("NVIDIA GeForce RTX 3090", "RTX3090"), ("H200", "H200-SXM"), ("B200", "B200"), ("mi300x", "MI300X"),
        ("AMD Instinct MI300X", "MI300X"), ("AMD Instinct MI300X OAM", "MI300X"), ("nvidia-h100-80gb-hbm3", "H100-SXM"),
        ("H100 SXM 80GB", "H100-SXM"), ("H100-PCIe-80GB", "H100-PCIe"), ("NVIDIA H200 141GB", "H200-SXM"),
        ("A100-SXM-80GB", "A100-80-SXM"), ("A100 40GB PCIe", "A100-40-PCIe"), ("RTX PRO 6000 Workstation", "RTXPRO6000-WS"),
        ("8xH100", "H100-SXM"), ("2x A100 40GB", "A100-40-SXM"), ("H100:8", "H100-SXM"),
    ],
)  # fmt: skip
def test_gpus_are_found(written: str, name: str) -> None:
    assert find_gpu(written).gpu.name == name


def test_a_name_may_end_early_where_one_model_goes_on() -> None:
    found = find_model("Qwen3-Next")
    assert found.shape.name == "Qwen3-Next-80B-A3B"
    assert "the only model whose name begins so" in str(found.note)
    with pytest.raises(ConfigError, match=r"nearest: Qwen3-0\.6B, Qwen3-1\.7B"):
        find_model("Qwen3")


def test_endless_names_are_cut_in_messages() -> None:
    for find in (find_model, find_gpu):
        with pytest.raises(ConfigError) as caught:
            find("x" * 5000)
        assert len(str(caught.value)) < 600


def test_what_was_assumed_is_said() -> None:
    assert "SXM" in str(find_gpu("h100").note)
    assert "SXM" in str(find_gpu("H100 80GB").note)
    assert "set tensor_parallel_size" in str(find_gpu("8x H100").note)
    assert find_gpu("NVIDIA H100 80GB HBM3").note is None
    assert find_gpu("H100 SXM 80GB").note is None


@pytest.mark.parametrize("gpu", all_gpus(), ids=lambda gpu: gpu.name)
def test_every_gpu_is_found_by_its_own_names(gpu: Gpu) -> None:
    assert gpu.source
    for name in (gpu.name, gpu.cuda_name, gpu.cuda_name.lower()):
        assert find_gpu(name) == GpuMatch(gpu, None)


@pytest.mark.parametrize(
    "written",
    ["80GB", "sxm4 80gb", "rtx", "6000", "RTX 6000", "H100 64GB", "RTX 3090 Ti", "RTX A6000", "L40", "V100", "x", ""],
)
def test_what_is_no_gpu_of_the_catalogue_is_not_taken_for_one(written: str) -> None:
    with pytest.raises(ConfigError, match=r"is not in the catalogue; (nearest:|it has) "):
        find_gpu(written)


def test_an_unknown_gpu_offers_the_nearest() -> None:
    with pytest.raises(ConfigError, match="H100-SXM"):
        find_gpu("H1000")


def test_memory_names_candidates() -> None:
    assert {gpu.name for gpu in gpus_with(94.97)} >= {"RTXPRO6000-WS", "RTXPRO6000-Server"}
    assert gpus_with(3.0) == []


@pytest.mark.parametrize(
    ("written", "name", "bits"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", "Llama-3.1-8B", 16), ("llama-3.1-8b", "Llama-3.1-8B", 16),
        ("llama-3-1-8b-instruct", "Llama-3.1-8B", 16), ("llama3.1:8b", "Llama-3.1-8B", 16), ("Llama_3.1_8B", "Llama-3.1-8B", 16),
        ("Meta-Llama-3.1-8B-Instruct", "Llama-3.1-8B", 16), ("meta-llama/Meta-Llama-3-8B-Instruct", "Llama-3-8B", 16),
        ("hugging-quants/Meta-Llama-3.1-8B-Instruct-AWQ-INT4", "Llama-3.1-8B", 4.25),
        ("neuralmagic/Meta-Llama-3.1-8B-Instruct-quantized.w4a16", "Llama-3.1-8B", 4.25),
        ("RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic", "Llama-3.1-70B", 8), ("TheBloke/Llama-2-7B-Chat-GPTQ", "Llama-2-7B", 4.25),
        ("unsloth/Llama-3.2-1B-Instruct-bnb-4bit", "Llama-3.2-1B", 4.5), ("llava-1.5-7b-hf-awq", "llava-1.5-7b", 4.25),
        ("bartowski/Meta-Llama-3.1-8B-Instruct-Q4_K_M.gguf", "Llama-3.1-8B", 4.25),
        ("unsloth/gemma-3-27b-it-qat-q4_0-gguf", "Gemma-3-27B", 4.25), ("google/gemma-3-27b-it", "Gemma-3-27B", 16),
        ("RedHatAI/gemma-4-26B-A4B-it-NVFP4", "Gemma-4-26B-A4B", 4.5), ("lmsys/vicuna-7b-v1.5", "Llama-2-7B", 16),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507", "Qwen3-30B-A3B-2507", 16), ("Qwen/Qwen3-32B-FP8", "Qwen3-32B", 8),
        ("Qwen3-30B-A3B-Instruct-2507-Int4-W4A16", "Qwen3-30B-A3B-2507", 4.25), ("qwen3-0-6b", "Qwen3-0.6B", 16),
        ("Qwen/Qwen3-32B-FP8-Static-PerTensor", "Qwen3-32B", 8), ("Qwen/Qwen3-8B-Base", "Qwen3-8B", 16),
        ("Qwen2.5-32B-Instruct-AWQ", "Qwen2.5-32B", 4.25), ("Qwen/Qwen2.5-Coder-7B-Instruct", "Qwen2.5-7B", 16),
        ("deepseek-ai/DeepSeek-R1", "DeepSeek-V3", 8), ("cognitivecomputations/DeepSeek-R1-AWQ", "DeepSeek-V3", 4.25),
        ("nvidia/DeepSeek-V3.1-NVFP4", "DeepSeek-V3", 4.5), ("deepseek-ai/DeepSeek-V2-Chat", "DeepSeek-V2", 16),
        ("DeepSeek-R1-Distill-Qwen-32B-FP8", "DeepSeek-R1-Distill-Qwen-32B", 8), ("openai/gpt-oss-20b", "gpt-oss-20b", 4.25),
        ("moonshotai/Kimi-K2-Instruct", "Kimi-K2", 8), ("moonshotai/Kimi-K2-Thinking", "Kimi-K2-Thinking", 4.5),
        ("mistralai/Mistral-7B-Instruct-v0.1", "Mistral-7B-v0.1", 16), ("mistralai/Mistral-7B-Instruct-v0.3", "Mistral-7B", 16),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", "Mixtral-8x7B", 16),
        ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-FP8", "Nemotron-3-Nano-30B-A3B", 8),
        ("nvidia/Llama-3_3-Nemotron-Super-49B-v1", "Llama-3.3-Nemotron-Super-49B", 16),
        ("TinyLlama/TinyLlama-1.1B-Chat-v1.0", "TinyLlama-1.1B", 16), ("rednote-hilab/dots.ocr", "dots.ocr", 16),
    ],
)  # fmt: skip
def test_models_are_found(written: str, name: str, bits: float) -> None:
    found = find_model(written)
    assert (found.shape.name, found.bits, found.note) == (name, bits, None)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/models/Llama-3.1-8B", "Llama-3.1-8B"), ("/models/Llama-3.1-8B/", "Llama-3.1-8B"),
        ("/awq/home/USER/ai-models/Meta-Llama-3.1-8B-Instruct", "Llama-3.1-8B"),
        ("/hf_cache/hub/models--Qwen--Qwen2.5-14B-Instruct/snapshots/cf98f3b3bbb457ad9e2bb7baf9a0125b6b88caa8", "Qwen2.5-14B"),
        ("/kaggle/input/models/qwen-lm/qwen-3/transformers/8b/1", "Qwen3-8B"), ("qwen-3/transformers/8b", "Qwen3-8B"),
    ],
)  # fmt: skip
def test_paths_name_models_by_the_part_that_does(path: str, name: str) -> None:
    found = find_model(path)
    assert (found.shape.name, found.bits) == (name, 16)


def test_a_tuned_model_is_taken_as_what_its_name_begins_with_and_that_is_said() -> None:
    found = find_model("/models/llama-3.1-8b-support-v7")
    assert found.shape.name == "Llama-3.1-8B"
    assert found.note == "/models/llama-3.1-8b-support-v7 is taken as Llama-3.1-8B, by the beginning of its name"


@pytest.mark.parametrize(
    "written",
    [
        "deepseek-ai/DeepSeek-V4", "deepseek-ai/DeepSeek-V4-Flash", "Qwen/Qwen3-Embedding-8B", "Qwen/Qwen3-Omni-30B-A3B-Instruct",
        "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B", "llama-3.1-8b-lora", "google/gemma-3n-E4B-it", "llama3", "Qwen", "7b", "", "/",
    ],
)  # fmt: skip
def test_what_only_looks_like_a_known_model_is_not_taken_for_it(written: str) -> None:
    with pytest.raises(ConfigError, match=r"is not in the catalogue.*config\.json"):
        find_model(written)


@pytest.mark.parametrize("shape", all_models(), ids=lambda shape: shape.name)
@pytest.mark.parametrize("suffix", ["", "-FP8", "-quantized.w4a16", "-GPTQ-Int4"])
def test_every_name_and_alias_finds_its_own_row(shape: ModelShape, suffix: str) -> None:
    for name in (shape.name, *shape.aliases):
        assert find_model(f"someone/{name}{suffix}").shape is shape


@pytest.mark.parametrize(
    ("name", "flag", "bits"),
    [
        ("Qwen/Qwen3-32B", "fp8", 8), ("Qwen/Qwen3-32B", None, 16), ("Qwen/Qwen3-32B", "None", 16),
        ("llava-1.5-7b-hf-awq", "awq_marlin", 4.25), ("Qwen/Qwen3-32B-FP8", "compressed-tensors", 8),
        ("openai/gpt-oss-20b", "mxfp4", 4.25), ("nvidia/Qwen3-235B-A22B-NVFP4", "modelopt_fp4", 4.5),
    ],
)  # fmt: skip
def test_the_flag_says_how_weights_are_stored_and_else_the_name(name: str, flag: str | None, bits: float) -> None:
    assert find_model(name, flag).bits == bits


def test_an_unknown_model_offers_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"Qwen3-8B.*config\.json"):
        find_model("Qwen/Qwen3-9B")
