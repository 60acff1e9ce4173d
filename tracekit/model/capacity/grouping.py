"""Layers to KV cache groups: all groups share one pool, and one block number owns a block in every layer of one group.

Mirrors ``get_kv_cache_groups``, ``_get_kv_cache_groups_uniform_page_size``, ``unify_kv_cache_spec_page_size`` and
``unify_hybrid_kv_cache_specs`` (0.33.0: ``vllm/v1/core/kv_cache_planning.py``).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from tracekit.model.capacity.layers import Demand, FaultError, LayerCache, blocks_needed, ceil_div
from tracekit.model.capacity.rules import CapacityRules

Layers = Mapping[int, LayerCache]
"""Caches by position, in the order in which vLLM meets them."""


class NotGroupableError(Exception):
    """The version cannot serve these layers together; ``kind``: its error class in words, and the reason."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind


@dataclass(frozen=True)
class Group:
    """Layers that share block numbers; a request holds ``blocks_needed`` of them."""

    layers: tuple[tuple[int, LayerCache], ...]

    @property
    def block_bytes(self) -> int:
        """Bytes of one block in all its layers."""
        return sum(cache.block_bytes for _, cache in self.layers)

    @property
    def block_size(self) -> int:
        """Tokens a block."""
        return self.layers[0][1].block_size

    def blocks_needed(self, length: int, demand: Demand) -> int:
        """Blocks that a request of ``length`` tokens may hold."""
        return max((blocks_needed(cache, length, demand) for cache in {cache for _, cache in self.layers}), default=0)

    def only(self, positions: Iterable[int]) -> "Group":
        """The part of the group that one pipeline stage has."""
        kept = set(positions)
        return Group(tuple(layer for layer in self.layers if layer[0] in kept))


def group_layers(
    layers: Layers, rules: CapacityRules, *, hybrid_manager: bool, block_outermost: bool = False
) -> list[Group]:
    """Split layers into groups; raises ``NotGroupableError``, or ``FaultError`` where vLLM itself breaks."""
    if not (hybrid_manager and rules.has_hybrid_manager):
        layers = _promoted(layers, rules)
    if _is_one_cache(layers.values(), rules):
        return [Group(tuple(layers.items()))]
    if rules.unites_unlike_full_layers and is_one_kind(layers.values()):
        return [Group(tuple(layers.items()))]
    if rules.packs_unlike_blocks and block_outermost and len({cache.block_bytes for cache in layers.values()}) > 1:
        from tracekit.model.capacity.packing import packed

        return packed(layers)
    try:
        alike = _of_one_size(layers, rules)
    except NotGroupableError:
        if rules.unlike_layers != "pad" or (promoted := _all_kept_in_full(layers)) is None:
            raise
        return [Group(tuple(promoted.items()))]
    return _sliced(alike, rules)


def _is_one_cache(caches: Iterable[LayerCache], rules: CapacityRules) -> bool:
    """Whether all layers are alike but for a window that a full layer remembers; raises where vLLM breaks."""
    found = list(caches)
    if not rules.unites_unlike_full_layers:
        if len({_type_id(cache) for cache in found}) > 1:
            return False
        if not rules.has_hybrid_manager and len(set(map(_without_memory, found))) > 1:
            msg = "AssertionError: layers with blocks of one size but of unlike shape end up in one group"
            raise FaultError(msg)
        if rules.has_hybrid_manager:
            _check_remembered_windows(found)
        return True
    if len(set(map(_without_memory, found))) > 1:
        return False
    _check_remembered_windows(found)
    return True


def _type_id(cache: LayerCache) -> tuple[object, ...]:
    """What up to 0.10 made two layers the same type: kind, tokens and bytes of a block, window."""
    kind = "full" if cache.is_full else cache.kind
    window = cache.window if cache.kind == "sliding" else None
    return kind, cache.block_size, cache.block_bytes, window, cache.chunk if cache.kind == "chunked" else None


def _without_memory(cache: LayerCache) -> LayerCache:
    return replace(cache, window=None, chunk=None) if cache.is_full else cache


def _check_remembered_windows(caches: Iterable[LayerCache]) -> None:
    full = [cache for cache in caches if cache.is_full]
    windows = {cache.window for cache in full if cache.window is not None}
    if len(windows) > 1:
        kind, reason = "other", "layers in one KV cache group must have the same window"
        raise NotGroupableError(kind, reason)


def is_one_kind(caches: Iterable[LayerCache]) -> bool:
    """Whether all layers need the same number of blocks for a request, whatever their bytes."""
    found = list(caches)
    if len({cache.block_size for cache in found}) > 1:
        return False
    if all(cache.is_full for cache in found):
        return True
    return len({(cache.kind, cache.window, cache.chunk, cache.num_checkpoint_blocks) for cache in found}) == 1


