"""V0's scheduler: prefills before decodes, or chunked prefills beside them; recompute or swap when blocks run out.

Mirrors ``Scheduler`` (``vllm/core/scheduler.py``, 0.6.6; older and newer versions by ``Rules``) and the part of
``LLMEngine.step`` that processes outputs, for one sequence a request, without LoRA, delay or multi-step scheduling.
The calls and the plan are those of ``tracekit.model.scheduler.Scheduler``.
"""

from collections import deque

from tracekit.config import EngineConfig
from tracekit.model.batch_v0 import Batch, SchedulingBudget, num_new_tokens
from tracekit.model.block_space_manager import block_space_manager
from tracekit.model.plan import Preemption, StepOutput, StepPlan
from tracekit.model.prefix_stats import BlockQueries
from tracekit.model.request import Request, RequestStatus
from tracekit.model.rules import EngineCrashError, Rules


class SchedulerV0:
    """The decisions of one V0 engine, step by step."""

    def __init__(self, config: EngineConfig, rules: Rules) -> None:
        self.config = config
        self.rules = rules
        self.waiting: deque[Request] = deque()
        self.running: deque[Request] = deque()
        self.swapped: deque[Request] = deque()
        self.requests: dict[str, Request] = {}
        self.kv_cache = block_space_manager(config, rules)
        self.max_length = config.max_model_len + rules.v0_stops_past_max_model_len
        self._num_steps = 0
        self._plan_in_flight: StepPlan | None = None
        self._ended_early: list[Request] = []
        """Victims whose output in flight turned out to be their last one, before it was processed."""

    @property
    def has_requests(self) -> bool:
        """Whether anything is running, waiting or swapped."""
        return bool(self.requests)

    @property
    def prefix_cache(self) -> BlockQueries:
        """Queries and hits of the prefix cache so far, in blocks."""
        return self.kv_cache.prefix_cache

    def add_request(self, request: Request) -> None:
        """Let a request join the waiting queue (``add_seq_group``)."""
        request.set_limits(self.max_length, foresees_max_tokens=True)
        request.is_prefill_chunk = True
        self.requests[request.request_id] = request
        self.waiting.append(request)

    def abort_request(self, request_id: str) -> bool:
        """End a request whose client is gone (``abort_seq_group``); False when it is not here (any more)."""
        request = self.requests.get(request_id)
        if request is None:
            return False
        for queue in (self.waiting, self.running, self.swapped):
            if request in queue:
                queue.remove(request)
        self._finish(request, "abort")
        return True

    def schedule(self) -> StepPlan:
        """Decide one step (``schedule``)."""
        if self._plan_in_flight is not None:
            self._advance(self._plan_in_flight)
        plan = StepPlan()
        budget = SchedulingBudget(self.config.max_num_batched_tokens, self.config.max_num_seqs)
        batch = Batch()
        if self.config.enable_chunked_prefill:
            self._schedule_chunked(plan, batch, budget)
        else:
            self._schedule_default(plan, batch, budget)
        self._describe(plan, batch)
        for request in plan.requests:
            self.kv_cache.mark_accessed(request, self._num_steps)
        self.kv_cache.mark_computed(list(zip(plan.requests, plan.scheduled.values(), strict=True)))
        self._num_steps += 1
        if not self.waiting:
            plan.bound_by = "none"
        elif plan.bound_by == "none":
            plan.bound_by = "preempted"
        self._plan_in_flight = plan
        return plan

    def update(self, plan: StepPlan) -> StepOutput:
        """Deliver the tokens of a step and end what is finished (``LLMEngine._process_model_outputs``)."""
        if plan is self._plan_in_flight:
            self._advance(plan)
        output = StepOutput(finished=self._ended_early)
        self._ended_early = []
        for request in plan.sampling:
            if request.is_finished:
                if request in output.finished:
                    output.sampled.append(request)
                continue
            output.sampled.append(request)
            if request.num_tokens >= request.stop_length:
                if request.status is RequestStatus.PREEMPTED:  # by priority, which does not look at outputs in flight
                    self.waiting.remove(request)
                self._finish(request, request.stop_reason(self.max_length))
                output.finished.append(request)
        if not self.config.async_scheduling:
            output.finished = [request for request in self.running if request.is_finished]
        if output.finished:
            self.running = deque(request for request in self.running if not request.is_finished)
        return output

    def _advance(self, plan: StepPlan) -> None:
        """Count the tokens of a step as computed and its output as known.

        Asynchronous output processing (0.6.0) does so before it looks at the output: whether that was the last token
        shows when ``update`` is called, after the next step was decided.
        """
        self._plan_in_flight = None
        for request, num_tokens in zip(plan.requests, plan.scheduled.values(), strict=True):
            if not request.is_finished:
                request.num_computed_tokens += num_tokens
                request.is_prefill_chunk = request.num_computed_tokens < request.num_tokens
        for request in plan.sampling:
            request.num_tokens += not request.is_finished

    def _schedule_default(self, plan: StepPlan, batch: Batch, budget: SchedulingBudget) -> None:
        """Prefills if there are any, else decodes (``_schedule_default``)."""
        for request in self.running:
            budget.add_running(request.request_id)
        if self.swapped:
            plan.bound_by = "swapped"
        else:
            self._schedule_prefills(plan, batch, budget)
        if not batch.new:
            if self.config.scheduling_policy == "priority":
                self._preempt_by_priority(plan, budget)
            self._schedule_running(plan, batch, budget)
            if not batch.preempted and not batch.swapped_out:
                self._schedule_swapped(plan, batch, budget)
        self.waiting.extendleft(batch.preempted)
        self.running.extend(request for request, _ in batch.new)
        self.running.extend(request for request, _ in batch.running_decodes)
        self.running.extend(request for request, _ in batch.swapped_decodes)
        self.swapped.extend(batch.swapped_out)
        self._fill(plan, batch.new, batch.running_decodes, batch.swapped_decodes)

    def _schedule_chunked(self, plan: StepPlan, batch: Batch, budget: SchedulingBudget) -> None:
        """Running, then swapped, then waiting requests, prompts in chunks (``_schedule_chunked_prefill``)."""
        self._schedule_running(plan, batch, budget)
        if not batch.preempted and not batch.swapped_out:
            self._schedule_swapped(plan, batch, budget)
        self._schedule_prefills(plan, batch, budget)
        self.waiting.extendleft(batch.preempted)
        self.swapped.extend(batch.swapped_out)
        running = (batch.running_decodes, batch.running_prefills)
        swapped = (batch.swapped_decodes, batch.swapped_prefills)
        order = (*swapped, *running, batch.new) if self.rules.v0_admitted_run_last else (batch.new, *running, *swapped)
        for part in order:
            self.running.extend(request for request, _ in part)
        prefills = (batch.new, batch.running_prefills, batch.swapped_prefills)
        self._fill(plan, *prefills, batch.running_decodes, batch.swapped_decodes)

    def _fill(self, plan: StepPlan, *parts: list[tuple[Request, int]]) -> None:
        for part in parts:
            for request, num_tokens in part:
                plan.requests.append(request)
                plan.scheduled[request.request_id] = num_tokens

    def _num_new(self, request: Request, budget: SchedulingBudget, *, chunked: bool) -> tuple[int, int]:
        return num_new_tokens(request, budget, self.kv_cache, self.rules, chunked=chunked)

    def _schedule_running(self, plan: StepPlan, batch: Batch, budget: SchedulingBudget) -> None:
        """Give running requests their tokens in order; victims are taken from the end of those not yet seen."""
        chunked = self.config.enable_chunked_prefill
        swap = self.config.preemption_mode == "swap" and self.rules.v0_has_preemption_mode
        if self.rules.v0_sorts_by_arrival:
            self.running = deque(sorted(self.running, key=lambda request: request.arrival_order))
        while self.running:
            request = self.running[0]
            num_new, _ = self._num_new(request, budget, chunked=chunked)
            if num_new == 0:
                break
            self.running.popleft()
            if self.config.async_scheduling and request.num_tokens > self.config.max_model_len:
                continue
            while not self.kv_cache.can_append(request):
                budget.remove(request.request_id, num_new)
                victim = self.running.pop() if self.running else request
                if not self._ends_early(victim):
                    self._preempt(plan, batch, victim, needed_by=request, swap=swap)
                if victim is request:
                    break
            else:
                self.kv_cache.append(request)
                if request.is_prefill_chunk:
                    batch.running_prefills.append((request, num_new))
                else:
                    batch.running_decodes.append((request, 1))
                budget.add(request.request_id, num_new)

    def _ends_early(self, victim: Request) -> bool:
        """Whether a victim's output in flight was its last (the ``output_proc_callback`` before a preemption)."""
        if not self.config.async_scheduling or victim.num_tokens < victim.stop_length:
            return False
        self._finish(victim, victim.stop_reason(self.max_length))
        self._ended_early.append(victim)
        return True

    def _preempt(self, plan: StepPlan, batch: Batch, victim: Request, needed_by: Request, *, swap: bool) -> None:
        """Throw a request out of running, by recompute or by swap (``_preempt``)."""
        num_computed = victim.num_computed_tokens
        before = self.kv_cache.num_free_blocks
        victim.num_preemptions += 1
        if swap:
            if not self.kv_cache.can_swap_out(victim):
                msg = "vLLM V0 crashes here (RuntimeError): the CPU swap space is used up (swap_space)"
                raise EngineCrashError(msg)
            self.kv_cache.swap_out(victim)
            victim.status = RequestStatus.SWAPPED
            batch.swapped_out.append(victim)
        else:
            self.kv_cache.free(victim)
            victim.status = RequestStatus.PREEMPTED
            victim.num_lost_tokens = num_computed
            victim.num_computed_tokens = 0
            victim.is_prefill_chunk = True
            batch.preempted.append(victim)
        freed = self.kv_cache.num_free_blocks - before
        plan.preemptions.append(Preemption(victim, needed_by, num_computed, freed, swapped=swap))

    def _preempt_by_priority(self, plan: StepPlan, budget: SchedulingBudget) -> None:
        """Make room for a more important head of the queue (``_schedule_priority_preemption``)."""
        running = deque(sorted(self.running, key=_importance))
        waiting = deque(self.waiting)
        if waiting:
            head = waiting.popleft()
            num_new, _ = self._num_new(head, budget, chunked=False)
            while running and _importance(running[-1]) > _importance(head):
                fits = self.kv_cache.can_allocate(head) == "ok"
                if num_new > 0 and fits and budget.missing(num_new) is None:
                    break
                victim = running.pop()
                num_victim, _ = self._num_new(victim, budget, chunked=False)
                budget.remove(victim.request_id, num_victim)
                self._preempt(plan, Batch(), victim, needed_by=head, swap=False)
                waiting.appendleft(victim)
            waiting.appendleft(head)
            self._forget_lookup(head)
        self.waiting = deque(sorted(waiting, key=_importance))
        self.running = running

    def _schedule_swapped(self, plan: StepPlan, batch: Batch, budget: SchedulingBudget) -> None:
        """Bring swapped requests back in order while they fit (``_schedule_swapped``)."""
        if self.rules.v0_sorts_by_arrival:
            self.swapped = deque(sorted(self.swapped, key=lambda request: request.arrival_order))
        while self.swapped:
            request = self.swapped[0]
            status = self.kv_cache.can_swap_in(request)
            if status == "never":
                self._ignore(plan, self.swapped.popleft())
                continue
            if status != "ok":
                break
            num_new, num_cached = self._num_new(request, budget, chunked=self.config.enable_chunked_prefill)
            if num_new == 0 or budget.missing(num_new) is not None:
                self._forget_lookup(request)
                break
            self.swapped.popleft()
            self.kv_cache.swap_in(request)
            request.status = RequestStatus.RUNNING
            self.kv_cache.append(request)
            plan.swapped_in.append(request)
            plan.resumed.append(request)
            if request.is_prefill_chunk:
                batch.swapped_prefills.append((request, num_new + num_cached))
            else:
                batch.swapped_decodes.append((request, 1))
            budget.add(request.request_id, num_new)

    def _schedule_prefills(self, plan: StepPlan, batch: Batch, budget: SchedulingBudget) -> None:
        """Admit from the head of the queue until something forbids it (``_schedule_prefills``)."""
        chunked = self.config.enable_chunked_prefill
        limit = self.config.max_model_len
        if not chunked:
            limit = min(limit, self.config.max_num_batched_tokens)
        while self.waiting:
            request = self.waiting[0]
            num_new, num_cached = self._num_new(request, budget, chunked=chunked)
            status = "never" if num_new + num_cached > limit else self.kv_cache.can_allocate(request)
            if status == "never":
                self._ignore(plan, self.waiting.popleft())
                continue
            bound_by = status if status != "ok" else self._missing(budget, num_new)
            if bound_by is not None:
                plan.bound_by = bound_by
                self._forget_lookup(request)
                break
            self.waiting.popleft()
            self.kv_cache.allocate(request)
            request.status = RequestStatus.RUNNING
            batch.new.append((request, num_new + num_cached))
            budget.add(request.request_id, num_new)
            self._note_admission(plan, request)

    def _forget_lookup(self, request: Request) -> None:
        if self.rules.v0_looks_up_again:
            self.kv_cache.forget_lookup(request)

    def _missing(self, budget: SchedulingBudget, num_new: int) -> str | None:
        if budget.num_tokens_left <= 0 or num_new == 0:
            return "token_budget"
        return budget.missing(num_new)

    def _note_admission(self, plan: StepPlan, request: Request) -> None:
        if self.rules.v0_cached_tokens_cost:
            num_cached = self.kv_cache.num_computed_hits(request)
        else:
            num_cached = self.kv_cache.num_cached_tokens(request)
        plan.cached[request.request_id] = num_cached
        if request.num_preemptions:
            plan.resumed.append(request)
            request.num_recomputed_tokens += max(request.num_lost_tokens - num_cached, 0)
        else:
            plan.admitted.append(request)
            request.num_cached_tokens = num_cached

    def _describe(self, plan: StepPlan, batch: Batch) -> None:
        plan.num_prefill_groups = len(batch.new) + len(batch.running_prefills) + len(batch.swapped_prefills)
        plan.describe_v0()
        plan.num_running = len(self.running)
        plan.num_waiting = len(self.waiting)
        plan.num_swapped = len(self.swapped)
        plan.num_free_blocks = self.kv_cache.num_free_blocks
        plan.kv_cache_usage = self.kv_cache.usage

    def _ignore(self, plan: StepPlan, request: Request) -> None:
        """Fail a request that can never run; vLLM only logs a warning."""
        plan.ignored.append(request)
        self._finish(request, "ignored")

    def _finish(self, request: Request, reason: str) -> None:
        self.kv_cache.free(request)
        request.status = RequestStatus.FINISHED
        request.finish_reason = reason
        del self.requests[request.request_id]


def _importance(request: Request) -> tuple[int, float]:
    """Smaller is more important."""
    return request.priority, request.arrival_order
