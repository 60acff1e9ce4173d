"""What V0 gathers while it decides a step: the budget, the parts of the batch, the tokens of a request."""

from tracekit.model.block_space_manager import BlockSpaceManager
from tracekit.model.request import Request
from tracekit.model.rules import Rules


class SchedulingBudget:
    """Batched tokens and requests, each request counted once (``vllm/core/scheduler.py``, 0.6.6)."""

    def __init__(self, token_budget: int, max_num_seqs: int) -> None:
        self.token_budget = token_budget
        self.max_num_seqs = max_num_seqs
        self.num_batched_tokens = 0
        self._tokens_of: dict[str, int] = {}
        self._running: dict[str, None] = {}

    @property
    def num_seqs(self) -> int:
        """Requests counted so far."""
        return len(self._running)

    @property
    def num_tokens_left(self) -> int:
        """Tokens that may still be batched."""
        return self.token_budget - self.num_batched_tokens

    def add(self, request_id: str, num_tokens: int) -> None:
        """Count a request and its tokens."""
        if request_id not in self._tokens_of:
            self._tokens_of[request_id] = num_tokens
            self.num_batched_tokens += num_tokens
        self.add_running(request_id)

    def add_running(self, request_id: str) -> None:
        """Count a request whose tokens are not known yet."""
        self._running[request_id] = None

    def remove(self, request_id: str, num_tokens: int) -> None:
        """Stop counting a request."""
        if self._tokens_of.pop(request_id, None) is not None:
            self.num_batched_tokens -= num_tokens
        self._running.pop(request_id, None)

    def missing(self, num_tokens: int) -> str | None:
        """Which limit one more request with so many tokens would break, or None."""
        if self.num_batched_tokens + num_tokens > self.token_budget:
            return "token_budget"
        if self.num_seqs + 1 > self.max_num_seqs:
            return "max_num_seqs"
        return None


class Batch:
    """(request, tokens) as the parts of a step schedule them, before they are put in order."""

    def __init__(self) -> None:
        self.new: list[tuple[Request, int]] = []
        self.running_prefills: list[tuple[Request, int]] = []
        self.running_decodes: list[tuple[Request, int]] = []
        self.swapped_prefills: list[tuple[Request, int]] = []
        self.swapped_decodes: list[tuple[Request, int]] = []
        self.preempted: list[Request] = []
        self.swapped_out: list[Request] = []


def num_new_tokens(
    request: Request, budget: SchedulingBudget, kv_cache: BlockSpaceManager, rules: Rules, *, chunked: bool
) -> tuple[int, int]:
    """Tokens to compute and cached tokens of a request (``_get_num_new_uncached_and_cached_tokens``, 0.6.6).

    A prompt that is cached to its end computes its last token again. Chunks are cut to the budget left, with prefix
    caching to a multiple of the block size.
    """
    num_new, num_cached = 1, 0
    if request.is_prefill_chunk:
        num_new = request.num_tokens - request.num_computed_tokens
        if kv_cache.caching and not rules.v0_cached_tokens_cost:
            num_cached = max(kv_cache.num_cached_tokens(request) - request.num_computed_tokens, 0)
            num_new -= num_cached
        if num_new == 0 and num_cached:
            num_new, num_cached = 1, num_cached - 1
    if chunked:
        left = budget.num_tokens_left
        rounds = kv_cache.caching and rules.v0_rounds_chunks
        if rounds and not (rules.v0_cached_tokens_cost and num_new <= left):
            left -= left % kv_cache.block_size
        num_new = min(num_new, left)
    return num_new, num_cached
