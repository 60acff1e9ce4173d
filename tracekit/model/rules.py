"""Which scheduler a vLLM version has: one small frozen set of rules per behaviour class, versions are data.

``Rules`` names every difference between versions that changes a decision (plain attention, no speculation). Versions
of one behaviour class have equal rules. Each field says what changed and in which version first; the evidence is the
recorded decisions of 83 engine labels (``tests/conformance``).
"""

from dataclasses import dataclass, field
from typing import Final, Literal

from tracekit.config import NEWEST_VERSION, VersionNumber, parse_version
from tracekit.errors import ConfigError, TracekitError

Engine = Literal["v0", "v1"]

OLDEST_VERSION: Final = "0.4.2"
_OLDEST_V1: Final = (0, 7, 1)
_V1_BY_DEFAULT: Final = (0, 8, 0)
_V0_REMOVED: Final = (0, 11, 0)


class EngineCrashError(TracekitError):
    """The rules of this version make vLLM itself crash here; the message says which and why."""


@dataclass(frozen=True)
class PrefixStatsRules:
    """How a version counts prefix-cache queries and hits. No decision depends on it."""

    unit: Literal["blocks", "tokens"] = "tokens"
    """0.8 counts full blocks; tokens from 0.9.0."""
    counts: Literal["lookups", "admissions"] = "admissions"
    """Up to 0.26 every lookup counts, so a blocked head of the queue counts at every step; admissions from 0.27.0."""
    preempted_apart: bool = True
    """Lookups of preempted requests are counted apart from 0.11.1."""
    on_empty_steps: bool = True
    """0.9.1 to 0.10.1 report no statistics at a step without outputs; they wait for the next one."""


@dataclass(frozen=True)
class WindowRules:
    """What versions do differently with sliding-window groups; nothing else depends on it, so it parts no class."""

    frees_behind_processed: bool = True
    """0.26.0: asynchronous scheduling frees only behind tokens whose step has been processed."""
    caps_in_flight: bool = True
    """0.26.0: the cap counts the tokens of all steps in flight."""
    unhashed_first: bool = True
    """0.23.0: of a window's table, freed blocks without a hash go to the front of the free queue."""
    cap: Literal["none", "always", "admission"] = "admission"
    """0.20.0: the full-prompt gate counts no more blocks of a window than it can ever hold; 0.20.0 and 0.20.1 also where
    blocks are taken, and crash."""


