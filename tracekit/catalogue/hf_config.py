"""From a Hugging Face ``config.json`` to a model's shape; key names differ from family to family."""

from collections.abc import Mapping
from typing import Any, Final

from tracekit.catalogue.config_check import check_config
from tracekit.catalogue.models import (
    BOTH,
    CHUNKED,
    FULL,
    GDN,
    KDA,
    MAMBA1,
    MAMBA2,
    MLA,
    NOTHING,
    SLIDING,
    SPARSE_MLA,
    ModelShape,
    StateShape,
)  # fmt: skip
from tracekit.catalogue.parameters import count_parameters, count_vision_parameters
from tracekit.errors import InputError

_LETTERS: Final = {
    "full_attention": FULL, "attention": FULL, "sliding_attention": SLIDING, "chunked_attention": CHUNKED,
    "linear_attention": GDN, "mamba": MAMBA2, "moe": NOTHING, "mlp": NOTHING,
}  # fmt: skip
_PATTERN: Final = {"M": MAMBA2, "*": FULL, "-": NOTHING, "E": NOTHING}
_UNKNOWN: Final = frozenset({"deepseek_v4", "deepseek_ref", "minimax_m3", "minimax_m3_vl"})
_SLIDES_ALWAYS: Final = frozenset({"mistral", "phi3", "ministral"})


def shape_from_config(config: Mapping[str, Any], name: str, source: str) -> ModelShape:
    """The shape of a model; raises ``InputError`` for a config that lacks what is needed or is of an unknown kind."""
    try:
        return _shape(config, name, source)
    except InputError:
        raise
    except KeyError as error:
        msg = f"{name}: config.json has no {error.args[0]}, which a model of this kind needs"
        raise InputError(msg) from error
    except (TypeError, ValueError, AttributeError, ArithmeticError, LookupError) as error:
        msg = f"{name}: config.json does not describe a model: {error}"
        raise InputError(msg) from error


