"""What the kernel decides, step by step, in plain Python values: the way in for recordings (``conform``)."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from tracekit.config import EngineConfig
from tracekit.kernel import layout
from tracekit.kernel.memory import empty_requests, grow, memory_for
from tracekit.kernel.stepwise import ABORT_ONE, ADD, FORGET_ALL, LAUNCH, PROCESS, SCHEDULE, THROW_OUT, act
from tracekit.model.request import Request
from tracekit.model.rules import EngineCrashError, Rules
from tracekit.step_time.affine import AffineParameters
from tracekit.step_time.parameters import StepTime

_CLOCK: Final = StepTime(AffineParameters(1000.0, 0.0, 0.0, 0.0), 0, "given", "one microsecond a step")


@dataclass(frozen=True)
class Decision:
    """One step as decided: tokens by request in scheduling order, and the state right after.

    ``plan`` is where it stands in the kernel while it is in flight; None for a step that schedules nobody.
    """

    plan: int | None
    scheduled: dict[str, int]
    admitted: list[str]
    resumed: list[str]
    cached: dict[str, int]
    preempted: list[str]
    num_running: int
    num_waiting: int
    num_free_blocks: int
    kv_cache_usage: float


@dataclass
class StepwiseKernel:
    """The compiled scheduler of one engine, driven from outside; raises ``EngineCrashError`` where the version dies."""

    config: EngineConfig
    rules: Rules
    requests: Sequence[Request]
    _index: dict[str, int] = field(init=False)
    _preempted: set[int] = field(init=False, default_factory=set)

    def __post_init__(self) -> None:
        self._index = {request.request_id: number for number, request in enumerate(self.requests)}
        records, hashes = _records(self.requests, self.config, self.rules)
        self._memory = memory_for(
            records, hashes, len(records), len(records), self.config, self.rules, _CLOCK,
            max_concurrency=None, sample_at=(), books_computed_prompts=True, steps="none", lockstep=True,
        )  # fmt: skip

    @property
    def _engine(self) -> Any:  # noqa: ANN401 - a numpy record
        return self._memory.engine

    @property
    def has_requests(self) -> bool:
        """Whether somebody waits or runs."""
        return bool(self._engine["num_known"] > 0)

    @property
    def state(self) -> tuple[int, int, int]:
        """Requests running, requests waiting, free blocks."""
        engine = self._engine
        return int(engine["num_running"]), int(engine["num_waiting"]), int(engine["num_free_blocks"])

    @property
    def lookups(self) -> tuple[int, ...]:
        """The prefix-cache counters so far, in the order of ``model.prefix_cache``'s snapshot."""
        names = ("prefix_requests", "prefix_queries", "prefix_hits")
        apart = ("preempted_requests", "preempted_queries", "preempted_hits")
        return tuple(int(self._engine[name]) for name in (*names, *apart))

    def add_request(self, request: Request) -> None:
        """A request arrives."""
        self._act(ADD, self._index[request.request_id])

    def abort_request(self, request_id: str) -> bool:
        """A request's client goes away; whether the request was still known."""
        number = self._index[request_id]
        if self._memory.arrays["requests"]["status"][number] == layout.UNSENT:
            return False
        return bool(self._act(ABORT_ONE, number))

    def reset_prefix_cache(self, *, preempt_running: bool) -> tuple[bool, list[str]]:
        """Forget all cached content: whether that was possible, and who was thrown out for it (synchronous only)."""
        victims = []
        while preempt_running and self._engine["num_running"]:
            victims.append(int(self._engine["running_tail"]))
            self._act(THROW_OUT, victims[-1])
        self._preempted |= set(victims)
        return bool(self._act(FORGET_ALL, 0)), [self.requests[index].request_id for index in victims]

    def schedule(self) -> Decision:
        """Decide a step and, if it schedules somebody, put it in flight."""
        engine = self._engine
        while engine["num_preemption_rows"] + engine["num_running"] >= engine["most_preemption_rows"]:
            grow(self._memory, layout.PREEMPTIONS_FULL)
        plan = int((engine["oldest_plan"] + engine["num_plans"]) & 1)
        first_row = int(engine["num_preemption_rows"])
        num_scheduled = self._act(SCHEDULE, plan)
        decision = self._described(plan if num_scheduled else None, plan, first_row)
        if num_scheduled:
            self._act(LAUNCH, plan)
        return decision

    def process(self, plan: int) -> tuple[list[str], int]:
        """Deliver the output of the oldest step in flight: who ended, and how many tokens were sampled."""
        arrays = self._memory.arrays
        num_lockstep = int(arrays["plans"]["num_lockstep"][plan])
        self._act(PROCESS, plan)
        entries = self._entries(plan)
        ended = [self.requests[number].request_id for number in entries["request"][entries["finished"]].tolist()]
        return ended, num_lockstep + int(entries["sampled"].sum())

    def _act(self, action: int, number: int) -> int:
        result = int(act(self._memory.engines, action, number))
        if crash := int(self._engine["crash"]):
            msg = f"the version crashes here (kernel code {crash})"
            raise EngineCrashError(msg)
        return result

    def _entries(self, plan: int) -> Any:  # noqa: ANN401 - a numpy array
        first = plan * int(self._engine["entries_width"])
        return self._memory.arrays["entries"][first : first + int(self._memory.arrays["plans"]["count"][plan])]

    def _described(self, plan: int | None, number: int, first_row: int) -> Decision:
        engine, arrays = self._engine, self._memory.arrays
        records, entries = arrays["requests"], self._entries(number)
        tokens = dict(zip(entries["request"].tolist(), entries["num_new_tokens"].tolist(), strict=True))
        num_admitted = int(arrays["plans"]["num_admitted"][number])
        admitted = list(tokens)[len(tokens) - num_admitted :]
        if engine["num_lockstep"]:
            tokens |= dict.fromkeys(np.flatnonzero(records["in_lockstep"]).tolist(), 1)
            tokens = dict(sorted(tokens.items(), key=lambda item: records["admission"][item[0]]))
        rows = arrays["preemption_rows"][first_row : int(engine["num_preemption_rows"])]
        victims = rows["request"].tolist()
        resumed = [index for index in admitted if index in self._preempted]
        self._preempted -= set(resumed)
        self._preempted |= set(victims)
        running, waiting, free = self.state
        name = [request.request_id for request in self.requests]
        return Decision(
            plan,
            {name[index]: count for index, count in tokens.items()},
            [name[index] for index in admitted if index not in resumed],
            [name[index] for index in resumed],
            {name[index]: int(records["num_computed_tokens"][index]) - tokens[index] for index in admitted},
            [name[index] for index in victims],
            running,
            waiting,
            free,
            1.0 - free / int(engine["usage_blocks"]) if engine["usage_blocks"] else 0.0,
        )


