"""One request's or one step's story: the replay is run again and watched, so that every decision can be told.

A simulated run carries its arrivals, configuration and step time, and a replay is deterministic, so watching it again
sees the very decisions that were recorded. An observed run is replayed for the purpose, which the story says.
"""

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from tracekit.errors import InputError
from tracekit.model.plan import StepPlan
from tracekit.model.request import Request
from tracekit.replay.endpoints import CHAT_ID
from tracekit.replay.loop import Engine
from tracekit.replay.record import Outcome
from tracekit.replay.replay import Prepared, prepare
from tracekit.run import Run
from tracekit.step_time.parameters import StepTime


@dataclass(frozen=True)
class Moment:
    """One thing that happened: when (ns from the run's start), in which step, between whom, in words."""

    time_ns: int
    step: int | None
    source: str
    target: str
    text: str


@dataclass
class Story:
    """What is told: a title, moments in order, and sentences about how it is known."""

    title: str
    moments: list[Moment] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def explain_request(
    run: Run, request_id: str, *, settings: Sequence[str] = (), step_time: StepTime | None = None
) -> Story:
    """Tell one request's story: arrived, waited for which limit, admitted, chunks, preempted by whom, first token, end.

    Raises ``InputError`` when the run has no such request or it takes no part in a replay.
    """
    if request_id not in set(run.requests["request_id"]):
        msg = f'{run.name} has no request of that id; tracekit sql RUN "FROM requests" lists them'
        raise InputError(msg)
    watcher = _RequestWatcher(request_id)
    prepared = prepare(run, settings=settings, step_time=step_time, observer=watcher.saw)
    prepared.simulation.run()
    outcome = next((o for o in prepared.simulation.recording.outcomes if o.arrival.request_id == request_id), None)
    if outcome is None:
        msg = f"{run.name}: that request takes no part in a replay (refused before the engine, or without lengths)"
        raise InputError(msg)
    if request_id.startswith(CHAT_ID):
        outcome.arrival_ns -= prepared.settled.step_time.chat_ns
    return Story(f"request {request_id}", watcher.told(outcome), _notes(run, prepared))


def explain_steps(
    run: Run, first: int, last: int, *, engine: int = 0, settings: Sequence[str] = (), step_time: StepTime | None = None
) -> Story:
    """Tell the steps ``first`` to ``last``: who was scheduled, who was preempted, what stopped the next one.

    Raises ``InputError`` when the replay has no such step.
    """
    watcher = _StepWatcher(first, last, engine)
    prepared = prepare(run, settings=settings, step_time=step_time, observer=watcher.saw)
    prepared.simulation.run()
    if not watcher.moments:
        total = max((e.num_steps for e in prepared.simulation.engines.values()), default=0)
        msg = f"{run.name}: no such step; its replay has steps 0 to {total - 1}"
        raise InputError(msg)
    title = f"step {first}" if first == last else f"steps {first} to {last}"
    return Story(title, watcher.moments, _notes(run, prepared))


def _notes(run: Run, prepared: Prepared) -> list[str]:
    if run.kind == "simulated":
        return []
    return [
        f"{run.name} was replayed under the rules of {prepared.settled.version} to tell this",
        *prepared.settled.notes,
    ]


