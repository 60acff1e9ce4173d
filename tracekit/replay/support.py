"""What a recorded server used and the model does not have: supported, approximated or refused.

``docs/supported.md`` is this table for people; a replay prints and stores which rows applied.
"""

from dataclasses import dataclass
from typing import Final, Literal

from tracekit.config import Config, Scalar
from tracekit.errors import ConfigError

Status = Literal["approximated", "refused"]


@dataclass(frozen=True)
class Limit:
    """A setting beyond the model: when it applies (above ``threshold``, or true), what is done, and in which words."""

    key: str
    threshold: float
    status: Status
    text: str


LIMITS: Final = (
    Limit(
        "num_speculative_tokens", 0, "approximated", "speculative decoding: replayed without drafts, one token a step"
    ),
    Limit("enable_lora", 0, "approximated", "LoRA: adapters are neither loaded nor limited"),
    Limit(
        "pipeline_parallel_size", 1, "approximated", "pipeline parallelism: one batch at a time, as on a single stage"
    ),
    Limit(
        "decode_context_parallel_size", 1, "approximated", "decode context parallelism: blocks counted as on one rank"
    ),
)


def limits_of(config: Config) -> list[Limit]:
    """The rows that apply to a configuration; raises ``ConfigError`` for one that is refused."""
    applying = [limit for limit in LIMITS if limit.key in config and _above(config[limit.key].value, limit.threshold)]
    for limit in applying:
        if limit.status == "refused":
            raise ConfigError(limit.text)
    return applying


def _above(value: Scalar, threshold: float) -> bool:
    return not isinstance(value, str) and value > threshold
