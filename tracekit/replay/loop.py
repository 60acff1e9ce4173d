"""The timed loop: arrivals reach an engine, the scheduler decides, the device takes its time, outputs come back.

Mirrors ``EngineCore.step`` and ``step_with_batch_queue`` (``vllm/v1/engine/core.py``): asynchronous scheduling keeps
two steps in flight, so step k+2 is decided when step k ends, while k+1 runs. V0's asynchronous output processing
(``LLMEngine.step``) is another thing: the host waits for every step, and looks at its output while the next one runs.
Tokens are stamped at the end of the step that sampled them.

Invariants: the clock of an engine never goes back; every arrival ends in exactly one outcome; a turn that can neither
schedule, finish nor wait for anything ends the replay instead of repeating itself.
"""

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from tracekit.config import EngineConfig
from tracekit.model.livelock import STUCK, fruitless_limit
from tracekit.model.plan import StepPlan
from tracekit.model.request import Request
from tracekit.model.rules import EngineCrashError
from tracekit.model.schedulers import AnyScheduler
from tracekit.replay.record import NUM_FINISHED, NUM_PREEMPTED, Outcome, Recording
from tracekit.replay.sampler import Sampler
from tracekit.step_time.duration import StepClock
from tracekit.step_time.parameters import StepTime


@dataclass(slots=True)
class InFlight:
    """A step on the device: its plan, when it ends, and its recorded row."""

    plan: StepPlan
    end_ns: int
    row: list[int | float | str | None]


Observer = Callable[["Engine", StepPlan], None]
"""Told every decision right after it is taken, before it is recorded; may look and not touch."""


