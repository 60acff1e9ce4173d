"""Turns in which nothing happens but decodes in lockstep: the same bookkeeping as ``loop._turn``, without its questions.

Nobody waits, nobody is handled one by one, nobody arrives, ends or is evicted: the plan follows from the one before.
"""

from tracekit.kernel.compiling import compiled, inlined
from tracekit.kernel.layout import BOUND_NONE, NONE, Record
from tracekit.kernel.recording import advance_samples, itl_bucket, next_sample_ns, record_step, take_snapshot
from tracekit.kernel.references import ending_at, itl_at, plan_at, req_time_at, residue_at, token_time_at
from tracekit.step_time.duration import ContextParameters, step_duration_ns

_step_duration_ns = inlined(step_duration_ns)


@inlined
def duration_of(engine: Record, num_tokens: int, num_reqs: int, num_context_tokens: int, num_pairs: int) -> int:
    """How long the device takes for a step, by the formula that the model uses."""
    return _step_duration_ns(
        token_time_at(engine, num_tokens).ns,
        req_time_at(engine, num_reqs).ns,
        ContextParameters(engine.per_context_token, engine.per_attention_pair, engine.per_prefill_step),
        num_context_tokens,
        num_pairs,
    )


@inlined
def is_quiet(engine: Record) -> bool:
    """Whether every request is a decode in lockstep, also in the step in flight."""
    if engine.crash != 0 or engine.num_lockstep == 0 or engine.num_lockstep != engine.num_running:
        return False
    if engine.num_waiting > 0 or engine.abort_size > 0 or engine.prefill_interval > 1:
        return False
    if engine.num_plans != engine.depth - 1 or engine.num_lockstep > engine.max_num_batched_tokens:
        return False
    return bool(engine.num_plans == 0 or plan_at(engine, engine.oldest_plan).count == 0)


@compiled
def quiet_turns(engine: Record, next_arrival_ns: int, most: int) -> int:
    """Take turns until one would not be quiet, at most so many; returns how many were taken.

    ``next_arrival_ns``: when the next request reaches the engine.
    """
    sample_ns = next_sample_ns(engine)
    taken = 0
    while taken < most and engine.now < next_arrival_ns and _goes_on(engine):
        number = (engine.oldest_plan + engine.num_plans) & 1
        _plan_decodes(engine, number)
        plan = plan_at(engine, number)
        start_ns = max(engine.now, engine.device_free)
        duration_ns = duration_of(engine, plan.num_lockstep, plan.num_lockstep, plan.num_context_tokens, 0)
        plan.end_ns = start_ns + duration_ns
        engine.device_free = plan.end_ns
        record_step(engine, number, start_ns, duration_ns)
        engine.num_preempted_since_step = 0
        engine.num_steps += 1
        engine.step_mod = 0 if engine.step_mod + 1 == engine.block_size else engine.step_mod + 1
        oldest = plan_at(engine, engine.oldest_plan)
        engine.oldest_plan = 1 - engine.oldest_plan
        engine.now = max(engine.now, oldest.end_ns)
        if sample_ns < engine.now:
            advance_samples(engine, engine.now)
            sample_ns = next_sample_ns(engine)
        itl_at(engine, itl_bucket(oldest.end_ns - engine.last_update_ns)).count += oldest.num_lockstep
        engine.tokens_booked += oldest.num_lockstep
        engine.last_processed_step = oldest.step
        engine.last_update_ns = oldest.end_ns
        take_snapshot(engine)
        taken += 1
    return taken


@inlined
def _goes_on(engine: Record) -> bool:
    """Whether nobody ends with the next step, and blocks and tables have room for it."""
    if ending_at(engine, engine.num_steps & engine.ring_mask).head != NONE:
        return False
    if engine.num_step_rows >= engine.most_step_rows or engine.num_sample_rows + 2 >= engine.most_sample_rows:
        return False
    num_needed = residue_at(engine, engine.step_mod).count
    if not engine.caching:
        return bool(num_needed <= engine.num_free_blocks)
    next_mod = 0 if engine.step_mod + 1 == engine.block_size else engine.step_mod + 1
    return bool(num_needed == 0 and (engine.is_async or residue_at(engine, next_mod).count == 0))


@inlined
def _plan_decodes(engine: Record, number: int) -> None:
    engine.attempt += 1
    engine.num_executed_steps += 1
    engine.num_free_blocks -= residue_at(engine, engine.step_mod).count
    plan = plan_at(engine, number)
    plan.step = engine.num_steps
    plan.count = 0
    plan.is_unsorted = False
    plan.num_lockstep = engine.num_lockstep
    plan.num_scheduled_tokens = engine.num_lockstep
    plan.num_context_tokens = engine.lock_base_sum + engine.num_lockstep * engine.num_steps
    plan.num_attention_pairs = 0
    plan.num_decode = engine.num_lockstep
    plan.num_short_extend = 0
    plan.num_long_extend = 0
    plan.num_prefill = 0
    plan.num_admitted = 0
    plan.num_preemptions = 0
    plan.num_kept = 0
    plan.bound_by = BOUND_NONE
