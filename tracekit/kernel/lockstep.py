"""Decodes advance in lockstep, so they are not touched: what stands for them, and how a request joins and leaves.

A request joins when a step is planned that makes it sample: from the next step (``lock_entry``) on it computes one
token a step. Before step ``s`` it has ``lock_base + s`` computed tokens. It leaves right after its last step was
planned (``bucket`` of the calendar ring), or earlier when it is preempted, aborted or left without budget.

1. ``num_lockstep`` and ``lock_base_sum`` are the number of members and the sum of their ``lock_base``.
2. ``residue_at(engine, r)``: how many members need a new block at the steps with ``step % block_size == r``, and a
   list of them in admission order.
3. The record of a member holds its tokens and its last token's instant as of the output of step ``lock_entry - 1``;
   later outputs follow from the steps processed since.
4. A plan in flight counts the members it scheduled (``num_lockstep``); one that leaves becomes an entry of its own.
"""

from tracekit.kernel.blocks import blocks_for
from tracekit.kernel.compiling import compiled, inlined
from tracekit.kernel.layout import NONE, Record
from tracekit.kernel.queues import join_individuals, leave_individuals
from tracekit.kernel.references import ending_at, entry_at, plan_at, request_at, residue_at


@compiled
def join_lockstep(engine: Record, index: int) -> None:
    """Let a request that samples in the step just planned decode in lockstep from the next step on."""
    leave_individuals(engine, index)
    request = request_at(engine, index)
    next_step = engine.num_steps
    request.in_lockstep = True
    request.lock_entry = next_step
    request.lock_base = request.num_computed_tokens - next_step
    engine.num_lockstep += 1
    engine.lock_base_sum += request.lock_base
    residue = _residue(engine, request.lock_base)
    residue_at(engine, residue).count += 1
    _insert_by_residue(engine, residue, index)
    last_step = request.stop_length - 2 - request.lock_base
    _insert_by_end(engine, last_step & engine.ring_mask, index)


@compiled
def leave_lockstep(engine: Record, index: int, delivers: bool) -> None:  # noqa: FBT001
    """Handle a member one by one again; ``delivers``: its outputs in flight will still come."""
    request = request_at(engine, index)
    request.in_lockstep = False
    engine.num_lockstep -= 1
    engine.lock_base_sum -= request.lock_base
    residue = _residue(engine, request.lock_base)
    residue_at(engine, residue).count -= 1
    _remove_by_residue(engine, residue, index)
    _remove_by_end(engine, request.bucket, index)
    if engine.last_processed_step >= request.lock_entry - 1:
        request.num_tokens = request.lock_base + engine.last_processed_step + 2
        request.last_token_ns = engine.last_update_ns
    request.num_computed_tokens = request.lock_base + engine.num_steps
    request.num_output_placeholders = request.num_computed_tokens + 1 - request.num_tokens if engine.is_async else 0
    request.is_prefill_chunk = False
    if not engine.caching:
        request.num_blocks = blocks_for(engine, request.num_computed_tokens)
    join_individuals(engine, index)
    for position in range(engine.num_plans):
        number = (engine.oldest_plan + position) & 1
        plan = plan_at(engine, number)
        if plan.step >= request.lock_entry:
            plan.num_lockstep -= 1
            if delivers:
                _add_entry(engine, plan, number, index)


@compiled
def leave_all(engine: Record) -> None:
    """Handle every running request one by one: the next step walks them in order."""
    index = engine.running_head
    while index != NONE:
        if request_at(engine, index).in_lockstep:
            leave_lockstep(engine, index, True)
        index = request_at(engine, index).following


@compiled
def leave_at_end(engine: Record, step: int) -> None:
    """Take the members out whose last decode is ``step``, which was just planned."""
    bucket = step & engine.ring_mask
    index = ending_at(engine, bucket).head
    while index != NONE:
        following = request_at(engine, index).bucket_following
        leave_lockstep(engine, index, True)
        index = following


@compiled
def _add_entry(engine: Record, plan: Record, number: int, index: int) -> None:
    entry = entry_at(engine, number, plan.count)
    entry.request = index
    entry.num_new_tokens = 1
    entry.samples = True
    entry.kept = False
    plan.count += 1
    plan.is_unsorted = True


@inlined
def _residue(engine: Record, lock_base: int) -> int:
    if engine.block_shift >= 0:
        return int((-lock_base) & (engine.block_size - 1))
    return int((-lock_base) % engine.block_size)


@compiled
def _insert_by_residue(engine: Record, residue: int, index: int) -> None:
    request = request_at(engine, index)
    after = residue_at(engine, residue).tail
    while after != NONE and request_at(engine, after).admission > request.admission:
        after = request_at(engine, after).peer_previous
    before = residue_at(engine, residue).head if after == NONE else request_at(engine, after).peer_following
    request.peer_previous = after
    request.peer_following = before
    if after == NONE:
        residue_at(engine, residue).head = index
    else:
        request_at(engine, after).peer_following = index
    if before == NONE:
        residue_at(engine, residue).tail = index
    else:
        request_at(engine, before).peer_previous = index


@compiled
def _remove_by_residue(engine: Record, residue: int, index: int) -> None:
    request = request_at(engine, index)
    if request.peer_previous == NONE:
        residue_at(engine, residue).head = request.peer_following
    else:
        request_at(engine, request.peer_previous).peer_following = request.peer_following
    if request.peer_following == NONE:
        residue_at(engine, residue).tail = request.peer_previous
    else:
        request_at(engine, request.peer_following).peer_previous = request.peer_previous


@compiled
def _insert_by_end(engine: Record, bucket: int, index: int) -> None:
    request = request_at(engine, index)
    request.bucket = bucket
    request.bucket_previous = ending_at(engine, bucket).tail
    request.bucket_following = NONE
    if request.bucket_previous == NONE:
        ending_at(engine, bucket).head = index
    else:
        request_at(engine, request.bucket_previous).bucket_following = index
    ending_at(engine, bucket).tail = index


@compiled
def _remove_by_end(engine: Record, bucket: int, index: int) -> None:
    request = request_at(engine, index)
    if request.bucket_previous == NONE:
        ending_at(engine, bucket).head = request.bucket_following
    else:
        request_at(engine, request.bucket_previous).bucket_following = request.bucket_following
    if request.bucket_following == NONE:
        ending_at(engine, bucket).tail = request.bucket_previous
    else:
        request_at(engine, request.bucket_following).bucket_previous = request.bucket_previous
