"""V1's scheduler: which requests run in a step, with how many tokens, and who loses its KV blocks.

Mirrors ``Scheduler`` and ``AsyncScheduler`` (``vllm/v1/core/sched``, 0.33.0; older versions by ``Rules``), plain
attention without speculation, encoders, LoRA or KV connectors. Differences in form: a request carries its own blocks;
a plan carries its requests; the tokens of a step are known as soon as it is planned, the text of them never.

Asynchronous scheduling: the caller keeps up to two plans in flight, ``schedule()`` of step k before ``update()`` of
step k - 1. Invariants: ``tracekit.model.invariants``.
"""

from collections import deque
from typing import Any

from tracekit.config import EngineConfig
from tracekit.errors import ConfigError
from tracekit.model.block_pool import BlockPool
from tracekit.model.grouped_kv_cache import GroupedKVCacheManager
from tracekit.model.kv_cache import KVCacheManager
from tracekit.model.plan import Preemption, StepOutput, StepPlan
from tracekit.model.prefill_limits import PrefillInterval, long_prefill_threshold
from tracekit.model.prefix_stats import PrefixCacheStats
from tracekit.model.request import Request, RequestStatus
from tracekit.model.request_queue import FcfsQueue, PriorityQueue
from tracekit.model.rules import EngineCrashError, Rules

__all__ = ["Preemption", "Scheduler", "StepOutput", "StepPlan"]


