"""From a model's shape to what each layer of one rank keeps, with the block sizes that a version gives state layers.

Mirrors ``Platform._align_hybrid_block_size`` (``vllm/platforms/interface.py``, 0.33.0; before 0.20:
``HybridAttentionMambaModelConfig`` in ``model_executor/models/config.py``) and ``MambaStateShapeCalculator``.
"""

import math
from dataclasses import dataclass, replace
from typing import Final

from tracekit.catalogue import models
from tracekit.catalogue.models import ModelShape, StateShape
from tracekit.config import parse_version
from tracekit.errors import ConfigError
from tracekit.model.capacity.layers import INDEXER_BYTES_PER_TOKEN, MLA_FP8_BYTES_PER_TOKEN, Kind, LayerCache, StateMode

_KINDS: Final[dict[str, Kind]] = {
    models.FULL: "full", models.BOTH: "full", models.SLIDING: "sliding", models.CHUNKED: "chunked", models.MLA: "mla",
    models.SPARSE_MLA: "mla",
}  # fmt: skip
_STATE_KINDS: Final = {
    models.MAMBA1: "mamba1",
    models.MAMBA2: "mamba2",
    models.BOTH: "mamba2",
    models.GDN: "gdn",
    models.KDA: "kda",
}
_MANY_STATES: Final = frozenset({"mamba1", "mamba2"})
"""Kinds that may cache a state at every block (mode "all") where a version offers it."""
_FIRST_WINDOWS: Final = (0, 8, 0)
_FIRST_CHUNKS: Final = (0, 10, 0)
"""Before, sliding (V0) and chunked layers kept every token."""


@dataclass(frozen=True)
class Built:
    """The layers of one rank; ``note``: what the version does to them, for people (None: nothing)."""

    layers: tuple[tuple[int, LayerCache], ...]
    block_size: int
    state_mode: StateMode
    note: str | None = None


def layers_of(
    shape: ModelShape,
    version: str,
    *,
    tensor_parallel_size: int = 1,
    kv_cache_dtype: str = "auto",
    block_size: int | None = None,
    max_model_len: int | None = None,
    enable_prefix_caching: bool | None = None,
    gdn_checkpoint_alignment: int | None = None,
    num_speculative_tokens: int = 0,
    num_draft_layers: int = 0,
) -> Built:
    """What the layers keep on one rank.

    ``block_size`` and ``enable_prefix_caching`` None: the version's default for the model.
    ``gdn_checkpoint_alignment``: 64 where FlashInfer runs the prefill of GDN layers (0.33). ``num_draft_layers``: full
    attention layers that a model drafts with (MTP) behind its own. Raises ``ConfigError`` for heads that the ranks
    cannot share evenly and for a block size that 0.9 would refuse.
    """
    if num_draft_layers:
        shape = replace(shape, layers=shape.layers + models.FULL * num_draft_layers)
    number = parse_version(version)
    element_bytes = 1 if kv_cache_dtype.startswith(("fp8", "int8")) else 2
    if block_size is None:
        block_size = 64 if {models.MLA, models.SPARSE_MLA} & set(shape.layers) else 16
    has_states = bool(models.STATES & set(shape.layers))
    caches = enable_prefix_caching if enable_prefix_caching is not None else number >= (0, 26, 0)
    mode = _state_mode(shape, number, caches=caches) if has_states else "none"
    kinds = dict(_KINDS)
    if number < _FIRST_WINDOWS:
        kinds[models.SLIDING] = "full"
    if number < _FIRST_CHUNKS:
        kinds[models.CHUNKED] = "full"
    attention = [
        (position, _attention(shape, position, kinds[letter], tensor_parallel_size, element_bytes, block_size))
        for position, letter in enumerate(shape.layers)
        if letter in _KINDS
    ]
    indexers = [
        (position, LayerCache("indexer", block_size, head_size=128, bytes_per_token=INDEXER_BYTES_PER_TOKEN))
        for position, letter in enumerate(shape.layers)
        if letter == models.SPARSE_MLA
    ]
    if kv_cache_dtype.startswith("fp8"):
        attention = [
            (position, replace(cache, bytes_per_token=MLA_FP8_BYTES_PER_TOKEN))
            if shape.layers[position] == models.SPARSE_MLA
            else (position, cache)
            for position, cache in attention
        ]
    if not has_states:
        return Built(tuple(sorted([*indexers, *attention], key=lambda layer: layer[0])), block_size, mode)
    return _with_states(
        shape, number, attention, tensor_parallel_size, element_bytes, block_size, max_model_len or shape.max_model_len,
        mode, gdn_checkpoint_alignment, num_speculative_tokens,
    )  # fmt: skip


