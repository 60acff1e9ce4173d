"""V0's KV blocks on one device, with and without prefix caching (block manager v2)."""

import heapq
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from typing import Final

from tracekit.model.request import BlockHash

_NEVER_ACCESSED: Final = -1
"""The age of a block that no step has used yet; vLLM's own default time."""


class BlockAllocator:
    """Mirrors ``PrefixCachingBlockAllocator`` and ``NaiveBlockAllocator`` (``vllm/core/block``, 0.6.6); a block is its id.

    Free blocks without content are handed out last freed first. Only when there are none, a cached block that nobody
    uses is evicted: the one unused for longest, then the one deepest in its prefix.
    """

    def __init__(self, num_blocks: int, *, evicts_in_queue_order: bool = False) -> None:
        self.num_blocks = num_blocks
        self._evicts_in_queue_order = evicts_in_queue_order
        self.free_ids: deque[int] = deque(range(num_blocks))
        self.ref_counts = [0] * num_blocks
        self.block_hashes: list[BlockHash | None] = [None] * num_blocks
        self.block_of: dict[BlockHash, int] = {}
        self.last_access = [_NEVER_ACCESSED] * num_blocks
        self.evictable: dict[int, tuple[int, int]] = {}
        """Cached blocks that nobody uses: when they were last used, and minus the tokens up to their end."""
        self._eviction_order: list[tuple[int, int, int]] = []
        self._is_computed = [False] * num_blocks
        self._touched: list[int] = []

    @property
    def num_free_blocks(self) -> int:
        """Blocks that can be handed out, unused cached ones included."""
        return len(self.free_ids) + len(self.evictable)

    def take(self) -> int:
        """Hand out a block without content (``allocate_mutable_block``)."""
        block = self.free_ids.popleft() if self.free_ids else self._evict()
        self.ref_counts[block] = 1
        self.last_access[block] = _NEVER_ACCESSED
        self._is_computed[block] = False
        return block

    def share(self, block_hash: BlockHash) -> int | None:
        """Take a reference to the block with this content, if there is one."""
        block = self.block_of.get(block_hash)
        if block is not None:
            self.ref_counts[block] += 1
            if self.ref_counts[block] == 1:
                del self.evictable[block]
                self.last_access[block] = _NEVER_ACCESSED
                self._is_computed[block] = True
        return block

    def promote(self, block: int, block_hash: BlockHash) -> int:
        """Make a full block findable, or swap it for the one with the same content (``promote_to_immutable_block``)."""
        if block_hash not in self.block_of:
            self.block_of[block_hash] = block
            self.block_hashes[block] = block_hash
            self._touched.append(block)
            return block
        self.free(block, 0)
        shared = self.share(block_hash)
        return block if shared is None else shared

    def free(self, block: int, num_tokens: int) -> None:
        """Give a reference back; ``num_tokens`` up to the end of the block decide who is evicted first."""
        self.ref_counts[block] -= 1
        if self.ref_counts[block]:
            return
        if self.block_hashes[block] is None:
            self.free_ids.appendleft(block)
        else:
            self.evictable[block] = (self.last_access[block], -num_tokens)
            if not self._evicts_in_queue_order:
                heapq.heappush(self._eviction_order, (self.last_access[block], -num_tokens, block))

    def mark_computed(self) -> None:
        """The batch is decided: its new full blocks can be hit from now on (``mark_blocks_as_computed``)."""
        for block in self._touched:
            self._is_computed[block] = True
        self._touched.clear()

    def num_cached(self, hashes: Sequence[BlockHash]) -> int:
        """How many of the first blocks are computed, found by bisection (``find_cached_blocks_prefix``)."""
        return bisect_left(hashes, True, key=lambda block_hash: not self._is_cached(block_hash))

    def _is_cached(self, block_hash: BlockHash) -> bool:
        block = self.block_of.get(block_hash)
        return block is not None and (self.ref_counts[block] == 0 or self._is_computed[block])

    def num_computed(self, blocks: Sequence[int]) -> int:
        """How many of these blocks in use can be skipped (``get_computed_block_ids``, up to 0.6.4)."""
        return sum(self._is_computed[block] for block in blocks)

    def _evict(self) -> int:
        block = self._first_in_queue() if self._evicts_in_queue_order else self._least_recently_used()
        del self.evictable[block]
        block_hash = self.block_hashes[block]
        self.block_hashes[block] = None
        if block_hash is not None:
            del self.block_of[block_hash]
        return block

    def _least_recently_used(self) -> int:
        """Oldest use, then deepest, then lowest id (``LRUEvictor`` from 0.6.5); skips entries that are outdated."""
        while True:
            last_access, _, block = heapq.heappop(self._eviction_order)
            if block in self.evictable and self.evictable[block][0] == last_access:
                return block

    def _first_in_queue(self) -> int:
        """The deepest of the blocks freed first, as long as their last use is not later (``LRUEvictor`` before)."""
        first: int | None = None
        for block, (last_access, depth) in self.evictable.items():
            if first is None:
                first = block
            elif self.evictable[first][0] < last_access:
                break
            elif depth < self.evictable[first][1]:
                first = block
        if first is None:
            msg = "no block is free"
            raise IndexError(msg)
        return first