class _RequestWatcher:
    """Follows one request through the decisions; waiting is told in one sentence per stay in the queue."""

    def __init__(self, request_id: str) -> None:
        self._id = request_id
        self._moments: list[Moment] = []
        self._waited: Counter[str] = Counter()
        self._steps_at_head = 0
        self._waiting_since: int | None = None
        self._decodes = 0
        self._running = False

    def saw(self, engine: Engine, plan: StepPlan) -> None:
        outcome = engine.outcomes.get(self._id)
        if outcome is None or outcome.finished_ns is not None:
            return
        for preemption in plan.preemptions:
            if preemption.victim.request_id == self._id:
                who = preemption.needed_by.request_id
                why = "it needed a block itself and none was free" if who == self._id else f"{who} needed a block"
                text = f"preempted: {why}; {preemption.num_computed_tokens:,} computed tokens lost"
                self._flush_decodes(engine)
                self._add(engine, "scheduler", "queue", f"{text}, {preemption.num_blocks} blocks freed")
                self._running = False
        tokens = plan.scheduled.get(self._id)
        if tokens is None:
            if not self._running:
                self._wait(engine, plan)
            return
        if self._id in plan.cached:
            self._admitted(engine, plan)
        if tokens > 1 or self._id in plan.cached:
            last = any(request.request_id == self._id for request in plan.sampling)
            what = "the last of its prompt" if last else "a chunk"
            self._add(engine, "scheduler", "device", f"{tokens:,} tokens, {what}")
        else:
            self._decodes += 1
        self._running = True

    def _wait(self, engine: Engine, plan: StepPlan) -> None:
        if self._waiting_since is None:
            self._waiting_since = engine.now
        self._waited[plan.bound_by] += 1
        head = _head_of_queue(engine)
        self._steps_at_head += head is not None and head.request_id == self._id

    def _admitted(self, engine: Engine, plan: StepPlan) -> None:
        if self._waiting_since is not None:
            total = sum(self._waited.values())
            reasons = ", ".join(f"{reason} in {count:,}" for reason, count in self._waited.most_common())
            waited = (engine.now - self._waiting_since) / 1e9
            steps = "one step" if total == 1 else f"{total:,} steps"
            text = f"waited {waited:,.3f} s over {steps}, at the head in {self._steps_at_head:,}; bound by {reasons}"
            self._add(engine, "queue", "queue", text)
        self._waiting_since, self._steps_at_head = None, 0
        self._waited.clear()
        again = any(request.request_id == self._id for request in plan.resumed)
        text = f"{'admitted again' if again else 'admitted'} with {plan.cached[self._id]:,} cached tokens"
        self._add(engine, "queue", "scheduler", text)

    def _flush_decodes(self, engine: Engine) -> None:
        if self._decodes:
            self._add(engine, "device", "client", _decodes_text(self._decodes))
        self._decodes = 0

    def _add(self, engine: Engine, source: str, target: str, text: str) -> None:
        self._moments.append(Moment(engine.now, engine.num_steps, source, target, text))

    def told(self, outcome: Outcome) -> list[Moment]:
        """The moments in order, with arrival, first token and end from the outcome."""
        arrival = outcome.arrival
        limit = f", up to {arrival.max_tokens:,} output" if arrival.max_tokens else ""
        told = [
            Moment(
                outcome.arrival_ns,
                None,
                "client",
                "queue",
                f"arrives: {arrival.num_prompt_tokens:,} prompt tokens{limit}",
            )
        ]
        told += self._moments
        if outcome.first_token_ns is not None:
            ttft = (outcome.first_token_ns - outcome.arrival_ns) / 1e6
            told.append(
                Moment(outcome.first_token_ns, None, "device", "client", f"first token, {ttft:,.1f} ms after arrival")
            )
        if self._decodes and outcome.last_token_ns is not None:
            told.append(Moment(outcome.last_token_ns, None, "device", "client", _decodes_text(self._decodes)))
        end = outcome.finished_ns if outcome.finished_ns is not None else told[-1].time_ns
        tokens = f"{outcome.num_generated_tokens:,} output tokens"
        told.append(Moment(end, None, "scheduler", "client", f"ends: {outcome.finish_reason}, {tokens}"))
        # A moment that is stamped at a step's decision may stand behind one stamped at the end of an earlier step.
        return sorted(told, key=lambda moment: moment.time_ns)


def _head_of_queue(engine: Engine) -> Request | None:
    waiting = engine.scheduler.waiting
    if not len(waiting):
        return None
    return waiting[0] if isinstance(waiting, deque) else waiting.peek()


def _decodes_text(count: int) -> str:
    return "one decode step" if count == 1 else f"{count:,} decode steps, one token each"