def _state_mode(shape: ModelShape, number: tuple[int, int, int], *, caches: bool) -> StateMode:
    if not caches:
        return "none"
    kinds = {_STATE_KINDS[letter] for letter in shape.layers if letter in _STATE_KINDS}
    if number < (0, 12, 0):
        return "all" if kinds <= _MANY_STATES else "none"
    return "all" if number < (0, 26, 0) and kinds <= _MANY_STATES else "align"


def _attention(
    shape: ModelShape, position: int, kind: Kind, ranks: int, element_bytes: int, block_size: int
) -> LayerCache:
    if kind == "mla":
        return LayerCache("mla", block_size, head_size=shape.latent_size, element_bytes=element_bytes)
    heads, size = shape.num_kv_heads, shape.head_size
    if shape.kv_heads_by_layer:
        heads = shape.kv_heads_by_layer[position]
    if shape.layers[position] == models.SLIDING:
        heads, size = shape.sliding_kv_heads or heads, shape.sliding_head_size or size
    return LayerCache(
        kind, block_size, _heads_of_rank(heads, ranks), size, shape.head_size_v, element_bytes,
        window=shape.window if kind == "sliding" else None, chunk=shape.chunk if kind == "chunked" else None,
    )  # fmt: skip


def _heads_of_rank(heads: int, ranks: int) -> int:
    """KV heads of one rank; with fewer heads than ranks each holds one of them, so memory falls no further."""
    if max(heads, ranks) % min(heads, ranks):
        msg = f"tensor_parallel_size {ranks} does not divide {heads} KV heads (nor they it)"
        raise ConfigError(msg)
    return max(1, heads // ranks)


def _with_states(
    shape: ModelShape,
    number: tuple[int, int, int],
    attention: list[tuple[int, LayerCache]],
    ranks: int,
    element_bytes: int,
    block_size: int,
    max_model_len: int,
    mode: StateMode,
    gdn_checkpoint_alignment: int | None,
    num_speculative_tokens: int,
) -> Built:
    assert shape.state is not None  # noqa: S101 - layers with states have one
    kind = next(_STATE_KINDS[letter] for letter in shape.layers if letter in _STATE_KINDS)
    plain = number < (0, 10, 0)
    state_bytes = _state_bytes(shape.state, kind, ranks, element_bytes if plain else None, num_speculative_tokens)
    token_bytes = max((cache.token_bytes for _, cache in attention), default=0)
    is_mla = any(cache.kind == "mla" for _, cache in attention)
    kernel_block = (128 if number >= (0, 30, 0) else 64) if is_mla else 16
    unit = kernel_block if number < (0, 12, 0) and mode == "none" else max(kernel_block, block_size)
    if mode == "all" and not plain:
        unit = math.lcm(unit, shape.state.chunk_size)
    has_checkpoints = number >= (0, 33, 0) and (
        kind == "mamba2" or (kind == "gdn" and bool(gdn_checkpoint_alignment) and mode == "align")
    )
    if has_checkpoints and kind == "gdn":
        unit = math.lcm(unit, gdn_checkpoint_alignment or 1)
    aligned = unit * -(-state_bytes // (unit * token_bytes)) if token_bytes else block_size
    if plain and aligned > block_size:
        needed = 16 * -(-state_bytes // (16 * token_bytes))
        msg = f"vLLM before 0.10 does not start: the block size should be at least {needed} for the state layers"
        raise ConfigError(msg)
    size = max(block_size, aligned)
    state = LayerCache(
        "state", size if mode != "none" else max_model_len, state_kind=kind, state_bytes=state_bytes,
        padded_bytes=size * token_bytes or None, num_checkpoint_blocks=int(has_checkpoints),
    )  # fmt: skip
    resized = {position: replace(cache, block_size=size) for position, cache in attention}
    layers: list[tuple[int, LayerCache]] = []
    for position, letter in enumerate(shape.layers):
        if position in resized:
            layers.append((position, resized[position]))
        if letter in _STATE_KINDS:
            layers.append((position, state))
    if plain:
        layers.sort(key=lambda layer: layer[1].is_state)
    note = f"vLLM raises the block size to {size} tokens so that a block holds a state of {state_bytes:,} bytes"
    return Built(tuple(layers), size, mode, note if size > block_size else None)


def _state_bytes(state: StateShape, kind: str, ranks: int, element_bytes: int | None, num_drafts: int) -> int:
    """Bytes of one state on one rank; ``element_bytes``: of every element, where a version has one for all."""
    channels = state.conv_channels
    if kind == "mamba2" and state.num_groups % ranks:
        # Groups are repeated until the ranks share them evenly.
        more = ranks - state.num_groups % ranks if state.num_groups >= ranks else ranks - state.num_groups
        channels += 2 * more * state.state_size
    conv_bytes, matrix_bytes = element_bytes or 2, element_bytes or (4 if state.float32 else 2)
    conv = channels // ranks * (state.conv_kernel - 1 + num_drafts) * conv_bytes
    return conv + state.num_heads // ranks * state.head_size * state.state_size * matrix_bytes
