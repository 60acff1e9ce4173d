"""Models: kinds of layers, heads, sizes, parameters (``models.jsonl``), and the look-up of a name or ``config.json``."""

import json
import re
from dataclasses import dataclass, field, fields
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from tracekit.catalogue.names import nearest
from tracekit.errors import ConfigError, InputError

FULL, SLIDING, CHUNKED, MLA, SPARSE_MLA = "F", "S", "C", "L", "I"
MAMBA1, MAMBA2, GDN, KDA, BOTH, NOTHING = "m", "M", "G", "K", "B", "-"
"""Letters of ``ModelShape.layers``; BOTH: full attention and Mamba-2 side by side, NOTHING: a layer without cache."""
STATES: Final = frozenset({MAMBA1, MAMBA2, GDN, KDA, BOTH})


@dataclass(frozen=True)
class StateShape:
    """What a state layer keeps: ``conv_channels`` by ``conv_kernel`` - 1, and ``num_heads`` matrices.

    ``float32``: whether the matrices are kept in float32. ``num_groups``: of a Mamba-2's B and C. ``chunk_size``: of
    its scan.
    """

    conv_channels: int
    conv_kernel: int
    num_heads: int
    head_size: int
    state_size: int
    num_groups: int = 1
    chunk_size: int = 256
    float32: bool = False


@dataclass(frozen=True)
class ModelShape:
    """One model, as far as memory and time depend on it.

    ``layers``: one letter a layer (see the letters above). ``head_size_v`` None: as ``head_size``; ``sliding_*`` None:
    as the full layers'. ``latent_size``: MLA's vector of one token (latent + rope). ``num_embedding_parameters``:
    embedding and head, which quantised weights leave in 16 bits. ``weight_bits``: of the weights as published.
    ``source``: where the figures come from.
    """

    name: str
    layers: str
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    max_model_len: int
    vocab_size: int
    num_parameters: int
    num_embedding_parameters: int
    source: str
    aliases: tuple[str, ...] = ()
    intermediate_size: int = 0
    num_experts: int = 0
    num_experts_per_token: int = 0
    moe_intermediate_size: int = 0
    num_active_parameters: int = 0
    head_size_v: int | None = None
    sliding_kv_heads: int | None = None
    sliding_head_size: int | None = None
    window: int | None = None
    chunk: int | None = None
    latent_size: int = 0
    kv_heads_by_layer: tuple[int, ...] = ()
    state: StateShape | None = None
    weight_bits: float = 16
    tied_embeddings: bool = False
    extra: dict[str, Any] = field(default_factory=dict, compare=False, hash=False)

    @property
    def num_layers(self) -> int:
        """Layers, those without a cache included."""
        return len(self.layers)

    def weight_bytes(self, bits: float | None = None) -> int:
        """Bytes of all weights, the embedding and the head in 16 bits; ``bits`` of the others: as published if None."""
        bits = self.weight_bits if bits is None else bits
        others = self.num_parameters - self.num_embedding_parameters
        return int(self.num_embedding_parameters * 2 + others * bits / 8)


@dataclass(frozen=True)
class ModelMatch:
    """The model that a name stands for; ``bits``: of its weights by the name's suffix; ``note``: what was assumed."""

    shape: ModelShape
    bits: float
    note: str | None


_BITS: Final = (
    (re.compile(r"nvfp4|mxfp4|fp4"), 4.5),
    (re.compile(r"w4a16|int4|awq|gptq|4bit|bnb|q4"), 4.25),
    (re.compile(r"fp8|int8|w8a8|8bit"), 8.0),
    (re.compile(r"bf16|fp16|half"), 16.0),
)
"""Bits a weight, scales included, by what a name says."""
_TUNED: Final = re.compile(
    r"(instruct|chat|base|it|hf|thinking|coder|preview|dpo|sft|awq|gptq|fp8|fp4|nvfp4|mxfp4|int4|int8|w4a16|w8a8|bf16|"
    r"fp16|bnb|4bit|8bit|dynamic|static|pertensor|quantized|gguf|marlin|\d{4}|v\d+(\.\d+)?|unsloth|meta)"
)
_MAKERS: Final = frozenset({"meta", "nvidia", "unsloth", "hf"})
_QUANTISED: Final = {"fp8": 8.0, "compressed-tensors": None, "awq": 4.25, "awq_marlin": 4.25, "gptq": 4.25,
                     "gptq_marlin": 4.25, "mxfp4": 4.5, "modelopt_fp4": 4.5, "modelopt": 8.0, "bitsandbytes": 4.5,
                     "nvfp4": 4.5, "int8": 8.0, "none": None, "": None}  # fmt: skip


