"""The engine's configuration: vLLM's own flag names, where each value came from, and the defaults of each version.

A run stores ``{name: ConfigValue}`` for the keys in ``SETTINGS`` and for no other (a log's arguments hold API keys,
tokens and home paths). ``resolve`` fills in the version's defaults (``config_defaults``) and gives the frozen ``EngineConfig`` that the
scheduler model is built from. Sources of the defaults: ``vllm/engine/arg_utils.py`` and ``vllm/config`` of each
version, as summarised in ``config_defaults``.
"""

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from tracekit.config_spellings import check_word, readable_int
from tracekit.errors import ConfigError

Origin = Literal["logged", "given", "inferred", "default"]
Scalar = int | float | bool | str
VersionNumber = tuple[int, int, int]

NEWEST_VERSION: Final = "0.33.0"
MAX_BLOCKS: Final = 1 << 24
_LARGEST: Final = 1e10
GIB: Final = 1 << 30


@dataclass(frozen=True)
class ConfigValue:
    """One setting, how it is known, and where that stands (``server.log:12``, ``--set``, ``vLLM 0.33.0``)."""

    value: Scalar
    origin: Origin
    where: str | None = None


Config = Mapping[str, ConfigValue]


@dataclass(frozen=True)
class Setting:
    """A key that a run may store and ``--set`` accepts."""

    name: str
    kind: type[int] | type[float] | type[bool] | type[str]
    doc: str
    minimum: float | None = None
    maximum: float | None = None


SETTINGS: Final = {
    setting.name: setting
    for setting in (
        Setting("vllm_version", str, "vLLM version whose rules apply"),
        Setting("engine_generation", str, "v0 or v1"),
        Setting("model", str, "model name as served (the last component of a local path)"),
        Setting("gpu", str, "GPU model"),
        Setting("num_gpus", int, "GPUs of one engine", 1),
        Setting("dtype", str, "dtype of weights and activations"),
        Setting("quantization", str, "weight quantisation"),
        Setting("kv_cache_dtype", str, "dtype of the KV cache"),
        Setting("max_model_len", int, "longest prompt plus output, tokens", 1),
        Setting("max_num_seqs", int, "most running requests", 1),
        Setting("max_num_batched_tokens", int, "token budget of one step", 1),
        Setting("max_num_active_seqs", int, "most admitted requests (0.31 and later)", 1),
        Setting("max_num_partial_prefills", int, "most prompts prefilled in part at a time (V0)", 1),
        Setting("max_long_partial_prefills", int, "most long prompts prefilled in part at a time (V0)", 1),
        Setting("long_prefill_token_threshold", int, "most prompt tokens of one request in one step; 0 is no limit", 0),
        Setting("long_prefill_token_threshold_adaptive", bool, "adapt the threshold to the load (0.31 and later)"),
        Setting("enable_chunked_prefill", bool, "split long prompts over steps"),
        Setting("enable_prefix_caching", bool, "reuse KV blocks of equal prefixes"),
        Setting("scheduling_policy", str, "fcfs or priority"),
        Setting(
            "async_scheduling", bool, "decide the next step while the device runs (V0: process output while it runs)"
        ),
        Setting("scheduler_reserve_full_isl", bool, "admit only if the whole prompt would fit now (0.19 and later)"),
        Setting("watermark", float, "share of the blocks kept free at admission (V1: 0.24 and later)", 0, 1),
        Setting("prefill_schedule_interval", int, "steps between prefills while decodes run (0.24 and later)", 1),
        Setting("preemption_mode", str, "recompute or swap (V0)"),
        Setting("swap_space", float, "CPU swap space, GiB (V0)", 0),
        Setting("block_size", int, "tokens in a KV block", 1),
        Setting("hash_block_size", int, "tokens that one entry of block_hashes stands for", 1),
        Setting("num_gpu_blocks", int, "KV blocks of the engine, V1's null block included", 1, MAX_BLOCKS),
        Setting("num_cpu_blocks", int, "swap blocks (V0)", 0, MAX_BLOCKS),
        Setting("num_gpu_blocks_override", int, "KV blocks forced by the user", 1, MAX_BLOCKS),
        Setting("kv_cache_tokens", int, "logged size of the KV cache, tokens", 1),
        Setting("max_concurrency", float, "logged maximum concurrency at full length", 0),
        Setting("available_kv_gib", float, "logged memory available for the KV cache, GiB", 0),
        Setting("gpu_total_gib", float, "logged memory of the device, GiB", 0),
        Setting("model_load_gib", float, "logged memory of the loaded model, GiB", 0),
        Setting("gpu_memory_utilization", float, "share of the device memory that vLLM may use", 0, 1),
        Setting("tensor_parallel_size", int, "GPUs that share each layer", 1),
        Setting("pipeline_parallel_size", int, "stages of layers", 1),
        Setting("data_parallel_size", int, "engines behind one API server", 1, 4096),
        Setting("decode_context_parallel_size", int, "ranks that share a context", 1),
        Setting("api_server_count", int, "API server processes", 1),
        Setting("num_speculative_tokens", int, "draft tokens a step", 0),
        Setting("enable_lora", bool, "serve LoRA adapters"),
        Setting("enforce_eager", bool, "run without CUDA graphs"),
        Setting("disable_hybrid_kv_cache_manager", bool, "treat every layer as full attention"),
        Setting("performance_mode", str, "preset of limits (0.20 and later)"),
        Setting("enable_log_requests", bool, "request lines in the log"),
        Setting("enable_logging_iteration_details", bool, "a log line for every step"),
        Setting("t0_ms", float, "step time: constant part of a step, ms", 0),
        Setting("per_token_us", float, "step time: per scheduled token, us", 0),
        Setting("per_seq_us", float, "step time: per scheduled request, us", 0),
        Setting("per_context_token_us", float, "step time: per context token, us", 0),
        Setting("frontend_ms", float, "step time: from arrival to the engine, ms", 0),
        Setting("frontend_chat_ms", float, "step time: what a chat completion takes more of that, ms", 0),
    )
}

