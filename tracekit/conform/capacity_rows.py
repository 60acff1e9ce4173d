"""Start-ups that the real planners computed, against ours: one JSON object a line, gzipped or not.

A row's inputs: ``v`` (version), ``m`` (model), ``tp, pp, dcp, kv`` (dtype), ``bs, L`` (``max_model_len``), ``mem``
(available bytes by worker), ``bt`` (``max_num_batched_tokens``), ``asy, hma, apc, mamba_mode, ckpt, layout, over, auto``
and ``layers`` (specs of one rank; ``i``: layer numbers as ``0-34/2,40``). ``out``: ``nb`` blocks, ``bpb`` bytes of one,
``ng`` groups, ``tokens``, ``x``, ``L_after``; of a start that fails ``cls, need_gib, avail_gib, est``.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tracekit.catalogue.models import find_model
from tracekit.conform.recordings import Row, read_rows
from tracekit.errors import ConfigError, InputError
from tracekit.model.capacity import CapacityError, LayerCache, Server, capacity_rules_for, plan
from tracekit.model.capacity.from_shape import layers_of
from tracekit.model.capacity.layers import MLA_FP8_BYTES_PER_TOKEN, Kind

_KINDS: Final[dict[str, Kind]] = {
    "full": "full", "mla": "mla", "indexer": "indexer", "swa": "sliding", "chunk": "chunked"
}  # fmt: skip
_ELEMENT_BYTES: Final = {"bfloat16": 2, "float16": 2, "float32": 4, "uint8": 1}
_FAULTS: Final = frozenset({"AssertionError", "StopIteration", "TypeError", "KeyError", "IndexError"})
_TOO_SMALL: Final = "mamba_block_too_small"
_SHOWN: Final = 5


@dataclass(frozen=True)
class CapacityDifference:
    """One row in which ours is another number: (recorded, ours) by field."""

    file: str
    line: int
    model: str
    fields: dict[str, tuple[Any, Any]]


@dataclass
class CapacityResult:
    """One version's rows; ``faults``: how often vLLM itself broke, by what ours says of it."""

    version: str
    num_rows: int = 0
    num_agreeing: int = 0
    num_failed_starts: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    differences: list[CapacityDifference] = field(default_factory=list)
    """The first few."""


def is_capacity_file(path: Path) -> bool:
    """Whether a path names a file of rows, as against a folder of scheduler cases."""
    return path.is_file() and path.name.endswith((".jsonl", ".jsonl.gz"))


def compare_capacity(paths: Iterable[Path]) -> list[CapacityResult]:
    """Plan every row anew and compare; raises ``InputError`` for a row that lacks an input."""
    results: dict[str, CapacityResult] = {}
    for path in paths:
        for line, row in enumerate(read_rows(path), 1):
            if "version" in row and "v" not in row:
                msg = f"{path}:{line}: these are start-ups of real servers: they are compared by benchmarks/capacity.py"
                raise InputError(msg)
            missing = next((key for key in ("v", "m", "L", "mem", "bs", "out") if key not in row), None)
            if missing is not None:
                msg = f"{path}:{line}: expected a capacity row, key {missing!r} is missing"
                raise InputError(msg)
            _compare_row(results.setdefault(row["v"], CapacityResult(row["v"])), path, line, row)
    return list(results.values())


def _compare_row(result: CapacityResult, path: Path, line: int, row: Row) -> None:
    recorded, ours, fault = _both(row)
    result.num_rows += 1
    result.num_failed_starts += "err" in row["out"]
    if fault is not None:
        result.faults[fault] += 1
    fields = {key: (recorded[key], ours.get(key)) for key in recorded if recorded[key] != ours.get(key)}
    if not fields:
        result.num_agreeing += 1
    elif len(result.differences) < _SHOWN:
        result.differences.append(CapacityDifference(path.name, line, str(row["m"]), fields))


