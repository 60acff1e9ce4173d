"""The clients: when each request is sent, open loop, closed loop, or with a bound on what is in flight."""

import heapq
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from tracekit.replay.workload import Arrival


@dataclass(frozen=True)
class ArrivalMode:
    """How requests arrive.

    ``closed_loop``: a later turn is sent its think time after its parent ended in the simulation (a turn without a
    recorded arrival always is). ``max_concurrency``: the client keeps at most so many in flight.
    """

    closed_loop: bool = False
    max_concurrency: int | None = None


@dataclass
class Clients:
    """Knows the next request to send; told when one ended, it sends what was waiting for that."""

    arrivals: Sequence[Arrival]
    mode: ArrivalMode
    due: list[tuple[int, int, Arrival]] = field(default_factory=list)
    held: deque[tuple[int, Arrival]] = field(default_factory=deque)
    num_in_flight: int = 0
    later_turns: dict[str, list[tuple[int, Arrival]]] = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        by_id = {arrival.request_id: arrival for arrival in self.arrivals}
        for order, arrival in enumerate(self.arrivals):
            parent = by_id.get(arrival.parent_request_id) if arrival.parent_request_id is not None else None
            follows = arrival.arrival_ns is None or (self.mode.closed_loop and parent is not None)
            if follows and parent is not None and parent is not arrival:
                self.later_turns.setdefault(parent.request_id, []).append((order, arrival))
            elif arrival.arrival_ns is not None:
                self.due.append((arrival.arrival_ns, order, arrival))
            else:
                self.left_out["no arrival time and no earlier turn to follow"] += 1
        heapq.heapify(self.due)
        self._by_id = by_id

    @property
    def next_ns(self) -> int | None:
        """When the next request is sent, as far as known now."""
        return self.due[0][0] if self.due else None

    def send(self) -> tuple[int, Arrival] | None:
        """Take the next request: ``(instant, request)``, or None when the client holds it back."""
        at_ns, order, arrival = heapq.heappop(self.due)
        if self.mode.max_concurrency is not None and self.num_in_flight >= self.mode.max_concurrency:
            self.held.append((order, arrival))
            return None
        self.num_in_flight += 1
        return at_ns, arrival

    def ended(self, arrival: Arrival, at_ns: int) -> None:
        """A request has ended, however it did: its later turns and one held request may follow."""
        self.num_in_flight -= 1
        for order, turn in self.later_turns.pop(arrival.request_id, ()):
            heapq.heappush(self.due, (at_ns + self._think_ns(turn), order, turn))
        if self.held:
            order, held = self.held.popleft()
            # It was due before anything that is due at this instant, so it goes first: a negative order wins ties.
            heapq.heappush(self.due, (at_ns, order - len(self.arrivals), held))

    def _think_ns(self, turn: Arrival) -> int:
        if turn.think_ns is not None:
            return turn.think_ns
        parent = self._by_id[turn.parent_request_id or ""]
        if turn.arrival_ns is not None and parent.recorded_end_ns is not None:
            return max(0, turn.arrival_ns - parent.recorded_end_ns)
        return 0

    @property
    def num_never_sent(self) -> int:
        """Requests whose turn never came."""
        return len(self.due) + len(self.held) + sum(len(turns) for turns in self.later_turns.values())
