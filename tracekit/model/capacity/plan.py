"""From layers and bytes to blocks, tokens and the concurrency that is printed, or to the start-up error.

Mirrors ``get_kv_cache_configs`` and ``_check_enough_kv_cache_memory`` (``vllm/v1/core/kv_cache_planning.py``) and
``get_max_concurrency_for_kv_cache_config`` (``kv_cache_utils.py``), 0.33.0.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from tracekit.config import GIB
from tracekit.errors import TracekitError
from tracekit.model.capacity.grouping import Group, Layers, NotGroupableError, group_layers
from tracekit.model.capacity.layers import Demand, FaultError, LayerCache, StateMode, blocks_needed
from tracekit.model.capacity.rules import CapacityRules

_NOTHING_LEFT: Final = "no memory is left for KV blocks"


@dataclass(frozen=True)
class Server:
    """What the planner is told: the layers of one rank and what the server was started with.

    ``layers``: (layer number, cache) in the order in which vLLM meets them. ``available_bytes``: one number a pipeline
    stage, or one a worker, or one for all. ``hybrid_manager``: whether the KV cache manager keeps kinds of layers
    apart. ``auto_fit``: ``max_model_len`` was -1, and ``max_model_len`` is the model's own limit.
    """

    layers: tuple[tuple[int, LayerCache], ...]
    available_bytes: tuple[int, ...]
    max_model_len: int
    max_num_batched_tokens: int = 8192
    async_scheduling: bool = True
    pipeline_parallel_size: int = 1
    decode_context_parallel_size: int = 1
    hybrid_manager: bool = True
    num_gpu_blocks_override: int | None = None
    auto_fit: bool = False
    block_outermost: bool = False
    state_mode: StateMode = "none"
    num_speculative_tokens: int = 0


@dataclass(frozen=True)
class CapacityPlan:
    """What the server ends up with.

    ``num_blocks``: of the whole pool, the null block included. ``bytes_per_block``: one number a worker.
    ``num_blocks_per_request``: what one request of ``max_model_len`` tokens may hold. ``num_tokens`` and
    ``concurrency_text`` are what the log says; ``concurrency`` is the number before rounding.
    """

    num_blocks: int
    bytes_per_block: tuple[int, ...]
    groups: tuple[Group, ...]
    num_blocks_per_request: int
    num_tokens: int
    concurrency: float
    max_model_len: int

    @property
    def concurrency_text(self) -> str:
        """As printed, without the x."""
        return f"{self.concurrency:.2f}"


class CapacityError(TracekitError):
    """The start-up that fails; ``kind``: no_memory, needs_more, needs_more_tokens, not_implemented,
    hybrid_disabled_not_unifiable, autofit_none, other, or fault where vLLM itself breaks.

    For needs_more: ``need_text`` and ``available_text`` are the GiB as printed, ``estimate`` the longest length that
    fits (None: none, or the version does not say).
    """

    def __init__(
        self, message: str, kind: str, need_text: str = "", available_text: str = "", estimate: int | None = None
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.need_text = need_text
        self.available_text = available_text
        self.estimate = estimate


def plan(server: Server, rules: CapacityRules) -> CapacityPlan:
    """What a server of these rules prints at start-up; raises ``CapacityError`` where it does not start."""
    if rules.engine == "v0":
        return _plan_v0(server)
    try:
        return _plan_v1(server, rules)
    except NotGroupableError as error:
        msg = f"vLLM does not start: {error}"
        raise CapacityError(msg, error.kind) from error
    except FaultError as error:
        msg = f"vLLM itself breaks here: {error}"
        raise CapacityError(msg, "fault") from error


def demand_of(server: Server, rules: CapacityRules) -> Demand:
    """How much a request may hold beside its length."""
    batches = 1
    if rules.counts_batches_in_flight:
        batches = server.pipeline_parallel_size + server.async_scheduling
    return Demand(
        server.max_num_batched_tokens * batches,
        server.decode_context_parallel_size,
        server.state_mode if rules.has_state_modes else "all",
        server.num_speculative_tokens,
    )


def _plan_v0(server: Server) -> CapacityPlan:
    caches = [cache for _, cache in server.layers]
    block_bytes = sum(cache.block_bytes for cache in caches)
    block_size = caches[0].block_size
    num_blocks = max(0, min(server.available_bytes) // block_bytes)
    if server.num_gpu_blocks_override is not None:
        num_blocks = server.num_gpu_blocks_override
    if num_blocks <= 0:
        raise CapacityError(_NOTHING_LEFT, "no_memory")
    num_tokens = num_blocks * block_size
    if server.max_model_len > num_tokens:
        msg = f"max_model_len {server.max_model_len} is more than the {num_tokens} tokens that the KV cache can hold"
        raise CapacityError(msg, "needs_more_tokens", estimate=num_tokens)
    group = Group(server.layers)
    concurrency = num_tokens / server.max_model_len
    needed = -(-server.max_model_len // block_size)
    return CapacityPlan(num_blocks, (block_bytes,), (group,), needed, num_tokens, concurrency, server.max_model_len)


@dataclass(frozen=True)
class _Worker:
    """One rank: its layers, its part of the groups, its bytes."""

    layers: Layers
    groups: tuple[Group, ...]
    available_bytes: int

    @property
    def bytes_per_block(self) -> int:
        return max(group.block_bytes for group in self.groups)

    def blocks_needed(self, length: int, demand: Demand) -> int:
        return sum(group.blocks_needed(length, demand) for group in self.groups)


def _plan_v1(server: Server, rules: CapacityRules) -> CapacityPlan:
    demand = demand_of(server, rules)
    length = server.max_model_len
    if rules.need == "layers":
        for layers, available in _stages(server):
            _check(_need_of_layers(layers, demand), available, length, rules)
    workers = _workers(server, rules)
    if rules.need == "groups":
        usable = [_usable_bytes(worker, server, rules) for worker in workers]
        needs = [_need_of_groups(worker, demand) for worker in workers]
        if server.auto_fit:
            length = _fitted(needs, usable, length)
        for need, bytes_ in zip(needs, usable, strict=True):
            _check(need, bytes_, length, rules)
    return _planned(server, rules, workers, length, demand)


def _usable_bytes(worker: "_Worker", server: Server, rules: CapacityRules) -> int:
    """What the start-up check has to work with on one rank."""
    found = worker.available_bytes
    if server.num_gpu_blocks_override is not None and rules.override_moves_check:
        found = server.num_gpu_blocks_override * worker.bytes_per_block
    return found - (worker.bytes_per_block if rules.check_spares_null_block else 0)


def _planned(
    server: Server, rules: CapacityRules, workers: Sequence[_Worker], length: int, demand: Demand
) -> CapacityPlan:
    override = server.num_gpu_blocks_override
    counts = [
        override if override is not None else worker.available_bytes // worker.bytes_per_block for worker in workers
    ]
    num_blocks = min(counts)
    # Up to 0.10 each worker printed its own numbers, before the smallest was taken: the last line stands.
    shown, worker = (counts[-1], workers[-1]) if rules.prints_per_worker else (num_blocks, workers[0])
    needed = worker.blocks_needed(length, demand)
    per_group = shown // len(worker.groups) * min(group.block_size for group in worker.groups)
    in_tokens = shown * worker.groups[0].block_size / length
    concurrency = in_tokens if rules.concurrency == "tokens" else shown / needed
    num_tokens = per_group * server.decode_context_parallel_size
    if rules.tokens == "concurrency":
        num_tokens = int(concurrency * length)
    bytes_per_block = tuple(worker.bytes_per_block for worker in workers)
    return CapacityPlan(
        num_blocks,
        bytes_per_block,
        workers[0].groups,
        needed,
        num_tokens,
        concurrency,
        length,
    )


def _stages(server: Server) -> list[tuple[Layers, int]]:
    """The layers and bytes of each worker; layers are numbered by their position in the model."""
    everything: Layers = dict(enumerate(cache for _, cache in server.layers))
    stages = server.pipeline_parallel_size
    if stages == 1:
        return [(everything, available) for available in server.available_bytes]
    numbers = [number for number, _ in server.layers]
    if stages > max(numbers) + 1:
        msg = f"pipeline_parallel_size {stages} is more than the model's {max(numbers) + 1} layers"
        raise CapacityError(msg, "other")
    bounds = _stage_bounds(max(numbers) + 1, stages)
    found: list[tuple[Layers, int]] = []
    for stage, (first, end) in enumerate(bounds):
        layers: Layers = {
            position: everything[position] for position, number in enumerate(numbers) if first <= number < end
        }
        available = server.available_bytes[stage if len(server.available_bytes) > 1 else 0]
        found.append((layers, available))
    return found


def _stage_bounds(num_layers: int, stages: int) -> list[tuple[int, int]]:
    """Which layers a pipeline stage has: what is left over goes to the stages before the last (``get_pp_indices``)."""
    sizes = [num_layers // stages] * stages
    for index in range(num_layers % stages):
        sizes[-2 - index] += 1
    ends = [sum(sizes[: stage + 1]) for stage in range(stages)]
    return [(end - size, end) for end, size in zip(ends, sizes, strict=True)]


def _workers(server: Server, rules: CapacityRules) -> list[_Worker]:
    stages = _stages(server)
    options = {"hybrid_manager": server.hybrid_manager, "block_outermost": server.block_outermost}
    if not rules.groups_whole_model:
        return [_Worker(layers, tuple(group_layers(layers, rules, **options)), bytes_) for layers, bytes_ in stages]
    whole = dict(enumerate(cache for _, cache in server.layers))
    groups = group_layers(whole, rules, **options)
    return [_Worker(layers, tuple(group.only(layers) for group in groups), bytes_) for layers, bytes_ in stages]


def _need_of_layers(layers: Layers, demand: Demand) -> Callable[[int], int]:
    def need(length: int) -> int:
        return sum(blocks_needed(cache, length, demand) * cache.block_bytes for cache in layers.values())

    return need


def _need_of_groups(worker: _Worker, demand: Demand) -> Callable[[int], int]:
    def need(length: int) -> int:
        return worker.bytes_per_block * worker.blocks_needed(length, demand)

    return need


def _check(need: Callable[[int], int], available: int, length: int, rules: CapacityRules) -> None:
    if available <= 0:
        raise CapacityError(_NOTHING_LEFT, "no_memory")
    needed = need(length)
    if needed <= available:
        return
    estimate = longest_that_fits(need, available, length) if rules.prints_estimate else None
    need_text, available_text = (_gib(value, rules) for value in (needed, available))
    said = f"; the longest that fits: max_model_len={estimate}" if estimate else ""
    msg = f"one request of {length} tokens needs {need_text} GiB of KV cache, {available_text} GiB are available{said}"
    raise CapacityError(msg, "needs_more", need_text, available_text, estimate or None)


def _gib(value: int, rules: CapacityRules) -> str:
    return f"{value / GIB:.2f}" if rules.prints_two_decimals else str(round(value / GIB, 2))


def longest_that_fits(need: Callable[[int], int], available: int, longest: int) -> int:
    """The largest length up to ``longest`` whose need fits, 0 when one token does not; as vLLM's bisection finds it."""
    if need(1) > available:
        return 0
    low, high = 1, longest
    while low < high:
        middle = (low + high + 1) // 2
        if need(middle) <= available:
            low = middle
        else:
            high = middle - 1
    return low


def _fitted(needs: Sequence[Callable[[int], int]], available: Sequence[int], longest: int) -> int:
    fitting = min(longest_that_fits(need, bytes_, longest) for need, bytes_ in zip(needs, available, strict=True))
    if fitting <= 0:
        msg = "not even one token fits into the KV cache"
        raise CapacityError(msg, "autofit_none")
    return fitting
