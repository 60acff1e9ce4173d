"""How long one step takes, whatever the form of the step time: one formula for the model and the kernel.

Laws of the token count alone (``of_tokens``) and of the request count alone (``of_reqs``) are evaluated once per count
and run; the context and the attention of prefills stay linear. So a step costs two look-ups and three products, and
model and kernel agree to the nanosecond: both read the same floats and add them in the same order.
"""

from typing import NamedTuple

from tracekit.step_time.affine import AffineParameters
from tracekit.step_time.physical import PhysicalParameters, physical_context, physical_of_reqs, physical_of_tokens
from tracekit.step_time.tabulated import TabulatedParameters, tabulated_of_reqs, tabulated_of_tokens

StepParameters = AffineParameters | PhysicalParameters | TabulatedParameters


class ContextParameters(NamedTuple):
    """Nanoseconds a context token, an attention pair of a prefill, and a step that holds a prefill cost."""

    per_context_token: float
    per_attention_pair: float
    per_prefill_step: float


def step_duration_ns(
    tokens_ns: float, reqs_ns: float, context: ContextParameters, num_context_tokens: int, num_attention_pairs: int
) -> int:
    """Duration of one step in ns, rounded once; operations and their order are fixed.

    ``num_attention_pairs``: over the requests with more than one new token, the (query, key) pairs of their causal
    attention: ``new * computed + new * (new + 1) // 2``.
    """
    duration = (
        tokens_ns
        + reqs_ns
        + context.per_context_token * num_context_tokens
        + context.per_attention_pair * num_attention_pairs
        + context.per_prefill_step * min(num_attention_pairs, 1)
    )
    return int(duration + 0.5)


def of_tokens(parameters: StepParameters, num_scheduled_tokens: int) -> float:
    """The part of a step that depends on its tokens alone, the constant included, in ns."""
    if isinstance(parameters, AffineParameters):
        return parameters.t0 + parameters.per_token * num_scheduled_tokens
    if isinstance(parameters, TabulatedParameters):
        return tabulated_of_tokens(parameters, num_scheduled_tokens)
    return physical_of_tokens(parameters, num_scheduled_tokens)


def of_reqs(parameters: StepParameters, num_scheduled_reqs: int) -> float:
    """The part of a step that depends on its number of requests alone, in ns."""
    if isinstance(parameters, AffineParameters):
        return parameters.per_seq * num_scheduled_reqs
    if isinstance(parameters, TabulatedParameters):
        return tabulated_of_reqs(parameters, num_scheduled_reqs)
    return physical_of_reqs(parameters, num_scheduled_reqs)


def of_context(parameters: StepParameters) -> ContextParameters:
    """The linear rest."""
    if isinstance(parameters, AffineParameters):
        return ContextParameters(parameters.per_context_token, 0.0, 0.0)
    if isinstance(parameters, TabulatedParameters):
        return ContextParameters(
            parameters.per_context_token, parameters.per_attention_pair, parameters.per_prefill_step
        )
    return ContextParameters(*physical_context(parameters))


class StepClock:
    """The durations of one replay's steps; each count's law is evaluated once."""

    def __init__(self, parameters: StepParameters) -> None:
        self._parameters = parameters
        self._context = of_context(parameters)
        self._tokens: dict[int, float] = {}
        self._reqs: dict[int, float] = {}

    def duration_ns(
        self, num_scheduled_tokens: int, num_scheduled_reqs: int, num_context_tokens: int, num_attention_pairs: int
    ) -> int:
        """Duration of a step of this composition."""
        tokens_ns = self._tokens.get(num_scheduled_tokens)
        if tokens_ns is None:
            tokens_ns = self._tokens[num_scheduled_tokens] = of_tokens(self._parameters, num_scheduled_tokens)
        reqs_ns = self._reqs.get(num_scheduled_reqs)
        if reqs_ns is None:
            reqs_ns = self._reqs[num_scheduled_reqs] = of_reqs(self._parameters, num_scheduled_reqs)
        return step_duration_ns(tokens_ns, reqs_ns, self._context, num_context_tokens, num_attention_pairs)
