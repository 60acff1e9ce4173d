"""Names as people and logs write them."""

import json
from pathlib import Path

import pytest

from tracekit.catalogue.gpus import all_gpus, find_gpu, gpus_with
from tracekit.catalogue.models import all_models, find_model
from tracekit.errors import ConfigError, InputError


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "H100-SXM"), ("h100", "H100-SXM"), ("H100-SXM", "H100-SXM"), ("H100 PCIe", "H100-PCIe"),
        ("NVIDIA A100-SXM4-80GB", "A100-80-SXM"), ("a100 40gb", "A100-40-SXM"), ("Tesla T4", "T4"), ("l40s", "L40S"),
        ("NVIDIA L4", "L4"), ("RTX PRO 6000", "RTXPRO6000-Server"), ("RTX 4090", "RTX4090"), ("4090", "RTX4090"),
        ("NVIDIA GeForce RTX 3090", "RTX3090"), ("H200", "H200-SXM"), ("B200", "B200"), ("mi300x", "MI300X"),
        ("AMD Instinct MI300X", "MI300X"),
    ],
)  # fmt: skip
def test_gpus_are_found(written: str, name: str) -> None:
    assert find_gpu(written).gpu.name == name


def test_what_was_assumed_is_said() -> None:
    assert "SXM" in str(find_gpu("h100").note)
    assert find_gpu("NVIDIA H100 80GB HBM3").note is None


def test_an_unknown_gpu_offers_the_nearest() -> None:
    with pytest.raises(ConfigError, match="H100-SXM"):
        find_gpu("H1000")


def test_memory_names_candidates() -> None:
    assert {gpu.name for gpu in gpus_with(94.97)} >= {"RTXPRO6000-WS", "RTXPRO6000-Server"}
    assert gpus_with(3.0) == []
    assert all(gpu.source for gpu in all_gpus())


@pytest.mark.parametrize(
    ("written", "name", "bits"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", "Llama-3.1-8B", 16), ("llama-3.1-8b", "Llama-3.1-8B", 16),
        ("/models/Llama-3.1-8B", "Llama-3.1-8B", 16), ("Meta-Llama-3.1-8B-Instruct", "Llama-3.1-8B", 16),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507", "Qwen3-30B-A3B", 16), ("Qwen/Qwen3-32B-FP8", "Qwen3-32B", 8),
        ("Qwen2.5-32B-Instruct-AWQ", "Qwen2.5-32B", 4.25), ("deepseek-ai/DeepSeek-R1", "DeepSeek-V3", 8),
        ("openai/gpt-oss-20b", "gpt-oss-20b", 4.25), ("google/gemma-3-27b-it", "Gemma-3-27B", 16),
        ("RedHatAI/gemma-4-26B-A4B-it-NVFP4", "Gemma-4-26B-A4B", 4.5), ("moonshotai/Kimi-K2-Instruct", "Kimi-K2", 8),
    ],
)  # fmt: skip
def test_models_are_found(written: str, name: str, bits: float) -> None:
    found = find_model(written)
    assert (found.shape.name, found.bits) == (name, bits)


def test_the_flag_says_how_weights_are_quantised() -> None:
    assert find_model("Qwen/Qwen3-32B", "fp8").bits == 8


def test_an_unknown_model_offers_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"Qwen3-8B.*config\.json"):
        find_model("Qwen/Qwen3-9B")


PUBLISHED = {
    "Llama-3.1-8B": 8.03, "Llama-3.1-70B": 70.6, "Llama-3.1-405B": 405.9, "Llama-2-7B": 6.74, "Qwen2.5-7B": 7.62,
    "Qwen3-32B": 32.8, "Qwen3-30B-A3B": 30.5, "Qwen3-235B-A22B": 235, "Mixtral-8x7B": 46.7, "DeepSeek-V3": 671,
    "gpt-oss-120b": 116.8, "gpt-oss-20b": 20.9, "Gemma-2-9B": 9.24, "Gemma-3-27B": 27.0, "Kimi-K2": 1026,
    "Qwen3-Next-80B-A3B": 79.7, "Nemotron-3-Super-120B-A12B": 120.6, "Phi-4": 14.7, "Jamba-1.5-Mini": 51.6,
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_those_published(name: str) -> None:
    assert find_model(name).shape.num_parameters / 1e9 == pytest.approx(PUBLISHED[name], rel=0.01)


def test_every_model_is_whole() -> None:
    models = all_models()
    assert len(models) >= 40
    for shape in models:
        assert shape.source
        assert shape.num_layers > 0
        assert shape.num_embedding_parameters < shape.num_parameters
        assert set(shape.layers) & set("MmGKB") == set() or shape.state is not None
        assert ("S" not in shape.layers) or shape.window
    names = [name.lower() for shape in models for name in (shape.name, *shape.aliases)]
    assert len(names) == len(set(names))


def test_a_config_json_is_a_model(tmp_path: Path) -> None:
    config = {
        "model_type": "llama", "num_hidden_layers": 4, "hidden_size": 256, "num_attention_heads": 8,
        "num_key_value_heads": 2, "intermediate_size": 512, "vocab_size": 1000, "max_position_embeddings": 2048,
    }  # fmt: skip
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    shape = find_model(str(path)).shape
    assert (shape.layers, shape.num_kv_heads, shape.head_size) == ("FFFF", 2, 32)
    assert find_model(str(tmp_path)).shape.layers == "FFFF"


@pytest.mark.parametrize("text", ["[]", "{", '{"model_type": "deepseek_v4"}', '{"num_hidden_layers": 3}'])
def test_a_config_that_cannot_be_used_is_an_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(InputError):
        find_model(str(path))
