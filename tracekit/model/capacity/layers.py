"""What one layer keeps in the KV cache on one rank, and how many blocks of it a request may hold.

Mirrors the specs of ``vllm/v1/kv_cache_interface.py``: ``FullAttentionSpec``, ``MLAAttentionSpec``,
``SlidingWindowSpec``, ``ChunkedLocalAttentionSpec``, ``MambaSpec``.
"""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["full", "mla", "indexer", "sliding", "chunked", "state"]
StateMode = Literal["none", "align", "all"]
"""Whether states are cached: not, at the last block boundary, or at every one (so always before 0.12)."""

MLA_FP8_BYTES_PER_TOKEN = 656
"""``fp8_ds_mla``: 512 latent bytes, 16 of scales, 128 of rope in bfloat16."""
INDEXER_BYTES_PER_TOKEN = 132
"""A sparse-MLA indexer's key: 128 bytes and 4 of scale, whatever the KV dtype."""


@dataclass(frozen=True)
class LayerCache:
    """One layer's cache on one rank.

    ``block_size``: tokens a block. ``num_kv_heads`` and the head sizes are those of one rank; MLA and its indexer keep
    one vector of ``head_size`` elements (or ``bytes_per_token`` bytes). ``window``: of a sliding layer; of a full one,
    the window it remembers (its compute, not its cache). ``state_bytes``: of a state layer (Mamba, GDN, KDA), which
    grows with no token. ``padded_bytes``: what a block is raised to.
    """

    kind: Kind
    block_size: int
    num_kv_heads: int = 1
    head_size: int = 0
    head_size_v: int | None = None
    element_bytes: int = 2
    bytes_per_token: int | None = None
    window: int | None = None
    chunk: int | None = None
    state_kind: str | None = None
    state_bytes: int = 0
    padded_bytes: int | None = None
    num_checkpoint_blocks: int = 0

    @property
    def is_state(self) -> bool:
        """Whether it keeps a state instead of tokens."""
        return self.kind == "state"

    @property
    def is_full(self) -> bool:
        """Whether it keeps every token."""
        return self.kind in {"full", "mla", "indexer"}

    @property
    def token_bytes(self) -> int:
        """Bytes of one token."""
        if self.bytes_per_token is not None:
            return self.bytes_per_token
        if self.kind in {"mla", "indexer"}:
            return self.head_size * self.element_bytes
        head_size_v = self.head_size if self.head_size_v is None else self.head_size_v
        return self.num_kv_heads * (self.head_size + head_size_v) * self.element_bytes

    @property
    def block_bytes(self) -> int:
        """Bytes of one block (vLLM: ``page_size_bytes``)."""
        if self.padded_bytes is not None:
            return self.padded_bytes
        return self.state_bytes if self.is_state else self.block_size * self.token_bytes


@dataclass(frozen=True)
class Demand:
    """What decides how much one request may hold beside its length.

    ``max_in_flight_tokens``: the token budget, twice that where two steps may be in flight. ``dcp``: decode context
    parallel size. ``state_mode``: how state layers take part in prefix caching.
    """

    max_in_flight_tokens: int
    dcp: int = 1
    state_mode: StateMode = "none"
    num_speculative_tokens: int = 0


class FaultError(Exception):
    """Where vLLM itself breaks: the message says how."""


def blocks_needed(layer: LayerCache, length: int, demand: Demand) -> int:
    """Blocks of a layer that a request of ``length`` tokens may hold (``max_memory_usage_bytes`` over the block)."""
    if layer.is_state:
        return _states_needed(layer, length, demand)
    if layer.kind in {"sliding", "chunked"}:
        if demand.dcp > 1 and layer.kind == "sliding":
            msg = "AssertionError: sliding windows know no decode context parallelism"
            raise FaultError(msg)
        reach = layer.window - 1 if layer.kind == "sliding" and layer.window else layer.chunk or 0
        held = min(reach + demand.max_in_flight_tokens, length)
        # A window may begin in the middle of a block.
        return ceil_div(held, layer.block_size) + (layer.kind == "sliding")
    return ceil_div(ceil_div(length, demand.dcp), layer.block_size)


def _states_needed(layer: LayerCache, length: int, demand: Demand) -> int:
    if demand.state_mode == "all":
        return ceil_div(length, layer.block_size)
    if demand.state_mode == "none":
        return 1 + demand.num_speculative_tokens
    return 2 + demand.num_speculative_tokens + layer.num_checkpoint_blocks


def ceil_div(value: int, by: int) -> int:
    """The quotient, rounded up."""
    return -(-value // by)