def _shape(config: Mapping[str, Any], name: str, source: str) -> ModelShape:
    check_config(config, name)
    inner = config.get("text_config") or config.get("language_config") or config
    text = {**inner, "tie_word_embeddings": inner.get("tie_word_embeddings", config.get("tie_word_embeddings", False))}
    check_config(text, name)
    kind = str(text.get("model_type") or config.get("model_type") or "")
    if {kind, config.get("model_type")} & _UNKNOWN:
        msg = f"{name}: the cache of {kind} models is not known"
        raise InputError(msg)
    if text.get("layers_block_type") and not text.get("num_hidden_layers"):
        text["num_hidden_layers"] = len(text["layers_block_type"])
    missing = [key for key in ("num_hidden_layers", "hidden_size", "num_attention_heads") if not text.get(key)]
    if missing:
        msg = f"{name}: config.json has no {missing[0]}"
        raise InputError(msg)
    layers = _layers(text, kind)
    heads = int(text["num_attention_heads"])
    has_latent = bool({MLA, SPARSE_MLA} & set(layers))
    head_size = _latent_head_size(text) if has_latent else 0
    head_size = head_size or int(text.get("head_dim") or text.get("attention_head_dim") or text["hidden_size"] // heads)
    by_layer = _kv_heads_by_layer(text, heads)
    kv_heads = int(text.get("num_key_value_heads") or (max(by_layer) if by_layer else heads))
    total, embedding, active = count_parameters(text, layers, head_size, kv_heads)
    sliding = _sliding(text)
    full_heads, full_size = kv_heads, head_size
    if text.get("global_head_dim"):
        sliding = (kv_heads, head_size)
        full_heads, full_size = int(text.get("num_global_key_value_heads") or kv_heads), int(text["global_head_dim"])
    experts = _first(text, "num_experts", "num_local_experts", "n_routed_experts")
    return ModelShape(
        name=name, layers=layers, hidden_size=int(text["hidden_size"]), num_heads=heads, num_kv_heads=full_heads,
        head_size=full_size, max_model_len=int(text.get("max_position_embeddings") or 0),
        vocab_size=int(text.get("vocab_size") or 0), num_parameters=total, num_embedding_parameters=embedding,
        num_active_parameters=active, source=source, intermediate_size=int(text.get("intermediate_size") or 0),
        num_experts=experts, num_experts_per_token=_first(text, "num_experts_per_tok", "num_experts_per_token", "top_k_experts"),
        moe_intermediate_size=int(text.get("moe_intermediate_size") or 0),
        head_size_v=int(text["v_head_dim"]) if has_latent or kind == "mimo_v2_flash" else None,
        sliding_kv_heads=sliding[0], sliding_head_size=sliding[1],
        window=int(text["sliding_window"]) if SLIDING in layers else None,
        chunk=int(text["attention_chunk_size"]) if CHUNKED in layers else None,
        latent_size=int(text["kv_lora_rank"]) + int(text.get("qk_rope_head_dim") or 0) if has_latent else 0,
        kv_heads_by_layer=by_layer if len(set(by_layer) - {0}) > 1 else (), state=_state(text, layers),
        weight_bits=_weight_bits(config.get("quantization_config") or text.get("quantization_config") or {}),
        num_vision_parameters=count_vision_parameters(config.get("vision_config") or {}, int(text["hidden_size"])),
        tied_embeddings=bool(text["tie_word_embeddings"]),
    )  # fmt: skip


def _first(text: Mapping[str, Any], *keys: str) -> int:
    return next((int(text[key]) for key in keys if text.get(key)), 0)


def _layers(text: Mapping[str, Any], kind: str) -> str:  # noqa: PLR0911 - one branch a family
    count = int(text["num_hidden_layers"])
    if text.get("hybrid_override_pattern"):
        if strange := set(text["hybrid_override_pattern"]) - set(_PATTERN):
            msg = (
                f"hybrid_override_pattern in config.json has layers of unknown kinds: {', '.join(sorted(strange))[:40]}"
            )
            raise InputError(msg)
        return "".join(_PATTERN[letter] for letter in text["hybrid_override_pattern"])
    if text.get("linear_attn_config"):
        states = set(text["linear_attn_config"]["kda_layers"])
        return "".join(KDA if number in states else MLA for number in range(1, count + 1))
    if text.get("kv_lora_rank"):
        return (SPARSE_MLA if text.get("index_topk") else MLA) * count
    if text.get("block_configs"):
        return "".join(NOTHING if block["attention"].get("no_op") else FULL for block in text["block_configs"])
    if text.get("hybrid_layer_pattern"):
        return "".join(SLIDING if slides else FULL for slides in text["hybrid_layer_pattern"])
    kinds = text.get("layer_types") or text.get("layers_block_type")
    if kinds:
        unknown = next((name for name in kinds if name not in _LETTERS), None)
        if unknown is not None:
            msg = f"layers of the kind {unknown[:40]!r} are not known"
            raise InputError(msg)
        if kind == "qwen2" or (SLIDING in map(_LETTERS.get, kinds) and not text.get("sliding_window")):
            return FULL * count
        return "".join(_LETTERS[name] for name in kinds)[:count]
    return _by_rule(text, kind, count)


def _by_rule(text: Mapping[str, Any], kind: str, count: int) -> str:  # noqa: PLR0911 - one branch a family
    """Layers whose kinds follow from a period."""
    if text.get("full_attention_interval"):
        every = int(text["full_attention_interval"])
        return "".join(FULL if (n + 1) % every == 0 else GDN for n in range(count))
    if text.get("attn_layer_period"):
        period, offset = int(text["attn_layer_period"]), int(text.get("attn_layer_offset") or 0)
        return "".join(FULL if n % period == offset else MAMBA1 for n in range(count))
    if kind == "falcon_h1":
        return BOTH * count
    if kind == "llama4_text":
        return "".join(FULL if (n + 1) % 4 == 0 else CHUNKED for n in range(count))
    if text.get("sliding_window_pattern") and text.get("sliding_window"):
        every = int(text["sliding_window_pattern"])
        return "".join(FULL if (n + 1) % every == 0 else SLIDING for n in range(count))
    if kind == "gemma2":
        return "".join(SLIDING if n % 2 == 0 else FULL for n in range(count))
    return (SLIDING if kind in _SLIDES_ALWAYS and text.get("sliding_window") else FULL) * count


def _kv_heads_by_layer(text: Mapping[str, Any], heads: int) -> tuple[int, ...]:
    blocks = text.get("block_configs")
    if not blocks:
        return ()
    groups = [block["attention"].get("n_heads_in_group") for block in blocks]
    return tuple(heads // int(group) if group else 0 for group in groups)


def _latent_head_size(text: Mapping[str, Any]) -> int:
    """Of a query and key once MLA's latent vector is projected: what attention computes with in a prefill."""
    return _first(text, "qk_nope_head_dim") + _first(text, "qk_rope_head_dim")


def _sliding(text: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """KV heads and head size of the sliding layers where they have their own."""
    heads, size = text.get("swa_num_key_value_heads"), text.get("swa_head_dim")
    return int(heads) if heads else None, int(size) if size else None


def _state(text: Mapping[str, Any], layers: str) -> StateShape | None:
    kinds = set(layers)
    named = (text.get("mamba_ssm_dtype"), text.get("mamba_ssm_cache_dtype"))
    float32 = "float32" in named or text.get("model_type") == "nemotron_h"
    if GDN in kinds:
        keys = int(text["linear_num_key_heads"]) * int(text["linear_key_head_dim"])
        values = int(text["linear_num_value_heads"]), int(text["linear_value_head_dim"])
        return StateShape(
            2 * keys + values[0] * values[1], int(text.get("linear_conv_kernel_dim") or 4), values[0],
            values[1], int(text["linear_key_head_dim"]), float32=float32,
        )  # fmt: skip
    if KDA in kinds:
        linear = text["linear_attn_config"]
        heads, size = int(linear["num_heads"]), int(linear["head_dim"])
        kernel = int(linear.get("short_conv_kernel_size") or 4)
        return StateShape(3 * heads * size, kernel, heads, size, size, float32=True)
    if MAMBA1 in kinds:
        inner = int(text["hidden_size"]) * int(text.get("mamba_expand") or 2)
        return StateShape(
            inner, int(text.get("mamba_d_conv") or 4), inner, 1, int(text["mamba_d_state"]), chunk_size=2048
        )
    if {MAMBA2, BOTH} & kinds:
        heads = _first(text, "mamba_num_heads", "mamba_n_heads")
        size = _first(text, "mamba_head_dim", "mamba_d_head")
        groups = _first(text, "n_groups", "mamba_n_groups") or 1
        state = _first(text, "ssm_state_size", "mamba_d_state")
        return StateShape(
            heads * size + 2 * groups * state, _first(text, "conv_kernel", "mamba_d_conv") or 4, heads, size, state,
            groups, _first(text, "chunk_size", "mamba_chunk_size") or 256, float32,
        )  # fmt: skip
    return None


def _weight_bits(quantised: Mapping[str, Any]) -> float:
    """Bits of one weight, scales included; where layers differ, those of the narrowest: most weights are theirs."""
    groups = [group.get("weights") for group in (quantised.get("config_groups") or {}).values()]
    widths = [_with_scales(weights, int(weights["num_bits"])) for weights in groups if weights]
    if widths:
        return min(widths)
    method = str(quantised.get("quant_method") or "").lower()
    if method in {"awq", "gptq"}:
        return int(quantised.get("bits") or quantised.get("w_bit") or 4) + 0.25
    if method == "bitsandbytes":
        return 4.5 if quantised.get("load_in_4bit") else 8.0
    return {"fp8": 8.0, "fbgemm_fp8": 8.0, "mxfp4": 4.25}.get(method, 16.0)


def _with_scales(weights: Mapping[str, Any], bits: int) -> float:
    group = int(weights.get("group_size") or 0)
    if bits >= 8 or group <= 0:  # noqa: PLR2004 - a byte; one scale a channel or a tensor weighs nothing
        return bits
    scale_bits = 8 if weights.get("type") == "float" else 16
    return bits + scale_bits / group
