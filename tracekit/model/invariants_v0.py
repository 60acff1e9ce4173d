"""What must hold in V0 after every ``schedule``, ``update`` and ``abort_request``; numbers as in ``invariants``.

1. Every unfinished request is in exactly one of running, waiting and swapped, and in ``requests`` (with asynchronous
   output processing also in none, when its last output is in flight).
2. The status of a request is that of its queue.
3. A waiting request holds no blocks and has nothing computed.
4. At most ``max_num_seqs`` requests run.
5. Every GPU block is free, evictable, or referenced as often as requests hold it.
6. A running or swapped request has a slot for each token it has computed.
10. An unfinished request has not passed the length at which it stops.
11. A step schedules at least one token of each of its requests.
13. ``bound_by`` is ``none`` exactly when nobody waits.
"""

from collections import Counter

from tracekit.model.block_space_manager_v1 import BlockSpaceManagerV1
from tracekit.model.errors import require
from tracekit.model.plan import StepPlan
from tracekit.model.request import RequestStatus
from tracekit.model.scheduler_v0 import SchedulerV0


def check_v0(scheduler: SchedulerV0, plan: StepPlan | None) -> None:
    """Assert the invariants; ``plan``, right after ``schedule`` returned it, adds 11 and 13."""
    running, waiting, swapped = scheduler.running, scheduler.waiting, scheduler.swapped
    queued = Counter(request.request_id for request in (*running, *waiting, *swapped))
    known = Counter(list(scheduler.requests))
    missing = known - queued
    require(1, not queued - known, "a request is queued twice, or after its end")
    at_end = all(scheduler.requests[i].num_tokens > scheduler.config.max_model_len for i in missing)
    require(1, not missing or (scheduler.config.async_scheduling and at_end), "a request is lost")
    require(2, all(r.status is RequestStatus.RUNNING for r in running), "a running request is not RUNNING")
    require(2, all(r.status is RequestStatus.SWAPPED for r in swapped), "a swapped request is not SWAPPED")
    idle = {RequestStatus.WAITING, RequestStatus.PREEMPTED}
    require(2, all(r.status in idle for r in waiting), "a waiting request is not WAITING or PREEMPTED")
    require(4, len(running) <= scheduler.config.max_num_seqs, "too many running requests")
    for request in waiting:
        holds = request.num_computed_tokens or scheduler.kv_cache.blocks_of(request)
        require(3, not holds, f"{request} holds something")
    for request in (*running, *swapped):
        slots = len(scheduler.kv_cache.blocks_of(request)) * scheduler.config.block_size
        require(6, request.num_computed_tokens <= slots, f"{request} has too few blocks")
    in_flight = 1 if scheduler.config.async_scheduling else 0
    require(10, all(r.num_tokens < r.stop_length + in_flight for r in scheduler.requests.values()), "ran past its end")
    _check_blocks(scheduler)
    if plan is not None:
        require(11, all(tokens > 0 for tokens in plan.scheduled.values()), "a scheduled request has no tokens")
        require(13, (plan.bound_by == "none") == (not waiting), f"bound_by is {plan.bound_by}")


def _check_blocks(scheduler: SchedulerV0) -> None:
    kv_cache = scheduler.kv_cache
    holders = [request for request in scheduler.requests.values() if not request.is_swapped]
    if isinstance(kv_cache, BlockSpaceManagerV1):
        counts = Counter(block for request in holders for block in kv_cache.blocks_of(request))
        require(5, all(block.ref_count == count for block, count in counts.items()), "a wrong reference count")
        require(5, len(counts) + kv_cache.num_free_blocks == scheduler.config.num_gpu_blocks, "a block is lost")
        return
    held = Counter(block for request in holders for block in kv_cache.blocks_of(request))
    pool = kv_cache.gpu
    require(5, len(held) + pool.num_free_blocks == pool.num_blocks, "a block is lost")
    require(
        5, all(pool.ref_counts[block] == held[block] for block in range(pool.num_blocks)), "a wrong reference count"
    )
    require(5, len({*pool.free_ids, *pool.evictable, *held}) == pool.num_blocks, "a block is in two places")
