"""The first half of a step: tokens for running requests, and who loses its blocks for them.

When budget and free blocks cover all decodes in lockstep, only the other requests are visited; else everybody is
handled one by one, in order, exactly as ``Scheduler._schedule_running`` of the model does.
"""

from tracekit.kernel.blocks import blocks_for, free_blocks, grow, store_full_blocks, take
from tracekit.kernel.compiling import compiled, inlined
from tracekit.kernel.layout import (
    GIVE_BACK,
    NONE,
    PREEMPTED,
    Record,
)
from tracekit.kernel.lockstep import leave_all, leave_lockstep
from tracekit.kernel.queues import leave_running, prepend_waiting
from tracekit.kernel.references import entry_at, plan_at, preemption_row_at, request_at, residue_at


@inlined
def schedule_running(
    engine: Record,
    number: int,
    threshold: int,
    hold_prefills: bool,  # noqa: FBT001
) -> tuple[int, bool]:
    """Give tokens to running requests in admission order; returns the budget left and whether any is a prefill."""
    cursor = NONE
    if engine.num_lockstep > 0:
        if _keeps_lockstep(engine, threshold, hold_prefills):
            cursor = _take_in_lockstep(engine, number)
        else:
            leave_all(engine)
    plan_at(engine, number).num_lockstep = engine.num_lockstep
    token_budget = engine.max_num_batched_tokens - engine.num_lockstep
    carries_prefill = False
    index = engine.individual_head
    while index != NONE and token_budget > 0:
        request = request_at(engine, index)
        num_new = _num_new_tokens(request, token_budget, threshold)
        if num_new <= 0 or (hold_prefills and request.is_prefill_chunk):
            index = request.peer_following
            continue
        if cursor != NONE:
            cursor = _store_in_lockstep(engine, cursor, request.admission)
        fits, given_back, num_skipped = _make_room(engine, number, index, num_new)
        token_budget += given_back
        if fits:
            append_entry(engine, number, index, num_new)
            carries_prefill |= request.is_prefill_chunk
            token_budget -= num_new
        elif engine.crash != 0 or not (engine.by_priority and engine.goes_on_after_self_preemption):
            break
        index = request.peer_following  # stands also where the request evicted itself
        while num_skipped > 0 and index != NONE:
            index = request_at(engine, index).peer_following
            num_skipped -= 1
    if cursor != NONE:
        _store_in_lockstep(engine, cursor, engine.next_admission)
    return token_budget, carries_prefill


@compiled
def _make_room(engine: Record, number: int, index: int, num_new: int) -> tuple[bool, int, int]:
    """Give a request its blocks, evicting as long as it takes or up to itself.

    Returns whether it fits, the tokens given back by earlier victims, and how many requests behind it are passed over
    because the version does not step back for an earlier victim.
    """
    given_back = 0
    num_skipped = 0
    fits = grow(engine, index, num_new)
    while not fits:
        victim = pick_victim(engine)
        if request_at(engine, victim).admission < request_at(engine, index).admission:
            num_tokens, steps_back = _take_back(engine, number, victim)
            given_back += num_tokens
            if not steps_back:
                num_skipped += 1
        evict(engine, number, victim, index)
        if victim == index or engine.crash != 0:
            break
        fits = grow(engine, index, num_new)
    return fits, given_back, num_skipped


@inlined
def _num_new_tokens(request: Record, token_budget: int, threshold: int) -> int:
    num_new = request.num_tokens + request.num_output_placeholders - request.num_computed_tokens
    num_new = min(num_new, token_budget)
    num_new = min(num_new, request.schedule_limit - request.num_computed_tokens)
    return int(min(num_new, threshold))


@inlined
def append_entry(engine: Record, number: int, index: int, num_new: int) -> None:
    """Put a request into the plan of this step."""
    plan = plan_at(engine, number)
    entry = entry_at(engine, number, plan.count)
    entry.request = index
    entry.num_new_tokens = num_new
    entry.kept = False
    plan.count += 1
    request_at(engine, index).planned_in = engine.attempt


@compiled
def _keeps_lockstep(engine: Record, threshold: int, hold_prefills: bool) -> bool:  # noqa: FBT001
    """Whether every decode in lockstep gets its token whatever the others get, unless it is evicted from the end.

    Either budget and blocks cover everything, or the others come last; then, without priority, only they and the last
    of those in lockstep can lack something.
    """
    budget = engine.max_num_batched_tokens - engine.num_lockstep
    if budget < 0:
        return False
    free = engine.num_free_blocks - residue_at(engine, engine.step_mod).count
    wanted = 0
    first = NONE
    index = engine.individual_head
    while index != NONE:
        request = request_at(engine, index)
        num_new = _num_new_tokens(request, engine.max_num_batched_tokens, threshold)
        if num_new > 0 and not (hold_prefills and request.is_prefill_chunk):
            if first == NONE:
                first = index
            wanted += num_new
            granted = min(num_new, budget)
            budget -= granted
            free -= max(blocks_for(engine, request.num_computed_tokens + granted) - request.num_blocks, 0)
        index = request.peer_following
    covers = wanted + engine.num_lockstep <= engine.max_num_batched_tokens
    if covers and free >= 0:
        return True
    if engine.by_priority and free < 0:
        return False
    if first == NONE:
        return True
    last = engine.running_tail
    while not request_at(engine, last).in_lockstep:
        last = request_at(engine, last).previous
    return bool(request_at(engine, first).admission > request_at(engine, last).admission)


