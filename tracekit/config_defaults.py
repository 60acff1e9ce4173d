"""From what is known of an engine to its whole configuration: the ladder given > logged > inferred > default.

The defaults mirror ``EngineArgs`` (``vllm/engine/arg_utils.py``: ``_set_default_args``, ``get_batch_defaults``) and
``SchedulerConfig`` / ``CacheConfig`` of each version for the OpenAI API server. Standard library only.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from tracekit.config import (
    MAX_BLOCKS,
    NEWEST_VERSION,
    Config,
    ConfigValue,
    EngineConfig,
    Origin,
    Scalar,
    VersionNumber,
    parse_version,
)
from tracekit.errors import ConfigError

_RANK: Final = {"given": 0, "logged": 1, "inferred": 2, "default": 3}

LARGE_GPUS: Final = ("h100", "h200", "h20", "h800", "b100", "b200", "b300", "gb200", "gb300", "mi300", "mi325", "mi350",
                     "mi355", "rtx pro 6000")  # fmt: skip
"""GPUs with at least 70 GiB, as they appear in names; the A100 counts as small from 0.9 on."""


@dataclass
class Resolved:
    """The engine's configuration, every value's origin, and what a user should know about how it was found."""

    engine: EngineConfig
    config: dict[str, ConfigValue]
    notes: list[str] = field(default_factory=list)


def resolve(
    config: Config,
    longest_request: int | None = None,
    windows_of: Callable[[Config], tuple[int | None, ...]] = lambda _: (),
) -> Resolved:
    """Fill a configuration in and check it as vLLM does at start-up.

    ``longest_request``: prompt plus output tokens of the longest request, used for ``max_model_len`` when nothing says
    it. ``windows_of``: the window of each KV cache group, from the filled configuration. Raises ``ConfigError`` when the
    number of blocks is not known or vLLM would refuse the configuration.
    """
    known = dict(config)
    notes: list[str] = []
    if "vllm_version" not in known:
        known["vllm_version"] = ConfigValue(NEWEST_VERSION, "default", None)
        notes.append(
            f"the vLLM version is not known: the rules of {NEWEST_VERSION} apply (--rules VERSION changes that)"
        )
    version = parse_version(str(known["vllm_version"].value))
    generation = _fill(known, "engine_generation", "v1" if version >= (0, 8, 0) else "v0", "default", version)
    is_v1 = generation == "v1"
    _fill(known, "block_size", 16, "default", version)
    _resolve_blocks(known)
    _fill_max_model_len(known, longest_request, notes)
    _fill_switches(known, version, is_v1=is_v1)
    _fill_batch_limits(known, version, notes, is_v1=is_v1)
    engine = replace(_engine_config(known), kv_cache_windows=windows_of(known))
    _refuse_as_vllm_does(known, engine, is_v1=is_v1)
    return Resolved(engine, known, notes)


def _fill(known: dict[str, ConfigValue], name: str, value: Scalar, origin: Origin, version: VersionNumber) -> Scalar:
    if name not in known:
        known[name] = ConfigValue(value, origin, "vLLM " + ".".join(map(str, version)) if origin == "default" else None)
    return known[name].value


def _resolve_blocks(known: dict[str, ConfigValue]) -> None:
    """Settle ``num_gpu_blocks`` from the best-known of count and tokens; a given value beats a logged one."""
    block_size = int(known["block_size"].value)
    override, count, tokens = (known.get(k) for k in ("num_gpu_blocks_override", "num_gpu_blocks", "kv_cache_tokens"))
    if override is not None and (count is None or _RANK[override.origin] < _RANK[count.origin]):
        count = ConfigValue(override.value, override.origin, override.where)
    if tokens is not None and (count is None or _RANK[tokens.origin] < _RANK[count.origin]):
        count = ConfigValue(
            int(tokens.value) // block_size, tokens.origin, f"{tokens.where}: kv_cache_tokens / block_size"
        )
    if count is None:
        msg = (
            "the number of KV blocks is not known: give --set num_gpu_blocks=N or --set kv_cache_tokens=N "
            "(vLLM logs 'GPU KV cache size: N tokens' at start-up; ingest that log together with the requests), "
            "or --model M and --gpu G for an estimate"
        )
        raise ConfigError(msg)
    if int(count.value) > MAX_BLOCKS:
        msg = f"{int(count.value):,} KV blocks are more than any engine has ({MAX_BLOCKS:,}): check kv_cache_tokens and block_size"
        raise ConfigError(msg)
    known["num_gpu_blocks"] = count
    if tokens is not None and int(tokens.value) // block_size != int(count.value):
        known["kv_cache_tokens"] = ConfigValue(int(count.value) * block_size, "inferred", "num_gpu_blocks x block_size")


def _fill_max_model_len(known: dict[str, ConfigValue], longest_request: int | None, notes: list[str]) -> None:
    if "max_model_len" in known:
        return
    blocks = int(known["num_gpu_blocks"].value) * int(known["block_size"].value)
    wanted = max(longest_request or 1, 1) + 1
    length = min(wanted, blocks)
    known["max_model_len"] = ConfigValue(length, "inferred", "the longest request")
    why = "the longest request of the trace" if length == wanted else "what the KV cache can hold"
    notes.append(f"max_model_len is not known: taken as {length:,} tokens, {why}")


def _fill_switches(known: dict[str, ConfigValue], version: VersionNumber, *, is_v1: bool) -> None:
    defaults: dict[str, Scalar] = {
        "enable_chunked_prefill": is_v1,
        "enable_prefix_caching": is_v1,
        "scheduling_policy": "fcfs",
        "async_scheduling": _runs_asynchronously(known, version, is_v1=is_v1),
        "long_prefill_token_threshold": 0,
        "watermark": 0.0,
    }
    if is_v1 and version >= (0, 19, 0):
        defaults["scheduler_reserve_full_isl"] = True
    for name, value in defaults.items():
        _fill(known, name, value, "default", version)


def _runs_asynchronously(known: Mapping[str, ConfigValue], version: VersionNumber, *, is_v1: bool) -> bool:
    """V1: asynchronous scheduling from 0.14; V0: asynchronous output processing from 0.6 with CUDA graphs."""
    if is_v1:
        return version >= (0, 14, 0)
    return version >= (0, 6, 0) and not ("enforce_eager" in known and known["enforce_eager"].value)


def _fill_batch_limits(known: dict[str, ConfigValue], version: VersionNumber, notes: list[str], *, is_v1: bool) -> None:
    chunked = bool(known["enable_chunked_prefill"].value)
    length = int(known["max_model_len"].value)
    if not is_v1:
        _fill(known, "max_num_seqs", 256, "default", version)
        _fill(known, "max_num_batched_tokens", 512 if chunked else max(length, 2048), "default", version)
        return
    large, how = _is_large_gpu(known, version)
    _fill(known, "max_num_seqs", 1024 if large else 256, "inferred" if how else "default", version)
    if known["max_num_seqs"].origin in {"inferred", "default"}:
        notes.append(f"max_num_seqs is not logged: {known['max_num_seqs'].value} ({how or 'default of the version'})")
    if "max_num_batched_tokens" not in known:
        seqs = int(known["max_num_seqs"].value)
        budget = max(8192 if large else 2048, seqs)
        if not chunked:
            budget = max(budget, length)
        _fill(known, "max_num_batched_tokens", min(budget, seqs * length), "default", version)


def _is_large_gpu(known: Mapping[str, ConfigValue], version: VersionNumber) -> tuple[bool, str | None]:
    """Whether the defaults of GPUs with 70 GiB or more apply, and from what that was inferred (None: nothing)."""
    gpu = str(known["gpu"].value).lower().replace("-", " ") if "gpu" in known else ""
    if gpu:
        a100 = "a100" in gpu and "80" in gpu and version < (0, 9, 0)
        return a100 or any(name in gpu for name in LARGE_GPUS), f"default on {known['gpu'].value}"
    budget = known.get("max_num_batched_tokens")
    if budget is not None and budget.origin == "logged" and budget.value in {2048, 8192}:
        return budget.value == 8192, f"the default that goes with {budget.value} batched tokens"  # noqa: PLR2004
    return False, None


def _engine_config(known: Mapping[str, ConfigValue]) -> EngineConfig:
    names = EngineConfig.__dataclass_fields__
    return EngineConfig(**{name: known[name].value for name in names if name in known})  # type: ignore[arg-type]


def _refuse_as_vllm_does(known: Config, engine: EngineConfig, *, is_v1: bool) -> None:
    """The checks of ``SchedulerConfig`` and ``check_enough_kv_cache_memory`` that stop a server from starting."""
    if engine.scheduling_policy not in {"fcfs", "priority"}:
        msg = "scheduling_policy must be fcfs or priority"
        raise ConfigError(msg)
    if engine.max_num_batched_tokens < engine.max_num_seqs:
        msg = (
            f"max_num_batched_tokens ({engine.max_num_batched_tokens}) must be at least max_num_seqs "
            f"({engine.max_num_seqs}): vLLM refuses to start"
        )
        raise ConfigError(msg)
    if not engine.enable_chunked_prefill and engine.max_num_batched_tokens < engine.max_model_len:
        msg = (
            f"max_num_batched_tokens ({engine.max_num_batched_tokens}) must be at least max_model_len "
            f"({engine.max_model_len}) without chunked prefill: vLLM refuses to start"
        )
        raise ConfigError(msg)
    if engine.kv_cache_windows and is_v1:
        _refuse_groups_that_do_not_fit(known, engine)
        return
    tokens = engine.num_gpu_blocks * engine.block_size
    if engine.max_model_len > tokens or (is_v1 and engine.num_gpu_blocks < 2):  # noqa: PLR2004 - one is the null block
        msg = (
            f"the KV cache holds {tokens:,} tokens, less than one request of max_model_len ({engine.max_model_len:,}, "
            f"{known['max_model_len'].origin}): vLLM refuses to start; lower max_model_len or give more blocks"
        )
        raise ConfigError(msg)


def _refuse_groups_that_do_not_fit(known: Config, engine: EngineConfig) -> None:
    """The same check where layers are in several groups: a window holds no more than it and the steps in flight."""
    version = parse_version(str(known["vllm_version"].value))
    steps_in_flight = 2 if engine.async_scheduling and version >= (0, 26, 0) else 1
    needed = int(version >= (0, 30, 0))  # from 0.30 the check leaves the null block out
    for window in engine.kv_cache_windows:
        length = engine.max_model_len
        if window is not None:
            length = min(length, window - 1 + engine.max_num_batched_tokens * steps_in_flight)
        needed += -(-length // engine.block_size) + (window is not None)
    if needed > engine.num_gpu_blocks:
        msg = (
            f"the KV cache holds {engine.num_gpu_blocks:,} blocks, less than the {needed:,} that one request of "
            f"max_model_len ({engine.max_model_len:,}, {known['max_model_len'].origin}) may need in "
            f"{len(engine.kv_cache_windows)} group(s) of layers: vLLM refuses to start; lower max_model_len or give more "
            "blocks"
        )
        raise ConfigError(msg)
