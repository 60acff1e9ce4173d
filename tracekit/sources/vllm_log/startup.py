"""What the start-up lines of a server say about its configuration."""

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Final, NamedTuple

from tracekit.config import SETTINGS, Scalar
from tracekit.sources.vllm_log.pairs import closes, scan_pairs, simple_value

SERVER_VERSION: Final = re.compile(r"vLLM API server version v?(\S+)")
BANNER_VERSION: Final = re.compile(r"^[ \u2580-\u259f]*[\u2580-\u259f][ \u2580-\u259f]* +version v?(\S+)\s*$")
ARGS: Final = re.compile(r"(?:non-default )?args: (?:Namespace\(|\{)")
ENGINE: Final = re.compile(r"Initializing an? (V0 |V1 )?LLM engine \(v([^)\s]+)\) with config: ")
KV_SIZE: Final = re.compile(r"[A-Za-z+ ]+ KV cache size: ([\d,]+) tokens")
CONCURRENCY: Final = re.compile(r"(?:^|, )Maximum concurrency for ([\d,]+) tokens per request: ([\d,]+\.\d+)x")
V0_BLOCKS: Final = re.compile(r"# (?:GPU|cuda|\w+) blocks: (\d+)(?:, # CPU blocks: (\d+))?")
BLOCKS: Final = re.compile(
    r"(?:Engine (\d+): )?vllm cache_config_info with initialization after num_gpu_blocks is:\s*(\d+)"
)
AVAILABLE: Final = re.compile(r"Available KV cache memory: (-?[\d.]+) GiB")
DEVICE_TOTAL: Final = re.compile(r"(?:Free memory on device \([\d.]+/|.{0,60}total_gpu_memory \()(\d+\.\d+) ?GiB\)")
V0_AVAILABLE: Final = re.compile(r"reserved for KV Cache is (-?[\d.]+)GiB")
MODEL_LOAD: Final = re.compile(r"(?:Loading model weights|Model loading) took ([\d.]+) ?(GB|GiB)")
OVERRIDE: Final = re.compile(r"Overriding num_gpu_blocks=(\d+) with num_gpu_blocks_override=(\d+)")
_MODEL_LEN: Final = re.compile(r"Using max model len (\d+)")
_CHUNKED: Final = re.compile(r"Chunked prefill is enabled with max_num_batched_tokens=(\d+)")
_DEFAULTING: Final = re.compile(r"(?:Setting|Defaulting) (max_num_batched_tokens|max_num_seqs) to (\d+)")
_UTILIZATION: Final = re.compile(r"gpu_memory_utilization \(([\d.]+)\)")
_NOT_LOGGED_HERE: Final = frozenset(
    {"vllm_version", "engine_generation", "gpu", "num_gpus", "kv_cache_tokens", "model"}
)
_RENAMED: Final = {
    "max_seq_len": "max_model_len",
    "chunked_prefill_enabled": "enable_chunked_prefill",
    "policy": "scheduling_policy",
}
TOO_LONG: Final = re.compile(r"Input prompt \((\d+) tokens\) is too long and exceeds")
FAILURES: Final = (
    "No available memory for the cache blocks",
    "Free memory on device",
    "To serve at least one request",
    "is larger than the maximum number of tokens that can be stored in KV cache",
    "Engine core initialization failed",
)


class Said(NamedTuple):
    """One setting that a line states."""

    name: str
    value: Scalar


@lru_cache(maxsize=64)
def argument_settings(message: str) -> list[Said] | None:
    """The settings among the arguments of a server; None when the list does not close (a cut line)."""
    found = ARGS.match(message)
    if found is None:
        return None
    inner = message[found.end() :]
    if not closes(inner):
        return None
    pairs = dict(scan_pairs(inner))
    said = list(_known(pairs))
    for name in ("model", "model_tag", "served_model_name"):
        value = simple_value(pairs.get(name, ""))
        if isinstance(value, str) and value:
            said.append(Said("model", value))
    if simple_value(pairs.get("disable_log_requests", "")) is True:
        said.append(Said("enable_log_requests", False))
    return said


def max_log_len(message: str) -> int | None:
    """The length to which logged prompts and their token ids are cut, if the arguments set one."""
    found = ARGS.match(message)
    value = simple_value(dict(scan_pairs(message[found.end() :])).get("max_log_len", "")) if found else None
    return value if isinstance(value, int) else None


@lru_cache(maxsize=64)
def engine_settings(message: str) -> list[Said] | None:
    """The settings in the engine's own start-up line; None when the message is none."""
    found = ENGINE.match(message)
    if found is None:
        return None
    pairs = dict(scan_pairs(message[found.end() :]))
    said = list(_known(pairs))
    for name in ("model", "served_model_name"):
        value = simple_value(pairs.get(name, "")) or pairs.get(name, "")
        if isinstance(value, str) and value and value != "None" and re.fullmatch(r"[\w./:@~ \\-]{1,200}", value):
            said.append(Said("model", value))
    said.append(Said("vllm_version", found[2]))
    said.append(Said("engine_generation", "v1" if found[1] == "V1 " else "v0"))
    return said


def _known(pairs: dict[str, str]) -> Iterator[Said]:
    for key, raw in pairs.items():
        name = _RENAMED.get(key, key)
        if name in SETTINGS and name not in _NOT_LOGGED_HERE and not name.endswith(("_us", "_ms")):
            value = simple_value(raw)
            if value is None and SETTINGS[name].kind is str and re.fullmatch(r"[\w.-]{1,40}", raw) and raw != "None":
                value = raw.removeprefix("torch.")
            # A flag given as an empty string or a nested value says nothing about the setting.
            if value is not None and value != "" and _fits(name, value):
                yield Said(name, value)
        elif key == "speculative_config":
            tokens = re.search(r"['\"]?num_spec(?:ulative)?_tokens['\"]?\s*[:=]\s*(\d+)", raw)
            if tokens:
                yield Said("num_speculative_tokens", int(tokens[1]))
        elif key in {"observability_config", "scheduler_config"}:
            inner = raw[raw.find("(") + 1 :]
            yield from _known({k: v for k, v in scan_pairs(inner) if k in SETTINGS})


def _fits(name: str, value: Scalar) -> bool:
    kind = SETTINGS[name].kind
    if kind is bool:
        return isinstance(value, bool)
    if kind is str:
        return isinstance(value, str)
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    minimum = SETTINGS[name].minimum
    return number and (minimum is None or value >= minimum)  # type: ignore[operator]


def plain_settings(message: str) -> list[Said]:
    """The settings in a start-up line of one statement."""
    said = []
    if found := _MODEL_LEN.match(message):
        said.append(Said("max_model_len", int(found[1])))
    elif found := _CHUNKED.match(message):
        said.append(Said("max_num_batched_tokens", int(found[1])))
        said.append(Said("enable_chunked_prefill", True))
    elif found := _DEFAULTING.match(message):
        said.append(Said(found[1], int(found[2])))
    elif message.startswith("Asynchronous scheduling is enabled"):
        said.append(Said("async_scheduling", True))
    elif message.startswith("Asynchronous scheduling is disabled"):
        said.append(Said("async_scheduling", False))
    elif "gpu_memory_utilization (" in message and (found := _UTILIZATION.search(message)):
        said.append(Said("gpu_memory_utilization", float(found[1])))
    return said
