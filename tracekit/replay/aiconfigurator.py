"""A step time from the measured kernel tables of ``aiconfigurator-core``, an optional package: asked once, then numbers.

Its estimates of whole forward passes (``EngineHandle`` of 0.12.0) are sampled over the counts of tokens, requests and
context that the configuration allows, and become a tabulated step time, which model and kernel read alike. They hold
the device alone: the host's share is the catalogue's. Calls are made by name on the package; nothing of it is kept.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tracekit.catalogue.models import find_model
from tracekit.catalogue.names import nearest
from tracekit.errors import ConfigError
from tracekit.step_time.catalogued import physical_of_config
from tracekit.step_time.coverage import IDENTITY
from tracekit.step_time.parameters import StepTime, step_time_from_dict
from tracekit.step_time.physical import PhysicalParameters

NAME: Final = "aiconfigurator"
_PACKAGE: Final = "aiconfigurator_core"
_VERSION: Final = "0.12.0"
_SYSTEMS: Final = {
    "A100-80-SXM": "a100_sxm", "H100-SXM": "h100_sxm", "H200-SXM": "h200_sxm", "B200": "b200_sxm", "B300": "b300_sxm",
    "GB200": "gb200", "GB300": "gb300", "L40S": "l40s", "RTXPRO6000-Server": "rtx_pro_6000_server",
}  # fmt: skip
"""GPUs that the package has tables of vLLM's kernels for, by its names."""
_MOST_BATCHED: Final = 8_192
_MOST_CONTEXT: Final = 8_192
_LARGEST_PREFILL: Final = 65_536
_FP8_BITS: Final = 8
_SHORTEST_PREFILL: Final = 16
_MS_TO_NS: Final = 1e6


@dataclass(frozen=True)
class _Sampled:
    """What was read off: ns by tokens and by requests, the linear rest, and how far the form is from the samples."""

    tokens: list[tuple[int, float]]
    reqs: list[tuple[int, float]]
    per_context_token: float
    per_attention_pair: float
    per_prefill_step: float
    decode_error: float
    prefill_error: float


def aiconfigurator_step_time(config: Mapping[str, Any]) -> StepTime:
    """The step time of vLLM's settings (plain values by name).

    Raises ``ConfigError`` where the package is not installed, GPU or model is unknown, or its tables lack them.
    """
    version, folder = _package()
    found = physical_of_config(config)
    if found is None:
        msg = f"--step-time {NAME} needs the GPU and the model: give --gpu and --model"
        raise ConfigError(msg)
    catalogued = found[0]
    system = _SYSTEMS.get(catalogued["gpu"])
    if system is None:
        msg = (
            f"--step-time {NAME}: no tables for {catalogued['gpu']}; there are some for {', '.join(_SYSTEMS)}; without "
            "--step-time the catalogue's laws are used"
        )
        raise ConfigError(msg)
    model, quantization = _covered_model(folder, catalogued["model"], float(catalogued["weight_bits"]))
    described = step_time_from_dict({"form": "physical", **catalogued}, "default", NAME).parameters
    if not isinstance(described, PhysicalParameters):
        raise TypeError(described)
    most_tokens = int(config.get("max_num_batched_tokens") or _MOST_BATCHED)
    most_context = int(config.get("max_model_len") or _MOST_CONTEXT)
    with _quiet():
        try:
            engine = _engine(model, system, quantization, catalogued, config)
            sampled = _sample(engine, described.padding, most_tokens, most_context, int(catalogued["max_num_seqs"]))
        except (ValueError, RuntimeError, LookupError, OSError) as error:
            first = (str(error) or type(error).__name__).splitlines()[0]
            msg = f"--step-time {NAME}: the package says nothing of {model} on {catalogued['gpu']}: {first}"
            raise ConfigError(msg) from error
    source = f"aiconfigurator-core {version}"
    own = {
        "form": "tabulated", "gpu": catalogued["gpu"], "model": catalogued["model"], "source": source,
        "tensor_parallel_size": catalogued["tensor_parallel_size"], "padding": list(described.padding),
        "tokens_ms": [[count, ns / 1e6] for count, ns in sampled.tokens],
        "reqs_us": [[count, ns / 1e3] for count, ns in sampled.reqs],
        "t0_ms": described.t0 / 1e6, "per_seq_us": described.per_seq / 1e3,
        "per_context_token_us": sampled.per_context_token / 1e3,
        "per_attention_pair_us": sampled.per_attention_pair / 1e3,
        "per_prefill_step_ms": sampled.per_prefill_step / 1e6,
        "fit": {
            "how": f"read off the tables of {source} for {model} on {system}",
            "config": {name: config[name] for name in IDENTITY if name in config},
            "decode_error": sampled.decode_error, "prefill_error": sampled.prefill_error,
        },
    }  # fmt: skip
    return step_time_from_dict(own, "given", f"{source}: {catalogued['model']} on {catalogued['gpu']}")


