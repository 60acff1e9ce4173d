"""One request as the scheduler sees it: lengths, progress and block hashes, never the tokens themselves."""

from collections.abc import Sequence
from enum import Enum

BlockHash = int | tuple[str, int] | tuple[int, "int | tuple[str, int]"]
"""Content of one full KV block and of all before it: a chained hash, or (request_id, block) when no other has it.

Where groups of layers have tables of their own, it is (group, content)."""


class RequestStatus(Enum):
    """Where a request is (V1: ``RequestStatus`` in ``vllm/v1/request.py``; SWAPPED exists in V0 only)."""

    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    SWAPPED = "swapped"
    FINISHED = "finished"


class Request:
    """Mirrors ``Request`` (``vllm/v1/request.py``, 0.33.0) with counts for token ids.

    ``num_output_tokens`` is what the request produces if left alone: below ``max_tokens`` it is a stop that the
    scheduler cannot foresee. ``max_tokens`` None means up to ``max_model_len``. ``block_hashes`` are chained content
    hashes of full blocks of ``block_size`` tokens and may name blocks that will be generated; blocks behind them have
    content of their own. ``arrival_order`` breaks ties of priority (vLLM's ``arrival_time``).
    """

    __slots__ = (
        "arrival_order",
        "block_hashes",
        "block_ids",
        "finish_reason",
        "is_prefill_chunk",
        "max_tokens",
        "num_cached_tokens",
        "num_computed_tokens",
        "num_hashed_blocks",
        "num_lost_tokens",
        "num_output_placeholders",
        "num_output_tokens",
        "num_outputs_to_drop",
        "num_preemptions",
        "num_prompt_tokens",
        "num_recomputed_tokens",
        "num_settled_tokens",
        "num_tokens",
        "priority",
        "request_id",
        "schedule_limit",
        "status",
        "stop_length",
    )

    def __init__(
        self,
        request_id: str,
        num_prompt_tokens: int,
        max_tokens: int | None,
        num_output_tokens: int,
        block_hashes: Sequence[int] = (),
        priority: int = 0,
        arrival_order: float = 0,
    ) -> None:
        self.request_id = request_id
        self.num_prompt_tokens = num_prompt_tokens
        self.max_tokens = max_tokens
        self.num_output_tokens = num_output_tokens
        self.block_hashes = block_hashes
        self.priority = priority
        self.arrival_order = arrival_order
        self.status = RequestStatus.WAITING
        self.finish_reason: str | None = None
        self.num_tokens = num_prompt_tokens
        """Prompt plus the outputs that have arrived."""
        self.num_computed_tokens = 0
        self.num_output_placeholders = 0
        """Outputs of steps in flight (asynchronous scheduling)."""
        self.num_outputs_to_drop = 0
        """Outputs in flight that a cache reset made worthless."""
        self.is_prefill_chunk = False
        """The last step of this request ended before its last known token, so it sampled nothing."""
        self.block_ids: list[int] = []
        self.num_hashed_blocks = 0
        self.num_settled_tokens = 0
        """V1: up to so many tokens the KV cache needs no new block and has no block to hash."""
        self.num_cached_tokens = 0
        """Prefix-cache hits at the first admission."""
        self.num_preemptions = 0
        self.num_lost_tokens = 0
        """Computed tokens that the last preemption threw away."""
        self.num_recomputed_tokens = 0
        """Tokens that preemptions made the engine compute again (those that hit the prefix cache excluded)."""
        self.stop_length = 0
        """Number of tokens at which the request finishes; known to the scheduler when it happens, not before."""
        self.schedule_limit = 0
        """Most tokens that the scheduler will compute for this request; both set when it is added."""

    @property
    def num_generated_tokens(self) -> int:
        """Outputs that have arrived."""
        return self.num_tokens - self.num_prompt_tokens

    @property
    def is_finished(self) -> bool:
        """Whether it has ended, however it ended."""
        return self.status is RequestStatus.FINISHED

    @property
    def is_swapped(self) -> bool:
        """V0: its blocks are on the CPU."""
        return self.status is RequestStatus.SWAPPED

    def block_hash(self, index: int) -> int | tuple[str, int]:
        """The content of full block ``index``."""
        if index < len(self.block_hashes):
            return self.block_hashes[index]
        return (self.request_id, index)

    def set_limits(self, max_model_len: int, *, foresees_max_tokens: bool) -> None:
        """Derive where the request stops and how far it may be scheduled (``check_stop``, ``schedule``)."""
        longest = max_model_len
        if self.max_tokens is not None:
            longest = min(longest, self.num_prompt_tokens + self.max_tokens)
        self.stop_length = min(longest, self.num_prompt_tokens + max(self.num_output_tokens, 1))
        self.schedule_limit = (longest if foresees_max_tokens else max_model_len) - 1

    def stop_reason(self, longest: int) -> str:
        """Why a request that reached ``stop_length`` ended; ``longest`` is the most tokens a request may have."""
        at_limit = self.num_tokens >= longest or self.num_generated_tokens == self.max_tokens
        return "length" if at_limit else "stop"

    def __repr__(self) -> str:
        return (
            f"Request({self.request_id!r}, {self.status.value}, computed {self.num_computed_tokens} "
            f"of {self.num_tokens}+{self.num_output_placeholders} tokens)"
        )
