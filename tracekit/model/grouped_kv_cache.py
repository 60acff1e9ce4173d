"""KV blocks where layers are of several kinds: one table of blocks a group, behind a window nothing is kept.

Groups share one pool of block numbers. A full-attention group keeps every token; a sliding-window group gives the blocks
back that left the window, each time its request asks for more. Mirrors ``HybridKVCacheCoordinator``
(``vllm/v1/core/kv_cache_coordinator.py``), ``FullAttentionManager`` and ``SlidingWindowManager``
(``single_type_kv_cache_manager.py``), 0.33.0, for groups of one block size.
"""

from collections.abc import Mapping, Sequence

from tracekit.model.block_pool import BlockPool
from tracekit.model.request import Request
from tracekit.model.rules import EngineCrashError, Rules

Hit = tuple[int | None, ...]
"""The cached block of each group at one position; None: behind the window, not needed."""


class GroupedKVCacheManager:
    """The same moves as ``KVCacheManager``, over groups.

    ``windows``: one entry a group in the planner's order, None for full attention. A hit is as long for every group:
    the longest prefix of which the full groups have every block and each sliding group the blocks of its window.
    """

    def __init__(
        self,
        pool: BlockPool,
        windows: Sequence[int | None],
        block_size: int,
        rules: Rules,
        *,
        caching: bool,
        watermark_blocks: int,
        max_in_flight_tokens: int,
        max_model_len: int,
    ) -> None:
        self.pool = pool
        self.windows = tuple(windows)
        self.block_size = block_size
        self.caching = caching
        self.watermark_blocks = watermark_blocks
        self.rules = rules.window
        self.in_flight: dict[str, int] = {}
        """Tokens of each request in steps whose output has not been processed."""
        self._usage_blocks = pool.num_blocks if rules.usage_counts_null_block else pool.num_usable_blocks
        self._tables: dict[str, list[list[int | None]]] = {}
        self._kinds = sorted(set(self.windows), key=lambda window: (window is not None, self.windows.index(window)))
        self._caps = [
            None if window is None else -(-min(window - 1 + max_in_flight_tokens, max_model_len) // block_size) + 1
            for window in self.windows
        ]

    @property
    def usage(self) -> float:
        """Share of the blocks in use."""
        return 1.0 - self.pool.num_free_blocks / self._usage_blocks if self._usage_blocks else 0.0

    def tables(self, request: Request) -> list[list[int | None]]:
        """The blocks of a request, a list a group; None where a block left the window."""
        return self._tables.get(request.request_id, [[] for _ in self.windows])

    def launched(self, scheduled: Mapping[str, int]) -> None:
        """Note the tokens of a step whose output is awaited."""
        for request_id, num_tokens in scheduled.items():
            self.in_flight[request_id] = self.in_flight.get(request_id, 0) + num_tokens

    def processed(self, scheduled: Mapping[str, int]) -> None:
        """Strike out the tokens of a step whose output has come."""
        for request_id, num_tokens in scheduled.items():
            left = self.in_flight.pop(request_id) - num_tokens
            if left:
                self.in_flight[request_id] = left

    def grow(self, request: Request, num_new_tokens: int) -> bool:
        """Give a running request the blocks for its next tokens; False when there are not enough free ones.

        What left the windows is given back first, whether or not the request gets what it asks for.
        """
        tables = self._tables[request.request_id]
        self._leave_behind(request, tables)
        num_tokens = request.num_computed_tokens + num_new_tokens
        required = -(-num_tokens // self.block_size)
        missing = sum(max(self._capped(group, required) - len(table), 0) for group, table in enumerate(tables))
        if missing > self.pool.num_free_blocks:
            return False
        self._take(tables, required)
        self.cache_blocks(request, min(num_tokens, request.num_tokens))
        return True

    def find_hits(self, request: Request) -> list[Hit]:
        """The longest cached prefix that every group can resume from, at most all tokens but one."""
        if not self.caching:
            return []
        length = (request.num_tokens - 1) // self.block_size
        found: dict[int | None, list[Hit]] = {}
        # With two kinds the second one's answer stands; with more, a shorter answer is asked for again.
        while True:
            asked = length
            for window in self._kinds:
                if window is None and window in found:
                    length = min(length, len(found[window]))
                    continue
                hits = self._search(request, window, length)
                found[window] = hits
                length = len(hits)
            if length >= asked or (len(self._kinds) <= 2 and None in self._kinds):  # noqa: PLR2004 - two kinds
                break
        at = {group: place for window in self._kinds for place, group in enumerate(self._members(window))}
        return [
            tuple(found[window][position][at[group]] for group, window in enumerate(self.windows))
            for position in range(length)
        ]

    def shortage(
        self, request: Request, hits: Sequence[Hit], num_tokens: int, *, full_prompt: bool, watermark: bool
    ) -> str | None:
        """What forbids admitting a request with ``num_tokens`` computed after this step, or None."""
        free = self.pool.num_free_blocks
        reserve = self.watermark_blocks if watermark else 0
        needed = self._needed(hits, num_tokens, capped=self.rules.cap == "always")
        if needed > free:
            return "kv_blocks"
        if needed + reserve > free:
            return "watermark"
        if full_prompt:
            needed = self._needed(hits, request.num_tokens, capped=self.rules.cap != "none")
            if needed > free:
                return "full_prompt_reservation"
            if needed + reserve > free:
                return "watermark"
        return None

    def admit(self, request: Request, hits: Sequence[Hit], num_tokens: int) -> None:
        """Give a waiting request its hits and the blocks for ``num_tokens`` (checked by ``shortage`` before)."""
        tables: list[list[int | None]] = []
        for group in range(len(self.windows)):
            skipped = self._num_behind(group, len(hits) * self.block_size)
            kept = [hit[group] for hit in hits[skipped:]]
            self.pool.touch(block for block in kept if block is not None)
            tables.append([*([None] * min(skipped, len(hits))), *kept])
        self._tables[request.request_id] = tables
        request.num_hashed_blocks = len(hits)
        self._take(tables, -(-num_tokens // self.block_size))
        self.cache_blocks(request, min(num_tokens, request.num_tokens))

    def cache_blocks(self, request: Request, num_tokens: int) -> None:
        """Make the full blocks among the first ``num_tokens`` findable, each group's under its own name."""
        # Whatever a step computes, a window may have moved: the scheduler has to ask each time.
        request.num_settled_tokens = 0
        num_full = num_tokens // self.block_size
        if not self.caching or num_full <= request.num_hashed_blocks:
            return
        for group, table in enumerate(self._tables[request.request_id]):
            for index in range(request.num_hashed_blocks, num_full):
                block = table[index]
                if block is not None:
                    self.pool.store(block, (group, request.block_hash(index)))
        request.num_hashed_blocks = num_full

    def free(self, request: Request) -> int:
        """Take all blocks of a request back, group by group and tail first; how many became free."""
        before = self.pool.num_free_blocks
        for window, table in zip(self.windows, self._tables.pop(request.request_id, []), strict=False):
            first = self.rules.unhashed_first and window is not None
            self.pool.free((block for block in reversed(table) if block is not None), unhashed_first=first)
        request.num_hashed_blocks = request.num_settled_tokens = 0
        return self.pool.num_free_blocks - before

    def _members(self, window: int | None) -> list[int]:
        return [group for group, found in enumerate(self.windows) if found == window]

    def _num_behind(self, group: int, num_computed_tokens: int) -> int:
        """Leading blocks that no later token of the group attends to (``get_num_skipped_tokens``)."""
        window = self.windows[group]
        return 0 if window is None else max(0, num_computed_tokens - window + 1) // self.block_size

    def _leave_behind(self, request: Request, tables: list[list[int | None]]) -> None:
        """Give back what left the windows (``remove_skipped_blocks``), the latest first."""
        processed = request.num_computed_tokens
        if self.rules.frees_behind_processed:
            processed -= self.in_flight.get(request.request_id, 0)
        for group, table in enumerate(tables):
            left = []
            for index in range(min(self._num_behind(group, processed), len(table)) - 1, -1, -1):
                block = table[index]
                if block is None:
                    break
                left.append(block)
                table[index] = None
            if left:
                self.pool.free(left, unhashed_first=self.rules.unhashed_first)

    def _search(self, request: Request, window: int | None, most: int) -> list[Hit]:
        """The longest hit of the groups with this window, at most ``most`` blocks."""
        members = self._members(window)
        if window is None:
            hits: list[Hit] = []
            while len(hits) < most and (blocks := self._cached(request, members, len(hits))) is not None:
                hits.append(blocks)
            return hits
        wanted = -(-(window - 1) // self.block_size)
        nothing: Hit = (None,) * len(members)
        found = [nothing] * most
        in_a_row = 0
        for index in range(most - 1, -1, -1):
            blocks = self._cached(request, members, index)
            if blocks is None:
                in_a_row = 0
                continue
            found[index] = blocks
            in_a_row += 1
            if in_a_row >= wanted:
                return found[: index + in_a_row]
        return found[:in_a_row]

    def _cached(self, request: Request, groups: Sequence[int], index: int) -> Hit | None:
        """Each group's block of this content, or None when one of them has none."""
        name = request.block_hash(index)
        blocks = [self.pool.find((group, name)) for group in groups]
        return None if None in blocks else tuple(blocks)

    def _needed(self, hits: Sequence[Hit], num_tokens: int, *, capped: bool) -> int:
        """Free blocks that an admission takes: new ones, and hits that are in the free queue."""
        needed = 0
        for group in range(len(self.windows)):
            required = -(-num_tokens // self.block_size)
            cap = self._caps[group]
            if capped and cap is not None:
                required = min(required, cap)
            skipped = self._num_behind(group, len(hits) * self.block_size)
            needed += max(required - max(skipped, len(hits)), 0)
            kept = (hit[group] for hit in hits[skipped:])
            needed += sum(block is not None and not self.pool.ref_counts[block] for block in kept)
        return needed

    def _capped(self, group: int, required: int) -> int:
        cap = self._caps[group]
        return min(required, cap) if cap is not None and self.rules.cap == "always" else required

    def _take(self, tables: list[list[int | None]], required: int) -> None:
        for table in tables:
            missing = required - len(table)
            if missing > self.pool.num_free_blocks:
                msg = (
                    "vLLM 0.20.0 and 0.20.1 crash here (ValueError): a sliding window's blocks are capped when they are "
                    "counted and not when they are taken"
                )
                raise EngineCrashError(msg)
            if missing > 0:
                table.extend(self.pool.take(missing))
