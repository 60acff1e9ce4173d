"""The clients: what is sent when, open loop, closed loop, or with a bound on what is in flight (``replay/clients.py``).

The first ``num_open`` requests have an arrival of their own and stand in the order of it. Turns that became due and
requests that were held back are in a heap of ``(due_ns, order)``; the held ones wait in a list through ``following``.
"""

from tracekit.kernel.compiling import compiled, inlined
from tracekit.kernel.layout import NONE, Record
from tracekit.kernel.references import heap_at, request_at

FOREVER = 1 << 62


@inlined
def next_due_ns(engine: Record) -> int:
    """When the next request is sent, as far as known now; ``FOREVER`` when none is known."""
    due = FOREVER
    if engine.next_open < engine.num_open:
        due = int(request_at(engine, engine.next_open).due_ns)
    if engine.heap_size > 0:
        due = min(due, int(request_at(engine, heap_at(engine, 0).due).due_ns))
    return due


@compiled
def send(engine: Record) -> int:
    """Take the next request, or ``NONE`` when the client holds it back."""
    index = _take_next(engine)
    if engine.max_concurrency > 0 and engine.num_in_flight_requests >= engine.max_concurrency:
        request_at(engine, index).following = NONE
        if engine.held_tail == NONE:
            engine.held_head = index
        else:
            request_at(engine, engine.held_tail).following = index
        engine.held_tail = index
        return NONE
    engine.num_in_flight_requests += 1
    return index


@compiled
def ended(engine: Record, index: int, at_ns: int) -> None:
    """A request has ended, however it did: its later turns and one held request may follow."""
    engine.num_ended += 1
    engine.num_in_flight_requests -= 1
    turn = request_at(engine, index).first_turn
    while turn != NONE:
        request_at(engine, turn).due_ns = at_ns + request_at(engine, turn).think_ns
        _push_due(engine, turn)
        turn = request_at(engine, turn).next_turn
    held = engine.held_head
    if held != NONE:
        engine.held_head = request_at(engine, held).following
        if engine.held_head == NONE:
            engine.held_tail = NONE
        # It was due before anything that is due at this instant, so it goes first: a lower order wins ties.
        request_at(engine, held).order -= engine.num_requests
        request_at(engine, held).due_ns = at_ns
        _push_due(engine, held)


@compiled
def _is_due_before(engine: Record, left: int, right: int) -> bool:
    if request_at(engine, left).due_ns != request_at(engine, right).due_ns:
        return bool(request_at(engine, left).due_ns < request_at(engine, right).due_ns)
    return bool(request_at(engine, left).order < request_at(engine, right).order)


@compiled
def _take_next(engine: Record) -> int:
    has_open = engine.next_open < engine.num_open
    if engine.heap_size > 0 and not (has_open and _is_due_before(engine, engine.next_open, heap_at(engine, 0).due)):
        index = heap_at(engine, 0).due
        engine.heap_size -= 1
        _sift_down(engine, engine.heap_size)
        return int(index)
    engine.next_open += 1
    return int(engine.next_open - 1)


@compiled
def _push_due(engine: Record, index: int) -> None:
    position = engine.heap_size
    engine.heap_size += 1
    while position > 0:
        parent = (position - 1) >> 1
        if not _is_due_before(engine, index, heap_at(engine, parent).due):
            break
        heap_at(engine, position).due = heap_at(engine, parent).due
        position = parent
    heap_at(engine, position).due = index


@compiled
def _sift_down(engine: Record, size: int) -> None:
    """Fill the hole at the root with the entry at ``size``, which was the last one."""
    moved = heap_at(engine, size).due
    position = 0
    child = 1
    while child < size:
        if child + 1 < size and _is_due_before(engine, heap_at(engine, child + 1).due, heap_at(engine, child).due):
            child += 1
        if not _is_due_before(engine, heap_at(engine, child).due, moved):
            break
        heap_at(engine, position).due = heap_at(engine, child).due
        position = child
        child = 2 * position + 1
    heap_at(engine, position).due = moved


@inlined
def abort_ns(engine: Record, index: int) -> int:
    """The instant at which the client of a request goes away."""
    return int(request_at(engine, index).arrival_ns + request_at(engine, index).abort_after_ns)


@compiled
def _aborts_before(engine: Record, left: int, right: int) -> bool:
    one = abort_ns(engine, left)
    other = abort_ns(engine, right)
    return bool(one < other or (one == other and request_at(engine, left).rank < request_at(engine, right).rank))


@compiled
def push_abort(engine: Record, index: int) -> None:
    """Remember that this request will be aborted."""
    position = engine.abort_size
    engine.abort_size += 1
    while position > 0:
        parent = (position - 1) >> 1
        if not _aborts_before(engine, index, heap_at(engine, parent).abort):
            break
        heap_at(engine, position).abort = heap_at(engine, parent).abort
        position = parent
    heap_at(engine, position).abort = index


@compiled
def pop_abort(engine: Record) -> int:
    """Take the next abort."""
    first = heap_at(engine, 0).abort
    engine.abort_size -= 1
    size = engine.abort_size
    moved = heap_at(engine, size).abort
    position = 0
    child = 1
    while child < size:
        if child + 1 < size and _aborts_before(engine, heap_at(engine, child + 1).abort, heap_at(engine, child).abort):
            child += 1
        if not _aborts_before(engine, heap_at(engine, child).abort, moved):
            break
        heap_at(engine, position).abort = heap_at(engine, child).abort
        position = child
        child = 2 * position + 1
    heap_at(engine, position).abort = moved
    return int(first)
