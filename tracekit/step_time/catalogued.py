"""The physical form as a file gives it: a GPU and a model by name, vLLM's flags, and the scales of a calibration."""

from collections.abc import Mapping
from typing import Any, Final

from tracekit.catalogue.gpus import Gpu, all_gpus, find_gpu
from tracekit.catalogue.models import find_model
from tracekit.errors import ConfigError
from tracekit.step_time.physical import PhysicalParameters
from tracekit.step_time.work import Deployment, is_measured, physical_parameters

SCALES: Final = ("bandwidth_scale", "compute_scale", "allreduce_scale")
_NAMES: Final = ("gpu", "model")
_NUMBERS: Final = {
    "tensor_parallel_size": (1, 64),
    "weight_bits": (1, 32),
    "kv_bits": (1, 32),
    "max_num_seqs": (1, 1e7),
}
_FLAGS: Final = ("enforce_eager", "async_scheduling")
_TIMES: Final = {"t0_ms": 1e6, "per_seq_us": 1e3}
PHYSICAL_KEYS: Final = (*_NAMES, *_NUMBERS, *_FLAGS, *_TIMES, *SCALES)
MEASURED_BAND: Final = 0.15
OTHER_BAND: Final = 0.30
"""How far a catalogue's step time is expected off: on GPUs whose kernels were measured (10 to 16 % was found over other
loads when the laws were made), and on others (an assumption).
"""
_MOST_ACTIVATION_GIB: Final = 6.0
_EXAMPLE: Final = '{"form": "physical", "gpu": "H100", "model": "Llama-3.1-8B", "tensor_parallel_size": 1}'


def physical_from_dict(given: Mapping[str, Any], where: str) -> PhysicalParameters:
    """Look up the names, apply the flags and scales; raises ``ConfigError``."""
    for key in _NAMES:
        if not isinstance(given.get(key), str):
            msg = f"{where}: a physical step time names its {key}, such as {_EXAMPLE}"
            raise ConfigError(msg)
    for key, (low, high) in _NUMBERS.items():
        _check(given, key, low, high, where)
    for key in _FLAGS:
        if not isinstance(given.get(key, False), bool):
            msg = f"{where}: {key} must be true or false"
            raise ConfigError(msg)
    for key in _TIMES:
        _check(given, key, 0, 1e7, where)
    for key in SCALES:
        _check(given, key, 1e-3, 1e3, where)
    deployment = Deployment(**{key: given[key] for key in (*_NUMBERS, *_FLAGS) if key in given})
    made = physical_parameters(find_gpu(given["gpu"]).gpu, find_model(given["model"]).shape, deployment)
    scales: dict[str, Any] = {key: float(given[key]) for key in SCALES if key in given}
    times = {key.rsplit("_", 1)[0]: given[key] * unit for key, unit in _TIMES.items() if key in given}
    return made._replace(**scales, **times)


def _check(given: Mapping[str, Any], key: str, low: float, high: float, where: str) -> None:
    value = given.get(key, low)
    if not isinstance(value, int | float) or isinstance(value, bool) or not low <= value <= high:
        msg = f"{where}: {key} must be a number from {low:g} to {high:g}"
        raise ConfigError(msg)


def physical_of_config(config: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]] | None:
    """The physical step time of vLLM's settings, as a file would give it, with notes; null where GPU or model is unknown.

    ``config``: plain values by name. Raises ``ConfigError`` for a name that the catalogue does not have.
    """
    gpu_name, model_name = config.get("gpu"), config.get("model")
    if not isinstance(gpu_name, str) or not isinstance(model_name, str):
        return None
    gpu = find_gpu(gpu_name)
    quantization = config.get("quantization")
    model = find_model(model_name, quantization if isinstance(quantization, str) else None)
    found: dict[str, Any] = {
        "gpu": gpu.gpu.name,
        "model": model.shape.name,
        "tensor_parallel_size": int(config.get("tensor_parallel_size", 1)),
        "weight_bits": model.bits,
        "kv_bits": 8 if str(config.get("kv_cache_dtype", "auto")).startswith("fp8") else 16,
        "max_num_seqs": int(config.get("max_num_seqs", 256)),
        "enforce_eager": bool(config.get("enforce_eager", False)),
        "async_scheduling": bool(config.get("async_scheduling", True)),
    }
    band = MEASURED_BAND if is_measured(gpu.gpu) else OTHER_BAND
    how = "kernels measured on it" if is_measured(gpu.gpu) else "no kernels were measured on it: those of relatives"
    notes = [note for note in (gpu.note, model.note) if note]
    notes.append(
        f"the step time is the catalogue's for {found['model']} on {found['gpu']} ({how}): expected within "
        f"{band:.0%}; tracekit fit, or replay --fit, calibrates it on an observed run"
    )
    return found, notes


def gpu_candidates(config: Mapping[str, Any]) -> list[Gpu]:
    """GPUs whose memory fits what the log says of it, where it does not name the GPU; empty when it says too little.

    vLLM may use ``gpu_memory_utilization`` of the device: weights, KV cache and up to some GiB of activations.
    """
    cache, weights = config.get("available_kv_gib"), config.get("model_load_gib")
    share = config.get("gpu_memory_utilization", 0.9)
    if not (isinstance(cache, int | float) and isinstance(weights, int | float) and isinstance(share, int | float)):
        return []
    if not share:
        return []
    least = (float(cache) + float(weights)) / float(share)
    return [gpu for gpu in all_gpus() if least <= gpu.total_gib <= least + _MOST_ACTIVATION_GIB / float(share)]
