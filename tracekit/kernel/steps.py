"""One step: decide it, count its tokens as computed, deliver its outputs (``schedule`` and ``update`` of the model)."""

from tracekit.kernel.admission import schedule_waiting
from tracekit.kernel.blocks import free_blocks, store_full_blocks
from tracekit.kernel.compiling import compiled, inlined
from tracekit.kernel.layout import (
    BOUND_NONE,
    BOUND_PREEMPTED,
    CRASH,
    CRASH_SCHEDULED_VICTIM,
    FINISHED,
    LENGTH,
    NONE,
    RUNNING,
    STOP,
    Record,
)
from tracekit.kernel.lockstep import join_lockstep, leave_at_end
from tracekit.kernel.queues import leave_running, remove_waiting
from tracekit.kernel.references import entry_at, plan_at, request_at
from tracekit.kernel.running import schedule_running

NO_LIMIT = 1 << 60


@inlined
def schedule(engine: Record, number: int) -> int:
    """Decide one step into plan ``number``: running requests first, then, unless it preempted, waiting ones.

    Returns the number of requests scheduled.
    """
    plan = plan_at(engine, number)
    plan.count = 0
    plan.is_unsorted = False
    plan.num_admitted = 0
    plan.num_preemptions = 0
    plan.num_kept = 0
    plan.bound_by = BOUND_NONE
    engine.attempt += 1
    threshold = _long_prefill_threshold(engine)
    hold_prefills = engine.prefill_interval > 1 and _holds_prefills(engine)
    token_budget, carries_prefill = schedule_running(engine, number, threshold, hold_prefills)
    if engine.crash != 0:
        return 0
    if plan.num_preemptions > 0:
        plan.bound_by = BOUND_PREEMPTED
    else:
        if engine.num_waiting > 0:
            carries_prefill |= schedule_waiting(engine, number, token_budget, threshold, hold_prefills)
        if not hold_prefills:
            engine.prefill_capacity_bound = engine.num_waiting > 0
    if engine.scheduled_victim == CRASH and plan.count + plan.num_lockstep > engine.num_running and engine.crash == 0:
        engine.crash = CRASH_SCHEDULED_VICTIM
    if engine.crash != 0:
        return 0
    _advance(engine, number)
    num_scheduled = int(plan.count + plan.num_lockstep)
    if num_scheduled > 0:
        engine.num_executed_steps += 1
    if carries_prefill:
        engine.last_prefill_step = engine.num_executed_steps
    return num_scheduled


