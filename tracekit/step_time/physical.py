"""The physical step time: what a step must read and compute, over what the GPU's measured kernels achieve.

For T tokens (padded to the next CUDA-graph size), n requests, C context tokens and A attention pairs of prefills:

    t0 + ts*n + L*(GEMMs(T) + element-wise + all-reduce) + L*(decode attention of C) + L*(prefill attention of A)
    + logits of n rows;   a GEMM: floor + ((bytes/bandwidth)^4 + (flops/compute)^4)^(1/4)

(form and constants: ``laws.json``, fitted on measured vLLM kernels). ``work`` makes the parameters from a GPU and a
model. Fourth powers are written as squares so that compiled code rounds alike.
"""

from math import sqrt
from typing import NamedTuple


class Gemm(NamedTuple):
    """``times`` equal matrix products a step: bytes of the weights, and per token bytes and operations.

    ``num_experts`` above 0: the weights are those of all experts, of which T tokens touch ``E (1 - (1 - k/E)^T)``.
    """

    times: float
    weight_bytes: float
    bytes_per_token: float
    flops_per_token: float
    num_experts: int = 0
    num_experts_per_token: int = 0


class Law(NamedTuple):
    """What a kind of kernel achieves: ns at least, bytes a ns, operations a ns."""

    floor: float
    bandwidth: float
    compute: float


class PhysicalParameters(NamedTuple):
    """One model on one GPU (one of its tensor-parallel ranks); ns, bytes and operations.

    ``t0``, ``per_seq``: the host's and the sampler's share. ``logits``: the head, once a request. ``per_token``:
    element-wise work, all-reduce and the prefill's work per token. ``padding``: the CUDA-graph sizes, ascending.
    ``bandwidth_scale``, ``compute_scale``, ``allreduce_scale``: what calibration found, 1 in the catalogue.
    """

    t0: float
    per_seq: float
    gemm: Law
    gemms: tuple[Gemm, ...]
    logits: Gemm
    padding: tuple[int, ...]
    elementwise_per_token: float
    allreduce_floor: float
    allreduce_per_token: float
    attention_floor: float
    attention_per_seq: float
    per_context_token: float
    prefill_floor: float
    prefill_per_token: float
    per_attention_pair: float
    bandwidth_scale: float = 1.0
    compute_scale: float = 1.0
    allreduce_scale: float = 1.0


def law_ns(law: Law, num_bytes: float, flops: float) -> float:
    """Time of one kernel: its floor, then a smooth maximum of reading and computing."""
    reading = num_bytes / law.bandwidth
    computing = flops / law.compute
    reading2 = reading * reading
    computing2 = computing * computing
    return law.floor + sqrt(sqrt(reading2 * reading2 + computing2 * computing2))


def padded(padding: tuple[int, ...], num_tokens: int) -> int:
    """The CUDA-graph size that a step of so many tokens runs with; the tokens themselves above the largest."""
    for size in padding:
        if size >= num_tokens:
            return size
    return num_tokens


def physical_of_tokens(p: PhysicalParameters, num_tokens: int) -> float:
    """Everything that depends on the tokens alone, ns."""
    size = padded(p.padding, num_tokens)
    law = Law(p.gemm.floor, p.gemm.bandwidth * p.bandwidth_scale, p.gemm.compute * p.compute_scale)
    duration = p.t0 + p.attention_floor
    for gemm in p.gemms:
        touched = gemm.weight_bytes * _touched(gemm, size)
        num_bytes = touched + gemm.bytes_per_token * size
        duration = duration + gemm.times * law_ns(law, num_bytes, gemm.flops_per_token * size)
    allreduce = p.allreduce_floor + p.allreduce_per_token * size
    return (
        duration
        + p.elementwise_per_token / p.bandwidth_scale * size
        + p.prefill_per_token / p.compute_scale * num_tokens
        + allreduce * p.allreduce_scale
    )


def _touched(gemm: Gemm, num_tokens: int) -> float:
    """The share of the weights that so many tokens need: 1 but for experts."""
    if gemm.num_experts == 0:
        return 1.0
    missed = 1.0
    for _ in range(num_tokens):
        missed = missed * (1.0 - gemm.num_experts_per_token / gemm.num_experts)
        if missed < 1e-9:  # noqa: PLR2004 - nothing is left to touch
            break
    return 1.0 - missed


def physical_of_reqs(p: PhysicalParameters, num_reqs: int) -> float:
    """Everything that depends on the number of requests alone, ns: host, logits, attention's part per request.

    A decode's token needs no prefill work: what ``physical_of_tokens`` counted of it is taken back here.
    """
    law = Law(p.gemm.floor, p.gemm.bandwidth * p.bandwidth_scale, p.gemm.compute * p.compute_scale)
    num_bytes = p.logits.weight_bytes + p.logits.bytes_per_token * num_reqs
    per_req = p.per_seq + p.attention_per_seq / p.bandwidth_scale - p.prefill_per_token / p.compute_scale
    return law_ns(law, num_bytes, p.logits.flops_per_token * num_reqs) * p.logits.times + per_req * num_reqs


def physical_context(p: PhysicalParameters) -> tuple[float, float, float]:
    """Nanoseconds a context token, an attention pair, and a step with a prefill."""
    return (
        p.per_context_token / p.bandwidth_scale,
        p.per_attention_pair / p.compute_scale,
        p.prefill_floor,
    )
