"""Drive the engines: send what is due, let the engine that is furthest behind take its turn."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from tracekit.config import EngineConfig
from tracekit.model.request import Request
from tracekit.model.rules import Rules
from tracekit.model.schedulers import scheduler_for
from tracekit.progress import Progress, no_progress
from tracekit.replay.clients import Clients
from tracekit.replay.loop import Engine, Observer
from tracekit.replay.record import Outcome, Recording
from tracekit.replay.refusals import refusal
from tracekit.replay.sampler import Sampler
from tracekit.replay.workload import Arrival
from tracekit.step_time.parameters import StepTime

_PROGRESS_EVERY = 256


@dataclass
class Simulation:
    """One replay: the engines, the clients, and what was recorded; ``refused`` counts requests by vLLM's reason."""

    config: EngineConfig
    rules: Rules
    step_time: StepTime
    clients: Clients
    sample_at: Sequence[int] = ()
    books_computed_prompts: bool = True
    progress: Progress = no_progress
    observer: Observer | None = None
    recording: Recording = field(default_factory=Recording)
    refused: Counter[str] = field(default_factory=Counter)
    num_ended: int = 0

    def __post_init__(self) -> None:
        recorded = {arrival.engine for arrival in self.clients.arrivals if arrival.engine is not None}
        numbers = sorted(recorded | set(range(self.config.data_parallel_size)))
        self.engines = {number: self._engine(number) for number in numbers}

    def _engine(self, number: int) -> Engine:
        return Engine(
            number=number,
            scheduler=scheduler_for(self.config, self.rules),
            blocks_while_running=self.rules.engine == "v0",
            config=self.config,
            step_time=self.step_time,
            recording=self.recording,
            sampler=Sampler(number, self.recording, self.sample_at, without_cached=self.books_computed_prompts),
            on_finished=self._ended,
            observer=self.observer,
        )

    def run(self) -> None:
        """Replay everything into ``recording``; requests that can never run stay unfinished.

        Raises ``EngineCrashError`` where the rules' version dies itself; what was recorded up to then stands.
        """
        while True:
            engine = min(
                (e for e in self.engines.values() if e.has_work), key=lambda e: (e.now, e.number), default=None
            )
            due = self.clients.next_ns
            reaches = None if due is None else due + self.step_time.frontend_ns
            if reaches is not None and (engine is None or reaches <= engine.now):
                self._send()
            elif engine is not None:
                engine.turn(reaches)
            else:
                break
        for engine in self.engines.values():
            engine.sampler.finish(engine.now)
        self.progress("replay", self.num_ended, len(self.clients.arrivals))

    def _send(self) -> None:
        sent = self.clients.send()
        if sent is None:
            return
        at_ns, arrival = sent
        request = Request(
            request_id=arrival.request_id,
            num_prompt_tokens=arrival.num_prompt_tokens,
            max_tokens=arrival.max_tokens,
            num_output_tokens=arrival.num_output_tokens,
            block_hashes=arrival.block_hashes,
            priority=arrival.priority,
            arrival_order=at_ns,
        )
        engine = self._route(arrival)
        outcome = Outcome(arrival, request, engine.number, at_ns)
        self.recording.outcomes.append(outcome)
        reason = refusal(arrival, self.config, self._num_usable_blocks)
        if reason is None:
            engine.receive(request, outcome, at_ns + self.step_time.frontend_ns)
        else:
            self.refused[reason] += 1
            outcome.finish_reason = "rejected"
            outcome.finished_ns = at_ns
            self._ended(outcome)

    @property
    def _num_usable_blocks(self) -> int:
        has_null_block = self.rules.engine == "v1" and self.rules.has_null_block
        return self.config.num_gpu_blocks - has_null_block

    def _route(self, arrival: Arrival) -> Engine:
        """The recorded engine, else the least loaded as the coordinator of data-parallel engines counts it."""
        if arrival.engine is not None:
            return self.engines[arrival.engine]
        return min(
            self.engines.values(), key=lambda e: (4 * len(e.scheduler.waiting) + len(e.scheduler.running), e.number)
        )

    def _ended(self, outcome: Outcome) -> None:
        self.num_ended += 1
        if self.num_ended % _PROGRESS_EVERY == 0:
            self.progress("replay", self.num_ended, len(self.clients.arrivals))
        self.clients.ended(outcome.arrival, outcome.finished_ns if outcome.finished_ns is not None else 0)