def _package() -> tuple[str, Path]:
    """Version and folder of the package."""
    from importlib.metadata import PackageNotFoundError, version
    from importlib.util import find_spec

    spec = find_spec(_PACKAGE)
    try:
        if spec is not None and spec.submodule_search_locations:
            found = version("aiconfigurator-core")
            if found == _VERSION:
                return found, Path(next(iter(spec.submodule_search_locations)))
            msg = f"--step-time {NAME} reads aiconfigurator-core {_VERSION}, found {found}: pip install 'tracekit[{NAME}]'"
            raise ConfigError(msg)
    except PackageNotFoundError:
        pass
    msg = f"--step-time {NAME} needs a package that is not installed: pip install 'tracekit[{NAME}]'"
    raise ConfigError(msg)


def _covered_model(folder: Path, name: str, bits: float) -> tuple[str, str | None]:
    """The package's name of a model with weights of so many bits, and the quantisation to ask for; never a download."""
    from aiconfigurator_core.sdk.common import DefaultHFModels

    known: dict[float, str] = {}
    others = set()
    for path in sorted(
        (folder / "model_configs").glob("*--*_config.json"), key=lambda path: (len(path.name), path.name)
    ):
        theirs = path.name.removesuffix("_config.json").replace("--", "/")
        if theirs not in DefaultHFModels:
            continue  # a second file of a model, or one that the package would fetch from the net all the same
        try:
            match = find_model(theirs)
        except ConfigError:
            continue  # a model that the catalogue lacks cannot be the one asked for
        others.add(match.shape.name)
        if match.shape.name == name:
            known.setdefault(match.bits, theirs)
    if bits in known:
        return known[bits], None
    if bits == _FP8_BITS and known.get(16.0):
        return known[16.0], "fp8"
    if known:
        has = ", ".join(f"{size:g}" for size in sorted(known))
        msg = f"--step-time {NAME}: {name} has weights of {bits:g} bits here, the package knows it with {has}"
        raise ConfigError(msg)
    like = ", ".join(nearest(name, sorted(others))) or ", ".join(sorted(others))
    msg = f"--step-time {NAME}: no tables for {name}; it knows {len(others)} models, nearest: {like}"
    raise ConfigError(msg)


def _engine(
    model: str, system: str, quantization: str | None, catalogued: Mapping[str, Any], config: Mapping[str, Any]
) -> Any:  # noqa: ANN401 - the package is optional, so its types are not known
    from aiconfigurator_core.sdk.engine import EngineHandle

    tp = catalogued["tensor_parallel_size"]
    experts = "moe_ep_size" if config.get("enable_expert_parallel") else "moe_tp_size"
    asked = {
        "tp_size": tp,
        experts: tp,
        "gemm_quant_mode": quantization,
        "moe_quant_mode": quantization,
        "kvcache_quant_mode": "fp8" if catalogued["kv_bits"] == _FP8_BITS else None,
    }
    return EngineHandle.compile(model, system, "vllm", **asked)


