"""The affine step time: what a step costs is linear in what it computes.

Plain functions over numbers and tuples, so that the kernel can compile them as they are and the formula stands once.
"""

from typing import NamedTuple


class AffineParameters(NamedTuple):
    """Nanoseconds a step (``t0``), a scheduled token, a scheduled request and a context token cost."""

    t0: float
    per_token: float
    per_seq: float
    per_context_token: float


def affine_duration_ns(
    parameters: AffineParameters, num_scheduled_tokens: int, num_scheduled_reqs: int, num_context_tokens: int
) -> int:
    """Duration of one step in ns, rounded once.

    ``num_context_tokens``: KV tokens that the scheduled requests held before the step. The operations and their order
    are fixed, so that compiled and interpreted code agree to the nanosecond.
    """
    duration = (
        parameters.t0
        + parameters.per_token * num_scheduled_tokens
        + parameters.per_seq * num_scheduled_reqs
        + parameters.per_context_token * num_context_tokens
    )
    return int(duration + 0.5)