@dataclass(frozen=True)
class Rules:
    """What the scheduler of one behaviour class does differently from the others. The defaults are 0.33.0's."""

    engine: Engine = "v1"

    # V1, admission
    full_prompt_gate: bool = True
    """0.19.0: ``scheduler_reserve_full_isl`` admits a request only if all its tokens would fit the free blocks."""
    has_watermark: bool = True
    """0.24.0: ``watermark`` keeps blocks free at admissions while something runs."""
    unchunked_over_budget: Literal["chunk", "skip", "stop"] = "stop"
    """The head does not fit the token budget and chunked prefill is off: up to 0.9.1 it is chunked all the same, from
    0.9.2 it is passed over, from 0.12.0 nothing more is admitted."""
    has_active_limit: bool = True
    """0.31.0: ``max_num_active_seqs`` limits admissions apart from ``max_num_seqs``."""
    has_prefill_interval: bool = True
    """0.33.0: ``prefill_schedule_interval`` holds prefills back without data parallelism."""

    # V1, tokens of a request in a step
    has_long_prefill_threshold: bool = True
    """0.8.3: V1 heeds ``long_prefill_token_threshold``."""
    threshold_spares_lone_request: bool = True
    """0.31.0: the threshold does not apply when there is only one request; it can be adaptive."""
    unchunked_clears_threshold: bool = False
    """0.11.1 and 0.11.2: with chunked prefill and prefix caching both off the threshold is set to 0 at start-up."""
    foresees_max_tokens: bool = True
    """0.11.1: asynchronous scheduling plans no decode past ``max_tokens``."""

    # V1, priority and preemption
    has_priority: bool = True
    """0.9.2: V1 has the priority policy; before, ``priority`` runs as FCFS."""
    scheduled_victim: Literal["crash", "keep", "give_back"] = "give_back"
    """Priority, the victim has tokens in this step already: 0.9.2 to 0.10.1 die of an assertion, 0.10.2 and 0.11.0 let
    them stand, from 0.11.1 tokens and budget are given back."""
    steps_back_for_idle_victim: bool = True
    """0.31.0: the running loop also steps back for an earlier victim that had no tokens in this step."""
    equal_arrivals_crash: bool = False
    """Up to 0.11.2 two waiting requests of equal priority and arrival cannot be ordered (TypeError); from 0.12.0 the
    request id decides."""
    goes_on_after_self_preemption: bool = True
    """0.33.0: priority: when a running request preempts itself the running loop continues."""

    # V1, KV blocks
    has_null_block: bool = True
    """0.8.3: block 0 is the null block and never used."""
    num_preallocated_tokens: int = 0
    """Up to 0.8.4 a request that needs a block gets 64 tokens' worth of blocks more."""
    unhashed_blocks_first: bool = True
    """0.24.0: freed blocks without a hash go to the front of the free queue."""
    usage_counts_null_block: bool = False
    """Up to 0.10.1 the null block counts in ``kv_cache_usage``."""
    has_running_reset: bool = True
    """0.12.0: ``reset_prefix_cache`` can preempt the running requests; their outputs in flight are dropped."""
    reset_drops_next_output: bool = field(default=False, compare=False)
    """Asynchronous, up to 0.21: such a reset drops the next output of every running request, in flight or not; from
    0.22.0 it counts those in flight. Nothing but a reset from outside depends on it, so it parts no class."""

    # V0
    v0_sorts_by_arrival: bool = False
    """Up to 0.5.3.post1 running and swapped requests are sorted by arrival each step."""
    v0_admitted_run_last: bool = True
    """0.6.0: a chunked step leaves the running requests in the order swapped-in, decodes, prefills, new; before, new
    ones came first and swapped-in ones last."""
    v0_rounds_chunks: bool = True
    """0.6.0: with prefix caching a chunk that does not reach the end of its prompt is a multiple of the block size."""
    v0_last_full_block_counts: bool = True
    """Up to 0.5.5 the last full block of a request does not count as computed, and chunks do not matter."""
    v0_has_preemption_mode: bool = True
    """0.5.0: ``preemption_mode`` can ask for swapping; before, requests with one sequence are always recomputed."""
    v0_block_manager: Literal["v1", "v2"] = "v2"
    """0.6.3 makes block manager v2 the default."""
    v0_cached_tokens_cost: bool = False
    """Up to 0.6.4.post1 prefix-cached tokens cost token budget, and only chunks are rounded to blocks."""
    v0_evicts_in_queue_order: bool = False
    """Up to 0.6.4.post1 the evictor scans the unused blocks in the order in which they were freed."""
    v0_stops_past_max_model_len: bool = False
    """Up to 0.9.0 a request stops at one token more than ``max_model_len``."""
    v0_looks_up_again: bool = True
    """0.9.2: the cached tokens of a waiting request that was not admitted are looked up afresh."""

    prefix_stats: PrefixStatsRules = field(default=PrefixStatsRules(), compare=False)
    window: WindowRules = field(default=WindowRules(), compare=False)


_WINDOW_CHANGES: Final[tuple[tuple[VersionNumber, dict[str, object]], ...]] = (
    ((0, 26, 0), {"frees_behind_processed": False, "caps_in_flight": False}),
    ((0, 23, 0), {"unhashed_first": False}),
    ((0, 20, 2), {"cap": "always"}),
    ((0, 20, 0), {"cap": "none"}),
)