class Scheduler:
    """The decisions of one engine, step by step."""

    def __init__(self, config: EngineConfig, rules: Rules) -> None:
        self.config = config
        self.rules = rules
        self.by_priority = config.scheduling_policy == "priority" and rules.has_priority
        self.waiting: FcfsQueue | PriorityQueue = (
            PriorityQueue(equal_arrivals_crash=rules.equal_arrivals_crash) if self.by_priority else FcfsQueue()
        )
        self.running: list[Request] = []
        self.requests: dict[str, Request] = {}
        pool = BlockPool(
            config.num_gpu_blocks,
            has_null_block=rules.has_null_block,
            unhashed_blocks_first=rules.unhashed_blocks_first,
        )
        watermark_blocks = int(config.watermark * config.num_gpu_blocks) if rules.has_watermark else 0
        self.grouped = _grouped(config, rules, pool, watermark_blocks)
        self.kv_cache = self.grouped or KVCacheManager(
            pool,
            config.block_size,
            config.max_model_len,
            rules,
            caching=config.enable_prefix_caching,
            watermark_blocks=watermark_blocks,
        )
        self.prefix_cache = PrefixCacheStats(rules.prefix_stats, config.block_size)
        self.max_num_active = config.max_num_seqs
        if rules.has_active_limit and config.max_num_active_seqs is not None:
            self.max_num_active = config.max_num_active_seqs
        self.full_prompt_gate = rules.full_prompt_gate and config.scheduler_reserve_full_isl
        self.prefill_interval = PrefillInterval(config, rules)

    @property
    def has_requests(self) -> bool:
        """Whether anything is running or waiting."""
        return bool(self.requests)

    def add_request(self, request: Request) -> None:
        """Let a request join the waiting queue (``add_request``)."""
        request.set_limits(self.config.max_model_len, foresees_max_tokens=self.rules.foresees_max_tokens)
        self.requests[request.request_id] = request
        self.waiting.add(request)

    def abort_request(self, request_id: str) -> bool:
        """End a request whose client is gone (``finish_requests``); False when it is not here (any more)."""
        request = self.requests.get(request_id)
        if request is None:
            return False
        if request.status is RequestStatus.RUNNING:
            self.running.remove(request)
        else:
            self.waiting.remove(request)
        self._finish(request, "abort")
        return True

    def schedule(self) -> StepPlan:
        """Decide one step: running requests first, then, unless it preempted, waiting ones."""
        plan = StepPlan()
        threshold = long_prefill_threshold(self.config, self.rules, len(self.running) + len(self.waiting))
        hold_prefills = self.prefill_interval.holds(self.running)
        token_budget, carries_prefill = self._schedule_running(plan, threshold, hold_prefills=hold_prefills)
        if plan.preemptions:
            plan.bound_by = "preempted"
        else:
            carries_prefill |= self._schedule_waiting(plan, token_budget, threshold, hold_prefills=hold_prefills)
            if not hold_prefills:
                self.prefill_interval.queue_seen(len(self.waiting))
        if self.rules.scheduled_victim == "crash" and len(plan.requests) > len(self.running):
            msg = (
                "vLLM 0.9.2 to 0.10.1 crashes here (AssertionError): a request was preempted by priority "
                "after it had been scheduled in the same step"
            )
            raise EngineCrashError(msg)
        self.prefill_interval.step_decided(has_tokens=bool(plan.scheduled), carries_prefill=carries_prefill)
        if self.grouped is not None:
            self.grouped.launched(plan.scheduled)
        plan.advance(is_async=self.config.async_scheduling)
        plan.num_running = len(self.running)
        plan.num_waiting = len(self.waiting)
        plan.num_free_blocks = self.kv_cache.pool.num_free_blocks
        plan.kv_cache_usage = self.kv_cache.usage
        return plan

    def update(self, plan: StepPlan) -> StepOutput:
        """Deliver the tokens of a step and end what is finished (``update_from_output``)."""
        output = StepOutput()
        sampled = output.sampled
        running, finished = RequestStatus.RUNNING, RequestStatus.FINISHED
        is_async = self.config.async_scheduling
        if plan.kept_victims and is_async:
            msg = (
                "vLLM 0.9.2 to 0.11.0 crashes here (AssertionError): under asynchronous scheduling the output of a "
                "request that was preempted by priority in the step that scheduled it has no placeholder"
            )
            raise EngineCrashError(msg)
        kv_cache = self.kv_cache
        if self.grouped is not None:
            self.grouped.processed(plan.scheduled)
        for request in plan.sampling:
            if request.status is finished:
                continue
            if request.num_outputs_to_drop:
                request.num_outputs_to_drop -= 1
                continue
            request.num_tokens += 1
            sampled.append(request)
            if is_async and request.status is running:
                request.num_output_placeholders -= 1
                num_final = request.num_computed_tokens - request.num_output_placeholders
                if num_final > request.num_settled_tokens:
                    kv_cache.cache_blocks(request, num_final)
            if request.num_tokens >= request.stop_length:
                output.finished.append(request)
                if request.status is not running:
                    self.waiting.remove(request)
                self._finish(request, request.stop_reason(self.config.max_model_len))
        if output.finished:
            self.running = [request for request in self.running if not request.is_finished]
        return output

    def reset_prefix_cache(self, *, preempt_running: bool = False) -> tuple[bool, list[Request]]:
        """Forget all cached content (``reset_prefix_cache``); the running requests can be thrown out for it.

        Their outputs in flight are dropped, since they may run again at once. Returns whether the cache was reset
        (False: blocks are in use) and who was thrown out. Raises ``ConfigError`` where the version cannot throw out.
        """
        if preempt_running and not self.rules.has_running_reset:
            msg = "reset_prefix_cache cannot preempt running requests before vLLM 0.12.0"
            raise ConfigError(msg)
        victims: list[Request] = []
        while preempt_running and self.running:
            victim = self.running.pop()
            if self.rules.reset_drops_next_output and self.config.async_scheduling:
                victim.num_outputs_to_drop = 1
            else:
                victim.num_outputs_to_drop += victim.num_output_placeholders
            self._preempt(victim)
            victims.append(victim)
        return self.kv_cache.pool.reset(), victims

    def _schedule_running(self, plan: StepPlan, threshold: int | None, *, hold_prefills: bool) -> tuple[int, bool]:
        """Give tokens to running requests in admission order; returns the budget left and whether any is a prefill."""
        running, kv_cache = self.running, self.kv_cache
        token_budget = self.config.max_num_batched_tokens
        carries_prefill = False
        index = 0
        while index < len(running) and token_budget > 0:
            request = running[index]
            num_computed = request.num_computed_tokens
            num_new = request.num_tokens + request.num_output_placeholders - num_computed
            if num_new > 1:
                num_new = min(num_new, token_budget) if threshold is None else min(num_new, token_budget, threshold)
            num_new = min(num_new, request.schedule_limit - num_computed)
            if num_new <= 0 or (hold_prefills and request.is_prefill_chunk):
                index += 1
                continue
            fits = num_computed + num_new <= request.num_settled_tokens or kv_cache.grow(request, num_new)
            while not fits:
                victim = self._pick_victim()
                position = running.index(victim)
                del running[position]
                if position < index:
                    token_budget, index = self._take_back(plan, victim, token_budget, index)
                self._evict(plan, victim, needed_by=request)
                if victim is request:
                    break
                fits = kv_cache.grow(request, num_new)
            if not fits:
                if self.by_priority and self.rules.goes_on_after_self_preemption:
                    continue
                break
            plan.requests.append(request)
            plan.scheduled[request.request_id] = num_new
            carries_prefill |= request.is_prefill_chunk
            token_budget -= num_new
            index += 1
        return token_budget, carries_prefill

    def _pick_victim(self) -> Request:
        """Who loses its blocks: the last admitted, or with priority the least important and latest arrived."""
        if self.by_priority:
            return max(self.running, key=lambda request: (request.priority, request.arrival_order))
        return self.running[-1]

    def _take_back(self, plan: StepPlan, victim: Request, token_budget: int, index: int) -> tuple[int, int]:
        """Undo what this step gave to an earlier victim; returns the token budget and the index to go on from."""
        was_scheduled = victim.request_id in plan.scheduled
        if self.rules.scheduled_victim != "give_back":
            if was_scheduled and victim.num_computed_tokens + plan.scheduled[victim.request_id] >= victim.num_tokens:
                plan.kept_victims.append(victim)
            return token_budget, index
        if was_scheduled:
            token_budget += plan.scheduled.pop(victim.request_id)
            plan.requests.remove(victim)
        if was_scheduled or self.rules.steps_back_for_idle_victim:
            index -= 1
        return token_budget, index

    def _evict(self, plan: StepPlan, victim: Request, needed_by: Request) -> None:
        num_computed = victim.num_computed_tokens
        num_blocks = self._preempt(victim)
        plan.preemptions.append(Preemption(victim, needed_by, num_computed, num_blocks))

    def _preempt(self, victim: Request) -> int:
        """Put a request that left running back into waiting (``_preempt_request``); returns the blocks freed.

        What it has in flight is still delivered (``num_stale_output_tokens`` in 0.33.0): ``update`` sees that the
        request is not running and leaves everything but its tokens alone.
        """
        num_blocks = self.kv_cache.free(victim)
        victim.status = RequestStatus.PREEMPTED
        victim.num_lost_tokens = victim.num_computed_tokens
        victim.num_computed_tokens = 0
        victim.num_output_placeholders = 0
        victim.num_preemptions += 1
        self.waiting.prepend(victim)
        return num_blocks

    def _schedule_waiting(
        self, plan: StepPlan, token_budget: int, threshold: int | None, *, hold_prefills: bool
    ) -> bool:
        """Admit from the head of the queue until something forbids it; returns whether a prefill was admitted."""
        passed_over: deque[Request] = deque()
        carries_prefill = False
        while self.waiting:
            plan.bound_by = self._full(token_budget)
            if plan.bound_by != "none":
                break
            request = self.waiting.peek()
            hits, num_computed = self._look_up(request)
            if hold_prefills and num_computed < request.num_tokens - 1:
                plan.bound_by = "prefill_interval"
                break
            num_new = request.num_tokens - num_computed
            if threshold is not None:
                num_new = min(num_new, threshold)
            if num_new > token_budget and not self.config.enable_chunked_prefill:
                if self.rules.unchunked_over_budget == "skip":
                    passed_over.append(self.waiting.pop())
                    continue
                if self.rules.unchunked_over_budget == "stop":
                    plan.bound_by = "token_budget"
                    break
            num_new = min(num_new, token_budget)
            shortage = self.kv_cache.shortage(
                request,
                hits,
                num_computed + num_new,
                full_prompt=self.full_prompt_gate,
                watermark=bool(self.running),
            )
            if shortage is not None:
                plan.bound_by = shortage
                break
            self._admit(plan, self.waiting.pop(), hits, num_computed, num_new)
            carries_prefill |= num_computed < request.num_tokens - 1
            token_budget -= num_new
        for request in passed_over:  # they come back in reverse order, as in 0.9.2 to 0.11.2
            self.waiting.prepend(request)
            plan.bound_by = "token_budget"
        return carries_prefill

    def _full(self, token_budget: int) -> str:
        """Which limit of the step is used up, or ``none``."""
        if token_budget == 0:
            return "token_budget"
        if len(self.running) >= self.max_num_active:
            return "max_num_seqs" if self.max_num_active == self.config.max_num_seqs else "max_num_active_seqs"
        return "none"

    def _look_up(self, request: Request) -> tuple[list[Any], int]:
        """The cached blocks that a waiting request hits, and the tokens it need not compute.

        A victim that kept its tokens (``scheduled_victim`` of 0.10.2 and 0.11.0) counts them as computed without having
        a block for them, and is not looked up.
        """
        if request.num_computed_tokens:
            return [], request.num_computed_tokens
        hits: list[Any] = self.kv_cache.find_hits(request)
        num_computed = len(hits) * self.config.block_size
        if self.kv_cache.caching:
            self.prefix_cache.looked_up(request, num_computed)
        return hits, num_computed

    def _admit(self, plan: StepPlan, request: Request, hits: list[Any], num_computed: int, num_new: int) -> None:
        self.kv_cache.admit(request, hits, num_computed + num_new)
        if self.kv_cache.caching:
            self.prefix_cache.admitted(request, num_computed)
        if request.status is RequestStatus.WAITING:
            plan.admitted.append(request)
            request.num_cached_tokens = num_computed
        else:
            plan.resumed.append(request)
            request.num_recomputed_tokens += max(request.num_lost_tokens - num_computed, 0)
        request.status = RequestStatus.RUNNING
        request.num_computed_tokens = num_computed
        self.running.append(request)
        plan.requests.append(request)
        plan.scheduled[request.request_id] = num_new
        plan.cached[request.request_id] = num_computed

    def _finish(self, request: Request, reason: str) -> None:
        request.status = RequestStatus.FINISHED
        request.finish_reason = reason
        self.kv_cache.free(request)
        del self.requests[request.request_id]


def _grouped(
    config: EngineConfig, rules: Rules, pool: BlockPool, watermark_blocks: int
) -> GroupedKVCacheManager | None:
    """The KV cache of several groups, or None where one table of all tokens does."""
    if config.kv_cache_windows in {(), (None,)}:
        return None
    batches = 2 if config.async_scheduling and rules.window.caps_in_flight else 1
    return GroupedKVCacheManager(
        pool,
        config.kv_cache_windows,
        config.block_size,
        rules,
        caching=config.enable_prefix_caching,
        watermark_blocks=watermark_blocks,
        max_in_flight_tokens=config.max_num_batched_tokens * batches,
        max_model_len=config.max_model_len,
    )
