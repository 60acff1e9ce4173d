"""The running list, the requests handled one by one, and the waiting queue (``model/request_queue.py``).

Running requests form a doubly linked list in admission order (``previous``, ``following``); those that are not in
lockstep form another through the same order (``peer_previous``, ``peer_following``). A waiting request uses the first
pair for the FCFS queue; with priority the waiting queue is a heap that compares as Python's ``heapq`` does.
"""

from tracekit.kernel.compiling import compiled, inlined
from tracekit.kernel.layout import CRASH_EQUAL_ARRIVALS, NONE, Record
from tracekit.kernel.references import heap_at, request_at


@compiled
def append_running(engine: Record, index: int) -> None:
    """A request is admitted: the last to run, and handled one by one."""
    request = request_at(engine, index)
    request.admission = engine.next_admission
    engine.next_admission += 1
    request.previous = engine.running_tail
    request.following = NONE
    if engine.running_tail == NONE:
        engine.running_head = index
    else:
        request_at(engine, engine.running_tail).following = index
    engine.running_tail = index
    engine.num_running += 1
    join_individuals(engine, index)


@compiled
def leave_running(engine: Record, index: int) -> None:
    """A running request that is not in lockstep leaves, from anywhere."""
    request = request_at(engine, index)
    if request.previous == NONE:
        engine.running_head = request.following
    else:
        request_at(engine, request.previous).following = request.following
    if request.following == NONE:
        engine.running_tail = request.previous
    else:
        request_at(engine, request.following).previous = request.previous
    engine.num_running -= 1
    leave_individuals(engine, index)


@compiled
def join_individuals(engine: Record, index: int) -> None:
    """Handle a running request one by one; it takes its place in admission order."""
    request = request_at(engine, index)
    after = engine.individual_tail
    while after != NONE and request_at(engine, after).admission > request.admission:
        after = request_at(engine, after).peer_previous
    before = engine.individual_head if after == NONE else request_at(engine, after).peer_following
    request.peer_previous = after
    request.peer_following = before
    if after == NONE:
        engine.individual_head = index
    else:
        request_at(engine, after).peer_following = index
    if before == NONE:
        engine.individual_tail = index
    else:
        request_at(engine, before).peer_previous = index
    engine.num_individual += 1


@compiled
def leave_individuals(engine: Record, index: int) -> None:
    """Handle a request one by one no longer."""
    request = request_at(engine, index)
    if request.peer_previous == NONE:
        engine.individual_head = request.peer_following
    else:
        request_at(engine, request.peer_previous).peer_following = request.peer_following
    if request.peer_following == NONE:
        engine.individual_tail = request.peer_previous
    else:
        request_at(engine, request.peer_following).peer_previous = request.peer_previous
    engine.num_individual -= 1


@compiled
def add_waiting(engine: Record, index: int) -> None:
    """Join at the end of the waiting queue."""
    if engine.by_priority:
        _push(engine, index)
        return
    request = request_at(engine, index)
    request.previous = engine.waiting_tail
    request.following = NONE
    if engine.waiting_tail == NONE:
        engine.waiting_head = index
    else:
        request_at(engine, engine.waiting_tail).following = index
    engine.waiting_tail = index
    engine.num_waiting += 1


@compiled
def prepend_waiting(engine: Record, index: int) -> None:
    """Come back to the front of the waiting queue."""
    if engine.by_priority:
        _push(engine, index)
        return
    request = request_at(engine, index)
    request.previous = NONE
    request.following = engine.waiting_head
    if engine.waiting_head == NONE:
        engine.waiting_tail = index
    else:
        request_at(engine, engine.waiting_head).previous = index
    engine.waiting_head = index
    engine.num_waiting += 1


@inlined
def peek_waiting(engine: Record) -> int:
    """The next request; it stays."""
    return int(heap_at(engine, 0).waiting) if engine.by_priority else int(engine.waiting_head)


@compiled
def pop_waiting(engine: Record) -> int:
    """Take the next request."""
    index = peek_waiting(engine)
    if engine.by_priority:
        engine.num_waiting -= 1
        size = engine.num_waiting
        heap_at(engine, 0).waiting = heap_at(engine, size).waiting
        if size > 0:
            _sift_to_leaf(engine, 0, size)
    else:
        remove_waiting(engine, index)
    return index


@compiled
def remove_waiting(engine: Record, index: int) -> None:
    """Leave the waiting queue from anywhere."""
    if engine.by_priority:
        kept = 0
        for position in range(engine.num_waiting):
            if heap_at(engine, position).waiting != index:
                heap_at(engine, kept).waiting = heap_at(engine, position).waiting
                kept += 1
        engine.num_waiting = kept
        for position in range(kept // 2 - 1, -1, -1):
            _sift_to_leaf(engine, position, kept)
        return
    request = request_at(engine, index)
    if request.previous == NONE:
        engine.waiting_head = request.following
    else:
        request_at(engine, request.previous).following = request.following
    if request.following == NONE:
        engine.waiting_tail = request.previous
    else:
        request_at(engine, request.following).previous = request.previous
    engine.num_waiting -= 1


@compiled
def _comes_before(engine: Record, left: int, right: int) -> bool:
    """Order of (priority, arrival, request_id); where a version cannot break the tie, it crashes."""
    one = request_at(engine, left)
    other = request_at(engine, right)
    if one.priority != other.priority:
        return bool(one.priority < other.priority)
    if one.arrival_ns != other.arrival_ns:
        return bool(one.arrival_ns < other.arrival_ns)
    if engine.equal_arrivals_crash:
        engine.crash = CRASH_EQUAL_ARRIVALS
    return bool(one.rank < other.rank)


@compiled
def _push(engine: Record, index: int) -> None:
    position = engine.num_waiting
    heap_at(engine, position).waiting = index
    engine.num_waiting += 1
    _sift_to_root(engine, 0, position)


@compiled
def _sift_to_root(engine: Record, start: int, position: int) -> None:
    moved = heap_at(engine, position).waiting
    while position > start:
        parent = (position - 1) >> 1
        if not _comes_before(engine, moved, heap_at(engine, parent).waiting):
            break
        heap_at(engine, position).waiting = heap_at(engine, parent).waiting
        position = parent
    heap_at(engine, position).waiting = moved


@compiled
def _sift_to_leaf(engine: Record, start: int, size: int) -> None:
    """``heapq._siftup``: down to a leaf along the smaller children, then up to where it belongs."""
    moved = heap_at(engine, start).waiting
    position = start
    child = 2 * position + 1
    while child < size:
        right = child + 1
        if right < size and not _comes_before(engine, heap_at(engine, child).waiting, heap_at(engine, right).waiting):
            child = right
        heap_at(engine, position).waiting = heap_at(engine, child).waiting
        position = child
        child = 2 * position + 1
    heap_at(engine, position).waiting = moved
    _sift_to_root(engine, start, position)