# (first version, what it changed), newest first: each entry undoes a change for the versions before it.
_V1_CHANGES: Final[tuple[tuple[VersionNumber, dict[str, object]], ...]] = (
    ((0, 33, 0), {"goes_on_after_self_preemption": False, "has_prefill_interval": False}),
    ((0, 31, 0), {"has_active_limit": False, "threshold_spares_lone_request": False,
                  "steps_back_for_idle_victim": False}),
    ((0, 24, 0), {"unhashed_blocks_first": False, "has_watermark": False}),
    ((0, 22, 0), {"reset_drops_next_output": True}),
    ((0, 19, 0), {"full_prompt_gate": False}),
    ((0, 12, 0), {"unchunked_over_budget": "skip", "equal_arrivals_crash": True, "has_running_reset": False,
                  "unchunked_clears_threshold": True}),
    ((0, 11, 1), {"scheduled_victim": "keep", "foresees_max_tokens": False, "unchunked_clears_threshold": False}),
    ((0, 10, 2), {"scheduled_victim": "crash", "usage_counts_null_block": True}),
    ((0, 9, 2), {"has_priority": False, "unchunked_over_budget": "chunk"}),
    ((0, 8, 5), {"num_preallocated_tokens": 64}),
    ((0, 8, 3), {"has_null_block": False, "has_long_prefill_threshold": False}),
)  # fmt: skip

_V0_CHANGES: Final[tuple[tuple[VersionNumber, dict[str, object]], ...]] = (
    ((0, 9, 2), {"v0_looks_up_again": False}),
    ((0, 9, 1), {"v0_stops_past_max_model_len": True}),
    ((0, 6, 5), {"v0_cached_tokens_cost": True, "v0_evicts_in_queue_order": True}),
    ((0, 6, 3), {"v0_block_manager": "v1"}),
    ((0, 6, 0), {"v0_admitted_run_last": False, "v0_rounds_chunks": False, "v0_last_full_block_counts": False}),
    ((0, 5, 4), {"v0_sorts_by_arrival": True}),
    ((0, 5, 0), {"v0_has_preemption_mode": False}),
)

_PREFIX_STATS_CHANGES: Final[tuple[tuple[VersionNumber, dict[str, object]], ...]] = (
    ((0, 27, 0), {"counts": "lookups"}),
    ((0, 11, 1), {"preempted_apart": False}),
    ((0, 10, 2), {"on_empty_steps": False}),
    ((0, 9, 1), {"on_empty_steps": True}),
    ((0, 9, 0), {"unit": "blocks"}),
)


def rules_for(version: str, engine: Engine | None = None) -> Rules:
    """The rules of a vLLM version; ``engine`` picks V0 or V1 where a version has both (V1 from 0.8.0 by default).

    A development build gets the rules of its release, a version outside 0.4.2 .. 0.33.0 those of the nearest one:
    ``rules_note`` says so. Raises ``ConfigError`` when the text is no version.
    """
    number = parse_version(version)
    chosen = engine or ("v1" if number >= _V1_BY_DEFAULT else "v0")
    stats: dict[str, object] = {}
    for first, before in _PREFIX_STATS_CHANGES:
        if number < first:
            stats |= before
    window: dict[str, object] = {}
    for first, before in _WINDOW_CHANGES:
        if number < first:
            window |= before
    changes: dict[str, object] = {}
    for first, before in _V1_CHANGES if chosen == "v1" else _V0_CHANGES:
        if number < first:
            changes |= before
    if chosen not in {"v0", "v1"}:
        msg = f"engine must be v0 or v1, found {chosen}"
        raise ConfigError(msg)
    return Rules(
        engine=chosen, prefix_stats=PrefixStatsRules(**stats), window=WindowRules(**window), **changes  # type: ignore[arg-type]
    )  # fmt: skip


def rules_note(version: str, engine: Engine | None = None) -> str | None:
    """Why the rules of a version are an approximation, or None when the decisions of that release were recorded."""
    number = parse_version(version)
    shown = ".".join(map(str, number))
    if number > parse_version(NEWEST_VERSION):
        return f"vLLM {shown} is newer than the newest version recorded: the rules of {NEWEST_VERSION} apply"
    if number < parse_version(OLDEST_VERSION):
        return f"vLLM {shown} is older than the oldest version recorded: the rules of {OLDEST_VERSION} apply"
    if engine == "v1" and number < _OLDEST_V1:
        return f"V1 of vLLM {shown} was not recorded: the rules of V1 0.7.1 apply"
    if engine == "v0" and number >= _V0_REMOVED:
        return f"vLLM {shown} has no V0 engine: the rules of V0 0.10.2 apply"
    if any(mark in version for mark in ("dev", "rc", "+g")):
        return f"a development build: the rules of the release {shown} apply"
    return None
