"""What the versions do differently on the way from layers to blocks, as data."""

from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from tracekit.config import parse_version


@dataclass(frozen=True)
class CapacityRules:
    """The newest version's rules are the defaults; see ``_SINCE`` for when each came.

    ``unlike_layers``: what happens to kinds of layers with blocks of unlike size: refused, the smaller one scaled to
    more tokens, or (where that does not divide) padded. ``widest_within``: groups take the size of the largest kind
    when that is less than so many times the smallest. ``tokens``: how the printed number of tokens comes about.
    ``need``: what the start-up check adds up, single layers or groups.
    """

    engine: Literal["v0", "v1"] = "v1"
    has_hybrid_manager: bool = True
    groups_whole_model: bool = True
    """Pipeline stages share the groups of the whole model."""
    unites_unlike_full_layers: bool = True
    """Layers of one kind and block size but unlike blocks make one group."""
    unlike_layers: Literal["refuse", "scale", "pad"] = "pad"
    widest_within: float | None = 1.5
    slices_by_stride: bool = True
    merges_remembered_windows: bool = True
    packs_unlike_blocks: bool = True
    """The block-outermost layout lays blocks of unlike size side by side."""
    counts_batches_in_flight: bool = True
    tokens: Literal["blocks", "blocks_per_group", "concurrency"] = "concurrency"
    concurrency: Literal["tokens", "blocks"] = "blocks"
    prints_per_worker: bool = False
    need: Literal["layers", "groups"] = "groups"
    check_spares_null_block: bool = True
    override_moves_check: bool = True
    has_auto_fit: bool = True
    prints_estimate: bool = True
    prints_two_decimals: bool = False
    forgets_value_heads: bool = False
    """A sliding layer promoted to a full one is sized with ``head_size`` for keys and values."""
    has_state_modes: bool = True
    has_chunked_layers: bool = True


_SINCE: Final[tuple[tuple[tuple[int, int, int], dict[str, Any]], ...]] = (
    ((0, 0, 0), {
        "engine": "v1", "has_hybrid_manager": False, "groups_whole_model": False, "unites_unlike_full_layers": False,
        "unlike_layers": "refuse", "widest_within": None, "slices_by_stride": False,
        "merges_remembered_windows": False, "packs_unlike_blocks": False, "counts_batches_in_flight": False,
        "tokens": "blocks", "concurrency": "tokens", "prints_per_worker": True, "need": "layers",
        "check_spares_null_block": False, "override_moves_check": False, "has_auto_fit": False,
        "prints_estimate": False, "prints_two_decimals": True, "has_state_modes": False, "has_chunked_layers": False,
    }),
    ((0, 9, 0), {
        "has_hybrid_manager": True, "tokens": "blocks_per_group", "concurrency": "blocks", "prints_estimate": True,
    }),
    ((0, 10, 0), {"slices_by_stride": True, "has_chunked_layers": True}),
    ((0, 11, 0), {
        "groups_whole_model": True, "unites_unlike_full_layers": True, "prints_per_worker": False,
    }),
    ((0, 12, 0), {"unlike_layers": "scale", "widest_within": 1.25, "has_state_modes": True}),
    ((0, 14, 0), {
        "need": "groups", "override_moves_check": True, "has_auto_fit": True, "prints_two_decimals": False,
    }),
    ((0, 18, 1), {"widest_within": 1.5}),
    ((0, 20, 2), {"tokens": "concurrency", "forgets_value_heads": True}),
    ((0, 24, 0), {"unlike_layers": "pad", "forgets_value_heads": False}),
    ((0, 26, 0), {"counts_batches_in_flight": True}),
    ((0, 27, 0), {"merges_remembered_windows": True}),
    ((0, 30, 0), {"packs_unlike_blocks": True, "check_spares_null_block": True}),
)  # fmt: skip
_LAST_V0_BY_DEFAULT: Final = (0, 8, 0)


def capacity_rules_for(version: str, engine: Literal["v0", "v1"] | None = None) -> CapacityRules:
    """The rules of a vLLM version; ``engine``: v0 or v1 where that is not the version's default."""
    number = parse_version(version)
    values: dict[str, Any] = {}
    for since, changes in _SINCE:
        if number >= since:
            values |= changes
    chosen = engine or ("v0" if number < _LAST_V0_BY_DEFAULT else "v1")
    return replace(CapacityRules(), **{**values, "engine": chosen})
