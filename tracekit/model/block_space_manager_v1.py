"""V0's first block manager (default up to 0.6.2; nothing to do with the V1 engine)."""

from collections import OrderedDict
from itertools import count, takewhile

from tracekit.model.block_space_manager_v2 import WATERMARK, AllocStatus
from tracekit.model.prefix_stats import BlockQueries
from tracekit.model.request import BlockHash, Request


class _Block:
    """A physical block and what the allocator knows of it (``PhysicalTokenBlock``)."""

    __slots__ = ("content", "is_computed", "last_access", "num_hashed_tokens", "ref_count")

    def __init__(self, content: BlockHash, num_hashed_tokens: int) -> None:
        self.content = content
        self.num_hashed_tokens = num_hashed_tokens
        self.ref_count = 0
        self.last_access = 0
        self.is_computed = False


class _Allocator:
    """``CachedBlockAllocator``: every block has a content, if only a number of its own; unused ones wait for eviction."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.num_queries = self.num_hits = 0
        self._num_made = 0
        self._used: dict[BlockHash, _Block] = {}
        self._unused: OrderedDict[BlockHash, _Block] = OrderedDict()

    @property
    def num_free_blocks(self) -> int:
        return self.num_blocks - self._num_made + len(self._unused)

    def holds(self, content: BlockHash) -> bool:
        return content in self._used or content in self._unused

    def allocate(self, content: BlockHash, num_hashed_tokens: int) -> _Block:
        self.num_queries += 1
        self.num_hits += self.holds(content)
        if content in self._unused:
            self._used[content] = self._unused.pop(content)
        elif content not in self._used:
            self._used[content] = self._make(content, num_hashed_tokens)
        block = self._used[content]
        block.ref_count += 1
        return block

    def rename(self, block: _Block, content: BlockHash) -> None:
        del self._used[block.content]
        block.content = content
        self._used[content] = block

    def free(self, block: _Block) -> None:
        block.ref_count -= 1
        if not block.ref_count:
            self._unused[block.content] = self._used.pop(block.content)

    def _make(self, content: BlockHash, num_hashed_tokens: int) -> _Block:
        if self._num_made < self.num_blocks:
            self._num_made += 1
            return _Block(content, num_hashed_tokens)
        block = self._evict()
        block.content = content
        block.num_hashed_tokens = num_hashed_tokens
        return block

    def _evict(self) -> _Block:
        """The deepest of the blocks freed first, as long as their last use is not later (``LRUEvictor.evict``)."""
        evicted = next(iter(self._unused.values()))
        for block in self._unused.values():
            if evicted.last_access < block.last_access:
                break
            if evicted.num_hashed_tokens < block.num_hashed_tokens:
                evicted = block
        del self._unused[evicted.content]
        evicted.is_computed = False
        return evicted


class BlockSpaceManagerV1:
    """Mirrors ``BlockSpaceManagerV1`` (``vllm/core/block_manager_v1.py``, 0.6.2).

    Differences: without prefix caching every block has a number of its own as content, which decides the same. A
    prompt's last, partial block is shared in vLLM by requests with the same whole prompt; here only by the request
    itself when it comes back with the same tokens.
    """

    def __init__(
        self,
        block_size: int,
        num_gpu_blocks: int,
        num_cpu_blocks: int,
        *,
        caching: bool,
        last_full_block_counts: bool,
    ) -> None:
        self.block_size = block_size
        self.caching = caching
        self.watermark_blocks = int(WATERMARK * num_gpu_blocks)
        self._last_full_block_counts = last_full_block_counts
        self._gpu = _Allocator(num_gpu_blocks)
        self._cpu = _Allocator(num_cpu_blocks)
        self._tables: dict[str, list[_Block]] = {}
        self._numbers = count()

    @property
    def num_free_blocks(self) -> int:
        """Free GPU blocks, unused cached ones included."""
        return self._gpu.num_free_blocks

    @property
    def usage(self) -> float:
        """Share of the GPU blocks in use."""
        return 1.0 - self._gpu.num_free_blocks / self._gpu.num_blocks

    @property
    def prefix_cache(self) -> BlockQueries:
        """Blocks asked for, partial ones included, and found."""
        return BlockQueries(self._gpu.num_queries, self._gpu.num_hits) if self.caching else BlockQueries(0, 0)

    def blocks_of(self, request: Request) -> list[_Block]:
        """The blocks that a request holds, on the GPU or, when it is swapped, on the CPU."""
        return self._tables.get(request.request_id, [])

    def can_allocate(self, request: Request) -> AllocStatus:
        """Whether a waiting request fits now; prefix hits are not looked at."""
        needed = -(-request.num_tokens // self.block_size)
        return "never" if self._gpu.num_blocks - needed < self.watermark_blocks else self._status(needed)

    def allocate(self, request: Request) -> None:
        """Give a request the blocks of all its tokens, cached ones first."""
        self._tables[request.request_id] = [
            self._gpu.allocate(self._content(request, index), (index + 1) * self.block_size)
            for index in range(-(-request.num_tokens // self.block_size))
        ]

    def can_append(self, request: Request) -> bool:
        """Whether the next token surely finds a slot: one block must be free, needed or not."""
        del request
        return self._gpu.num_free_blocks > 0

    def append(self, request: Request) -> None:
        """Give the newest token a slot; a block that fills up becomes findable (``append_slots``)."""
        table = self._tables[request.request_id]
        last = -(-request.num_tokens // self.block_size) - 1
        is_full = request.num_tokens % self.block_size == 0
        if len(table) <= last:
            table.append(self._new_block(request, last, is_full=is_full))
            return
        block = table[-1]
        if block.ref_count > 1:
            table[-1] = self._new_block(request, last, is_full=is_full)
            self._gpu.free(block)
        elif self.caching and is_full:
            content = self._content(request, last)
            if self._gpu.holds(content):
                self._gpu.free(block)
                table[-1] = self._gpu.allocate(content, 0)
            else:
                self._gpu.rename(block, content)

    def free(self, request: Request) -> int:
        """Take all blocks back and say how many GPU blocks became free."""
        before = self._gpu.num_free_blocks
        allocator = self._cpu if request.is_swapped else self._gpu
        for block in self._tables.pop(request.request_id, ()):
            allocator.free(block)
        return self._gpu.num_free_blocks - before

    def can_swap_out(self, request: Request) -> bool:
        """Whether the CPU has room for the blocks of a running request."""
        return len(self._tables[request.request_id]) <= self._cpu.num_free_blocks

    def can_swap_in(self, request: Request) -> AllocStatus:
        """Whether the GPU has room for the blocks of a swapped request and one more."""
        needed = len(self._tables[request.request_id]) + 1
        return "never" if self._gpu.num_blocks < needed else self._status(needed)

    def swap_out(self, request: Request) -> None:
        """Move the blocks of a request to the CPU."""
        self._move(request, self._gpu, self._cpu)

    def swap_in(self, request: Request) -> None:
        """Move them back."""
        self._move(request, self._cpu, self._gpu)

    def num_cached_tokens(self, request: Request) -> int:
        """Nothing is known before admission."""
        del request
        return 0

    def num_computed_hits(self, request: Request) -> int:
        """Tokens in the computed blocks that an admitted request begins with, its last block left out."""
        if not self.caching:
            return 0
        table = self._tables[request.request_id][:-1]
        return sum(1 for _ in takewhile(lambda block: block.is_computed, table)) * self.block_size

    def forget_lookup(self, request: Request) -> None:
        """There is no lookup to forget."""

    def mark_accessed(self, request: Request, now: int) -> None:
        """The request's blocks are used in this step (``access_all_blocks_in_seq``)."""
        for block in self._tables[request.request_id]:
            block.last_access = now

    def mark_computed(self, scheduled: list[tuple[Request, int]]) -> None:
        """The full blocks of the batch count as computed from the next step on (``compute_full_blocks_in_seq``).

        Up to 0.5.5 these are all full blocks of a request but the last, computed or not.
        """
        for request, num_tokens in scheduled:
            if self._last_full_block_counts:
                num_full = (request.num_computed_tokens + num_tokens) // self.block_size
            else:
                num_full = request.num_tokens // self.block_size - 1
            for block in reversed(self._tables[request.request_id][: max(num_full, 0)]):
                if block.is_computed:
                    break
                block.is_computed = True

    def _status(self, needed: int) -> AllocStatus:
        if self._gpu.num_free_blocks - needed >= self.watermark_blocks:
            return "ok"
        return "watermark" if self._gpu.num_free_blocks >= needed else "kv_blocks"

    def _content(self, request: Request, index: int) -> BlockHash:
        if not self.caching:
            return self._unique()
        if (index + 1) * self.block_size <= request.num_tokens:
            return request.block_hash(index)
        return (f"{request.request_id}, partial", request.num_tokens)

    def _unique(self) -> BlockHash:
        return ("", next(self._numbers))

    def _new_block(self, request: Request, index: int, *, is_full: bool) -> _Block:
        content = self._content(request, index) if is_full else self._unique()
        return self._gpu.allocate(content, (index + 1) * self.block_size)

    def _move(self, request: Request, source: _Allocator, target: _Allocator) -> None:
        moved = []
        for block in self._tables[request.request_id]:
            moved.append(target.allocate(block.content, block.num_hashed_tokens))
            source.free(block)
        self._tables[request.request_id] = moved
