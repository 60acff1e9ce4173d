"""What single records say about the configuration, and what loud records say about the engine."""

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from tracekit.sources.vllm_log import startup
from tracekit.sources.vllm_log.records import Record
from tracekit.sources.vllm_log.wrapped import Wrapped

if TYPE_CHECKING:
    from tracekit.sources.vllm_log.reader import Reader

_Read = Callable[..., Any]
_DEATHS: Final = (
    "encountered a fatal error",
    "died unexpectedly",
    "output_handler failed",
    "EngineDeadError",
    "Background loop",
    "died, exit code",
)
_STALL: Final = "No available shared memory broadcast block found"
_WRAPPED_SIZES: Final = 2
_SIZE_WORDS: Final = re.compile("KV cache|blocks| took |Maximum concurrency|Free memory on device|total_gpu_memory")
_SIZE_COLUMNS: Final = 200
_LEAST: Final = {"kv_cache_tokens", "available_kv_gib", "gpu_total_gib", "num_gpu_blocks"}
"""Sizes of which every worker prints its own: the engine uses the smallest."""


def note_sizes(reader: "Reader", record: Record, line: int, read: _Read) -> bool:
    """Note sizes of KV cache, blocks and memory; returns whether the record states one."""
    start, text = reader.current, record.message
    found = _sizes(text)
    whole = bool(found)
    if not found:
        found = read(lambda joined: _sizes(joined) or None, most=_WRAPPED_SIZES) or {}
    for printed in (reader.printed, start.printed) if whole else ():
        for name, value in found.items():
            if name != "gpu_total_gib":
                getattr(printed, name).append(value)
    for name in _LEAST & found.keys():
        start.least(name, found[name], line)
    if "kv_cache_tokens" in found:
        start.kv_place = start.kv_place or (record.place, line)
    if "max_concurrency" in found:
        start.least("max_concurrency", found["max_concurrency"][1], line)
    if "model_load" in found:
        start.say([startup.Said("model_load_gib", found["model_load"][0])], line)
    if "v0_blocks" in found:
        start.least("num_gpu_blocks", found["v0_blocks"][0], line)
        if found["v0_blocks"][1] is not None:
            start.least("num_cpu_blocks", found["v0_blocks"][1], line)
    if "block_overrides" in found and found["block_overrides"][0] > 0:
        # From 0 blocks it is the profiling of CUDA graphs at a normal start, not the user.
        start.say([startup.Said("num_gpu_blocks_override", found["block_overrides"][1])], line)
    return bool(found)


def _sizes(text: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if not _SIZE_WORDS.search(text, 0, _SIZE_COLUMNS):
        return found
    if match := startup.KV_SIZE.match(text):
        found["kv_cache_tokens"] = int(match[1].replace(",", ""))
    if "Maximum concurrency" in text and (match := startup.CONCURRENCY.search(text)):
        found["max_concurrency"] = (int(match[1].replace(",", "")), float(match[2].replace(",", "")))
    if match := startup.AVAILABLE.match(text):
        found["available_kv_gib"] = float(match[1])
    if match := startup.DEVICE_TOTAL.match(text):
        found["gpu_total_gib"] = float(match[1])
    if match := startup.MODEL_LOAD.match(text):
        found["model_load"] = (float(match[1]), match[2])
    if match := startup.BLOCKS.match(text):
        found["num_gpu_blocks"] = int(match[2])
    if match := startup.V0_BLOCKS.match(text):
        found["v0_blocks"] = (int(match[1]), int(match[2]) if match[2] else None)
    if match := startup.OVERRIDE.match(text):
        found["block_overrides"] = (int(match[1]), int(match[2]))
    return found


def note_settings(reader: "Reader", record: Record, line: int, time: int | None, message: Wrapped) -> bool:
    """Note what a start-up record states; returns False when a list of arguments does not close."""
    known = _stated(reader, record, record.message, line, time, message)
    if known is None and message.looks_wrapped:
        # The word by which it would be known may be broken itself.
        known = _stated(reader, record, message.joined(), line, time, message)
        if known is not None:
            message.use_all()
    if known is None:
        _loud(reader, record, line, time)
    return known is not False


def _stated(reader: "Reader", record: Record, text: str, line: int, time: int | None, message: Wrapped) -> bool | None:
    """Whether a text states something and can be read; None when it states nothing."""
    if found := startup.SERVER_VERSION.match(text):
        reader.mark(line, "version", record, time).say([startup.Said("vllm_version", found[1])], line)
    elif found := startup.BANNER_VERSION.match(text):
        reader.mark(line, "banner", record, time).say([startup.Said("vllm_version", found[1])], line)
    elif startup.ARGS.match(text):
        return _arguments(reader, record, line, time, message)
    elif startup.ENGINE.match(text):
        said = startup.engine_settings(message.joined() if message.looks_wrapped else text)
        reader.mark(line, "engine", record, time).say(said or [], line)
    elif said := startup.plain_settings(text):
        reader.current.say(said, line)
    else:
        return None
    return True


def _arguments(reader: "Reader", record: Record, line: int, time: int | None, message: Wrapped) -> bool:
    start = reader.mark(line, "args", record, time)
    said = message.read(startup.argument_settings, most=80)
    if said is None:
        return False
    start.say(said, line)
    start.max_log_len = startup.max_log_len(record.message)
    return True


def _loud(reader: "Reader", record: Record, line: int, time: int | None) -> None:
    text = record.message
    if record.level not in {"WARNING", "ERROR", "CRITICAL"}:
        if text.startswith("Application startup complete"):
            reader.current.is_ready = True
            reader.event(line, time, "ready")
        return
    kind = "warning" if record.level == "WARNING" else "error"
    if any(failure in text for failure in startup.FAILURES):
        kind = "startup_failed"
        reader.current.has_failed = True
    elif kind == "error" and any(death in text for death in _DEATHS):
        kind = "engine_dead"
    elif text.startswith(_STALL):
        kind = "stall"
    if text.startswith("Traceback (most recent call last)"):
        kind = "traceback"
    if too_long := startup.TOO_LONG.match(text):
        reader.event(line, time, "prompt_too_long", value=float(too_long[1]))
        return
    reader.event(line, time, kind, engine=record.engine)