def _sample(engine: Any, padding: Sequence[int], most_tokens: int, most_context: int, most_reqs: int) -> _Sampled:  # noqa: ANN401
    """Read the tables off over the counts that can occur."""
    import numpy as np

    tokens = _rising(
        _token_counts(padding, most_tokens), lambda count: engine.mixed_step_breakdown(count, 0, count, 2)[1]
    )
    at = dict(tokens)
    counts = [count for count in at if count <= most_reqs]
    contexts = _doubling(128, max(most_context, 256))
    decodes = np.array([[_MS_TO_NS * engine.decode_step_latency(n, s, 2) for s in contexts] for n in counts])
    held = np.outer(counts, contexts).astype(np.float64)
    per_context, free = _shared_slope(held, decodes)
    reqs = [(n, float(own - at[n])) for n, own in zip(counts, free, strict=True)]
    # Beyond the last count a table goes on as it ended: level, not down.
    reqs.append((2 * counts[-1], reqs[-1][1]))
    modelled = free[:, None] + per_context * held
    decode_error = float(np.median(np.abs(modelled / decodes - 1)))
    rows = [
        (count, before)
        for count in at
        if count >= _SHORTEST_PREFILL
        for before in (0, *contexts)
        if count + before <= most_context
    ] or [(max(at), 0)]
    measured = np.array(
        [_MS_TO_NS * engine.predict_prefill_latency(1, count + before, before) for count, before in rows]
    )
    rest = measured - np.array([at[count] + reqs[0][1] + per_context * before for count, before in rows])
    pairs = np.array([count * before + count * (count + 1) / 2 for count, before in rows])
    fixed, per_pair = _line(pairs, rest, measured)
    prefill_error = float(np.median(np.abs((measured - rest + fixed + per_pair * pairs) / measured - 1)))
    return _Sampled(tokens, reqs, per_context, per_pair, fixed, decode_error, prefill_error)


def _shared_slope(held: Any, took: Any) -> tuple[float, Any]:  # noqa: ANN401
    """One slope over all rows and a constant a row that fit best, errors relative: ``took ~ constant + slope * held``."""
    weight = 1 / took**2
    total = weight.sum(axis=1)
    centre_held, centre_took = (held * weight).sum(axis=1) / total, (took * weight).sum(axis=1) / total
    off_held, off_took = held - centre_held[:, None], took - centre_took[:, None]
    slope = max(float((weight * off_held * off_took).sum() / (weight * off_held**2).sum()), 0.0)
    return slope, centre_took - slope * centre_held


def _line(pairs: Any, rest: Any, measured: Any) -> tuple[float, float]:  # noqa: ANN401
    """Constant and slope, neither below 0, of what prefills take beyond their tokens; errors relative to all of it."""
    import numpy as np
    from scipy.optimize import nnls

    scale = float(pairs.max())
    rows = np.stack([np.ones(len(pairs)), pairs / scale], axis=1) / measured[:, None]
    found, _ = nnls(rows * _MS_TO_NS, rest / measured)
    return float(found[0] * _MS_TO_NS), float(found[1] * _MS_TO_NS / scale)


def _token_counts(padding: Sequence[int], most: int) -> list[int]:
    """Every CUDA-graph size, powers of two and their halves between, up to the most that a step may have."""
    wide = (count for start in _doubling(1, min(most, _LARGEST_PREFILL)) for count in (start, start * 3 // 2))
    return sorted({1, *(count for count in (*padding, *wide) if count <= max(most, 2)), min(most, _LARGEST_PREFILL)})


def _doubling(start: int, most: int) -> list[int]:
    found = [start]
    while 2 * found[-1] <= most:
        found.append(2 * found[-1])
    return found


def _rising(counts: Sequence[int], milliseconds: Callable[[int], float]) -> list[tuple[int, float]]:
    """Time by count in ns; a measurement below that of fewer tokens is noise and takes theirs."""
    found: list[tuple[int, float]] = []
    for count in counts:
        now = milliseconds(count) * _MS_TO_NS
        found.append((count, max(now, found[-1][1]) if found else now))
    return found


@contextmanager
def _quiet() -> Iterator[None]:
    """The package logs which files it opens: a library does not print."""
    logger = logging.getLogger(_PACKAGE)
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)
