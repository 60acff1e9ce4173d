"""Models: kinds of layers, heads, sizes, parameters (``models.jsonl``), and the look-up of a name or ``config.json``."""

import json
from dataclasses import dataclass, field, fields
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from tracekit.catalogue.model_names import Key, beginning, bits_of, key_of, last_name, reduced
from tracekit.catalogue.names import nearest, shortened
from tracekit.config import config_file
from tracekit.errors import ConfigError, InputError

FULL, SLIDING, CHUNKED, MLA, SPARSE_MLA = "F", "S", "C", "L", "I"
MAMBA1, MAMBA2, GDN, KDA, BOTH, NOTHING = "m", "M", "G", "K", "B", "-"
"""Letters of ``ModelShape.layers``; BOTH: full attention and Mamba-2 side by side, NOTHING: a layer without cache."""
_MOST_OFFERED: Final = 6
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
    embedding and head, which quantised weights leave in 16 bits. ``num_vision_parameters``: of what reads images, beside
    ``num_parameters`` and in 16 bits as well. ``weight_bits``: of the weights as published.
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
    num_vision_parameters: int = 0
    extra: dict[str, Any] = field(default_factory=dict, compare=False, hash=False)

    @property
    def num_layers(self) -> int:
        """Layers, those without a cache included."""
        return len(self.layers)

    @property
    def is_certain(self) -> bool:
        """Whether every figure has a source; else ``source`` says which are from memory."""
        return "from memory" not in self.source

    def weight_bytes(self, bits: float | None = None) -> int:
        """Bytes of all weights; embedding, head and vision in 16 bits; ``bits`` of the others: as published if None."""
        bits = self.weight_bits if bits is None else bits
        others = self.num_parameters - self.num_embedding_parameters
        return int((self.num_embedding_parameters + self.num_vision_parameters) * 2 + others * bits / 8)


@dataclass(frozen=True)
class ModelMatch:
    """The model that a name stands for; ``bits``: of its weights by the name's suffix; ``note``: what was assumed."""

    shape: ModelShape
    bits: float
    note: str | None


@cache
def all_models() -> tuple[ModelShape, ...]:
    """Every model of the catalogue."""
    text = (files("tracekit.catalogue") / "models.jsonl").read_text(encoding="utf-8")
    rows: dict[str, dict[str, Any]] = {}
    for line in text.splitlines():
        row = json.loads(line)
        rows[row["name"]] = {**rows[row["like"]], "aliases": (), **row} if "like" in row else row
    return tuple(shape_of(row) for row in rows.values())


def shape_of(row: dict[str, Any]) -> ModelShape:
    """A row of the data file: ``layers`` is a list of (letters, times); ``like``: a row above that gives the rest."""
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
    if (config := config_file(name)) is not None:
        from tracekit.catalogue.hf_config import shape_from_config

        shape = shape_from_config(_json(config), config.parent.name or "config.json", f"{config.name} as given")
        return _match(shape, config.parent.name, quantization)
    known = _by_key()
    found = next((known[key] for key in reduced(name) if key in known), None)
    note = None
    if found is None:
        found = next((known[key] for key in beginning(name) if key in known), None)
        note = f"{name} is taken as {found.name}, by the beginning of its name" if found else None
    begun = [] if found else _begun_with(name)
    if len(begun) == 1:
        found, note = begun[0], f"{name} is taken as {begun[0].name}, the only model whose name begins so"
    if found is None:
        names = [shape.name for shape in begun][:_MOST_OFFERED] or nearest(
            last_name(name), [shape.name for shape in all_models()]
        )
        offered = f"; nearest: {', '.join(names)}" if names else ""
        msg = f"model {shortened(name)} is not in the catalogue{offered}; give its config.json"
        raise ConfigError(msg)
    return _match(found, name, quantization, note)


def _begun_with(name: str) -> list[ModelShape]:
    """The models whose names go on where this one ends: ``Qwen3-Next`` -> Qwen3-Next-80B-A3B."""
    key = key_of(name)
    return list({shape.name: shape for known, shape in _by_key().items() if key and known[: len(key)] == key}.values())


@cache
def _by_key() -> dict[Key, ModelShape]:
    return {key_of(known): shape for shape in all_models() for known in (shape.name, *shape.aliases)}


def _match(shape: ModelShape, name: str, quantization: str | None, note: str | None = None) -> ModelMatch:
    bits = bits_of(name, quantization)
    return ModelMatch(shape, shape.weight_bits if bits is None else bits, note)


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        msg = f"{path}: expected a model's config.json"
        raise InputError(msg) from error
    if not isinstance(found, dict):
        msg = f"{path}: expected a JSON object"
        raise InputError(msg)
    return found
