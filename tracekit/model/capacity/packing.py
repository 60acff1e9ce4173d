"""The block-outermost layout (0.30 and later): blocks of unlike size lie side by side, so no layer is scaled or padded.

Mirrors ``_get_packed_kv_cache_groups`` and ``_approximate_gcd`` (``vllm/v1/core/kv_cache_planning.py``, 0.33.0).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tracekit.model.capacity.grouping import Group, Layers, is_one_kind
from tracekit.model.capacity.layers import FaultError, LayerCache, ceil_div


@dataclass
class _Bucket:
    """Layers of one kind, their positions by bytes of a block."""

    layers: dict[int, LayerCache]
    by_bytes: dict[int, list[int]]

    @property
    def repeats(self) -> int:
        """How often its pattern of one layer a size repeats; of the commonest size where they are not balanced."""
        return max(map(len, self.by_bytes.values()))

    @property
    def is_balanced(self) -> bool:
        """Whether it has equally many layers of every size."""
        return len({len(positions) for positions in self.by_bytes.values()}) == 1

    @property
    def first(self) -> LayerCache:
        return next(iter(self.layers.values()))

    def widest_bytes(self, num_groups: int) -> int:
        """Bytes of a block of the widest of so many groups."""
        return sum(ceil_div(len(positions), num_groups) * size for size, positions in self.by_bytes.items())


def packed(layers: Layers) -> list[Group]:
    """Groups whose blocks are about as wide as one another; raises ``FaultError`` where vLLM loses layers."""
    buckets = _buckets(layers)
    floor = max((b.repeats for b in buckets if b.is_balanced and len(b.by_bytes) > 1), default=0)
    chunk = _least_padding([b.repeats for b in buckets if b.is_balanced], floor) if floor else None

    def number_of_groups(bucket: _Bucket) -> int:
        return ceil_div(bucket.repeats, chunk) if chunk is not None and bucket.is_balanced else 1

    def shrinks(bucket: _Bucket) -> bool:
        """Whether its groups may go down to one layer, to fit the block that others need."""
        return bucket.first.is_state or (chunk is None and bucket.first.kind == "sliding")

    anchor = max(b.widest_bytes(len(b.layers) if shrinks(b) else number_of_groups(b)) for b in buckets)
    groups: list[Group] = []
    for bucket in buckets:
        number = number_of_groups(bucket)
        if shrinks(bucket):
            per_block = max(anchor // bucket.first.block_bytes, 1)
            number = max(number, ceil_div(len(bucket.layers), per_block))
        groups += _cut(bucket, number)
    return groups


def _buckets(layers: Layers) -> list[_Bucket]:
    found: list[dict[int, LayerCache]] = []
    for position, cache in layers.items():
        home = next((bucket for bucket in found if is_one_kind([*bucket.values(), cache])), None)
        if home is None:
            found.append({position: cache})
        else:
            home[position] = cache
    return [_Bucket(bucket, _by_bytes(bucket)) for bucket in found]


def _by_bytes(layers: Mapping[int, LayerCache]) -> dict[int, list[int]]:
    sizes: dict[int, list[int]] = {}
    for position, cache in layers.items():
        sizes.setdefault(cache.block_bytes, []).append(position)
    return sizes


def _least_padding(counts: Sequence[int], lowest: int) -> int:
    """The chunk, not under ``lowest``, that pads the counts least when each is rounded up to it; the larger of equals."""
    candidates = range(lowest, max(*counts, lowest) + 1)
    return min(candidates, key=lambda chunk: (sum(-count % chunk for count in counts), -chunk))


def _cut(bucket: _Bucket, number: int) -> list[Group]:
    if number == 1:
        return [Group(tuple(bucket.layers.items()))]
    if not bucket.is_balanced:
        msg = "AssertionError: a bucket of unequally many layers a size is cut, and layers get lost"
        raise FaultError(msg)
    repeats = list(zip(*bucket.by_bytes.values(), strict=True))
    groups = []
    for index in range(number):
        positions = [position for repeat in repeats[index::number] for position in repeat]
        if not positions:
            msg = "StopIteration: a group without layers"
            raise FaultError(msg)
        groups.append(Group(tuple((position, bucket.layers[position]) for position in positions)))
    return groups