def _both(row: Row) -> tuple[dict[str, Any], dict[str, Any], str | None]:
    """What was recorded and what ours is, field by field, and what ours says where vLLM breaks."""
    out = row["out"]
    failure: dict[str, Any] = {
        "class": _class_of(out), "need_gib": out.get("need_gib", ""), "avail_gib": out.get("avail_gib", ""),
        "estimate": out.get("est"),
    }  # fmt: skip
    names = ("nb", "bpb", "ng", "tokens", "x", *(("L_after",) if row.get("auto") else ()))
    recorded = failure if "err" in out else {"class": None, **{name: out[name] for name in names if name in out}}
    try:
        found = plan(_server(row), capacity_rules_for(row["v"]))
    except CapacityError as error:
        estimate = error.estimate if error.kind == "needs_more" else None
        ours = {
            "class": error.kind, "need_gib": error.need_text, "avail_gib": error.available_text, "estimate": estimate
        }  # fmt: skip
        return recorded, ours, str(error) if error.kind == "fault" else None
    except ConfigError as error:
        return recorded, {**failure, "class": _TOO_SMALL if "block size" in str(error) else str(error)}, None
    by_worker = list(found.bytes_per_block)
    return (
        recorded,
        {
            "class": None, "nb": found.num_blocks, "bpb": by_worker[0] if len(set(by_worker)) == 1 else by_worker,
            "ng": len(found.groups), "tokens": found.num_tokens, "x": found.concurrency_text,
            "L_after": found.max_model_len if found.max_model_len != row["L"] else out.get("L_after"),
        },
        None,
    )  # fmt: skip


def _class_of(out: Row) -> str | None:
    """The recorded class of error; an exception that vLLM did not mean to raise is a fault."""
    return "fault" if out.get("err") in _FAULTS else out.get("cls")


def _server(row: Row) -> Server:
    mode = row.get("mamba_mode", "none")
    return Server(
        layers=_layers(row), available_bytes=tuple(row["mem"]), max_model_len=row["L"],
        max_num_batched_tokens=row.get("bt", 8192), async_scheduling=row.get("asy", True),
        pipeline_parallel_size=row.get("pp", 1), decode_context_parallel_size=row.get("dcp", 1),
        hybrid_manager=row.get("hma", True), num_gpu_blocks_override=row.get("over"), auto_fit=row.get("auto", False),
        block_outermost=row.get("layout") == "BLHNC", state_mode=mode if mode in {"all", "align"} else "none",
    )  # fmt: skip


def _layers(row: Row) -> tuple[tuple[int, LayerCache], ...]:
    """The layers in the order in which vLLM meets them; of a row without specs, the catalogue's."""
    if "layers" not in row:
        return layers_of(
            find_model(row["m"]).shape, row["v"], tensor_parallel_size=row["tp"], kv_cache_dtype=row["kv"],
            block_size=row["bs"], max_model_len=row["L"],
        ).layers  # fmt: skip
    found = [
        (number, place, _cache(spec, row["kv"]))
        for place, spec in enumerate(row["layers"])
        for number in _numbers(spec)
    ]
    # 0.9 registers attention layers before state layers.
    attention_first = row["v"].startswith("0.9.")
    found.sort(key=lambda layer: (attention_first and layer[2].is_state, layer[0], layer[1]))
    return tuple((number, cache) for number, _, cache in found)


def _numbers(spec: Row) -> Iterator[int]:
    """``0-34/2,40``: every second layer from 0 to 34, and layer 40; without ``i`` the first ``n``."""
    if "i" not in spec:
        yield from range(spec["n"])
        return
    for part in str(spec["i"]).split(","):
        first, _, rest = part.partition("-")
        last, _, step = rest.partition("/")
        yield from range(int(first), int(last or first) + 1, int(step or 1))


def _cache(spec: Row, dtype: str) -> LayerCache:
    if spec["k"] in _KINDS:
        token_bytes = {"indexer": spec["d"]}.get(spec["k"], MLA_FP8_BYTES_PER_TOKEN if spec.get("ds") else None)
        return LayerCache(
            _KINDS[spec["k"]], spec["bs"], spec.get("h", 1), spec["d"], spec.get("dv"), 1 if dtype == "fp8" else 2,
            token_bytes, spec.get("w"), spec.get("c"),
        )  # fmt: skip
    state_bytes = sum(
        math.prod(shape) * _ELEMENT_BYTES[name] for shape, name in zip(spec["shapes"], spec["dt"], strict=True)
    )
    return LayerCache(
        "state", spec["bs"], state_kind=spec["k"], state_bytes=state_bytes, padded_bytes=spec.get("pad"),
        num_checkpoint_blocks=spec.get("ckb", 0),
    )  # fmt: skip
