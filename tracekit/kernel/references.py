"""Typed references into the kernel's arrays: ``request_at(engine, index)`` is the record itself, not a copy.

The engine's record holds the addresses of all arrays. So a compiled function takes the engine and numbers, which keeps
calls and their compilation small (an array is seven values to numba). The arrays must outlive the call: ``Memory``
holds them. There are no bounds checks; tests run the same decisions against the model.
"""

from collections.abc import Callable
from typing import Any, cast

import numba
import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import types
from numba.extending import intrinsic

from tracekit.kernel import layout
from tracekit.kernel.layout import Record

_ENGINE: Any = numba.from_dtype(layout.ENGINE)
_INT64 = ir.IntType(64)


def _load(context: Any, builder: Any, engine: Any, name: str) -> Any:  # noqa: ANN401 - llvmlite values
    """Read an integer of the engine's record."""
    base = builder.ptrtoint(engine, _INT64)
    address = builder.add(base, context.get_constant(types.int64, _ENGINE.offset(name)))
    return builder.load(builder.inttoptr(address, _INT64.as_pointer()))


def _reference(name: str, dtype: np.dtype[Any]) -> Callable[..., Record]:
    """A function ``(engine, index)`` that refers to one record of the array at ``engine.<name>``."""
    record = numba.from_dtype(dtype)

    def at(_typing: Any, engine: Any, index: Any) -> Any:  # noqa: ANN401 - numba types
        def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:  # noqa: ANN401
            number = context.cast(builder, args[1], signature.args[1], types.int64)
            offset = builder.mul(number, context.get_constant(types.int64, dtype.itemsize))
            address = builder.add(_load(context, builder, args[0], name), offset)
            return builder.inttoptr(address, context.get_value_type(record))

        return record(engine, index), build

    return cast("Callable[..., Record]", intrinsic(at))


def _reference_in_row(name: str, width: str, dtype: np.dtype[Any]) -> Callable[..., Record]:
    """A function ``(engine, row, index)`` for an array with ``engine.<width>`` records a row."""
    record = numba.from_dtype(dtype)

    def at(_typing: Any, engine: Any, row: Any, index: Any) -> Any:  # noqa: ANN401
        def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:  # noqa: ANN401
            first = context.cast(builder, args[1], signature.args[1], types.int64)
            number = context.cast(builder, args[2], signature.args[2], types.int64)
            number = builder.add(builder.mul(first, _load(context, builder, args[0], width)), number)
            offset = builder.mul(number, context.get_constant(types.int64, dtype.itemsize))
            address = builder.add(_load(context, builder, args[0], name), offset)
            return builder.inttoptr(address, context.get_value_type(record))

        return record(engine, row, index), build

    return cast("Callable[..., Record]", intrinsic(at))


request_at = _reference("requests_at", layout.REQUEST)
block_at = _reference("blocks_at", layout.BLOCK)
chain_at = _reference("chains_at", layout.CHAIN)
slot_at = _reference("slots_at", layout.SLOT)
hash_at = _reference("hashes_at", layout.HASH)
held_at = _reference_in_row("held_at", "held_width", layout.HELD)
plan_at = _reference("plans_at", layout.PLAN)
entry_at = _reference_in_row("entries_at", "entries_width", layout.ENTRY)
heap_at = _reference("heaps_at", layout.HEAP)
residue_at = _reference("residues_at", layout.RESIDUE)
ending_at = _reference("endings_at", layout.CHAIN)
step_row_at = _reference("step_rows_at", layout.STEP_ROW)
preemption_row_at = _reference("preemption_rows_at", layout.PREEMPTION_ROW)
sample_row_at = _reference("sample_rows_at", layout.SAMPLE_ROW)
sample_instant_at = _reference("sample_instants_at", layout.INSTANT)
recent_at = _reference("recent_at", layout.RECENT)
itl_at = _reference("itl_at", layout.COUNT)
bound_time_at = _reference("bound_times_at", layout.DURATION)
running_time_at = _reference("running_times_at", layout.DURATION)
token_time_at = _reference("token_times_at", layout.PART)
req_time_at = _reference("req_times_at", layout.PART)
