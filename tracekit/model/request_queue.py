"""The waiting queue of V1: ``FCFSRequestQueue`` and ``PriorityRequestQueue`` (``sched/request_queue.py``, 0.33.0)."""

import heapq
from collections import deque
from collections.abc import Iterator

from tracekit.model.request import Request
from tracekit.model.rules import EngineCrashError


class FcfsQueue:
    """First come, first served; a preempted request comes back to the front."""

    def __init__(self) -> None:
        self._queue: deque[Request] = deque()

    def add(self, request: Request) -> None:
        """Join at the end."""
        self._queue.append(request)

    def prepend(self, request: Request) -> None:
        """Come back to the front."""
        self._queue.appendleft(request)

    def peek(self) -> Request:
        """The next request; it stays."""
        return self._queue[0]

    def pop(self) -> Request:
        """Take the next request."""
        return self._queue.popleft()

    def remove(self, request: Request) -> None:
        """Leave from anywhere."""
        self._queue.remove(request)

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._queue)


class _Tie:
    """Stands where the request id would break a tie, in versions that have nothing to break it with."""

    def __lt__(self, other: object) -> bool:
        msg = (
            "vLLM 0.9.2 to 0.11.2 crashes here (TypeError): two waiting requests have the same priority and arrival "
            "time, and requests cannot be compared"
        )
        raise EngineCrashError(msg)


class PriorityQueue:
    """Smallest (priority, arrival, request_id) first; front and end mean nothing here."""

    def __init__(self, *, equal_arrivals_crash: bool) -> None:
        self._equal_arrivals_crash = equal_arrivals_crash
        self._heap: list[tuple[int, float, str | _Tie, Request]] = []

    def add(self, request: Request) -> None:
        """Join in order of priority. Raises ``EngineCrashError`` where vLLM could not order a tie."""
        tie = _Tie() if self._equal_arrivals_crash else request.request_id
        heapq.heappush(self._heap, (request.priority, request.arrival_order, tie, request))

    def prepend(self, request: Request) -> None:
        """Come back: the same as joining."""
        self.add(request)

    def peek(self) -> Request:
        """The next request; it stays."""
        return self._heap[0][3]

    def pop(self) -> Request:
        """Take the next request."""
        return heapq.heappop(self._heap)[3]

    def remove(self, request: Request) -> None:
        """Leave from anywhere."""
        self._heap = [entry for entry in self._heap if entry[3] is not request]
        heapq.heapify(self._heap)

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[Request]:
        return (entry[3] for entry in sorted(self._heap, key=lambda entry: entry[:2]))
