"""How many parameters a model has, from its ``config.json``: what its weights weigh."""

from collections.abc import Mapping
from typing import Any, Final

_STATE_LETTERS: Final = "mMGK"


def count_parameters(text: Mapping[str, Any], layers: str, head_size: int, kv_heads: int) -> tuple[int, int, int]:
    """(all, embedding and head, active for one token) parameters; norms and biases left out (under 0.1 %)."""
    hidden, vocab = int(text["hidden_size"]), int(text.get("vocab_size") or 0)
    embedding = hidden * vocab * (1 if text.get("tie_word_embeddings") else 2)
    total = active = embedding
    for number, letter in enumerate(layers):
        mixing = _attention(text, number, letter, head_size, kv_heads) + _state_weights(text, letter)
        dense, experts, used = _mlp(text, number)
        total += mixing + dense + experts
        active += mixing + dense + used
    return total, embedding, active


def count_vision_parameters(vision: Mapping[str, Any], hidden: int) -> int:
    """Parameters of a vision transformer and of what joins it to a model of width ``hidden``; 0 without its sizes.

    A merger of Qwen's (``out_hidden_size``) is two matrices over a square of patches, once more for every layer of
    ``deepstack_visual_indexes``; a gated MLP (Pixtral, Gemma 4) has three matrices.
    """
    count = _first(vision, "depth", "num_hidden_layers", "vt_num_hidden_layers")
    width = _first(vision, "vt_hidden_size", "hidden_size")
    inner = _first(vision, "vt_intermediate_size", "intermediate_size")
    if not (count and width and inner):
        return 0
    kind = str(vision.get("model_type") or "")
    matrices = 3 if kind in {"pixtral", "gemma4_vision"} else 2
    patch = int(vision.get("patch_size") or 14)
    embedding = 3 * patch * patch * int(vision.get("temporal_patch_size") or 1) * width
    merged = width * int(vision.get("spatial_merge_size") or 1) ** 2
    joint = width * hidden
    if vision.get("out_hidden_size") and merged > width:
        times = 1 + len(vision.get("deepstack_visual_indexes") or ())
        joint = times * merged * (merged + int(vision["out_hidden_size"]))
    return count * (4 * width * width + matrices * width * inner) + embedding + joint


def _first(values: Mapping[str, Any], *keys: str) -> int:
    return next((int(values[key]) for key in keys if values.get(key)), 0)


def _attention(text: Mapping[str, Any], number: int, letter: str, head_size: int, kv_heads: int) -> int:
    hidden, heads = int(text["hidden_size"]), int(text["num_attention_heads"])
    if letter in {"L", "I"}:
        return _latent_attention(text, hidden, heads)
    if letter in "-" + _STATE_LETTERS:
        return 0
    size, groups = head_size, kv_heads
    size_v = size
    if letter == "F" and text.get("global_head_dim"):
        size = size_v = int(text["global_head_dim"])
        groups = int(text.get("num_global_key_value_heads") or kv_heads)
    if text.get("swa_num_key_value_heads"):
        size_v = int(text.get("v_head_dim") or size)
        if letter == "S":
            groups = int(text["swa_num_key_value_heads"])
    if text.get("block_configs"):
        group = text["block_configs"][number]["attention"].get("n_heads_in_group")
        groups = heads // int(group) if group else groups
    query = heads * size * (2 if text.get("attn_output_gate") else 1)
    return hidden * (query + groups * (size + size_v)) + heads * size_v * hidden


def _latent_attention(text: Mapping[str, Any], hidden: int, heads: int) -> int:
    latent, rope = int(text["kv_lora_rank"]), int(text.get("qk_rope_head_dim") or 0)
    nope, value = int(text["qk_nope_head_dim"]), int(text["v_head_dim"])
    rank = int(text.get("q_lora_rank") or 0)
    query = hidden * rank + rank * heads * (nope + rope) if rank else hidden * heads * (nope + rope)
    index = 0
    if text.get("index_topk"):
        index_heads, index_size = int(text["index_n_heads"]), int(text["index_head_dim"])
        index = (rank or hidden) * index_heads * index_size + hidden * (index_size + index_heads)
    return query + hidden * (latent + rope) + latent * heads * (nope + value) + heads * value * hidden + index


