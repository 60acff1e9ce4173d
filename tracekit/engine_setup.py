"""An engine as its configuration describes it: model and GPU looked up, and what the capacity planner is told of it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

from tracekit.catalogue.gpus import Gpu, find_gpu, gpus_with
from tracekit.catalogue.models import ModelMatch, find_model
from tracekit.config import NEWEST_VERSION, Config, parse_version
from tracekit.errors import ConfigError
from tracekit.model.capacity import CapacityPlan, Server, capacity_rules_for, plan
from tracekit.model.capacity.from_shape import Built, layers_of
from tracekit.model.capacity.memory import Setup, default_utilization

_LARGE_GIB: Final = 70
_AMPLE: Final = 1 << 50


@dataclass(frozen=True)
class Engine:
    """What the ladder needs to know of an engine; None where nobody says. ``notes``: what was assumed."""

    version: str
    model: ModelMatch | None
    gpu: Gpu | None
    values: dict[str, object]
    notes: tuple[str, ...] = ()


def engine_of(config: Config) -> Engine:
    """Look up the model and the GPU that a configuration names; raises ``ConfigError`` for names nobody knows."""
    values: dict[str, object] = {name: value.value for name, value in config.items()}
    version = str(values.get("vllm_version", NEWEST_VERSION))
    notes = []
    gpu = None
    if "gpu" in values:
        match = find_gpu(str(values["gpu"]))
        gpu = match.gpu
        notes += [match.note] if match.note else []
        if not gpu.is_certain:
            notes.append(f"the figures of {gpu.name} are not verified ({gpu.source})")
    elif "gpu_total_gib" in values:
        gpu = _gpu_of_memory(float(str(values["gpu_total_gib"])), notes)
    model = find_model(str(values["model"]), _text(values, "quantization")) if "model" in values else None
    notes += [model.note] if model and model.note else []
    if model and not model.shape.is_certain:
        notes.append(f"not all figures of {model.shape.name} are verified ({model.shape.source})")
    return Engine(version, model, gpu, values, tuple(notes))


def _gpu_of_memory(total_gib: float, notes: list[str]) -> Gpu | None:
    """A GPU with the memory that the log states, where it names none."""
    candidates = gpus_with(total_gib)
    if not candidates:
        return None
    names = ", ".join(gpu.name for gpu in candidates)
    notes.append(f"the GPU is inferred from its {total_gib:.2f} GiB: one of {names}")
    return replace(candidates[0], total_gib=total_gib)


def _text(values: Mapping[str, object], name: str) -> str | None:
    found = values.get(name)
    return None if found is None else str(found)


def _number(values: Mapping[str, object], name: str, default: int) -> int:
    found = values.get(name)
    return default if found is None else int(str(found))


def setup_of(engine: Engine) -> Setup:
    """What decides the memory; raises ``ConfigError`` when the GPU or the model is not known."""
    if engine.model is None or engine.gpu is None:
        missing = "model (--model M)" if engine.model is None else "GPU (--gpu G)"
        msg = f"the memory cannot be estimated without the {missing}"
        raise ConfigError(msg)
    values = engine.values
    number = parse_version(engine.version)
    is_large = engine.gpu.total_gib >= _LARGE_GIB and not ("A100" in engine.gpu.name and number >= (0, 9, 0))
    utilization = values.get("gpu_memory_utilization")
    budget = 8192 if is_large else 2048
    return Setup(
        engine.version, engine.model.shape, engine.model.bits, engine.gpu.total_bytes,
        default_utilization(engine.version) if utilization is None else float(str(utilization)),
        _number(values, "tensor_parallel_size", 1), _number(values, "pipeline_parallel_size", 1),
        _number(values, "max_num_batched_tokens", budget), _number(values, "max_num_seqs", 1024 if is_large else 256),
        bool(values.get("enforce_eager", False)),
    )  # fmt: skip


def built_of(engine: Engine) -> Built:
    """The layers of one rank; raises ``ConfigError`` when the model is not known."""
    if engine.model is None:
        msg = "the bytes of a KV block are not known without the model (--model M)"
        raise ConfigError(msg)
    values = engine.values
    caching = values.get("enable_prefix_caching")
    size = values.get("block_size")
    return layers_of(
        engine.model.shape, engine.version, tensor_parallel_size=_number(values, "tensor_parallel_size", 1),
        kv_cache_dtype=_text(values, "kv_cache_dtype") or "auto", block_size=None if size is None else int(str(size)),
        max_model_len=_number(values, "max_model_len", engine.model.shape.max_model_len),
        enable_prefix_caching=None if caching is None else bool(caching),
        num_speculative_tokens=_number(values, "num_speculative_tokens", 0),
        num_draft_layers=_number(values, "num_draft_layers", 0),
    )  # fmt: skip


def server_of(engine: Engine, built: Built, available_bytes: int) -> Server:
    """What the planner is told."""
    values = engine.values
    shape = engine.model.shape if engine.model else None
    length = _number(values, "max_model_len", shape.max_model_len if shape else 0)
    number = parse_version(engine.version)
    budget = setup_of(engine).max_num_batched_tokens if engine.gpu else _number(values, "max_num_batched_tokens", 8192)
    override = values.get("num_gpu_blocks_override")
    return Server(
        built.layers, (available_bytes,), max(length, 1), budget,
        bool(values.get("async_scheduling", number >= (0, 14, 0))), _number(values, "pipeline_parallel_size", 1),
        hybrid_manager=not values.get("disable_hybrid_kv_cache_manager", False) and not _is_chunked(engine, number),
        num_gpu_blocks_override=None if override is None else int(str(override)), state_mode=built.state_mode,
        num_speculative_tokens=_number(values, "num_speculative_tokens", 0),
    )  # fmt: skip


def _is_chunked(engine: Engine, number: tuple[int, int, int]) -> bool:
    """Chunked local attention turns the hybrid manager off by default."""
    return engine.model is not None and "C" in engine.model.shape.layers and number >= (0, 10, 0)


def generation_of(engine: Engine) -> Literal["v0", "v1"] | None:
    """V0 or V1 where the configuration says so; None: the version's default."""
    names: dict[object, Literal["v0", "v1"]] = {"v0": "v0", "v1": "v1"}
    return names.get(engine.values.get("engine_generation"))


def probe_of(engine: Engine) -> CapacityPlan:
    """A plan with memory in plenty: its groups and bytes are the engine's; raises ``ConfigError``."""
    rules = capacity_rules_for(engine.version, generation_of(engine))
    return plan(server_of(engine, built_of(engine), _AMPLE), rules)


def check_heads(engine: Engine, config: Config) -> None:
    """Refuse a tensor parallel size that vLLM refuses; a logged one did start. Raises ``ConfigError``."""
    ranks = config.get("tensor_parallel_size")
    heads = engine.model.shape.num_heads if engine.model else 0
    if ranks is None or ranks.origin != "given" or not heads or heads % int(ranks.value) == 0:
        return
    msg = f"tensor_parallel_size {ranks.value:,}: vLLM refuses it, as it does not divide the model's {heads} attention heads"
    raise ConfigError(msg)
