"""Where a GPU's memory goes before any KV block: what is known, and a band for what only a device can tell.

``requested = total x gpu_memory_utilization``; what is left of it after weights, the activation peak of a dummy step,
what lies outside of torch and (from 0.20.2) the estimate for CUDA graphs is available to the KV cache. Mirrors
``determine_available_memory`` (``vllm/v1/worker/gpu_worker.py``) as far as it can be computed without a device. The
constants below are fitted on the start-ups of public logs; ``docs/capacity.md`` says how well they do.
"""

import math
from dataclasses import dataclass
from typing import Final

from tracekit.catalogue.models import ModelShape
from tracekit.config import GIB, parse_version

_GRAPHS_COUNT: Final = (0, 20, 2)
_LEAN_SAMPLER: Final = (0, 12, 0)
_LEAN_EXPERTS: Final = (0, 13, 0)


@dataclass(frozen=True)
class Band:
    """A number of bytes: likely, and the bounds between which it is expected."""

    likely: int
    low: int
    high: int

    @classmethod
    def exact(cls, value: int) -> "Band":
        """A number that is known."""
        return cls(value, value, value)

    def __add__(self, other: "Band") -> "Band":
        return Band(self.likely + other.likely, self.low + other.low, self.high + other.high)

    def __sub__(self, other: "Band") -> "Band":
        return Band(self.likely - other.likely, self.low - other.high, self.high - other.low)


@dataclass(frozen=True)
class Setup:
    """What decides a rank's memory; ``bits``: of a weight."""

    version: str
    shape: ModelShape
    bits: float
    total_bytes: int
    gpu_memory_utilization: float
    tensor_parallel_size: int
    pipeline_parallel_size: int
    max_num_batched_tokens: int
    max_num_seqs: int
    enforce_eager: bool = False


@dataclass(frozen=True)
class Memory:
    """Bytes of one rank. ``graphs``: CUDA graphs; ``graphs_count``: whether the version takes them off the KV cache."""

    requested: int
    weights: Band
    activation: Band
    non_torch: Band
    graphs: Band
    graphs_count: bool

    @property
    def available(self) -> Band:
        """What is left for the KV cache."""
        used = self.weights + self.activation + self.non_torch
        if self.graphs_count:
            used += self.graphs
        return Band.exact(self.requested) - used


def default_utilization(version: str) -> float:
    """``gpu_memory_utilization`` where it is not given."""
    return 0.92 if parse_version(version) >= _GRAPHS_COUNT else 0.9


def estimate(setup: Setup) -> Memory:
    """The memory of a server that was never started."""
    number = parse_version(setup.version)
    counts = number >= _GRAPHS_COUNT
    asked = setup.total_bytes * setup.gpu_memory_utilization
    likely = setup.shape.weight_bytes(setup.bits) // (setup.tensor_parallel_size * setup.pipeline_parallel_size)
    # Quantised weights differ in which layers they leave alone.
    slack = 0.02 if setup.bits >= 16 else 0.12  # noqa: PLR2004 - not quantised
    peak = _activation_bytes(setup, number)
    outside = (0.7 if counts else 0.1) + (0.4 if setup.tensor_parallel_size > 1 else 0.0)
    graphs = Band(0, 0, 0) if setup.enforce_eager else Band(int(0.35 * GIB), int(0.06 * GIB), int(1.5 * GIB))
    return Memory(
        math.ceil(asked) if counts else int(asked),
        Band(likely, int(likely * (1 - slack)), int(likely * (1 + slack))),
        Band(peak, peak // 3, peak * 5 // 2),
        Band(int(outside * GIB), int(0.02 * GIB), int((outside + 0.8) * GIB)),
        graphs,
        counts,
    )


def moved(available: Band, before: Setup, after: Setup) -> Band:
    """What is available after a change, from what was measured before: only differences of the estimates enter.

    A term that the change does not touch adds no uncertainty; of one that it touches, the difference may be half or
    double the estimate.
    """
    old, new = estimate(before), estimate(after)
    result = available + Band.exact(new.requested - old.requested)
    result -= _difference(old.weights, new.weights, exact=before.bits == after.bits)
    result -= _difference(old.activation, new.activation)
    result -= _difference(old.non_torch, new.non_torch)
    if old.graphs_count and before.max_num_seqs != after.max_num_seqs:
        result -= _graphs_difference(before.max_num_seqs, after.max_num_seqs)
    return result


def _difference(old: Band, new: Band, *, exact: bool = False) -> Band:
    change = new.likely - old.likely
    if exact or change == 0:
        return Band.exact(change)
    return Band(change, min(change // 2, change * 2), max(change // 2, change * 2))


def _graphs_difference(old_seqs: int, new_seqs: int) -> Band:
    """Graphs are captured for batch sizes up to twice ``max_num_seqs``, at most 512: about 10 MiB each eighth request."""
    sizes = [min(2 * seqs, 512) // 8 for seqs in (old_seqs, new_seqs)]
    return _difference(Band.exact(sizes[0] * 10 << 20), Band.exact(sizes[1] * 10 << 20))


def _activation_bytes(setup: Setup, number: tuple[int, int, int]) -> int:
    """The peak of a dummy step of ``max_num_batched_tokens``: its widest layer, or the sampler over all requests."""
    shape, ranks, tokens = setup.shape, setup.tensor_parallel_size, setup.max_num_batched_tokens
    forward = tokens * 2 * (4 * shape.hidden_size + 2 * shape.intermediate_size // ranks)
    if shape.num_experts:
        inner = shape.moe_intermediate_size // ranks
        copies = shape.num_experts if number < _LEAN_EXPERTS else shape.num_experts_per_token
        forward = max(forward, copies * tokens * (shape.hidden_size + inner) * 2)
    a_token = 4.0 if number >= _LEAN_SAMPLER else 38.5
    sampler = min(setup.max_num_seqs, tokens) * shape.vocab_size * a_token
    return int(max(forward, sampler))
