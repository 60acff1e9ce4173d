"""From the kernel's records to the tables of a run: the same columns, order and types as ``Recording.tables``."""

from typing import Any

import numpy as np
import polars as pl

from tracekit.kernel.layout import BOUNDS, FINISH_REASONS, NEVER, UNSENT
from tracekit.kernel.memory import Memory
from tracekit.replay.compiled_columns import Column, Columns
from tracekit.replay.record import distributions_of
from tracekit.schema.parquet import empty, polars_schema
from tracekit.schema.tables import ENGINE_STATS, PREEMPTIONS, REQUESTS, STEPS

_KEPT = (
    "request_id", "source_request_id", "parent_request_id", "session_id", "think_ns", "num_prompt_tokens",
    "num_output_tokens", "max_tokens", "priority", "block_hashes",
)  # fmt: skip
_INSTANTS = ("arrival_ns", "queued_ns", "scheduled_ns", "first_token_ns", "last_token_ns", "finished_ns")


def tables_of(trace: pl.DataFrame, columns: Columns, memory: Memory) -> dict[str, pl.DataFrame]:
    """The recorded tables; ``trace`` gives the arrival columns of the requests."""
    tables = {
        "requests": _requests(trace, columns, memory),
        "steps": _steps(memory, columns.engine),
        "preemptions": _preemptions(trace, columns, memory),
        "distributions": _distributions(memory, columns.engine),
    }
    samples = _samples(memory, columns.engine)
    if samples.height:
        tables["engine_stats"] = samples
    return tables


def _integers(column: Column, *, null: int | None = None) -> pl.Series:
    series = pl.Series(np.ascontiguousarray(column)).cast(pl.Int64)
    return series if null is None else series.set(series == null, None)


def _names(texts: pl.Series | tuple[str, ...], codes: Column) -> pl.Series:
    return pl.Series(texts, dtype=pl.String).gather(np.ascontiguousarray(codes).astype(np.uint32))


def _requests(trace: pl.DataFrame, columns: Columns, memory: Memory) -> pl.DataFrame:
    requests = memory.arrays["requests"]
    sent = requests["status"] != UNSENT
    everyone = bool(sent.all())
    found = requests if everyone else requests[sent]
    rows = columns.rows if everyone else columns.rows[sent]
    became: dict[str, Any] = {name: _integers(found[name], null=NEVER) for name in _INSTANTS}
    cached = _integers(found["num_cached_tokens"])
    became |= {
        "engine": pl.Series([columns.engine], dtype=pl.Int32).new_from_index(0, len(found)),
        "num_generated_tokens": _integers(found["num_tokens"] - found["num_prompt_tokens"]),
        "num_cached_tokens": cached.set(became["scheduled_ns"].is_null(), None),
        "num_preemptions": _integers(found["num_preemptions"]),
        "num_recomputed_tokens": _integers(found["num_recomputed_tokens"]),
        "finish_reason": _names(FINISH_REASONS, found["finish_reason"]),
    }
    in_place = len(rows) == trace.height and bool((rows == np.arange(len(rows))).all())
    arrived = trace.select(_KEPT) if in_place else trace.select(pl.col(_KEPT).gather(rows))
    frame = arrived.with_columns(**became)
    refused = trace.filter(finish_reason="rejected").select(
        *_KEPT, "engine", "arrival_ns", "finish_reason", "finished_ns"
    )
    if refused.height:
        frame = pl.concat([frame, refused], how="diagonal")
    if not frame.height:
        return empty(REQUESTS)
    frame = frame.select(c for c in REQUESTS.column_names if c in frame.columns)
    arrival = found["arrival_ns"]
    if not refused.height and len(arrival) == columns.num_open and bool((arrival[1:] > arrival[:-1]).all()):
        return frame
    return frame.sort("arrival_ns", "request_id")


def _steps(memory: Memory, engine: int) -> pl.DataFrame:
    rows = memory.arrays["step_rows"][: int(memory.engine["num_step_rows"])]
    data: dict[str, Any] = {}
    for name in polars_schema(STEPS):
        if name == "engine":
            data[name] = pl.Series([engine], dtype=pl.Int32).new_from_index(0, len(rows))
        elif name == "bound_by":
            data[name] = _names(BOUNDS, rows[name])
        else:
            data[name] = pl.Series(np.ascontiguousarray(rows[name]))
    return pl.DataFrame(data, schema=polars_schema(STEPS))


def _preemptions(trace: pl.DataFrame, columns: Columns, memory: Memory) -> pl.DataFrame:
    rows = memory.arrays["preemption_rows"][: int(memory.engine["num_preemption_rows"])]
    ids = trace["request_id"]
    data = {
        "step": _integers(rows["step"]),
        "time_ns": _integers(rows["time_ns"]),
        "engine": pl.Series([columns.engine], dtype=pl.Int32).new_from_index(0, len(rows)),
        "request_id": _names(ids, columns.rows[rows["request"]]),
        "needed_by_request_id": _names(ids, columns.rows[rows["needed_by"]]),
        "num_computed_tokens": _integers(rows["num_computed_tokens"]),
        "num_blocks": _integers(rows["num_blocks"]),
        "resumed_step": _integers(rows["resumed_step"], null=-1),
    }
    return pl.DataFrame(data, schema=polars_schema(PREEMPTIONS))


def _distributions(memory: Memory, engine: int) -> pl.DataFrame:
    gaps, durations = memory.arrays["itl"]["count"], memory.arrays["running_times"]["duration_ns"]
    itl = [(None, bucket_low_of(bucket), int(gaps[bucket])) for bucket in np.flatnonzero(gaps).tolist()]
    running = [(engine, number, int(durations[number])) for number in np.flatnonzero(durations).tolist()]
    return distributions_of(itl, running)


def bucket_low_of(bucket: int) -> int:
    """The lower edge in ns of a bucket that the kernel counted (its number is ``kernel.recording.itl_bucket``)."""
    shift = max(0, bucket // 64 - 1)
    return (bucket - 64 * shift) << shift


def _samples(memory: Memory, engine: int) -> pl.DataFrame:
    rows = memory.arrays["sample_rows"][: int(memory.engine["num_sample_rows"])]
    schema = polars_schema(ENGINE_STATS)
    data: dict[str, Any] = {name: [None] * len(rows) for name in schema}
    for name in rows.dtype.names or ():
        data[name] = pl.Series(np.ascontiguousarray(rows[name]))
    data["prefix_hit_rate"] = data["prefix_hit_rate"].set(data["prefix_hit_rate"] < 0, None)
    data["engine"], data["source"] = [engine] * len(rows), ["replay"] * len(rows)
    return pl.DataFrame(data, schema=schema)
