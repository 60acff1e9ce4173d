"""V1's two brakes on prefill: the token threshold of one request and the interval between prefills."""

from collections.abc import Iterable

from tracekit.config import EngineConfig
from tracekit.model.request import Request
from tracekit.model.rules import Rules


def long_prefill_threshold(config: EngineConfig, rules: Rules, num_requests: int) -> int | None:
    """Most tokens of one request in a step with so many running and waiting (``schedule``, 0.33.0), None for no limit."""
    threshold = config.long_prefill_token_threshold
    if not threshold or not rules.has_long_prefill_threshold:
        return None
    if rules.unchunked_clears_threshold and not (config.enable_chunked_prefill or config.enable_prefix_caching):
        return None
    if rules.threshold_spares_lone_request:
        if num_requests <= 1:
            return None
        if config.long_prefill_token_threshold_adaptive:
            return max(threshold, config.max_num_batched_tokens // num_requests)
    return threshold


class PrefillInterval:
    """Holds prefills back so that decodes run undisturbed (``prefill_schedule_interval`` in ``schedule``, 0.33.0).

    Steps that schedule nothing do not count. A step after which somebody still waits lifts the hold until one drains
    the queue.
    """

    def __init__(self, config: EngineConfig, rules: Rules) -> None:
        applies = rules.has_prefill_interval and config.data_parallel_size == 1
        self.interval = config.prefill_schedule_interval if applies else 1
        self._num_executed_steps = 0
        self._last_prefill_step = -self.interval
        self._capacity_bound = False

    def holds(self, running: Iterable[Request]) -> bool:
        """Whether the step about to be decided leaves prefills alone."""
        return (
            self.interval > 1
            and not self._capacity_bound
            and self._num_executed_steps + 1 - self._last_prefill_step < self.interval
            and any(not request.is_prefill_chunk for request in running)
        )

    def queue_seen(self, num_waiting: int) -> None:
        """A step without hold went through the waiting queue and left so many."""
        self._capacity_bound = num_waiting > 0

    def step_decided(self, *, has_tokens: bool, carries_prefill: bool) -> None:
        """Count a step and remember whether it carried prefill."""
        self._num_executed_steps += has_tokens
        if carries_prefill:
            self._last_prefill_step = self._num_executed_steps