def _records(requests: Sequence[Request], config: EngineConfig, rules: Rules) -> tuple[Any, Any]:
    """The kernel's records of requests in order of arrival, and everybody's block hashes."""
    records = empty_requests(len(requests))
    orders = {order: rank for rank, order in enumerate(sorted({request.arrival_order for request in requests}))}
    ranks = {name: rank for rank, name in enumerate(sorted(request.request_id for request in requests))}
    hashes: list[int] = []
    for number, request in enumerate(requests):
        given = config.max_model_len if request.max_tokens is None else request.max_tokens
        longest = min(config.max_model_len, request.num_prompt_tokens + given)
        limit = longest if rules.foresees_max_tokens else config.max_model_len
        values = {
            "stop_length": min(longest, request.num_prompt_tokens + request.num_output_tokens),
            "schedule_limit": limit - 1,
            "max_tokens": given,
            "num_prompt_tokens": request.num_prompt_tokens,
            "num_tokens": request.num_prompt_tokens,
            "priority": request.priority,
            "order": number,
            "arrival_ns": orders[request.arrival_order],
            "rank": ranks[request.request_id],
            "hashes_start": len(hashes),
            "num_hashes": len(request.block_hashes),
        }
        for name, value in values.items():
            records[name][number] = value
        hashes += request.block_hashes
    return records, np.array([*hashes, 0], np.int64)
