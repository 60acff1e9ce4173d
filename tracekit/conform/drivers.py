"""The recorder's loops with the model in vLLM's place: the rows it would have written.

A step: requests that have arrived join, aborts, ``schedule()``, the row, the output of this step (of the step before
when two are in flight) is processed. A step with nothing to do is a row too.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Literal

from tracekit.conform.recordings import Row
from tracekit.conform.workload import aborts, arrivals, engine_config
from tracekit.model.plan import StepOutput, StepPlan
from tracekit.model.request import Request
from tracekit.model.rules import EngineCrashError, Rules
from tracekit.model.scheduler import Scheduler
from tracekit.model.scheduler_v0 import SchedulerV0

if TYPE_CHECKING:
    from tracekit.kernel.decisions import StepwiseKernel

Decider = Literal["model", "kernel"]
MAX_STEPS: Final = 100_000


def simulate(config: Row, workload: Sequence[Row], rules: Rules, decider: Decider = "model") -> Iterator[Row]:
    """The rows of a case under some rules, up to the end or to the step at which vLLM would crash.

    ``decider``: the model, or the kernel, whose rows have no ``new_block_ids`` (see ``kernel_cannot``).
    """
    max_steps = int(config.get("max_steps", MAX_STEPS))
    engine = engine_config(config)
    driver: _DriverV0 | _DriverV1 | _DriverKernel
    if decider == "kernel":
        driver = _DriverKernel(config, workload, rules)
    elif rules.engine == "v0":
        driver = _DriverV0(config, workload, SchedulerV0(engine, rules))
    else:
        driver = _DriverV1(config, workload, Scheduler(engine, rules))
    try:
        yield from driver.run(max_steps)
    except EngineCrashError:
        return


def kernel_cannot(config: Row, rules: Rules) -> str | None:
    """Why the kernel cannot run this case, in words; None when it can."""
    if rules.engine != "v1":
        return "the kernel has no V0 scheduler"
    if config.get("kv_groups"):
        return "the kernel has one group of full attention"
    if config.get("reset_running") and config.get("async_scheduling"):
        return "the kernel drops no outputs of requests that a reset throws out"
    return None


class _Traffic:
    """Who arrives and who is aborted, step by step."""

    def __init__(self, config: Row, workload: Sequence[Row]) -> None:
        self._arrivals = deque(arrivals(workload, int(config["block_size"])))
        self._aborts = deque(aborts(workload))

    @property
    def requests(self) -> list[Request]:
        """Everybody who has yet to arrive, in order."""
        return [request for _, request in self._arrivals]

    @property
    def expects_arrivals(self) -> bool:
        """Whether somebody has yet to arrive."""
        return bool(self._arrivals)

    def apply(self, step: int, scheduler: "Scheduler | SchedulerV0 | StepwiseKernel") -> list[str]:
        """Let arrivals and aborts of a step happen; returns who was aborted."""
        while self._arrivals and self._arrivals[0][0] <= step:
            scheduler.add_request(self._arrivals.popleft()[1])
        aborted = []
        while self._aborts and self._aborts[0][0] <= step:
            request_id = self._aborts.popleft()[1]
            if scheduler.abort_request(request_id):
                aborted.append(request_id)
        return aborted


class _DriverV1:
    def __init__(self, config: Row, workload: Sequence[Row], scheduler: Scheduler) -> None:
        self._config = config
        self._traffic = _Traffic(config, workload)
        self._scheduler = scheduler
        self._stats_taken = scheduler.prefix_cache.snapshot()

    def run(self, max_steps: int) -> Iterator[Row]:
        """The rows until nobody is left."""
        scheduler = self._scheduler
        depth = 2 if self._config.get("async_scheduling") else 1
        in_flight: deque[StepPlan] = deque()
        for step in range(max_steps):
            aborted = self._traffic.apply(step, scheduler)
            busy = scheduler.has_requests or any(plan.scheduled for plan in in_flight)
            if not (busy or self._traffic.expects_arrivals):
                return
            row: Row = {"step": step}
            self._reset(step, row)
            held = self._held_blocks()
            plan = scheduler.schedule()
            self._describe(row, plan, held)
            if aborted:
                row["aborted"] = aborted
            in_flight.append(plan)
            output, stats = StepOutput(), None
            if len(in_flight) >= depth or not plan.scheduled:
                oldest = in_flight.popleft()
                if depth == 1 or oldest.scheduled:
                    output = scheduler.update(oldest)
                    stats = self._take_stats(output)
            row["finished"] = _ids(output.finished)
            row["running_after"] = len(scheduler.running)
            row["waiting_after"] = len(scheduler.waiting)
            row["free_after"] = scheduler.kv_cache.pool.num_free_blocks
            row["prefix_stats"] = stats
            yield row

    def _held_blocks(self) -> dict[str, int]:
        if not self._config.get("log_block_ids"):
            return {}
        return {request.request_id: len(_first_table(self._scheduler, request)) for request in self._scheduler.running}

    def _reset(self, step: int, row: Row) -> None:
        if step in self._config.get("reset_steps", ()):
            preempt_running = bool(self._config.get("reset_running"))
            row["reset"], victims = self._scheduler.reset_prefix_cache(preempt_running=preempt_running)
            if preempt_running:
                row["reset_preempted"] = _ids(victims)

    def _describe(self, row: Row, plan: StepPlan, held: Mapping[str, int]) -> None:
        row["scheduled"] = plan.scheduled
        row["total"] = plan.num_scheduled_tokens
        row["new"] = _ids(plan.admitted)
        row["resumed"] = _ids(plan.resumed)
        row["cached"] = plan.cached
        row["preempted"] = [preemption.victim.request_id for preemption in plan.preemptions]
        row["num_running"] = plan.num_running
        row["num_waiting"] = plan.num_waiting
        row["free_blocks"] = plan.num_free_blocks
        row["kv_usage"] = round(plan.kv_cache_usage, 6)
        if self._config.get("log_block_ids"):
            row["new_block_ids"] = _new_block_ids(self._scheduler, plan, held)

    def _take_stats(self, output: StepOutput) -> list[int] | None:
        """The statistics since they were taken last, or None where the version reports none."""
        rules = self._scheduler.rules.prefix_stats
        if not (rules.on_empty_steps or output.sampled):
            return None
        now = self._scheduler.prefix_cache.snapshot()
        since = [new - old for new, old in zip(now, self._stats_taken, strict=True)]
        self._stats_taken = now
        return since if rules.preempted_apart else since[:3]


class _DriverKernel:
    """The same loop as ``_DriverV1`` around the compiled scheduler."""

    def __init__(self, config: Row, workload: Sequence[Row], rules: Rules) -> None:
        from tracekit.kernel.decisions import StepwiseKernel

        self._config = config
        self._depth = 2 if config.get("async_scheduling") else 1
        self._rules = rules.prefix_stats
        self._traffic = _Traffic(config, workload)
        self._kernel = StepwiseKernel(engine_config(config), rules, self._traffic.requests)
        self._stats_taken = self._kernel.lookups

    def run(self, max_steps: int) -> Iterator[Row]:
        """The rows until nobody is left."""
        kernel = self._kernel
        in_flight: deque[int | None] = deque()
        for step in range(max_steps):
            aborted = self._traffic.apply(step, kernel)
            busy = kernel.has_requests or any(plan is not None for plan in in_flight)
            if not (busy or self._traffic.expects_arrivals):
                return
            row: Row = {"step": step}
            if step in self._config.get("reset_steps", ()):
                throws_out = bool(self._config.get("reset_running"))
                row["reset"], victims = kernel.reset_prefix_cache(preempt_running=throws_out)
                if throws_out:
                    row["reset_preempted"] = victims
            decision = kernel.schedule()
            row |= {
                "scheduled": decision.scheduled,
                "total": sum(decision.scheduled.values()),
                "new": decision.admitted,
                "resumed": decision.resumed,
                "cached": decision.cached,
                "preempted": decision.preempted,
                "num_running": decision.num_running,
                "num_waiting": decision.num_waiting,
                "free_blocks": decision.num_free_blocks,
                "kv_usage": round(decision.kv_cache_usage, 6),
                "finished": [],
                "prefix_stats": None,
            }
            if aborted:
                row["aborted"] = aborted
            in_flight.append(decision.plan)
            if len(in_flight) >= self._depth or decision.plan is None:
                self._deliver(row, in_flight.popleft())
            row["running_after"], row["waiting_after"], row["free_after"] = kernel.state
            yield row

    def _deliver(self, row: Row, plan: int | None) -> None:
        num_sampled = 0
        if plan is not None:
            row["finished"], num_sampled = self._kernel.process(plan)
        elif self._depth > 1:
            return
        if not (self._rules.on_empty_steps or num_sampled):
            return
        now = self._kernel.lookups
        since = [new - old for new, old in zip(now, self._stats_taken, strict=True)]
        self._stats_taken = now
        row["prefix_stats"] = since if self._rules.preempted_apart else since[:3]


class _DriverV0:
    def __init__(self, config: Row, workload: Sequence[Row], scheduler: SchedulerV0) -> None:
        self._depth = 2 if config.get("async_output_proc") else 1
        self._traffic = _Traffic(config, workload)
        self._scheduler = scheduler

    def run(self, max_steps: int) -> Iterator[Row]:
        """The rows until nobody is left."""
        scheduler = self._scheduler
        in_flight: deque[StepPlan] = deque()
        for step in range(max_steps):
            aborted = self._traffic.apply(step, scheduler)
            if not (scheduler.has_requests or self._traffic.expects_arrivals):
                return
            row: Row = {"step": step}
            plan = scheduler.schedule()
            self._describe(row, plan)
            if aborted:
                row["aborted"] = aborted
            in_flight.append(plan)
            output = scheduler.update(in_flight.popleft()) if len(in_flight) >= self._depth else StepOutput()
            row["finished"] = _ids(output.finished)
            row["running_after"] = len(scheduler.running)
            row["waiting_after"] = len(scheduler.waiting)
            row["swapped_after"] = len(scheduler.swapped)
            row["free_after"] = scheduler.kv_cache.num_free_blocks
            yield row

    def _describe(self, row: Row, plan: StepPlan) -> None:
        row["scheduled"] = plan.scheduled
        row["total"] = plan.num_scheduled_tokens
        row["num_prefill_groups"] = plan.num_prefill_groups
        row["new"] = [request_id for request_id in plan.scheduled if request_id in plan.cached]
        row["cached"] = plan.cached
        row["swapped_in"] = _ids([request for request in plan.requests if request in plan.swapped_in])
        row["preempted"] = [preemption.victim.request_id for preemption in plan.preemptions]
        row["preempt_mode"] = ["SWAP" if preemption.swapped else "RECOMPUTE" for preemption in plan.preemptions]
        row["ignored"] = _ids(plan.ignored)
        row["num_running"] = plan.num_running
        row["num_waiting"] = plan.num_waiting
        row["num_swapped"] = plan.num_swapped
        row["free_blocks"] = plan.num_free_blocks


def _ids(requests: Sequence[Request]) -> list[str]:
    return [request.request_id for request in requests]


def _first_table(scheduler: Scheduler, request: Request) -> list[int]:
    """The blocks of a request in the first group; the null block where one left the window."""
    if scheduler.grouped is None:
        return request.block_ids
    return [block or 0 for block in scheduler.grouped.tables(request)[0]]


def _new_block_ids(scheduler: Scheduler, plan: StepPlan, held: Mapping[str, int]) -> dict[str, list[int]]:
    """All blocks of admitted requests, the new ones of running requests."""
    ids = {
        request.request_id: _first_table(scheduler, request)[
            0 if request.request_id in plan.cached else held[request.request_id] :
        ]
        for request in plan.requests
    }
    return {request_id: blocks for request_id, blocks in ids.items() if blocks}