def _state_weights(text: Mapping[str, Any], letter: str) -> int:
    hidden = int(text["hidden_size"])
    if letter == "G":
        keys = int(text["linear_num_key_heads"]) * int(text["linear_key_head_dim"])
        values = int(text["linear_num_value_heads"]) * int(text["linear_value_head_dim"])
        return hidden * (2 * keys + 2 * values + 2 * int(text["linear_num_value_heads"])) + values * hidden
    if letter == "K":
        linear = text["linear_attn_config"]
        inner = int(linear["num_heads"]) * int(linear["head_dim"])
        return hidden * 4 * inner + inner * hidden
    if letter == "m":
        inner = hidden * int(text.get("mamba_expand") or 2)
        return hidden * 2 * inner + inner * hidden + inner * 2 * int(text["mamba_d_state"])
    if letter in {"M", "B"}:
        heads = int(text.get("mamba_num_heads") or text.get("mamba_n_heads") or 0)
        inner = heads * int(text.get("mamba_head_dim") or text.get("mamba_d_head") or 0)
        groups = int(text.get("n_groups") or text.get("mamba_n_groups") or 1)
        state = int(text.get("ssm_state_size") or text.get("mamba_d_state") or 0)
        return hidden * (2 * inner + 2 * groups * state + heads) + inner * hidden
    return 0


def _mlp(text: Mapping[str, Any], number: int) -> tuple[int, int, int]:
    """(always used, all experts, the experts one token uses) weights behind a layer's attention."""
    hidden = int(text["hidden_size"])
    pattern = text.get("hybrid_override_pattern")
    if text.get("model_type") == "nemotron_h" and not pattern:
        letters = {"mamba": "M", "attention": "*", "moe": "E"}
        pattern = "".join(letters.get(kind, "-") for kind in text["layers_block_type"])
    matrices = 2 if pattern else 3
    size = int(text.get("intermediate_size") or 0)
    if pattern and pattern[number] in "M*":
        return 0, 0, 0
    if text.get("block_configs"):
        return _nas_mlp(text, number, hidden), 0, 0
    experts = int(text.get("num_experts") or text.get("num_local_experts") or text.get("n_routed_experts") or 0)
    if not experts or not _is_sparse(text, number, pattern):
        return matrices * hidden * int(text.get("intermediate_size_mlp") or size), 0, 0
    # Experts may work on a narrower vector, with one projection to it and one back.
    narrow = int(text.get("moe_latent_size") or text.get("routed_expert_hidden_size") or 0)
    expert = matrices * (narrow or hidden) * int(text.get("moe_intermediate_size") or size)
    used = int(text.get("num_experts_per_tok") or text.get("num_experts_per_token") or text.get("top_k_experts") or 1)
    shared = int(text.get("moe_shared_expert_intermediate_size") or text.get("shared_expert_intermediate_size") or 0)
    if not shared and text.get("n_shared_experts"):
        shared = int(text["n_shared_experts"]) * int(text.get("moe_intermediate_size") or size)
    if text.get("model_type") in {"llama4_text", "gemma4_text"}:
        shared = size
    if text.get("shared_intermediate_size"):
        shared = int(text["shared_intermediate_size"])
    always = matrices * hidden * shared + hidden * experts + 2 * hidden * narrow
    return always, experts * expert, used * expert


def _is_sparse(text: Mapping[str, Any], number: int, pattern: str | None) -> bool:
    if pattern:
        return pattern[number] == "E"
    if number < int(text.get("first_k_dense_replace") or 0) or number in (text.get("mlp_only_layers") or ()):
        return False
    frequency = text.get("moe_layer_freq")
    if isinstance(frequency, list):
        return bool(frequency[number])
    step = int(
        text.get("interleave_moe_layer_step") or text.get("decoder_sparse_step") or text.get("expert_layer_period") or 1
    )
    return (number + 1) % step == int(text.get("expert_layer_offset") or 0) % step if step > 1 else True


def _nas_mlp(text: Mapping[str, Any], number: int, hidden: int) -> int:
    block = text["block_configs"][number]["ffn"]
    if block.get("no_op") or not block.get("ffn_mult"):
        return 0
    width = int(2 * block["ffn_mult"] * hidden / 3)
    return 3 * hidden * (-(-width // 256) * 256)