@cache
def all_models() -> tuple[ModelShape, ...]:
    """Every model of the catalogue."""
    text = (files("tracekit.catalogue") / "models.jsonl").read_text(encoding="utf-8")
    return tuple(shape_of(json.loads(line)) for line in text.splitlines())


def shape_of(row: dict[str, Any]) -> ModelShape:
    """A row of the data file: ``layers`` is a list of (letters, times)."""
    values = dict(row)
    values["layers"] = "".join(letters * times for letters, times in row["layers"])
    values["aliases"] = tuple(row.get("aliases", ()))
    values["kv_heads_by_layer"] = tuple(row.get("kv_heads_by_layer", ()))
    if row.get("state"):
        values["state"] = StateShape(**row["state"])
    known = {f.name for f in fields(ModelShape)}
    return ModelShape(**{name: value for name, value in values.items() if name in known})


def find_model(name: str, quantization: str | None = None) -> ModelMatch:
    """The model that a log or a person calls ``name``: a repository, a path, a short name, or a ``config.json``.

    ``quantization``: vLLM's flag. Raises ``ConfigError`` that offers the nearest, ``InputError`` for a bad file.
    """
    path = Path(name)
    config = path if path.suffix == ".json" else path / "config.json"
    if config.is_file():
        from tracekit.catalogue.hf_config import shape_from_config

        shape = shape_from_config(_json(config), config.parent.name or "config.json", f"{config.name} as given")
        return ModelMatch(shape, _bits(name, quantization, shape), None)
    wanted = _key(name)
    by_key = {_key(known): shape for shape in all_models() for known in (shape.name, *shape.aliases)}
    shape_found = by_key.get(wanted) or by_key.get(_key(name, strict=False))
    if shape_found is None:
        loose = {_key(known, strict=False): shape for shape in all_models() for known in (shape.name, *shape.aliases)}
        shape_found = loose.get(_key(name, strict=False))
    if shape_found is None:
        offered = ", ".join(nearest(name.rsplit("/", 1)[-1], [shape.name for shape in all_models()]))
        msg = (
            f"model {name!r} is not in the catalogue{f'; nearest: {offered}' if offered else ''}; give its config.json"
        )
        raise ConfigError(msg)
    return ModelMatch(shape_found, _bits(name, quantization, shape_found), None)


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        msg = f"{path}: expected a model's config.json"
        raise InputError(msg) from error
    if not isinstance(found, dict):
        msg = f"{path}: expected a JSON object"
        raise InputError(msg)
    return found


def _key(name: str, *, strict: bool = True) -> str:
    """A model's name without publisher, case and separators; not ``strict``: without what tuning or quantising adds."""
    last = name.rstrip("/").rsplit("/", 1)[-1].lower()
    parts = [part for part in re.split(r"[-_ ]+", last) if part]
    if not strict:
        # A name such as Gemma-3-it keeps its first words: only what stands behind a size is dropped.
        parts = [
            part
            for place, part in enumerate(parts)
            if part not in _MAKERS and (place == 0 or not _TUNED.fullmatch(part))
        ]
    return "".join(parts)


def _bits(name: str, quantization: str | None, shape: ModelShape) -> float:
    given = _QUANTISED.get((quantization or "").lower())
    if given is not None:
        return given
    lowered = name.lower()
    return next((bits for pattern, bits in _BITS if pattern.search(lowered)), shape.weight_bits)
