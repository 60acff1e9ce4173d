"""KV blocks of requests: how many they need, which they hit, when they are cached and freed (one full-attention group).

Groups of blocks (sliding window, hybrid models) would make ``Request.block_ids`` one list a group and each method a
loop over groups; lookahead slots of speculation would add to ``num_tokens`` in ``grow`` and ``shortage``.
"""

from collections.abc import Sequence

from tracekit.model.block_pool import BlockPool
from tracekit.model.request import Request
from tracekit.model.rules import Rules


class KVCacheManager:
    """Mirrors ``KVCacheManager`` (``vllm/v1/core/kv_cache_manager.py``, 0.33.0) with ``allocate_slots`` in two parts.

    A running request ``grow``s; a waiting one is admitted in three moves: ``find_hits``, ``shortage`` (what is
    missing, if anything) and ``admit``.
    """

    def __init__(
        self,
        pool: BlockPool,
        block_size: int,
        max_model_len: int,
        rules: Rules,
        *,
        caching: bool,
        watermark_blocks: int,
    ) -> None:
        self.pool = pool
        self.block_size = block_size
        self.caching = caching
        self.watermark_blocks = watermark_blocks
        self._max_blocks = -(-max_model_len // block_size)
        self._num_preallocated = rules.num_preallocated_tokens // block_size
        self._usage_blocks = pool.num_blocks if rules.usage_counts_null_block else pool.num_usable_blocks

    @property
    def usage(self) -> float:
        """Share of the blocks in use (``BlockPool.get_usage``)."""
        return 1.0 - self.pool.num_free_blocks / self._usage_blocks if self._usage_blocks else 0.0

    def grow(self, request: Request, num_new_tokens: int) -> bool:
        """Give a running request the blocks for its next tokens; False when there are not enough free ones.

        Up to ``num_settled_tokens`` there is nothing to do, and the scheduler does not ask.
        """
        num_tokens = request.num_computed_tokens + num_new_tokens
        missing = -(-num_tokens // self.block_size) - len(request.block_ids)
        if missing > 0:
            if missing > self.pool.num_free_blocks:
                return False
            self._take(request, missing)
        self.cache_blocks(request, min(num_tokens, request.num_tokens))
        return True

    def find_hits(self, request: Request) -> list[int]:
        """The longest cached prefix, at most all tokens but one (``get_computed_blocks``)."""
        hits: list[int] = []
        if self.caching:
            for index in range((request.num_tokens - 1) // self.block_size):
                block = self.pool.find(request.block_hash(index))
                if block is None:
                    break
                hits.append(block)
        return hits

    def shortage(
        self, request: Request, hits: Sequence[int], num_tokens: int, *, full_prompt: bool, watermark: bool
    ) -> str | None:
        """What forbids admitting a request with ``num_tokens`` computed after this step, or None.

        Hit blocks in the free queue count against the free ones, since they will leave it. ``allocate_slots`` with
        ``full_sequence_must_fit`` (0.19.0 and later) tests the whole request first; the answer is the same.
        """
        free = self.pool.num_free_blocks - sum(not self.pool.ref_counts[block] for block in hits) + len(hits)
        reserve = self.watermark_blocks if watermark else 0
        needed = -(-num_tokens // self.block_size)
        if needed > free:
            return "kv_blocks"
        if needed + reserve > free:
            return "watermark"
        if full_prompt:
            needed = max(needed, -(-request.num_tokens // self.block_size))
            if needed > free:
                return "full_prompt_reservation"
            if needed + reserve > free:
                return "watermark"
        return None

    def admit(self, request: Request, hits: list[int], num_tokens: int) -> None:
        """Give a waiting request its hits and the blocks for ``num_tokens`` (checked by ``shortage`` before)."""
        self.pool.touch(hits)
        request.block_ids = hits
        request.num_hashed_blocks = len(hits)
        missing = -(-num_tokens // self.block_size) - len(hits)
        if missing > 0:
            self._take(request, missing)
        self.cache_blocks(request, min(num_tokens, request.num_tokens))

    def cache_blocks(self, request: Request, num_tokens: int) -> None:
        """Make the full blocks among the first ``num_tokens`` findable (``cache_blocks``)."""
        capacity = len(request.block_ids) * self.block_size
        if not self.caching:
            request.num_settled_tokens = capacity
            return
        for index in range(request.num_hashed_blocks, num_tokens // self.block_size):
            self.pool.store(request.block_ids[index], request.block_hash(index))
            request.num_hashed_blocks = index + 1
        next_full = (request.num_hashed_blocks + 1) * self.block_size
        request.num_settled_tokens = min(next_full - 1, capacity)

    def free(self, request: Request) -> int:
        """Take all blocks of a request back, tail first, and say how many became free."""
        before = self.pool.num_free_blocks
        self.pool.free(reversed(request.block_ids))
        request.block_ids = []
        request.num_hashed_blocks = request.num_settled_tokens = 0
        return self.pool.num_free_blocks - before

    def _take(self, request: Request, missing: int) -> None:
        if self._num_preallocated:
            missing = min(
                missing + self._num_preallocated,
                self.pool.num_free_blocks,
                self._max_blocks - len(request.block_ids),
            )
        request.block_ids.extend(self.pool.take(missing))
