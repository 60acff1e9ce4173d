"""The kernel step by step, without a clock, for recordings whose arrivals name a step: one entry, one act a call."""

from typing import Final

from tracekit.kernel.blocks import forget
from tracekit.kernel.compiling import compiled, compiled_entry
from tracekit.kernel.layout import NO_OWNER, NONE, WAITING, Array, Record
from tracekit.kernel.lockstep import leave_lockstep
from tracekit.kernel.queues import add_waiting, leave_running
from tracekit.kernel.references import block_at, request_at
from tracekit.kernel.running import preempt
from tracekit.kernel.steps import schedule
from tracekit.kernel.turn import abort, launch, process

ADD: Final = 0
ABORT_ONE: Final = 1
SCHEDULE: Final = 2
LAUNCH: Final = 3
PROCESS: Final = 4
THROW_OUT: Final = 5
FORGET_ALL: Final = 6


@compiled_entry
def act(engines: Array, action: int, number: int) -> int:
    """Add, abort or throw out request ``number``; decide, launch or process the step that stands in plan ``number``.

    Returns the number of requests scheduled, whether somebody was aborted, or whether the cache was reset.
    ``engine.crash`` says of what the version would have died.
    """
    engine = engines[0]
    if action == ADD:
        request_at(engine, number).status = WAITING
        engine.num_known += 1
        add_waiting(engine, number)
    elif action == ABORT_ONE:
        return int(abort(engine, number))
    elif action == SCHEDULE:
        return schedule(engine, number)
    elif action == LAUNCH:
        engine.preemptions_booked = engine.num_preemption_rows
        launch(engine, number)
    elif action == PROCESS:
        process(engine, number)
    elif action == THROW_OUT:
        if request_at(engine, number).in_lockstep:
            leave_lockstep(engine, number, True)
        leave_running(engine, number)
        preempt(engine, number)
    else:
        return int(_forget_all(engine))
    return 0


@compiled
def _forget_all(engine: Record) -> bool:
    """Reset the prefix cache; refused while a block is in use."""
    if engine.num_free_blocks != engine.num_usable_blocks:
        return False
    if engine.caching:
        block = engine.free_head
        while block != NONE:
            if block_at(engine, block).owner != NO_OWNER:
                forget(engine, block)
            block = block_at(engine, block).free_following
    engine.is_watching = False
    return True
