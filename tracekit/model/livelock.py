"""When a schedule goes nowhere: requests that preempt each other for ever, each before its next token.

The pool cannot hold more computed tokens than it has slots, so whatever is computed beyond that without a token coming
out was lost to preemptions. vLLM itself would go on; a replay stops after many times the pool.
"""

from typing import Final

from tracekit.config import EngineConfig

_POOLS: Final = 100
STUCK: Final = (
    "no token comes out any more, requests preempt each other for ever (two of them together need more KV blocks than "
    "there are, and the victim changes)"
)


def fruitless_limit(config: EngineConfig) -> int:
    """Tokens that may be computed without one coming out before a replay gives up."""
    return _POOLS * (config.num_gpu_blocks * config.block_size + config.max_model_len)
