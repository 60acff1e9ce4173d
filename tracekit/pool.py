"""How many KV blocks an engine has: from what was logged, moved by what is asked for, or from GPU and model.

The ladder of a replay (and of ``tracekit capacity``): given > logged > moved from what was logged > estimated from GPU,
model and flags > an error that says what would settle it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from tracekit.config import GIB, Config, ConfigValue
from tracekit.engine_setup import Engine, built_of, check_heads, engine_of, generation_of, probe_of, server_of, setup_of
from tracekit.errors import ConfigError
from tracekit.model.capacity import CapacityPlan, CapacityRules, capacity_rules_for, plan
from tracekit.model.capacity.from_shape import Built
from tracekit.model.capacity.grouping import group_layers
from tracekit.model.capacity.memory import Band, Memory, estimate, moved

MOVES: Final = ("gpu_memory_utilization", "tensor_parallel_size", "pipeline_parallel_size", "kv_cache_dtype",
                "quantization", "gpu", "block_size")  # fmt: skip
"""Settings under which a replay's logged pool is moved. The token budget and ``max_num_seqs`` move it too, by less than
the band of that estimate, so a replay leaves the logged pool alone for them; ``tracekit capacity`` shows the band."""
_POOL: Final = frozenset({"available_kv_gib", "num_gpu_blocks", "kv_cache_tokens"})
_SPECIAL: Final = frozenset("SCmMGKB")
"""Letters of layers that do not keep every token."""
_HALF_STEP: Final = 0.005
_FAR_OFF_GIB: Final = 4
_ESTIMATED: Final = "estimated from GPU, model and flags"


@dataclass(frozen=True)
class Sizing:
    """One engine's pool.

    ``available``: bytes for the KV cache of one rank. ``memory``: where the rest goes, as estimated; None where the GPU
    or the model is not known. ``plan``: the most likely; ``low`` and ``high``: at the band's ends (None: it would not
    start, or the band is a point). ``origin``: logged, inferred (moved or estimated) or given.
    """

    engine: Engine
    available: Band
    memory: Memory | None
    built: Built
    rules: CapacityRules
    plan: CapacityPlan
    low: CapacityPlan | None
    high: CapacityPlan | None
    origin: str
    how: str
    notes: list[str] = field(default_factory=list)


def measured(engine: Engine, logged: Config) -> Band | None:
    """The bytes that a log says were available on one rank, as a band of what its rounding allows; None: it does not.

    "Available KV cache memory" has two decimals; a block count stands for less than one block more.
    """
    printed, counted = None, None
    probe = probe_of(engine)
    if "available_kv_gib" in logged:
        gib = float(logged["available_kv_gib"].value)
        printed = Band(int(gib * GIB), int((gib - _HALF_STEP) * GIB), int((gib + _HALF_STEP) * GIB))
    if (blocks := logged_blocks(logged, has_groups=len(probe.groups) > 1)) is not None:
        size = max(probe.bytes_per_block)
        counted = Band(blocks * size, blocks * size, (blocks + 1) * size - 1)
    if printed is None or counted is None:
        return printed or counted
    low, high = max(printed.low, counted.low), min(printed.high, counted.high)
    # Where the two do not meet (another rank's line, an override), the count is what the server has.
    return Band(min(max(printed.likely, low), high), low, high) if low <= high else counted


def logged_blocks(logged: Config, *, has_groups: bool = False) -> int | None:
    """Blocks as logged: the count, else the tokens (which several groups of layers make another number)."""
    if "num_gpu_blocks" in logged:
        return int(logged["num_gpu_blocks"].value)
    if "kv_cache_tokens" in logged and not has_groups:
        return int(logged["kv_cache_tokens"].value) // int(logged["block_size"].value if "block_size" in logged else 16)
    return None


def size_engine(wanted: Config, logged: Config | None = None) -> Sizing:
    """Size the pool of the engine that ``wanted`` describes.

    ``logged``: the configuration of a server that ran, whose measured memory is moved to ``wanted``; None: estimate
    from GPU, model and flags. Raises ``ConfigError`` for what is missing, ``CapacityError`` where it would not start.
    """
    engine = engine_of(wanted)
    notes = list(engine.notes)
    check_heads(engine, wanted)
    before = engine_of(logged) if logged is not None else None
    if before is not None:
        before = replace(before, model=before.model or engine.model, gpu=before.gpu or engine.gpu)
    known = measured(before, logged) if before is not None and logged is not None else None
    memory = estimate(setup_of(engine)) if engine.gpu and engine.model else None
    if known is not None and before is not None and logged is not None:
        available, how = _moved(before, engine, known)
        if how.startswith("moved"):
            notes += _unlike_estimate(before, known)
        is_given = all(value.origin == "given" for name, value in logged.items() if name in _POOL)
        how = how.replace("as logged", "as given") if is_given else how
        origin = how[3:] if how in {"as logged", "as given"} else "inferred"
    else:
        available = estimate(setup_of(engine)).available
        origin, how = "inferred", _ESTIMATED
    built = built_of(engine)
    if built.note:
        notes.append(built.note)
    rules = capacity_rules_for(engine.version, generation_of(engine))
    if available.likely <= 0 and memory is not None:
        _refuse(engine, memory, available, how)
    found = plan(server_of(engine, built, available.likely), rules)
    ends = [_planned(engine, built, end, rules) for end in (available.low, available.high)]
    if available.low == available.high:
        ends = [None, None]
    return Sizing(engine, available, memory, built, rules, found, ends[0], ends[1], origin, how, notes)


def _refuse(engine: Engine, memory: Memory, available: Band, how: str) -> None:
    """Say what leaves no memory, and from which share of the GPU on there is some; raises ``ConfigError``."""
    where = engine.gpu.name if engine.gpu else "the GPU"
    model = engine.model.shape.name if engine.model else "the model"
    total = engine.gpu.total_bytes if engine.gpu else memory.requested
    used = memory.requested - available.likely
    parts = f", {memory.weights.likely / GIB:.1f} GiB of it weights" if how == _ESTIMATED else ""
    least = math.floor(100 * used / total + 1) / 100
    advice = "raise tensor_parallel_size or take another GPU or quantisation"
    if least <= 1:
        advice = f"gpu_memory_utilization from about {least:.2f} on leaves some; else {advice}"
    msg = (
        f"no memory is left for KV blocks: a rank of {model} takes about {used / GIB:.1f} GiB beside them{parts} "
        f"({how}), vLLM may use {memory.requested / GIB:.1f} GiB of {where}; {advice}"
    )
    raise ConfigError(msg)


def _unlike_estimate(before: Engine, known: Band) -> list[str]:
    """A note where the recorded server took far more memory beside its KV cache than such a server does."""
    if before.gpu is None or before.model is None:
        return []
    memory = estimate(setup_of(before))
    used, expected = memory.requested - known.likely, memory.requested - memory.available.low
    if used <= expected + _FAR_OFF_GIB * GIB:
        return []
    note = (
        f"the recorded server used {used / GIB:.1f} GiB beside its KV cache, where up to {expected / GIB:.1f} GiB are "
        "expected: was its pool forced, or the GPU shared? What is moved from it rests on that"
    )
    return [note]


def _planned(engine: Engine, built: Built, available: int, rules: CapacityRules) -> CapacityPlan | None:
    from tracekit.model.capacity import CapacityError

    try:
        return plan(server_of(engine, built, available), rules)
    except CapacityError:
        return None


def _moved(before: Engine, after: Engine, known: Band) -> tuple[Band, str]:
    """The measured bytes after what differs; equal engines keep them."""
    names = (*MOVES, "max_num_batched_tokens", "max_num_seqs", "enforce_eager", "model")
    changed = [name for name in names if _changes(before.values, after.values, name)]
    needs_memory = [name for name in changed if name not in {"kv_cache_dtype", "block_size"}]
    if not needs_memory:
        return known, "as logged" if not changed else f"as logged; {', '.join(changed)} changes the bytes of a block"
    if after.gpu is None or after.model is None:
        missing = "model (--model M)" if after.model is None else "GPU (--gpu G)"
        msg = (
            f"{', '.join(needs_memory)}: it changes the number of KV blocks, which is known only for the recorded "
            f"server; give the {missing}, or --set num_gpu_blocks=N along with it"
        )
        raise ConfigError(msg)
    return moved(known, setup_of(before), setup_of(after)), f"moved from what was logged ({', '.join(needs_memory)})"


def _changes(before: Mapping[str, object], after: Mapping[str, object], name: str) -> bool:
    """Whether a value is another one; to name what was not known before is no change."""
    if name in {"gpu", "model"} and name not in before:
        return False
    return before.get(name) != after.get(name)


def windows_of(config: Config) -> tuple[tuple[int | None, ...], list[str]]:
    """The window of each KV cache group (None: full attention) as the scheduler sees it, and what is approximated.

    Empty where the model is not known or one group of full attention does.
    """
    if "model" not in config:
        return (), []
    try:
        engine = engine_of({name: value for name, value in config.items() if name != "gpu"})
    except ConfigError:
        return (), []  # a model that the catalogue does not have: one group, as for most
    if not set(engine.model.shape.layers if engine.model else ()) & _SPECIAL:
        return (), []
    built = built_of(engine)
    rules = capacity_rules_for(engine.version, generation_of(engine))
    server = server_of(engine, built, 1 << 50)
    groups = group_layers(
        dict(enumerate(cache for _, cache in server.layers)), rules, hybrid_manager=server.hybrid_manager
    )
    caches = [group.layers[0][1] for group in groups]
    if len(caches) == 1 and caches[0].is_full:
        return (), []
    size = int(str(engine.values.get("block_size", built.block_size)))
    if any(cache.kind not in {"full", "mla", "sliding"} or cache.block_size != size for cache in caches):
        kinds = ", ".join(sorted({cache.state_kind or cache.kind for cache in caches}))
        return (), [f"groups of {kinds} layers are approximated: blocks are counted as for full attention alone"]
    return tuple(cache.window if cache.kind == "sliding" else None for cache in caches), []


def _blocks_of_groups(logged: Config) -> ConfigValue | None:
    """The blocks of a server with several groups of layers, whose log has tokens only; None: not such a server."""
    if "num_gpu_blocks" in logged or "kv_cache_tokens" not in logged or not windows_of(logged)[0]:
        return None
    engine = engine_of({name: value for name, value in logged.items() if name != "gpu"})
    probe = probe_of(engine)
    tokens = int(logged["kv_cache_tokens"].value)
    # The printed tokens are proportional to the blocks, rounded down.
    blocks = -(-tokens * probe.num_blocks // probe.num_tokens)
    where = f"{tokens:,} tokens as logged, in {len(probe.groups)} groups of layers"
    return ConfigValue(blocks, "logged", where)


def settle_pool(logged: Config, given: Config) -> tuple[ConfigValue, list[str]] | None:
    """``num_gpu_blocks`` for a replay where the ladder's first two steps do not settle it; None where they do.

    ``given``: what the user sets. Returns the value with its origin, and notes. Raises ``ConfigError``.
    """
    if any(name in given for name in ("num_gpu_blocks", "kv_cache_tokens", "num_gpu_blocks_override")):
        return None
    blocks = logged_blocks(logged)
    changed = [name for name in MOVES if name in given and _differs(logged, given, name)]
    if not changed and (counted := _blocks_of_groups({**logged, **given})) is not None:
        return counted, []
    if blocks is not None and changed == ["block_size"] and "block_size" in logged:
        size = int(given["block_size"].value)
        tokens = blocks * int(logged["block_size"].value)
        value = ConfigValue(tokens // size, "inferred", f"{tokens:,} tokens as logged, in blocks of {size}")
        return value, []
    if blocks is not None and not changed:
        return None
    wanted = {**logged, **given}
    if blocks is None and not {"gpu", "model"} <= set(wanted):
        return None
    sized = size_engine(wanted, logged if blocks is not None else None)
    band = (
        "" if sized.low is None or sized.high is None else f" ({sized.low.num_blocks:,} to {sized.high.num_blocks:,})"
    )
    notes = [*sized.notes, f"{sized.plan.num_blocks:,} KV blocks{band}: {sized.how}"]
    return ConfigValue(sized.plan.num_blocks, "inferred", sized.how), notes


def _differs(logged: Config, given: Config, name: str) -> bool:
    if name == "gpu" and name not in logged:
        return False  # to name what was not known before is no change
    return name not in logged or str(logged[name].value) != str(given[name].value)
