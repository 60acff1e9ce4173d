"""What must hold in V1 (V0: ``invariants_v0``) after every ``schedule``, ``update``, ``abort_request`` and ``reset_prefix_cache``.

1. Every unfinished request is in exactly one queue, and in ``requests``: nothing is lost, nothing is there twice.
2. Running requests are RUNNING; waiting ones are WAITING (never ran) or PREEMPTED.
3. A waiting request holds no blocks and no outputs in flight, and has nothing computed.
4. At most ``max_num_active_seqs`` requests run.
5. Every block but the null block is either free, once in the free queue, or referenced as often as requests hold it.
6. A running request holds exactly the blocks for its computed tokens (up to 0.8.4 also preallocated ones).
7. The hashed blocks of a request are its first ones, full, and carry the hashes of its content.
8. The content index names exactly the blocks that carry a hash.
9. Computed tokens never exceed known tokens plus outputs in flight; at most two outputs are in flight, none in
   synchronous mode.
10. An unfinished request has not reached the length at which it stops.
11. A step schedules at least one token of each of its requests, within the token budget, and of running requests only.
12. A step that preempts admits nobody.
13. ``bound_by`` is ``none`` exactly when nobody waits: nobody starves without a reason.
"""

from collections import Counter

from tracekit.model.errors import require
from tracekit.model.invariants_v0 import check_v0
from tracekit.model.plan import StepPlan
from tracekit.model.request import RequestStatus
from tracekit.model.scheduler import Scheduler
from tracekit.model.scheduler_v0 import SchedulerV0
from tracekit.model.schedulers import AnyScheduler

_MAX_IN_FLIGHT = 2


def check(scheduler: AnyScheduler, plan: StepPlan | None = None) -> None:
    """Assert the invariants; ``plan``, right after ``schedule`` returned it, adds 11 to 13. Costs O(blocks)."""
    if isinstance(scheduler, SchedulerV0):
        check_v0(scheduler, plan)
        return
    _check_queues(scheduler)
    _check_blocks(scheduler)
    for request in scheduler.running:
        _check_running(scheduler, request.request_id)
    if plan is not None:
        _check_plan(scheduler, plan)


def _check_queues(scheduler: Scheduler) -> None:
    running, waiting = scheduler.running, list(scheduler.waiting)
    queued = Counter(request.request_id for request in (*running, *waiting))
    require(1, queued == Counter(list(scheduler.requests)), "a request is lost, or queued twice")
    require(2, all(r.status is RequestStatus.RUNNING for r in running), "a running request is not RUNNING")
    idle = {RequestStatus.WAITING, RequestStatus.PREEMPTED}
    require(2, all(r.status in idle for r in waiting), "a waiting request is not WAITING or PREEMPTED")
    keeps = scheduler.rules.scheduled_victim != "give_back"
    for request in waiting:
        computed = request.num_computed_tokens and not keeps
        require(3, not (request.block_ids or request.num_output_placeholders or computed), f"{request} holds something")
    require(4, len(running) <= scheduler.max_num_active, "too many running requests")
    require(10, all(r.num_tokens < r.stop_length for r in (*running, *waiting)), "a request ran past its end")


def _check_blocks(scheduler: Scheduler) -> None:
    pool = scheduler.kv_cache.pool
    held = Counter(block for request in scheduler.running for block in request.block_ids)
    free = pool.free_queue
    require(5, len(set(free)) == len(free), "a block is in the free queue twice")
    require(
        5, all(pool.ref_counts[block] == held[block] for block in range(pool.num_blocks)), "a wrong reference count"
    )
    require(5, not held.keys() & set(free), "a held block is free")
    require(5, len(free) + len(held) == pool.num_usable_blocks, "a block is lost")
    indexed = {block: block_hash for block_hash, blocks in pool.content_index.items() for block in blocks}
    hashed = {block: block_hash for block, block_hash in enumerate(pool.block_hashes) if block_hash is not None}
    require(8, indexed == hashed, "the content index is wrong")


def _check_running(scheduler: Scheduler, request_id: str) -> None:
    request, kv_cache = scheduler.requests[request_id], scheduler.kv_cache
    needed = -(-request.num_computed_tokens // kv_cache.block_size)
    extra = len(request.block_ids) - needed
    preallocated = scheduler.rules.num_preallocated_tokens // kv_cache.block_size
    require(6, 0 <= extra <= preallocated, f"{request} holds {len(request.block_ids)} blocks")
    known = min(request.num_computed_tokens, request.num_tokens)
    require(7, request.num_hashed_blocks * kv_cache.block_size <= known, f"{request} has a hash on a partial block")
    for index, block in enumerate(request.block_ids):
        expected = request.block_hash(index) if index < request.num_hashed_blocks else None
        require(7, kv_cache.pool.block_hashes[block] == expected, f"{request} has a wrong hash on block {index}")
    most = _MAX_IN_FLIGHT if scheduler.config.async_scheduling else 0
    require(9, request.num_output_placeholders <= most, f"{request} has too many outputs in flight")
    ahead = request.num_computed_tokens - request.num_tokens - request.num_output_placeholders
    require(9, ahead <= 0, f"{request} has computed too much")


def _check_plan(scheduler: Scheduler, plan: StepPlan) -> None:
    require(11, all(tokens > 0 for tokens in plan.scheduled.values()), "a scheduled request has no tokens")
    total = sum(plan.scheduled.values())
    require(11, total == plan.num_scheduled_tokens, "the plan's sum is wrong")
    keeps = scheduler.rules.scheduled_victim != "give_back"
    require(11, keeps or total <= scheduler.config.max_num_batched_tokens, "the token budget is exceeded")
    running = {request.request_id for request in scheduler.running}
    require(11, keeps or plan.scheduled.keys() <= running, "a request is scheduled that does not run")
    require(12, not (plan.preemptions and plan.cached), "a step preempts and admits")
    require(13, (plan.bound_by == "none") == (not scheduler.waiting), f"bound_by is {plan.bound_by}")