STEP_TIME_SETTINGS: Final[tuple[str, ...]] = (
    "t0_ms",
    "per_token_us",
    "per_seq_us",
    "per_context_token_us",
    "frontend_ms",
    "frontend_chat_ms",
)
"""Accepted by ``--set`` like the rest, but they describe the device, so a run stores them with its step time."""

_TRUE: Final = frozenset({"true", "1", "yes", "on"})
_FALSE: Final = frozenset({"false", "0", "no", "off"})


def parse_setting(text: str, where: str = "--set") -> tuple[str, ConfigValue]:
    """Read ``key=value`` as a user gives it; raises ``ConfigError`` and offers the nearest key when it is unknown."""
    name, equals, raw = text.partition("=")
    name = name.strip().lstrip("-").replace("-", "_")
    if not equals:
        msg = f"{where}: expected key=value, found no '='"
        raise ConfigError(msg)
    raw = readable_int(raw.strip())
    if name == "kv_cache_memory_bytes":
        # vLLM's flag, in bytes; the log says the same in GiB.
        if not raw.isdigit():
            msg = f"{where}: kv_cache_memory_bytes must be a number of bytes, such as 20G"
            raise ConfigError(msg)
        return "available_kv_gib", setting_value("available_kv_gib", int(raw) / GIB, "given", where)
    if name == "max_model_len" and raw.lower() in {"-1", "auto"}:
        msg = (
            f"{where}: max_model_len {raw} lets vLLM take the longest that fits at start-up, up to the model's own; "
            'tracekit capacity without it prints that ("longest request"): give the number'
        )
        raise ConfigError(msg)
    return name, setting_value(name, raw, "given", where)


