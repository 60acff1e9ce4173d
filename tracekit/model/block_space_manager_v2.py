"""V0's block manager v2 (default from 0.6.3): the whole prompt at admission, one block more when a decode needs it."""

from typing import Final, Literal

from tracekit.model.block_allocator_v0 import BlockAllocator
from tracekit.model.prefix_stats import BlockQueries
from tracekit.model.request import Request

AllocStatus = Literal["ok", "watermark", "kv_blocks", "never"]
"""vLLM's OK, LATER (only the watermark is missing, or blocks are) and NEVER."""

WATERMARK: Final = 0.01


class BlockSpaceManagerV2:
    """Mirrors ``SelfAttnBlockSpaceManager``, ``BlockTable`` and ``ComputedBlocksTracker`` (``vllm/core``, 0.6.6)."""

    def __init__(
        self,
        block_size: int,
        num_gpu_blocks: int,
        num_cpu_blocks: int,
        *,
        caching: bool,
        evicts_in_queue_order: bool = False,
    ) -> None:
        self.block_size = block_size
        self.caching = caching
        self.gpu = BlockAllocator(num_gpu_blocks, evicts_in_queue_order=evicts_in_queue_order)
        self.cpu = BlockAllocator(num_cpu_blocks)
        self.watermark_blocks = int(WATERMARK * num_gpu_blocks)
        self._num_slots_filled: dict[str, int] = {}
        """Tokens that have a slot in the request's block table."""
        self._num_cached: dict[str, int] = {}
        """Cached tokens of each request still in prefill, as first looked up."""
        self._last_access: dict[str, int] = {}
        self._num_queries = self._num_hits = 0

    @property
    def num_free_blocks(self) -> int:
        """Free GPU blocks, unused cached ones included."""
        return self.gpu.num_free_blocks

    @property
    def usage(self) -> float:
        """Share of the GPU blocks in use."""
        return 1.0 - self.gpu.num_free_blocks / self.gpu.num_blocks

    @property
    def prefix_cache(self) -> BlockQueries:
        """Full blocks asked for at admissions, and found."""
        return BlockQueries(self._num_queries, self._num_hits)

    def blocks_of(self, request: Request) -> list[int]:
        """The blocks that a request holds, on the GPU or, when it is swapped, on the CPU."""
        return request.block_ids

    def can_allocate(self, request: Request) -> AllocStatus:
        """Whether a waiting request fits now; prefix hits are not looked at (``can_allocate``)."""
        return self._status(-(-request.num_tokens // self.block_size), self.gpu, self.watermark_blocks)

    def allocate(self, request: Request) -> None:
        """Give a request the blocks of all its tokens, cached ones first (``BlockTable.allocate``)."""
        for index in range(request.num_tokens // self.block_size):
            request.block_ids.append(self._full_block(request, index, self.gpu))
        if request.num_tokens % self.block_size:
            request.block_ids.append(self.gpu.take())
        self._num_slots_filled[request.request_id] = request.num_tokens

    def can_append(self, request: Request) -> bool:
        """Whether the next token surely finds a slot: every block touched counts as a new one (``can_append_slots``)."""
        return self._num_touched(request) <= self.gpu.num_free_blocks

    def append(self, request: Request) -> None:
        """Give the tokens that came since a slot; a block that fills up becomes findable (``append_slots``)."""
        filled = self._num_slots_filled[request.request_id]
        while len(request.block_ids) * self.block_size < request.num_tokens:
            request.block_ids.append(self.gpu.take())
        if self.caching:
            for index in range(filled // self.block_size, request.num_tokens // self.block_size):
                request.block_ids[index] = self.gpu.promote(request.block_ids[index], request.block_hash(index))
        self._num_slots_filled[request.request_id] = request.num_tokens

    def free(self, request: Request) -> int:
        """Take all blocks back, first one first, and say how many GPU blocks became free (``free``)."""
        if request.request_id not in self._num_slots_filled:
            return 0
        before = self.gpu.num_free_blocks
        last_access = self._last_access.pop(request.request_id, None)
        allocator = self.cpu if request.is_swapped else self.gpu
        if last_access is not None:
            for block in request.block_ids:
                allocator.last_access[block] = last_access
        self._release(request, allocator)
        request.block_ids = []
        del self._num_slots_filled[request.request_id]
        self._num_cached.pop(request.request_id, None)
        return self.gpu.num_free_blocks - before

    def can_swap_out(self, request: Request) -> bool:
        """Whether the CPU has room for the blocks of a running request."""
        return self._status(self._num_swapped(request), self.cpu, 0) == "ok"

    def can_swap_in(self, request: Request) -> AllocStatus:
        """Whether the GPU has room for the blocks of a swapped request."""
        needed = self._num_swapped(request)
        return "never" if needed > self.gpu.num_blocks else self._status(needed, self.gpu, self.watermark_blocks, 0)

    def swap_out(self, request: Request) -> None:
        """Move the blocks of a request to the CPU."""
        self._move(request, self.gpu, self.cpu)

    def swap_in(self, request: Request) -> None:
        """Move them back."""
        self._move(request, self.cpu, self.gpu)

    def num_cached_tokens(self, request: Request) -> int:
        """Computed tokens that a request in prefill finds cached; looked up once (``ComputedBlocksTracker``)."""
        if not self.caching:
            return 0
        if request.request_id not in self._num_cached:
            hashes = [request.block_hash(index) for index in range(request.num_tokens // self.block_size)]
            self._num_cached[request.request_id] = self.gpu.num_cached(hashes) * self.block_size
        return self._num_cached[request.request_id]

    def num_computed_hits(self, request: Request) -> int:
        """Tokens in blocks of an admitted request that are computed already, its last block left out.

        ``ComputedBlocksTracker`` up to 0.6.4: no decision depends on it, only the device's work does.
        """
        return self.gpu.num_computed(request.block_ids[:-1]) * self.block_size if self.caching else 0

    def forget_lookup(self, request: Request) -> None:
        """Look the request up afresh next time (``remove_seq_from_computed_blocks_tracker``, 0.9.2)."""
        self._num_cached.pop(request.request_id, None)

    def mark_accessed(self, request: Request, now: int) -> None:
        """The request's blocks are used in this step (``access_all_blocks_in_seq``)."""
        if self.caching:
            self._last_access[request.request_id] = now

    def mark_computed(self, scheduled: list[tuple[Request, int]]) -> None:
        """All new full blocks can be hit from the next step on, chunks not yet computed included."""
        del scheduled
        self.gpu.mark_computed()

    def _status(
        self, needed: int, allocator: BlockAllocator, watermark: int, total_watermark: int | None = None
    ) -> AllocStatus:
        if allocator.num_blocks - needed < (watermark if total_watermark is None else total_watermark):
            return "never"
        if allocator.num_free_blocks - needed >= watermark:
            return "ok"
        return "watermark" if allocator.num_free_blocks >= needed else "kv_blocks"

    def _num_touched(self, request: Request) -> int:
        """Blocks that the tokens without a slot would touch (``get_num_blocks_touched_by_append_slots``)."""
        filled = self._num_slots_filled[request.request_id]
        in_last_block = self.block_size - filled % self.block_size
        return 1 + -(-(request.num_tokens - filled - in_last_block) // self.block_size)

    def _num_swapped(self, request: Request) -> int:
        full = self._num_slots_filled[request.request_id] // self.block_size
        return self._num_touched(request) + full

    def _full_block(self, request: Request, index: int, allocator: BlockAllocator) -> int:
        if not self.caching:
            return allocator.take()
        block_hash = request.block_hash(index)
        shared = allocator.share(block_hash)
        self._num_queries += 1
        self._num_hits += shared is not None
        return allocator.promote(allocator.take(), block_hash) if shared is None else shared

    def _release(self, request: Request, allocator: BlockAllocator) -> None:
        for index, block in enumerate(request.block_ids):
            allocator.free(block, (index + 1) * self.block_size)

    def _move(self, request: Request, source: BlockAllocator, target: BlockAllocator) -> None:
        self._release(request, source)
        num_full = self._num_slots_filled[request.request_id] // self.block_size
        request.block_ids = [
            self._full_block(request, index, target) if index < num_full else target.take()
            for index in range(len(request.block_ids))
        ]