@dataclass
class Engine:
    """One engine core: its scheduler, its host clock ``now`` and the instant its device is ``free``.

    ``blocks_while_running``: the host waits for each step before it decides the next (V0).
    """

    number: int
    scheduler: AnyScheduler
    blocks_while_running: bool
    config: EngineConfig
    step_time: StepTime
    recording: Recording
    sampler: Sampler
    on_finished: Callable[[Outcome], None]
    observer: Observer | None = None
    now: int = 0
    free: int = 0
    num_steps: int = 0
    num_preempted: int = 0
    """Preempted since the last step; a decision that preempts may schedule nothing, and is no step then."""
    in_flight: deque[InFlight] = field(default_factory=deque)
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    aborts: list[tuple[int, str]] = field(default_factory=list)
    open_preemptions: dict[str, dict[str, int | str | None]] = field(default_factory=dict)
    is_blocked: bool = False
    fruitless_tokens: int = 0
    """Computed since a token came out."""

    def __post_init__(self) -> None:
        self._clock = StepClock(self.step_time.parameters)
        self._fruitless_limit = fruitless_limit(self.config)

    @property
    def has_work(self) -> bool:
        """Whether a turn can change anything before the next arrival or abort."""
        return bool(self.in_flight) or (self.scheduler.has_requests and not self.is_blocked)

    def receive(self, request: Request, outcome: Outcome, at_ns: int) -> None:
        """Put a request that has arrived into the waiting queue."""
        if not self.has_work:
            self.now = max(self.now, at_ns)
        self.is_blocked = False
        outcome.queued_ns = self.now
        self.outcomes[request.request_id] = outcome
        self.scheduler.add_request(request)
        if outcome.arrival.abort_after_ns is not None:
            heapq.heappush(self.aborts, (outcome.arrival_ns + outcome.arrival.abort_after_ns, request.request_id))

    def turn(self, next_arrival_ns: int | None) -> None:
        """One pass of the engine core's loop: decide a step, or wait for the oldest one and process its output.

        ``next_arrival_ns``: when the next request reaches any engine; a blocked engine waits no longer than that.
        """
        self._apply_aborts()
        depth = 2 if self.config.async_scheduling else 1
        if len(self.in_flight) < depth:
            if self.fruitless_tokens > self._fruitless_limit:
                raise EngineCrashError(STUCK)
            plan = self.scheduler.schedule()
            if self.observer is not None:
                self.observer(self, plan)
            self._record_preemptions(plan)
            for request in plan.ignored:
                self._finish(request, self.now)
            if plan.scheduled:
                self._launch(plan)
                if len(self.in_flight) < depth:
                    return
            elif not self.in_flight:
                self._wait(next_arrival_ns)
                return
        oldest = self.in_flight.popleft()
        self.now = max(self.now, oldest.end_ns)
        self._apply_aborts()
        self._process(oldest)

    def _launch(self, plan: StepPlan) -> None:
        start = max(self.now, self.free)
        duration = self._clock.duration_ns(
            plan.num_scheduled_tokens, len(plan.scheduled), plan.num_context_tokens, plan.num_attention_pairs
        )
        self.free = start + duration
        row = self.recording.add_step(
            plan, step=self.num_steps, engine=self.number, decided=self.now, start=start, duration=duration
        )
        for request in plan.admitted:
            self.outcomes[request.request_id].scheduled_ns = self.now
        for request in plan.resumed:
            self.open_preemptions.pop(request.request_id)["resumed_step"] = self.num_steps
        row[NUM_PREEMPTED] = self.num_preempted
        self.num_preempted = 0
        self.num_steps += 1
        self.in_flight.append(InFlight(plan, self.free, row))
        if self.blocks_while_running:
            self.now = self.free

    def _record_preemptions(self, plan: StepPlan) -> None:
        self.sampler.book_preemptions(len(plan.preemptions))
        self.num_preempted += len(plan.preemptions)
        for preemption in plan.preemptions:
            row: dict[str, int | str | None] = {
                "step": self.num_steps,
                "time_ns": self.now,
                "engine": self.number,
                "request_id": preemption.victim.request_id,
                "needed_by_request_id": preemption.needed_by.request_id,
                "num_computed_tokens": preemption.num_computed_tokens,
                "num_blocks": preemption.num_blocks,
                "resumed_step": None,
            }
            self.recording.preemptions.append(row)
            self.open_preemptions[preemption.victim.request_id] = row

    def _process(self, step: InFlight) -> None:
        """Stamp the tokens the step sampled and end the requests it finished."""
        self.sampler.advance(self.now)
        output = self.scheduler.update(step.plan)
        for request in output.sampled:
            outcome = self.outcomes[request.request_id]
            if outcome.last_token_ns is None:
                self.sampler.book_prompt(request)
            outcome.stamp_token(step.end_ns, self.recording.itl)
        self.sampler.book_tokens(len(output.sampled))
        self.fruitless_tokens = 0 if output.sampled else self.fruitless_tokens + step.plan.num_scheduled_tokens
        for request in output.finished:
            self._finish(request, step.end_ns)
        step.row[NUM_FINISHED] = len(output.finished)
        self.sampler.after_step(self.scheduler)

    def _apply_aborts(self) -> None:
        while self.aborts and self.aborts[0][0] <= self.now:
            at_ns, request_id = heapq.heappop(self.aborts)
            outcome = self.outcomes.get(request_id)
            if outcome is not None and self.scheduler.abort_request(request_id):
                self.open_preemptions.pop(request_id, None)
                outcome.finished_ns = max(at_ns, outcome.last_token_ns or 0)
                outcome.finish_reason = "abort"
                self.on_finished(outcome)

    def _wait(self, next_arrival_ns: int | None) -> None:
        """Nothing runs and nothing can be admitted: only an abort or an arrival can help."""
        instants = [at for at in (self.aborts[0][0] if self.aborts else None, next_arrival_ns) if at is not None]
        if instants:
            self.now = max(self.now, min(instants))
        self.is_blocked = not self.aborts

    def _finish(self, request: Request, at_ns: int) -> None:
        outcome = self.outcomes[request.request_id]
        outcome.finished_ns = at_ns
        outcome.finish_reason = request.finish_reason or "stop"
        self.on_finished(outcome)