def _promoted(layers: Layers, rules: CapacityRules) -> dict[int, LayerCache]:
    """Without the hybrid manager, layers with a window keep every token where any layer does."""
    found = dict(layers)
    unites = rules.unites_unlike_full_layers

    def is_uniform(caches: Iterable[LayerCache]) -> bool:
        caches = list(caches)
        return _is_one_cache(caches, rules) or (unites and is_one_kind(caches))

    if is_uniform(found.values()):
        return found
    full_sizes = {cache.block_size for cache in found.values() if cache.is_full}
    if full_sizes:
        size = full_sizes.pop() if len(full_sizes) == 1 else None
        found = {position: _in_full(cache, size, rules) for position, cache in found.items()}
    if rules.has_hybrid_manager and not is_uniform(found.values()):
        kind, reason = "hybrid_disabled_not_unifiable", "without the hybrid manager, these layers cannot share a pool"
        raise NotGroupableError(kind, reason)
    return found


def _in_full(cache: LayerCache, block_size: int | None, rules: CapacityRules) -> LayerCache:
    if cache.kind not in {"sliding", "chunked"}:
        return cache
    head_size_v = None if rules.forgets_value_heads else cache.head_size_v
    return replace(cache, kind="full", block_size=block_size or cache.block_size, head_size_v=head_size_v)


def _all_kept_in_full(layers: Layers) -> dict[int, LayerCache] | None:
    """The last resort for MLA beside sliding windows: every layer keeps every token."""
    kinds = {cache.kind for cache in layers.values()}
    if not ({"mla", "sliding"} <= kinds) or "chunked" in kinds:
        return None
    promoted = {position: _in_full(cache, None, CapacityRules()) for position, cache in layers.items()}
    return promoted if is_one_kind(promoted.values()) else None


def _of_one_size(layers: Layers, rules: CapacityRules) -> dict[int, LayerCache]:
    """Give all layers blocks of the largest size: by more tokens, or by padding."""
    largest = max(cache.block_bytes for cache in layers.values())
    if all(cache.block_bytes == largest for cache in layers.values()):
        return dict(layers)
    if rules.unlike_layers == "refuse":
        kind, reason = "not_implemented", "the version has no groups of layers with blocks of unlike size"
        raise NotGroupableError(kind, reason)
    return {position: _enlarged(cache, largest, rules) for position, cache in layers.items()}


def _enlarged(cache: LayerCache, largest: int, rules: CapacityRules) -> LayerCache:
    if cache.block_bytes == largest:
        return cache
    pads = rules.unlike_layers == "pad"
    if cache.is_state and pads:
        return replace(cache, padded_bytes=largest)
    if not cache.is_state and largest % cache.block_bytes == 0:
        return replace(cache, block_size=cache.block_size * (largest // cache.block_bytes))
    if pads and cache.kind not in {"mla", "indexer", "state"}:
        return replace(cache, padded_bytes=largest)
    kind, reason = "not_implemented", "blocks of unlike size that do not divide one another"
    raise NotGroupableError(kind, reason)


def _sliced(layers: Layers, rules: CapacityRules) -> list[Group]:
    """Cut each kind of layer into groups of one number of layers; what is missing is padding."""
    buckets: list[list[int]] = []
    found: list[list[LayerCache]] = []
    for position, cache in layers.items():
        place = next((n for n, caches in enumerate(found) if _joins(cache, caches, rules)), None)
        if place is None:
            buckets.append([position])
            found.append([cache])
        else:
            buckets[place].append(position)
            found[place].append(cache)
    if not rules.slices_by_stride:
        buckets.sort(key=lambda bucket: not layers[bucket[0]].is_full)
    smallest, largest = min(map(len, buckets)), max(map(len, buckets))
    size = smallest
    if rules.widest_within is not None and largest < smallest * rules.widest_within:
        size = largest
    groups = []
    for bucket in buckets:
        number = ceil_div(len(bucket), size)
        for index in range(number):
            part = bucket[index::number] if rules.slices_by_stride else bucket[index * size : (index + 1) * size]
            groups.append(Group(tuple((position, layers[position]) for position in part)))
    return groups


def _joins(cache: LayerCache, caches: list[LayerCache], rules: CapacityRules) -> bool:
    if not rules.merges_remembered_windows:
        return cache == caches[0]
    if _without_memory(cache) != _without_memory(caches[0]):
        return False
    windows = {other.window for other in (cache, *caches) if other.window is not None}
    chunks = {other.chunk for other in (cache, *caches) if other.chunk is not None}
    return not cache.is_full or (len(windows) <= 1 and len(chunks) <= 1 and not (windows and chunks))