@compiled
def _take_in_lockstep(engine: Record, number: int) -> int:
    """Give a block to each member that needs one; returns the first member with a block that is full now.

    Where the free ones do not suffice the last running requests are evicted, as long as it takes or up to the member
    itself. Which free block a member gets does not matter; the order of ``store`` does when two have equal content.
    """
    residue = residue_at(engine, engine.step_mod)
    if residue.count <= engine.num_free_blocks and not engine.caching:
        engine.num_free_blocks -= residue.count
        return NONE
    index = residue.head
    while index != NONE:
        while engine.num_free_blocks == 0:
            victim = engine.running_tail
            if request_at(engine, victim).in_lockstep:
                leave_lockstep(engine, victim, True)
            evict(engine, number, victim, index)
            if victim == index:
                return _first_to_store(engine)
        if engine.caching:
            take(engine, index, 1)
        else:
            engine.num_free_blocks -= 1
        index = request_at(engine, index).peer_following
    return _first_to_store(engine)


@compiled
def _first_to_store(engine: Record) -> int:
    """The first member that has a full block to store in this step."""
    if not engine.caching:
        return NONE
    if engine.is_async:
        return int(residue_at(engine, engine.step_mod).head)
    residue = engine.step_mod + 1
    return int(residue_at(engine, 0 if residue == engine.block_size else residue).head)


@compiled
def _store_in_lockstep(engine: Record, cursor: int, admission: int) -> int:
    """Make the full blocks of members findable that were admitted before ``admission``; returns the next member."""
    known = engine.num_steps + (0 if engine.is_async else 1)
    while cursor != NONE and request_at(engine, cursor).admission < admission:
        store_full_blocks(engine, cursor, request_at(engine, cursor).lock_base + known)
        cursor = request_at(engine, cursor).peer_following
    return cursor


@compiled
def pick_victim(engine: Record) -> int:
    """Who loses its blocks: the last admitted, or with priority the least important and latest arrived."""
    if not engine.by_priority:
        return int(engine.running_tail)
    chosen = engine.running_head
    index = request_at(engine, chosen).following
    while index != NONE:
        one = request_at(engine, index)
        best = request_at(engine, chosen)
        if one.priority > best.priority or (one.priority == best.priority and one.arrival_ns > best.arrival_ns):
            chosen = index
        index = one.following
    return int(chosen)


@compiled
def _take_back(engine: Record, number: int, victim: int) -> tuple[int, bool]:
    """Undo what this step gave to an earlier victim; returns its tokens and whether the loop steps back for it."""
    request = request_at(engine, victim)
    plan = plan_at(engine, number)
    was_scheduled = request.planned_in == engine.attempt
    position = plan.count - 1
    if was_scheduled:
        while entry_at(engine, number, position).request != victim:
            position -= 1
    if engine.scheduled_victim != GIVE_BACK:
        if was_scheduled:
            entry = entry_at(engine, number, position)
            entry.kept = request.num_computed_tokens + entry.num_new_tokens >= request.num_tokens
            if entry.kept:
                plan.num_kept += 1
        return 0, False
    if not was_scheduled:
        return 0, bool(engine.steps_back_for_idle_victim)
    given_back = entry_at(engine, number, position).num_new_tokens
    for later in range(position + 1, plan.count):
        entry_at(engine, number, later - 1).request = entry_at(engine, number, later).request
        entry_at(engine, number, later - 1).num_new_tokens = entry_at(engine, number, later).num_new_tokens
    plan.count -= 1
    request.planned_in = 0
    return int(given_back), True


@compiled
def evict(
    engine: Record,
    number: int,
    victim: int,
    needed_by: int,
) -> None:
    """Throw a running request back to the front of the waiting queue, its blocks freed, and record it."""
    request = request_at(engine, victim)
    leave_running(engine, victim)
    row = preemption_row_at(engine, engine.num_preemption_rows)
    row.step = engine.num_steps
    row.time_ns = engine.now
    row.request = victim
    row.needed_by = needed_by
    row.num_computed_tokens = request.num_computed_tokens
    row.num_blocks = preempt(engine, victim)
    row.resumed_step = NONE
    request.open_preemption = engine.num_preemption_rows
    engine.num_preemption_rows += 1
    plan_at(engine, number).num_preemptions += 1


@compiled
def preempt(engine: Record, victim: int) -> int:
    """Put a request that left running back into waiting; returns the blocks freed."""
    request = request_at(engine, victim)
    num_blocks = free_blocks(engine, victim)
    request.status = PREEMPTED
    request.num_lost_tokens = request.num_computed_tokens
    request.num_computed_tokens = 0
    request.num_output_placeholders = 0
    request.num_preemptions += 1
    prepend_waiting(engine, victim)
    return num_blocks
