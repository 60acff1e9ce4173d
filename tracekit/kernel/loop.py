"""The timed loop (``replay/loop.py`` and ``replay/simulate.py``): send, decide, let the device run, deliver.

``run`` is what Python calls. It stops when everything has ended, when a table is full (make it larger and call again:
all state is in the arrays), after ``max_turns``, or where the version itself crashes.
"""

from tracekit.kernel.clients import FOREVER, abort_ns, ended, next_due_ns, pop_abort, push_abort, send
from tracekit.kernel.compiling import compiled, compiled_entry, inlined
from tracekit.kernel.layout import (
    CRASH_STUCK,
    DONE,
    FINISHED,
    NONE,
    PAUSED,
    REJECTED,
    STEPS_FULL,
    WAITING,
    Array,
    Record,
)
from tracekit.kernel.lockstep import leave_all
from tracekit.kernel.queues import add_waiting
from tracekit.kernel.quiet import is_quiet, quiet_turns
from tracekit.kernel.recording import finish_samples, has_room
from tracekit.kernel.references import heap_at, plan_at, request_at
from tracekit.kernel.steps import schedule
from tracekit.kernel.turn import abort, launch, process


@compiled_entry
def run(engines: Array, max_turns: int) -> int:
    """Replay on from where the arrays stand; returns why it stopped."""
    engine = engines[0]
    turns = 0
    while turns < max_turns:
        room = has_room(engine)
        if room != 0:
            return STEPS_FULL + room - 1
        has_work = _has_work(engine)
        due = next_due_ns(engine)
        if due < FOREVER and (not has_work or due + engine.frontend_ns <= engine.now):
            turns += 1
            _send(engine)
        elif has_work:
            turns += 1
            _turn(engine, due)
            if is_quiet(engine):
                # Somebody may have ended, so that another arrival is due now.
                arrival_ns = min(next_due_ns(engine), FOREVER - engine.frontend_ns) + engine.frontend_ns
                quiet = quiet_turns(engine, arrival_ns, max_turns - turns)
                if quiet > 0:
                    engine.fruitless_tokens = 0
                turns += quiet
        else:
            finish_samples(engine)
            return DONE
        if engine.crash != 0:
            leave_all(engine)
            return int(engine.crash)
    return PAUSED


@inlined
def _has_work(engine: Record) -> bool:
    """Whether a turn can change anything before the next arrival or abort."""
    return bool(engine.num_plans > 0 or (engine.num_known > 0 and not engine.is_blocked))


@compiled
def _send(engine: Record) -> None:
    """Send the next request; it reaches the engine, or is refused at the door."""
    index = send(engine)
    if index == NONE:
        return
    request = request_at(engine, index)
    request.arrival_ns = request.due_ns
    if request.refused != 0:
        request.status = FINISHED
        request.finish_reason = REJECTED
        request.finished_ns = request.arrival_ns
        ended(engine, index, request.finished_ns)
        return
    if not _has_work(engine):
        engine.now = max(engine.now, request.arrival_ns + engine.frontend_ns)
    engine.is_blocked = False
    request.queued_ns = engine.now
    request.status = WAITING
    engine.num_known += 1
    add_waiting(engine, index)
    if request.abort_after_ns >= 0 and engine.crash == 0:
        push_abort(engine, index)


@inlined
def _turn(engine: Record, due_ns: int) -> None:
    """One pass of the engine core's loop: decide a step, or wait for the oldest one and process its output."""
    _apply_aborts(engine)
    if engine.num_plans < engine.depth and engine.crash == 0:
        if engine.fruitless_tokens > engine.fruitless_limit:
            engine.crash = CRASH_STUCK
            return
        number = (engine.oldest_plan + engine.num_plans) & 1
        rows_before = engine.num_preemption_rows
        num_scheduled = schedule(engine, number)
        if engine.crash != 0:
            engine.num_preemption_rows = rows_before
            return
        engine.preemptions_booked += plan_at(engine, number).num_preemptions
        engine.num_preempted_since_step += plan_at(engine, number).num_preemptions
        if num_scheduled > 0:
            launch(engine, number)
            if engine.num_plans < engine.depth:
                return
        elif engine.num_plans == 0:
            _wait(engine, due_ns)
            return
    if engine.crash != 0:
        return
    oldest = engine.oldest_plan
    engine.now = max(engine.now, plan_at(engine, oldest).end_ns)
    # The aborts see the step as delivered already: what it carried of an aborted request is dropped.
    _apply_aborts(engine)
    if engine.crash == 0:
        process(engine, oldest)


@compiled
def _apply_aborts(engine: Record) -> None:
    while engine.abort_size > 0 and abort_ns(engine, heap_at(engine, 0).abort) <= engine.now and engine.crash == 0:
        index = pop_abort(engine)
        if abort(engine, index):
            request = request_at(engine, index)
            last_ns = 0 if request.last_token_ns < -(1 << 61) else request.last_token_ns
            request.finished_ns = max(abort_ns(engine, index), last_ns)
            ended(engine, index, request.finished_ns)


@compiled
def _wait(engine: Record, due_ns: int) -> None:
    """Nothing runs and nothing can be admitted: only an abort or an arrival can help."""
    until = FOREVER
    if engine.abort_size > 0:
        until = abort_ns(engine, heap_at(engine, 0).abort)
    if due_ns < FOREVER:
        until = min(until, due_ns + engine.frontend_ns)
    if until < FOREVER:
        engine.now = max(engine.now, until)
    engine.is_blocked = engine.abort_size == 0