@inlined
def _long_prefill_threshold(engine: Record) -> int:
    """Most tokens of one request in this step."""
    threshold = engine.long_prefill_token_threshold
    if threshold == 0:
        return NO_LIMIT
    if engine.spares_lone_request:
        num_requests = engine.num_running + engine.num_waiting
        if num_requests <= 1:
            return NO_LIMIT
        if engine.adaptive:
            return int(max(threshold, engine.max_num_batched_tokens // num_requests))
    return int(threshold)


@compiled
def _holds_prefills(engine: Record) -> bool:
    """Whether this step leaves prefills alone so that decodes run undisturbed."""
    if engine.prefill_capacity_bound:
        return False
    if engine.num_executed_steps + 1 - engine.last_prefill_step >= engine.prefill_interval:
        return False
    if engine.num_lockstep > 0:
        return True
    index = engine.individual_head
    while index != NONE:
        if not request_at(engine, index).is_prefill_chunk:
            return True
        index = request_at(engine, index).peer_following
    return False


@inlined
def _advance(engine: Record, number: int) -> None:
    """Count the planned tokens as computed and see who will sample (``_update_after_schedule``)."""
    plan = plan_at(engine, number)
    num_tokens = plan.num_lockstep
    num_context = engine.lock_base_sum + plan.num_lockstep * engine.num_steps
    num_decode = plan.num_lockstep
    num_prefill = 0
    num_long = 0
    num_pairs = 0
    for position in range(plan.count):
        entry = entry_at(engine, number, position)
        request = request_at(engine, entry.request)
        num_computed = request.num_computed_tokens
        num_tokens += entry.num_new_tokens
        num_context += num_computed
        if entry.num_new_tokens > 1:
            num_new = int(entry.num_new_tokens)
            num_pairs += num_new * num_computed + num_new * (num_new + 1) // 2
        if num_computed == 0:
            num_prefill += 1
        elif entry.num_new_tokens > 1:
            num_long += 1
        elif num_computed >= request.num_prompt_tokens:
            num_decode += 1
        request.num_computed_tokens = num_computed + entry.num_new_tokens
        request.is_prefill_chunk = request.num_computed_tokens < request.num_tokens + request.num_output_placeholders
        entry.samples = entry.kept or not request.is_prefill_chunk
        if engine.is_async and not request.is_prefill_chunk:
            request.num_output_placeholders += 1
    plan.num_scheduled_tokens = num_tokens
    plan.num_context_tokens = num_context
    plan.num_attention_pairs = num_pairs
    plan.num_decode = num_decode
    plan.num_prefill = num_prefill
    plan.num_long_extend = num_long
    plan.num_short_extend = plan.count + plan.num_lockstep - num_decode - num_prefill - num_long


@inlined
def settle_lockstep(engine: Record, number: int) -> None:
    """After a step was planned and put in flight: whoever samples in it joins, whoever has no decode left leaves."""
    plan = plan_at(engine, number)
    num_planned = plan.count
    if engine.num_lockstep > 0:
        leave_at_end(engine, engine.num_steps - 1)
    for position in range(num_planned):
        entry = entry_at(engine, number, position)
        if not entry.samples:
            continue
        request = request_at(engine, entry.request)
        # One more token than computed is known (or in flight); the last token of all is never computed.
        if request.num_computed_tokens + 1 < request.stop_length:
            join_lockstep(engine, entry.request)


@inlined
def update_request(engine: Record, entry: Record) -> None:
    """Deliver one token of a step; says in the entry whether it was sampled and ended its request."""
    index = entry.request
    request = request_at(engine, index)
    entry.sampled = False
    entry.finished = False
    if not entry.samples or request.status == FINISHED:
        return
    request.num_tokens += 1
    entry.sampled = True
    if request.in_lockstep:
        return
    is_running = request.status == RUNNING
    if is_running and engine.is_async:
        request.num_output_placeholders -= 1
        if engine.caching:
            known = request.num_computed_tokens - request.num_output_placeholders
            store_full_blocks(engine, index, known)
    if request.num_tokens >= request.stop_length:
        if not is_running:
            remove_waiting(engine, index)
        elif engine.crash == 0:
            leave_running(engine, index)
        entry.finished = engine.crash == 0
        if entry.finished:
            end_request(engine, index)


@compiled
def end_request(engine: Record, index: int) -> None:
    """A request ends: its blocks are free, and the scheduler forgets it."""
    request_at(engine, index).status = FINISHED
    free_blocks(engine, index)
    engine.num_known -= 1


@compiled
def stop_reason(engine: Record, request: Record) -> int:
    """Why a request that reached its end did."""
    if (
        request.num_tokens >= engine.max_model_len
        or request.num_tokens - request.num_prompt_tokens == request.max_tokens
    ):
        return LENGTH
    return STOP


@compiled
def sort_entries(engine: Record, number: int) -> None:
    """Put the entries of a plan into admission order again, which is the order in which they were scheduled."""
    plan = plan_at(engine, number)
    for position in range(1, plan.count):
        moved = entry_at(engine, number, position).request
        new_tokens = entry_at(engine, number, position).num_new_tokens
        samples = entry_at(engine, number, position).samples
        hole = position
        while (
            hole > 0
            and request_at(engine, entry_at(engine, number, hole - 1).request).admission
            > request_at(engine, moved).admission
        ):
            entry_at(engine, number, hole).request = entry_at(engine, number, hole - 1).request
            entry_at(engine, number, hole).num_new_tokens = entry_at(engine, number, hole - 1).num_new_tokens
            entry_at(engine, number, hole).samples = entry_at(engine, number, hole - 1).samples
            hole -= 1
        entry_at(engine, number, hole).request = moved
        entry_at(engine, number, hole).num_new_tokens = new_tokens
        entry_at(engine, number, hole).samples = samples
    plan.is_unsorted = False
