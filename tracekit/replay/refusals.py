"""Which requests never get to run: refused at the front door, or too large for the KV cache."""

from tracekit.config import EngineConfig
from tracekit.replay.workload import Arrival


def refusal(arrival: Arrival, config: EngineConfig, num_usable_blocks: int) -> str | None:
    """Why this request can never run, in vLLM's terms; None if it can.

    A prompt has to leave room for one token within ``max_model_len`` (HTTP 400). One whose full length needs more
    blocks than the whole pool would preempt itself for ever and block everybody behind it, so it is refused too.
    """
    if arrival.num_prompt_tokens >= config.max_model_len:
        return "prompt leaves no room for output within max_model_len"
    wanted = min(arrival.num_output_tokens, arrival.max_tokens or arrival.num_output_tokens)
    # The last token is sampled but never computed, so it needs no slot.
    tokens = min(arrival.num_prompt_tokens + wanted, config.max_model_len) - 1
    if blocks_for(tokens, config) > num_usable_blocks:
        return "longer than the whole KV cache"
    return None


def blocks_for(num_tokens: int, config: EngineConfig) -> int:
    """Blocks that a request with so many computed tokens holds, over all groups of layers."""
    full = -(-num_tokens // config.block_size)
    if not config.kv_cache_windows:
        return full
    # A window may begin in the middle of a block, and it moves on only when more blocks are asked for.
    held = [full if w is None else min(full, -(-(w - 1) // config.block_size) + 2) for w in config.kv_cache_windows]
    return sum(held)