class _StepWatcher:
    """Notes the decisions of a window of steps."""

    def __init__(self, first: int, last: int, engine: int) -> None:
        self._first, self._last, self._engine = first, last, engine
        self.moments: list[Moment] = []

    def saw(self, engine: Engine, plan: StepPlan) -> None:
        if engine.number != self._engine or not self._first <= engine.num_steps <= self._last:
            return
        for preemption in plan.preemptions:
            victim, who = preemption.victim.request_id, preemption.needed_by.request_id
            cause = "for itself" if victim == who else f"for {who}"
            lost = f"{preemption.num_computed_tokens:,} computed tokens lost, {preemption.num_blocks} blocks freed"
            self._add(engine, "scheduler", "queue", f"preempts {victim} {cause}: {lost}")
        for request in (*plan.admitted, *plan.resumed):
            verb = "resumes" if request in plan.resumed else "admits"
            cached = plan.cached[request.request_id]
            self._add(engine, "queue", "scheduler", f"{verb} {request.request_id} with {cached:,} cached tokens")
        if plan.scheduled:
            self._add(engine, "scheduler", "device", _work(plan))
        self._add(engine, "scheduler", "scheduler", _left(plan, engine))

    def _add(self, engine: Engine, source: str, target: str, text: str) -> None:
        self.moments.append(Moment(engine.now, engine.num_steps, source, target, text))


def _work(plan: StepPlan) -> str:
    many = [f"{name} {tokens:,}" for name, tokens in plan.scheduled.items() if tokens > 1]
    decodes = len(plan.scheduled) - len(many)
    parts = [f"{decodes:,} decodes"] if decodes else []
    parts += many[:8] + ([f"and {len(many) - 8} more"] if len(many) > 8 else [])  # noqa: PLR2004 - what fits a line
    return f"{plan.num_scheduled_tokens:,} tokens of {len(plan.scheduled):,} requests: {', '.join(parts)}"


def _left(plan: StepPlan, engine: Engine) -> str:
    """What the step left, and what stopped the next request."""
    config = engine.config
    state = (
        f"after it {plan.num_running:,} running of {config.max_num_seqs:,}, {plan.num_waiting:,} waiting, "
        f"{plan.num_free_blocks:,} blocks free"
    )
    if plan.bound_by == "none":
        return f"{state}; nobody was left waiting"
    head = _head_of_queue(engine)
    if head is None:
        return f"{state}; bound by {plan.bound_by}"
    budget = config.max_num_batched_tokens - plan.num_scheduled_tokens
    needs = f"{head.request_id} ({head.num_tokens:,} tokens) was next"
    return f"{state}, {budget:,} tokens of the budget left; {needs}: {_REASONS.get(plan.bound_by, plan.bound_by)}"


_REASONS = {
    "token_budget": "the step's token budget was spent (max_num_batched_tokens)",
    "max_num_seqs": "as many requests run as may (max_num_seqs)",
    "kv_blocks": "not enough free KV blocks",
    "full_prompt_reservation": "its whole prompt would not fit the free KV blocks (scheduler_reserve_full_isl)",
    "watermark": "admitting it would go below the watermark of free blocks",
    "preempted": "a step that preempts admits nobody",
    "prefill_interval": "prefills are held back while decodes run (prefill_schedule_interval)",
}


def mermaid(story: Story) -> str:
    """The story as a Mermaid sequence diagram of client, queue, scheduler and device."""
    lines = ["sequenceDiagram"]
    lines += [f"    participant {name}" for name in ("client", "queue", "scheduler", "device")]
    lines.append(f"    Note over client,device: {_escaped(story.title)}")
    for moment in story.moments:
        step = f"step {moment.step:,}, " if moment.step is not None else ""
        text = _escaped(f"{moment.time_ns / 1e9:,.3f} s: {step}{moment.text}")
        if moment.source == moment.target:
            lines.append(f"    Note over {moment.source}: {text}")
        else:
            lines.append(f"    {moment.source}->>{moment.target}: {text}")
    return "\n".join(lines)


def _escaped(text: str) -> str:
    """Mermaid gives meaning to # ; < > and line ends; ids come from foreign files."""
    known = {"#": "#35;", ";": "#59;", "<": "#lt;", ">": "#gt;", '"': "#quot;"}
    return "".join(known.get(c, c) for c in text if c.isprintable())
