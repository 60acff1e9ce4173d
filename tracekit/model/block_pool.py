"""The KV blocks of one engine: free queue, reference counts, and the index from content to block."""

from collections import OrderedDict
from collections.abc import Iterable

from tracekit.model.request import BlockHash


class BlockPool:
    """Mirrors ``BlockPool`` and ``FreeKVCacheBlockQueue`` (``vllm/v1/core``, 0.33.0); a block is its id.

    A free block keeps its hash until it is handed out again: the free queue is the LRU order of the prefix cache.
    """

    def __init__(self, num_blocks: int, *, has_null_block: bool, unhashed_blocks_first: bool) -> None:
        self.num_blocks = num_blocks
        self.num_usable_blocks = num_blocks - has_null_block
        self._unhashed_blocks_first = unhashed_blocks_first
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(int(has_null_block), num_blocks))
        self.ref_counts = [0] * num_blocks
        self.block_hashes: list[BlockHash | None] = [None] * num_blocks
        self.content_index: dict[BlockHash, list[int]] = {}
        """Blocks with this content, the first one stored first; it is the one that a lookup finds."""

    @property
    def num_free_blocks(self) -> int:
        """Blocks that can be handed out, cached ones included."""
        return len(self._free)

    @property
    def free_queue(self) -> list[int]:
        """The free blocks in the order in which they will be handed out."""
        return list(self._free)

    def find(self, block_hash: BlockHash) -> int | None:
        """The block that holds this content (``get_cached_block``)."""
        blocks = self.content_index.get(block_hash)
        return blocks[0] if blocks else None

    def take(self, count: int) -> list[int]:
        """Hand out the first ``count`` free blocks and forget what they cached (``get_new_blocks``)."""
        blocks = [self._free.popitem(last=False)[0] for _ in range(count)]
        for block in blocks:
            self.ref_counts[block] = 1
            if self.block_hashes[block] is not None:
                self._forget(block)
        return blocks

    def touch(self, blocks: Iterable[int]) -> None:
        """Take one more reference to cached blocks; a free one leaves the free queue."""
        for block in blocks:
            if not self.ref_counts[block]:
                del self._free[block]
            self.ref_counts[block] += 1

    def free(self, blocks: Iterable[int], *, unhashed_first: bool = False) -> None:
        """Give references back, first to be reused first (``free_blocks``).

        ``unhashed_first``: blocks without a hash go to the front of the queue, also where the version's rule does not.
        """
        unhashed = []
        unhashed_first = unhashed_first or self._unhashed_blocks_first
        for block in blocks:
            self.ref_counts[block] -= 1
            if self.ref_counts[block]:
                continue
            if unhashed_first and self.block_hashes[block] is None:
                unhashed.append(block)
            else:
                self._free[block] = None
        for block in reversed(unhashed):
            self._free[block] = None
            self._free.move_to_end(block, last=False)

    def store(self, block: int, block_hash: BlockHash) -> None:
        """Make a full block findable by its content (``cache_full_blocks``)."""
        self.block_hashes[block] = block_hash
        self.content_index.setdefault(block_hash, []).append(block)

    def reset(self) -> bool:
        """Forget all content; refused while a block is in use (``reset_prefix_cache``)."""
        if len(self._free) != self.num_usable_blocks:
            return False
        self.content_index.clear()
        self.block_hashes = [None] * self.num_blocks
        return True

    def _forget(self, block: int) -> None:
        block_hash = self.block_hashes[block]
        self.block_hashes[block] = None
        if block_hash is not None:
            blocks = self.content_index[block_hash]
            blocks.remove(block)
            if not blocks:
                del self.content_index[block_hash]