def setting_value(name: str, raw: Scalar, origin: Origin, where: str | None) -> ConfigValue:
    """Make a ``ConfigValue`` of a known key, its value converted to the key's type; raises ``ConfigError``."""
    setting = SETTINGS.get(name)
    if setting is None:
        near = difflib.get_close_matches(name, SETTINGS, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        msg = f"{where or 'config'}: unknown key '{name}'{hint}"
        raise ConfigError(msg)
    value = _convert(setting, raw, where or "config")
    if origin == "given":
        check_word(name, str(value), where or "config")
    if name == "model" and origin == "given" and config_file(str(raw).strip()) is not None:
        value = str(raw).strip()
    if setting.minimum is not None and not isinstance(value, str) and value < setting.minimum:
        msg = f"{where or 'config'}: {name} must be at least {setting.minimum:g}, found {value}"
        raise ConfigError(msg)
    maximum = setting.maximum if setting.maximum is not None else _LARGEST
    if not isinstance(value, str) and value > maximum:
        msg = f"{where or 'config'}: {name} must be at most {maximum:,.10g}"
        raise ConfigError(msg)
    return ConfigValue(value, origin, where)


def config_file(model: str) -> Path | None:
    """The model's own ``config.json`` where the user points at it or at a directory with one; None: a name."""
    path = Path(model) if model.endswith(".json") else Path(model) / "config.json"
    try:
        return path if path.is_file() else None
    except (OSError, ValueError):
        return None  # too long for a path, or no text for one


def _convert(setting: Setting, raw: Scalar, where: str) -> Scalar:
    text = str(raw).strip()
    if setting.kind is str:
        return model_name(text) if setting.name == "model" else text
    if setting.kind is bool:
        if text.lower() in _TRUE:
            return True
        if text.lower() in _FALSE:
            return False
    else:
        try:
            number = float(text.replace(",", "").replace("_", ""))
        except ValueError:
            number = float("nan")
        if setting.kind is float and abs(number) < float("inf"):
            return number
        if setting.kind is int and number.is_integer():
            return int(number)
    wanted = {int: "a whole number", float: "a number", bool: "true or false"}[setting.kind]
    msg = f"{where}: {setting.name} must be {wanted}"
    raise ConfigError(msg)


def model_name(text: str) -> str:
    """Shorten a model given as a local path to its last component, which names the model and not somebody's home."""
    path_like = text.startswith(("/", "./", "../", "~")) or "\\" in text
    return re.split(r"[/\\]", text.rstrip("/\\"))[-1] if path_like else text


def parse_version(text: str) -> VersionNumber:
    """Read the release number at the start of a version string, e.g. (0, 8, 5) of ``v0.8.5.post1+cu124``.

    A build from a checkout without tags calls itself ``0.1.devN`` or ``dev``: it counts as the newest release. Raises
    ``ConfigError`` when there is no number.
    """
    if re.match(r"v?(0\.1\.)?dev", text.strip()):
        return parse_version(NEWEST_VERSION)
    match = re.match(r"v?(\d+)\.(\d+)(?:\.(\d+))?", text.strip())
    if match is None:
        msg = "vllm_version: expected a version such as 0.33.0"
        raise ConfigError(msg)
    return int(match[1]), int(match[2]), int(match[3] or 0)


@dataclass(frozen=True)
class EngineConfig:
    """What the scheduler model needs to know; vLLM's flag names.

    ``scheduler_reserve_full_isl`` has no effect under the rules of versions before 0.19, which do not know it;
    ``num_gpu_blocks`` counts V1's null block (block 0), as vLLM's own log does; ``max_num_active_seqs`` null means
    ``max_num_seqs``.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    num_gpu_blocks: int
    block_size: int = 16
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0
    long_prefill_token_threshold_adaptive: bool = False
    scheduling_policy: str = "fcfs"
    async_scheduling: bool = False
    scheduler_reserve_full_isl: bool = True
    watermark: float = 0.0
    prefill_schedule_interval: int = 1
    max_num_active_seqs: int | None = None
    num_cpu_blocks: int = 0
    preemption_mode: str | None = None
    data_parallel_size: int = 1
    kv_cache_windows: tuple[int | None, ...] = ()
    """The window of each KV cache group, null for full attention; empty: one group of full attention."""
