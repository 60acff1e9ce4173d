"""Whether a stranger's ``config.json`` can describe a model at all; errors name the key and what it holds."""

from collections.abc import Mapping
from typing import Any, Final

from tracekit.errors import InputError

_MOST_LAYERS: Final = 10_000
_MOST: Final = 10**9
_SHOWN: Final = 40
_REQUIRED: Final = ("num_hidden_layers", "hidden_size", "num_attention_heads")
_COUNTS: Final = (
    *_REQUIRED,
    "head_dim", "attention_head_dim", "global_head_dim", "swa_head_dim", "v_head_dim", "qk_nope_head_dim",
    "qk_rope_head_dim", "kv_lora_rank", "q_lora_rank", "num_key_value_heads", "num_global_key_value_heads",
    "swa_num_key_value_heads", "vocab_size", "max_position_embeddings", "num_experts", "num_local_experts",
    "n_routed_experts", "num_experts_per_tok", "num_experts_per_token", "top_k_experts", "n_shared_experts",
    "intermediate_size", "moe_intermediate_size", "sliding_window", "sliding_window_pattern", "attention_chunk_size", "full_attention_interval",
    "attn_layer_period", "attn_layer_offset", "linear_num_key_heads", "linear_key_head_dim",
    "linear_num_value_heads", "linear_value_head_dim", "mamba_num_heads", "mamba_n_heads", "mamba_d_state",
    "ssm_state_size", "mamba_expand", "mamba_d_conv", "conv_kernel", "chunk_size", "mamba_chunk_size",
)  # fmt: skip
_OBJECTS: Final = ("text_config", "language_config", "vision_config", "quantization_config", "linear_attn_config")
_LISTS: Final = ("layer_types", "layers_block_type", "block_configs", "hybrid_layer_pattern")


def check_config(config: Mapping[str, Any], where: str) -> None:
    """Refuse values no model has; raises ``InputError``.

    Counts and sizes are integers from 0 to 10^9, layers 1 to 10,000, parts objects, kinds of layers lists as long as
    the model is deep.
    """
    for key in _OBJECTS:
        if config.get(key) is not None and not isinstance(config[key], Mapping):
            raise _wrong(where, key, config[key], "an object")
    for key in _LISTS:
        if config.get(key) is not None and not isinstance(config[key], list):
            raise _wrong(where, key, config[key], "a list")
    for key in _COUNTS:
        value = config.get(key)
        if value is None or value is False:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MOST:
            raise _wrong(where, key, value, "an integer from 0 to 10^9")
        if not value and key in _REQUIRED:
            raise _wrong(where, key, value, "an integer of at least 1")
    layers = config.get("num_hidden_layers")
    if layers and layers > _MOST_LAYERS:
        raise _wrong(where, "num_hidden_layers", layers, "an integer from 1 to 10,000")
    kinds = config.get("layer_types")
    if kinds and layers and len(kinds) < layers:
        msg = f"{where}: layer_types in config.json names {len(kinds)} layers, num_hidden_layers is {layers}"
        raise InputError(msg)


def _wrong(where: str, key: str, value: object, expected: str) -> InputError:
    shown = repr(value)
    if len(shown) > _SHOWN:
        shown = shown[: _SHOWN - 3] + "..."
    return InputError(f"{where}: {key} in config.json must be {expected}, found {shown}")
