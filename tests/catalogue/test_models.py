"""The rows of the catalogue's models: sources, parameters, what servers logged that their weights take."""

import json
from dataclasses import fields
from importlib.resources import files
from typing import Any

import pytest

from tracekit.catalogue.models import STATES, ModelShape, all_models, find_model

ROWS: list[dict[str, Any]] = [
    json.loads(line) for line in (files("tracekit.catalogue") / "models.jsonl").read_text(encoding="utf-8").splitlines()
]

PUBLISHED = {
    "Command-A": 111, "Command-R7B": 8.03, "DeepSeek-R1-Distill-Qwen-1.5B": 1.78, "DeepSeek-V2": 236, "DeepSeek-V2-Lite": 15.7,
    "DeepSeek-V3": 671, "Falcon-7B": 6.92, "Falcon-H1-7B": 7.59, "Gemma-2-27B": 27.2, "Gemma-2-2B": 2.61, "Gemma-2-9B": 9.24,
    "Gemma-3-12B": 12.2, "Gemma-3-1B": 1.0, "Gemma-3-27B": 27.4, "Gemma-3-4B": 4.3, "GLM-4-9B": 9.4, "GLM-4.5": 355,
    "GLM-4.5-Air": 106, "GLM-5": 744, "gpt-oss-120b": 116.8, "gpt-oss-20b": 20.9, "Granite-3.3-8B": 8.17,
    "Granite-4.0-H-Small": 32.2, "Jamba-1.5-Mini": 51.6, "Kimi-K2": 1026, "Kimi-Linear-48B-A3B": 49.1, "Llama-2-13B": 13.0,
    "Llama-2-70B": 69.0, "Llama-2-7B": 6.74, "Llama-3.1-405B": 405.9, "Llama-3.1-70B": 70.6, "Llama-3.1-8B": 8.03,
    "Llama-3.2-1B": 1.24, "Llama-3.2-3B": 3.21, "Llama-3.3-Nemotron-Super-49B": 49.9, "Llama-4-Maverick-17B-128E": 401.6,
    "Llama-4-Scout-17B-16E": 108.6, "llava-1.5-7b": 7.06, "MiMo-V2-Flash": 309, "MiniMax-M2.5": 229, "Ministral-8B": 8.02,
    "Mistral-7B": 7.25, "Mistral-7B-v0.1": 7.24, "Mistral-Large-123B": 122.6, "Mistral-Nemo-12B": 12.2,
    "Mistral-Small-24B": 23.6, "Mistral-Small-3.1-24B": 24.0, "Mixtral-8x22B": 140.6, "Mixtral-8x7B": 46.7,
    "Nemotron-3-Nano-30B-A3B": 31.6, "Nemotron-3-Super-120B-A12B": 120.6, "Nemotron-3-Ultra-550B-A55B": 550,
    "Nemotron-H-56B": 56, "OPT-125M": 0.125, "Phi-3-mini-4k": 3.82, "Phi-4": 14.7, "Phi-4-mini": 3.84, "Qwen2-7B": 7.62,
    "Qwen2.5-0.5B": 0.494, "Qwen2.5-1.5B": 1.54, "Qwen2.5-14B": 14.8, "Qwen2.5-32B": 32.8, "Qwen2.5-3B": 3.09,
    "Qwen2.5-72B": 72.7, "Qwen2.5-7B": 7.62, "Qwen2.5-VL-3B": 3.75, "Qwen2.5-VL-72B": 73.4, "Qwen2.5-VL-7B": 8.29,
    "Qwen3-0.6B": 0.596, "Qwen3-1.7B": 1.72, "Qwen3-14B": 14.8, "Qwen3-235B-A22B": 235, "Qwen3-30B-A3B": 30.5,
    "Qwen3-32B": 32.8, "Qwen3-4B": 4.02, "Qwen3-8B": 8.19, "Qwen3-Coder-480B-A35B": 480, "Qwen3-Next-80B-A3B": 79.7,
    "Qwen3-VL-235B-A22B": 235.7, "Qwen3-VL-2B": 2.13, "Qwen3-VL-30B-A3B": 31.1, "Qwen3-VL-32B": 33.4, "Qwen3-VL-4B": 4.44,
    "Qwen3-VL-8B": 8.77, "Qwen3.5-122B-A10B": 122, "Qwen3.5-27B": 27, "Qwen3.5-35B-A3B": 35, "Qwen3.5-397B-A17B": 397,
    "SmolLM2-1.7B": 1.71, "Step-3.7-Flash": 196, "TinyLlama-1.1B": 1.1, "Yi-34B": 34.4, "dots.ocr": 3.04,
}  # fmt: skip
"""Billions of parameters by the models' cards (from memory), vision included, drafting layers (MTP) left out."""

