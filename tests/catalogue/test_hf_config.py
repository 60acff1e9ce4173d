"""A model's ``config.json``."""

import json
from pathlib import Path
from typing import Any

import pytest

from tracekit.catalogue.hf_config import shape_from_config
from tracekit.catalogue.models import find_model
from tracekit.errors import InputError

PLAIN = {
    "model_type": "llama", "num_hidden_layers": 4, "hidden_size": 256, "num_attention_heads": 8, "num_key_value_heads": 2,
    "intermediate_size": 512, "vocab_size": 1000, "max_position_embeddings": 2048,
}  # fmt: skip
LATENT = {"kv_lora_rank": 64, "qk_rope_head_dim": 16, "qk_nope_head_dim": 32, "v_head_dim": 24}


def shape_of(**changes: Any) -> Any:
    return shape_from_config({**PLAIN, **changes}, "ours", "config.json as given")


def test_a_file_or_its_folder_is_a_model(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(PLAIN))
    shape = find_model(str(path)).shape
    assert (shape.layers, shape.num_kv_heads, shape.head_size) == ("FFFF", 2, 32)
    assert find_model(str(tmp_path)).shape == shape


def test_parameters_are_counted() -> None:
    layer = 256 * (256 + 2 * 64) + 256 * 256 + 3 * 256 * 512
    assert shape_of().num_parameters == 2 * 256 * 1000 + 4 * layer
    assert shape_of(tie_word_embeddings=True).num_parameters == 256 * 1000 + 4 * layer


@pytest.mark.parametrize(
    ("changes", "layers"),
    [
        ({"model_type": "mistral", "sliding_window": 128}, "SSSS"),
        ({"model_type": "mistral", "sliding_window": None}, "FFFF"),
        ({"model_type": "gemma2", "sliding_window": 128}, "SFSF"),
        ({"sliding_window": 128, "sliding_window_pattern": 3}, "SSFS"),
        ({"sliding_window": 128, "layer_types": ["sliding_attention", "full_attention"] * 2}, "SFSF"),
        ({"model_type": "qwen2", "sliding_window": 128}, "FFFF"), (LATENT, "LLLL"),
        ({**LATENT, "index_topk": 8, "index_n_heads": 4, "index_head_dim": 32}, "IIII"),
    ],
)  # fmt: skip
def test_kinds_of_layers(changes: dict[str, Any], layers: str) -> None:
    assert shape_of(**changes).layers == layers


def test_latent_attention_computes_with_its_projected_heads() -> None:
    shape = shape_of(**LATENT)
    assert (shape.latent_size, shape.head_size, shape.head_size_v) == (80, 48, 24)


@pytest.mark.parametrize(
    ("quantised", "bits"),
    [
        ({}, 16), ({"quant_method": "fp8"}, 8), ({"quant_method": "mxfp4"}, 4.25), ({"quant_method": "awq", "bits": 4}, 4.25),
        ({"quant_method": "gptq", "bits": 8}, 8.25), ({"quant_method": "bitsandbytes", "load_in_4bit": True}, 4.5),
        ({"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float"}}}}, 8),
        ({"config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int", "group_size": 128}}}}, 4.125),
        ({"config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "float", "group_size": 16}}}}, 4.5),
        ({"config_groups": {"a": {"weights": {"num_bits": 8}}, "b": {"weights": {"num_bits": 4, "group_size": 32}}}}, 4.5),
    ],
)  # fmt: skip
def test_bits_of_a_weight(quantised: dict[str, Any], bits: float) -> None:
    assert shape_of(quantization_config=quantised).weight_bits == bits
    inner = shape_from_config({"text_config": {**PLAIN, "quantization_config": quantised}}, "ours", "as given")
    assert inner.weight_bits == bits


def test_what_reads_images_counts_beside_the_language_model_and_stays_in_16_bits() -> None:
    vision = {"depth": 2, "hidden_size": 64, "intermediate_size": 128, "patch_size": 4}
    seen, blind = shape_of(vision_config=vision), shape_of()
    expected = 2 * (4 * 64 * 64 + 2 * 64 * 128) + 3 * 4 * 4 * 64 + 64 * 256
    assert seen.num_vision_parameters == expected
    assert seen.num_parameters == blind.num_parameters
    assert seen.weight_bytes(4) - blind.weight_bytes(4) == 2 * expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[]", "expected a JSON object"), ("{", "expected a model's config.json"),
        ('{"model_type": "deepseek_v4"}', "cache of deepseek_v4 models is not known"),
        ('{"model_type": "minimax_m3_vl", "text_config": {"num_hidden_layers": 3}}', "models is not known"),
        ('{"num_hidden_layers": 3}', "config.json has no hidden_size"),
        (json.dumps({**PLAIN, "layer_types": ["lightning"] * 4}), "'lightning' are not known"),
    ],
)  # fmt: skip
def test_a_config_that_cannot_be_used_is_an_error(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(InputError, match=said):
        find_model(str(path))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_hidden_layers": 0}, "num_hidden_layers in config.json must be .* found 0"),
        ({"num_hidden_layers": 10**6}, "from 1 to 10,000"),
        ({"num_hidden_layers": "4"}, "num_hidden_layers in config.json must be an integer"),
        ({"hidden_size": -1}, "hidden_size in config.json"),
        ({"num_key_value_heads": 1.5}, "num_key_value_heads in config.json"),
        ({"num_attention_heads": None}, "num_attention_heads"),
        ({"vocab_size": 10**30}, r"vocab_size .* found 1000"),
        ({"head_dim": [64]}, "head_dim in config.json"),
        ({"text_config": "llama"}, "text_config in config.json must be an object"),
        ({"quantization_config": "awq"}, "quantization_config in config.json must be an object"),
        ({"layer_types": "full_attention"}, "layer_types in config.json must be a list"),
        ({"layer_types": ["full_attention"]}, "names 1 layers, num_hidden_layers is 4"),
        ({"hybrid_override_pattern": "M*Q-"}, "layers of unknown kinds: Q"),
    ],
)
def test_a_config_that_describes_no_model_says_which_key(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        shape_of(**changes)


def test_a_config_nested_too_deep_is_an_error_not_a_crash(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text("[" * 200_000)
    with pytest.raises(InputError, match=r"expected a model's config\.json"):
        find_model(str(path))
