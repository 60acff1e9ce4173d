"""The second half of a step: who is admitted from the waiting queue (``Scheduler._schedule_waiting`` of the model)."""

from tracekit.kernel.blocks import admit_blocks, shortage, watched_hits
from tracekit.kernel.compiling import compiled, inlined
from tracekit.kernel.layout import (
    BOUND_NONE,
    BOUND_PREFILL_INTERVAL,
    BOUND_TOKEN_BUDGET,
    HALT,
    RUNNING,
    SKIP,
    WAITING,
    Record,
)
from tracekit.kernel.queues import append_running, peek_waiting, pop_waiting, prepend_waiting
from tracekit.kernel.references import heap_at, plan_at, request_at
from tracekit.kernel.running import append_entry


@compiled
def schedule_waiting(
    engine: Record,
    number: int,
    token_budget: int,
    threshold: int,
    hold_prefills: bool,  # noqa: FBT001
) -> bool:
    """Admit from the head of the queue until something forbids it; returns whether a prefill was admitted."""
    plan = plan_at(engine, number)
    num_passed_over = 0
    carries_prefill = False
    while engine.num_waiting > 0:
        plan.bound_by = _full(engine, token_budget)
        if plan.bound_by != BOUND_NONE:
            break
        index = peek_waiting(engine)
        request = request_at(engine, index)
        num_hits, num_computed = _look_up(engine, index)
        if hold_prefills and num_computed < request.num_tokens - 1:
            plan.bound_by = BOUND_PREFILL_INTERVAL
            break
        num_new = min(request.num_tokens - num_computed, threshold)
        if num_new > token_budget and not engine.chunked:
            if engine.unchunked_over_budget == SKIP:
                heap_at(engine, num_passed_over).passed_over = pop_waiting(engine)
                num_passed_over += 1
                if engine.crash != 0:
                    return False
                continue
            if engine.unchunked_over_budget == HALT:
                plan.bound_by = BOUND_TOKEN_BUDGET
                break
        num_new = min(num_new, token_budget)
        plan.bound_by = shortage(engine, index, num_hits, num_computed + num_new)
        if plan.bound_by != BOUND_NONE:
            break
        pop_waiting(engine)
        if engine.crash != 0:
            return False
        _admit(engine, number, index, num_hits, num_computed, num_new)
        carries_prefill |= num_computed < request.num_tokens - 1
        token_budget -= num_new
    for position in range(num_passed_over):  # they come back in reverse order, as in 0.9.2 to 0.11.2
        prepend_waiting(engine, heap_at(engine, position).passed_over)
        plan.bound_by = BOUND_TOKEN_BUDGET
    return carries_prefill


@inlined
def _full(engine: Record, token_budget: int) -> int:
    """Which limit of the step is used up, as a bound."""
    if token_budget == 0:
        return BOUND_TOKEN_BUDGET
    if engine.num_running >= engine.max_num_active:
        return int(engine.active_bound)
    return BOUND_NONE


@compiled
def _look_up(engine: Record, index: int) -> tuple[int, int]:
    """How many cached blocks a waiting request hits, and the tokens it need not compute."""
    request = request_at(engine, index)
    if request.num_computed_tokens > 0:
        return 0, int(request.num_computed_tokens)
    if not engine.caching:
        return 0, 0
    num_hits = watched_hits(engine, index)
    if engine.counts_lookups:
        _count_prefix_query(engine, request, num_hits)
    return num_hits, num_hits * engine.block_size


@compiled
def _count_prefix_query(engine: Record, request: Record, num_hits: int) -> None:
    """What the printed hit rate is made of (``PrefixCacheStats``); queries of preempted requests may count apart."""
    queries = request.num_tokens
    hits = num_hits * engine.block_size
    if engine.stats_in_blocks != 0:
        queries = (request.num_tokens - 1) // engine.block_size
        hits = num_hits
    if engine.preempted_apart and request.num_preemptions > 0:
        engine.preempted_requests += 1
        engine.preempted_queries += queries
        engine.preempted_hits += hits
    else:
        engine.prefix_requests += 1
        engine.prefix_queries += queries
        engine.prefix_hits += hits


@compiled
def _admit(
    engine: Record,
    number: int,
    index: int,
    num_hits: int,
    num_computed: int,
    num_new: int,
) -> None:
    request = request_at(engine, index)
    admit_blocks(engine, index, num_hits, num_computed + num_new)
    if engine.caching and not engine.counts_lookups:
        _count_prefix_query(engine, request, num_computed // engine.block_size)
    if request.status == WAITING:
        request.num_cached_tokens = num_computed
    else:
        request.num_recomputed_tokens += max(request.num_lost_tokens - num_computed, 0)
    request.status = RUNNING
    request.num_computed_tokens = num_computed
    append_running(engine, index)
    append_entry(engine, number, index, num_new)
    plan_at(engine, number).num_admitted += 1
