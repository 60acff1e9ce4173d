"""What happens to a step once it is decided: the device takes it, its output is processed; and how a request is aborted."""

from tracekit.kernel.blocks import free_blocks
from tracekit.kernel.clients import ended
from tracekit.kernel.compiling import compiled, inlined
from tracekit.kernel.layout import ABORT, CRASH_KEPT_OUTPUT, FINISHED, NONE, RUNNING, Record
from tracekit.kernel.lockstep import leave_lockstep
from tracekit.kernel.queues import leave_running, remove_waiting
from tracekit.kernel.quiet import duration_of
from tracekit.kernel.recording import advance_samples, itl_bucket, record_step, stamp_token, take_snapshot
from tracekit.kernel.references import entry_at, itl_at, plan_at, preemption_row_at, request_at, step_row_at
from tracekit.kernel.steps import settle_lockstep, sort_entries, stop_reason, update_request


@inlined
def launch(engine: Record, number: int) -> None:
    """Give a decided step to the device."""
    plan = plan_at(engine, number)
    start_ns = max(engine.now, engine.device_free)
    num_reqs = plan.count + plan.num_lockstep
    duration_ns = duration_of(
        engine, plan.num_scheduled_tokens, num_reqs, plan.num_context_tokens, plan.num_attention_pairs
    )
    engine.device_free = start_ns + duration_ns
    plan.step = engine.num_steps
    plan.end_ns = engine.device_free
    record_step(engine, number, start_ns, duration_ns)
    engine.num_preempted_since_step = 0
    # Whoever was admitted stands at the end of the plan.
    for position in range(plan.count - plan.num_admitted, plan.count):
        request = request_at(engine, entry_at(engine, number, position).request)
        if request.open_preemption != NONE:
            preemption_row_at(engine, request.open_preemption).resumed_step = engine.num_steps
            request.open_preemption = NONE
        else:
            request.scheduled_ns = engine.now
    engine.num_steps += 1
    engine.step_mod += 1
    if engine.step_mod == engine.block_size:
        engine.step_mod = 0
    engine.num_plans += 1
    if engine.lockstep:
        settle_lockstep(engine, number)


@inlined
def process(engine: Record, number: int) -> None:
    """Stamp the tokens the step sampled and end the requests it finished."""
    plan = plan_at(engine, number)
    engine.oldest_plan = 1 - engine.oldest_plan
    engine.num_plans -= 1
    advance_samples(engine, engine.now)
    if engine.is_async and plan.num_kept > 0:
        engine.crash = CRASH_KEPT_OUTPUT
        return
    end_ns = plan.end_ns
    if plan.is_unsorted:
        sort_entries(engine, number)
    num_sampled = plan.num_lockstep
    if num_sampled > 0:
        itl_at(engine, itl_bucket(end_ns - engine.last_update_ns)).count += num_sampled
    num_finished = 0
    for position in range(plan.count):
        update_request(engine, entry_at(engine, number, position))
    if engine.crash != 0:
        _undo_tokens(engine, number)
        return
    for position in range(plan.count):
        entry = entry_at(engine, number, position)
        if not entry.sampled:
            continue
        num_sampled += 1
        request = request_at(engine, entry.request)
        stamp_token(engine, request, end_ns)
        if entry.finished:
            num_finished += 1
            request.finished_ns = end_ns
            request.finish_reason = stop_reason(engine, request)
            ended(engine, entry.request, end_ns)
    engine.tokens_booked += num_sampled
    engine.fruitless_tokens = 0 if num_sampled > 0 else engine.fruitless_tokens + plan.num_scheduled_tokens
    engine.last_processed_step = plan.step
    engine.last_update_ns = end_ns
    if plan.row != NONE:
        step_row_at(engine, plan.row).num_finished_reqs = num_finished
    take_snapshot(engine)


@compiled
def _undo_tokens(engine: Record, number: int) -> None:
    """The version died while it processed a step: its tokens never came out."""
    for position in range(plan_at(engine, number).count):
        entry = entry_at(engine, number, position)
        if entry.sampled:
            request_at(engine, entry.request).num_tokens -= 1
            entry.sampled = False


@compiled
def abort(engine: Record, index: int) -> bool:
    """Throw a request out, wherever it is; False when it has ended already, or the version died of it."""
    request = request_at(engine, index)
    if request.status == FINISHED:
        return False
    if request.status == RUNNING:
        if request.in_lockstep:
            leave_lockstep(engine, index, False)
        leave_running(engine, index)
    else:
        remove_waiting(engine, index)
        if engine.crash != 0:
            return False
    request.status = FINISHED
    free_blocks(engine, index)
    engine.num_known -= 1
    request.open_preemption = NONE
    request.finish_reason = ABORT
    return True
