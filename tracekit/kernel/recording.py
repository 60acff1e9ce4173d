"""What a replay writes down, in compiled code: steps, the ITL histogram, periodic samples, exact aggregates.

Mirrors ``replay/record.py`` and ``replay/sampler.py``; preemptions are written where they happen.
"""

from tracekit.kernel.blocks import usage
from tracekit.kernel.compiling import compiled, inlined
from tracekit.kernel.layout import NEVER, NONE, RECENT_REQUESTS, Record
from tracekit.kernel.references import (
    bound_time_at,
    itl_at,
    plan_at,
    recent_at,
    running_time_at,
    sample_instant_at,
    sample_row_at,
    step_row_at,
)

INTERVAL_NS = 10_000_000_000
SECOND_NS = 1_000_000_000
KEEP_NONE = 0
KEEP_SAMPLE = 1
KEEP_ALL = 2


@inlined
def record_step(engine: Record, number: int, start_ns: int, duration_ns: int) -> None:
    """Book a step: always in the aggregates; as a row if all are kept, or if it preempts or starts a new second."""
    plan = plan_at(engine, number)
    bound_time_at(engine, plan.bound_by).duration_ns += duration_ns
    running_time_at(engine, engine.num_running).duration_ns += duration_ns
    engine.request_steps += plan.count + plan.num_lockstep
    plan.row = NONE
    if engine.keep_steps == KEEP_NONE:
        return
    if engine.keep_steps == KEEP_SAMPLE:
        second = start_ns // SECOND_NS
        is_first = second != engine.last_second
        engine.last_second = second
        if not is_first and engine.num_preempted_since_step == 0:
            return
    plan.row = engine.num_step_rows
    row = step_row_at(engine, engine.num_step_rows)
    engine.num_step_rows += 1
    row.step = engine.num_steps
    row.start_ns = start_ns
    row.duration_ns = duration_ns
    row.scheduled_ns = engine.now
    row.num_running_reqs = engine.num_running
    row.num_waiting_reqs = engine.num_waiting
    row.num_scheduled_reqs = plan.count + plan.num_lockstep
    row.num_scheduled_tokens = plan.num_scheduled_tokens
    row.num_decode_reqs = plan.num_decode
    row.num_short_extend_reqs = plan.num_short_extend
    row.num_long_extend_reqs = plan.num_long_extend
    row.num_prefill_reqs = plan.num_prefill
    row.num_context_tokens = plan.num_context_tokens
    row.num_free_blocks = engine.num_free_blocks
    row.kv_cache_usage = usage(engine, engine.num_free_blocks)
    row.num_admitted_reqs = plan.num_admitted
    row.num_preempted_reqs = engine.num_preempted_since_step
    row.num_finished_reqs = 0
    row.bound_by = plan.bound_by


@inlined
def itl_bucket(gap_ns: int) -> int:
    """The number of the histogram bucket of a gap: 7 significant bits, 64 buckets a power of two."""
    shift = 0
    rest = gap_ns >> 7
    for width in (32, 16, 8, 4, 2, 1):
        if rest >> width > 0:
            shift += width
            rest >>= width
    if rest > 0:
        shift += 1
    return (gap_ns >> shift) + 64 * shift


@inlined
def stamp_token(engine: Record, request: Record, at_ns: int) -> None:
    """Book one output token that came out at ``at_ns``."""
    if request.last_token_ns == NEVER:
        request.first_token_ns = at_ns
        cached = request.num_cached_tokens if engine.books_computed_prompts else 0
        engine.prompt_tokens_booked += request.num_prompt_tokens - cached
    else:
        itl_at(engine, itl_bucket(at_ns - request.last_token_ns)).count += 1
    request.last_token_ns = at_ns


@inlined
def take_snapshot(engine: Record) -> None:
    """After a step: the state that the next samples show, and the prefix-cache queries since the last one."""
    engine.has_state = True
    engine.state_running = engine.num_running
    engine.state_waiting = engine.num_waiting
    engine.state_free_blocks = engine.num_free_blocks
    new_requests = engine.prefix_requests - engine.seen_requests
    if new_requests == 0:
        return
    queries = engine.prefix_queries - engine.seen_queries
    hits = engine.prefix_hits - engine.seen_hits
    engine.seen_requests = engine.prefix_requests
    engine.seen_queries = engine.prefix_queries
    engine.seen_hits = engine.prefix_hits
    size = RECENT_REQUESTS + 2
    newest = recent_at(engine, (engine.recent_first + engine.recent_count) % size)
    newest.requests = new_requests
    newest.queries = queries
    newest.hits = hits
    engine.recent_count += 1
    engine.recent_requests += new_requests
    engine.recent_queries += queries
    engine.recent_hits += hits
    while engine.recent_count > 1 and engine.recent_requests > RECENT_REQUESTS:
        oldest = recent_at(engine, engine.recent_first)
        engine.recent_requests -= oldest.requests
        engine.recent_queries -= oldest.queries
        engine.recent_hits -= oldest.hits
        engine.recent_first = (engine.recent_first + 1) % size
        engine.recent_count -= 1


@inlined
def next_sample_ns(engine: Record) -> int:
    """The next instant at which the engine prints its statistics."""
    if engine.num_sample_instants == 0:
        return int(engine.sample_last_ns + INTERVAL_NS)
    if engine.sample_position < engine.num_sample_instants:
        return int(sample_instant_at(engine, engine.sample_position).time_ns)
    return 1 << 62


@compiled
def advance_samples(engine: Record, now_ns: int) -> None:
    """Emit the samples that lie before ``now_ns``."""
    at_ns = next_sample_ns(engine)
    while at_ns < now_ns:
        _emit_sample(engine, at_ns)
        at_ns = next_sample_ns(engine)


@compiled
def finish_samples(engine: Record) -> None:
    """Emit what is left up to the end of the engine's work, and the observed instants after it."""
    until = engine.now
    if engine.num_sample_instants > 0:
        until = max(until, sample_instant_at(engine, engine.num_sample_instants - 1).time_ns + 1)
    advance_samples(engine, until)


@compiled
def _emit_sample(engine: Record, at_ns: int) -> None:
    seconds = (at_ns - engine.sample_last_ns) / 1e9
    is_idle = engine.prompt_tokens_booked == 0 and engine.tokens_booked == 0
    if seconds > 0 and not (is_idle and engine.was_idle):
        row = sample_row_at(engine, engine.num_sample_rows)
        engine.num_sample_rows += 1
        row.time_ns = at_ns
        row.prompt_tps = engine.prompt_tokens_booked / seconds
        row.generation_tps = engine.tokens_booked / seconds
        row.num_running_reqs = engine.state_running
        row.num_waiting_reqs = engine.state_waiting
        row.kv_cache_usage = usage(engine, engine.state_free_blocks) if engine.has_state else 0.0
        row.prefix_hit_rate = engine.recent_hits / engine.recent_queries if engine.recent_queries > 0 else -1.0
        row.num_preemptions = engine.preemptions_booked
    engine.was_idle = is_idle
    engine.prompt_tokens_booked = 0
    engine.tokens_booked = 0
    engine.sample_last_ns = at_ns
    engine.sample_position += 1


@inlined
def has_room(engine: Record) -> int:
    """Whether every table takes what one more turn can write: 0, or the number (1 to 3) of the one that does not."""
    if engine.num_step_rows >= engine.most_step_rows:
        return 1
    if engine.num_preemption_rows + engine.num_running >= engine.most_preemption_rows:
        return 2
    return 3 if engine.num_sample_rows + 2 >= engine.most_sample_rows else 0