ACTIVE = {
    "DeepSeek-V3": 37,
    "Mixtral-8x7B": 12.9,
    "Qwen3-235B-A22B": 22,
    "Qwen3-30B-A3B": 3.3,
    "Llama-4-Scout-17B-16E": 17,
}

LOGGED = [
    ("meta-llama/Meta-Llama-3.1-8B-Instruct", None, 1, 14.99), ("Qwen/Qwen3-30B-A3B-Instruct-2507", None, 1, 56.93),
    ("Qwen/Qwen3-30B-A3B-Instruct-2507", "fp8", 1, 29.08), ("Qwen/Qwen2.5-1.5B-Instruct", None, 1, 2.89),
    ("Qwen2.5-32B-Instruct", None, 4, 15.39), ("Qwen3-235B-A22B-FP8", "fp8", 8, 27.67), ("Qwen2-7B-Instruct", None, 2, 7.12),
    ("llava-1.5-7b-hf-awq", "awq_marlin", 1, 4.25), ("Qwen3-4B", None, 1, 7.56), ("rednote-hilab/dots.ocr", None, 1, 5.72),
    ("DeepSeek-R1-Distill-Qwen-32B-FP8", "compressed-tensors", 1, 32.2), ("Qwen/Qwen2.5-14B-Instruct", None, 1, 27.57),
    ("Qwen3-30B-A3B-Instruct-2507-Int4-W4A16", "compressed-tensors", 2, 7.9), ("Qwen3.5-27B", None, 4, 13.01),
]  # fmt: skip
"""Model, flag, tensor-parallel size, and the GiB of "Model loading took" in logs of real servers."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_within_two_percent_of_those_published(name: str) -> None:
    shape = find_model(name).shape
    assert shape.name == name
    total = shape.num_parameters + shape.num_vision_parameters
    assert total / 1e9 == pytest.approx(PUBLISHED[name], rel=0.02)


@pytest.mark.parametrize("name", ACTIVE)
def test_active_parameters_are_those_published(name: str) -> None:
    assert find_model(name).shape.num_active_parameters / 1e9 == pytest.approx(ACTIVE[name], rel=0.02)


@pytest.mark.parametrize(("name", "flag", "ranks", "gib"), LOGGED)
def test_weights_take_what_servers_logged(name: str, flag: str | None, ranks: int, gib: float) -> None:
    found = find_model(name, flag)
    assert found.shape.weight_bytes(found.bits) / ranks / 2**30 == pytest.approx(gib, rel=0.025)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["name"])
def test_a_row_says_where_it_comes_from_and_holds_nothing_that_is_not_read(row: dict[str, Any]) -> None:
    assert row["source"].startswith("config.json of ")
    assert "/" in row["source"]
    assert set(row) <= {field.name for field in fields(ModelShape)} | {"like"}


def test_a_row_that_is_like_another_differs_in_more_than_its_name() -> None:
    names = [row["name"] for row in ROWS]
    for place, row in enumerate(ROWS):
        if "like" in row:
            assert row["like"] in names[:place]
            assert set(row) - {"name", "like", "source", "aliases"}


@pytest.mark.parametrize("shape", all_models(), ids=lambda shape: shape.name)
def test_a_model_is_whole(shape: ModelShape) -> None:
    assert 0 < shape.num_embedding_parameters < shape.num_active_parameters <= shape.num_parameters
    assert shape.num_layers > 0
    assert shape.max_model_len >= 2048
    assert (shape.num_experts > 0) == (shape.num_active_parameters < shape.num_parameters)
    assert shape.num_heads % shape.num_kv_heads == 0
    assert bool(STATES & set(shape.layers)) == (shape.state is not None)
    assert ("S" in shape.layers) == (shape.window is not None)
    assert ("C" in shape.layers) == (shape.chunk is not None)
    assert bool({"L", "I"} & set(shape.layers)) == (shape.latent_size > 0)
    embeddings = shape.hidden_size * shape.vocab_size * (1 if shape.tied_embeddings else 2)
    assert shape.num_embedding_parameters == embeddings


def test_figures_from_memory_are_carried_as_such() -> None:
    assert find_model("Llama-3.1-8B").shape.is_certain
    assert not find_model("Magistral-Small-2506").shape.is_certain


def test_the_catalogue_holds_what_people_serve() -> None:
    families = ("Llama-2", "Llama-3", "Llama-4", "Qwen2.5", "Qwen3-", "Qwen3.5", "Qwen3-Next", "Mistral", "Mixtral", "gpt-oss",
                "DeepSeek-V2", "DeepSeek-V3", "Kimi-K2", "Gemma-2", "Gemma-3", "Phi", "GLM", "Granite", "Nemotron-H")  # fmt: skip
    names = [shape.name for shape in all_models()]
    assert len(names) == len(set(names)) >= 40
    assert [family for family in families if not any(name.startswith(family) for name in names)] == []
