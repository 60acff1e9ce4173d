"""From what the reader gathered to the tables of an observation."""

from collections.abc import Sequence
from typing import Any, Final

import polars as pl

from tracekit.schema.parquet import polars_schema
from tracekit.schema.tables import EVENTS, REQUESTS
from tracekit.sources.vllm_log.clock import Calendar
from tracekit.sources.vllm_log.prompt_hashes import hash_lists
from tracekit.sources.vllm_log.requests import Request
from tracekit.sources.vllm_log.rows import Event
from tracekit.sources.vllm_log.starts import WhereOf

SECOND: Final = 1_000_000_000
WARNING_STRIDE: Final = 50
"""V0 warns at every 50th preemption."""

NO_ACCESS: Final = pl.DataFrame(schema={"line": pl.Int64, "status": pl.Int64, "time": pl.Int64})


def frame_of(rows: Sequence[dict[str, Any]], table: Any) -> pl.DataFrame:  # noqa: ANN401 - a schema Table
    """Rows as a frame of a table, with ``line`` and ``time`` beside its columns."""
    names = rows[0].keys() if rows else ()
    return _frame({name: [row[name] for row in rows] for name in names}, table)


def _frame(columns: dict[str, list[Any]], table: Any) -> pl.DataFrame:  # noqa: ANN401 - a schema Table
    schema = polars_schema(table) | {"line": pl.Int64, "time": pl.Int64, "finished": pl.Int64}
    return pl.DataFrame([pl.Series(name, values, dtype=schema[name]) for name, values in columns.items()])


def placed(frame: pl.DataFrame, calendar: Calendar | None, column: str = "time") -> pl.DataFrame:
    """Turn stamps into instants; without a calendar they are instants already."""
    if calendar is None or not frame.height:
        return frame
    return calendar.instants(frame.rename({column: "time"})).rename({"time": column})


def engine_stats(rows: pl.DataFrame, warnings: Sequence[Event], first_line: int | None) -> pl.DataFrame:
    """One row a statistics line. V0's preemption warnings bound its cumulative count.

    V0 warns at the 1st, 51st, 101st ... preemption and names that number, so after a warning of ``n`` there were n to
    n + 49, and before the first of a start there was none (``first_line``: where the start begins, None when the log
    is cut before it). No V1 version prints preemptions.
    """
    pending = sorted(warnings, key=lambda event: event.line)
    lines = pl.Series([event.line for event in pending], dtype=pl.Int64)
    told = pl.Series([None if first_line is None else 0, *(int(e.value or 0) for e in pending)], dtype=pl.Int64)
    known = told.gather(lines.search_sorted(rows["line"], side="left"))
    low = pl.when("warns").then(known)
    return rows.with_columns(
        num_preemptions_min=low,
        num_preemptions_max=pl.when(low > 0).then(low + (WARNING_STRIDE - 1)).otherwise(low),
        source=pl.lit("log"),
    ).drop("warns")


def steps(rows: pl.DataFrame, *, exact: bool) -> pl.DataFrame:
    """One row an iteration line; ``time`` must be an instant, ``exact`` tells that it has more than seconds.

    The line is printed after the step, with the second only. The steps that a second names are laid into it one after
    the other: back to back from its start while their durations fit, else shortened evenly (asynchronous steps overlap,
    so that their durations add up to more). Thus every step ends in the second in which it was printed, instants never
    go back, and each is right to a second. ``duration_ns`` stays as logged: from scheduling to result.
    """
    of_engine = ["engine", "run"]
    ordered = rows.with_columns(run=(pl.col("time").diff().over("engine").fill_null(0) != 0).cum_sum().over("engine"))
    if exact:
        end = pl.col("time")
    else:
        done = pl.col("duration_ns").cum_sum().over(of_engine)
        total = pl.col("duration_ns").sum().over(of_engine)
        scale = pl.when(total > SECOND).then(SECOND / total).otherwise(1.0)
        end = pl.col("time") + (done * scale).round().cast(pl.Int64)
    ended = ordered.with_columns(end=end).with_columns(before=pl.col("end").shift(1).over("engine"))
    start = pl.max_horizontal(pl.col("end") - pl.col("duration_ns"), pl.col("before"))
    return ended.select(
        "step",
        "engine",
        pl.min_horizontal(start, pl.col("end")).alias("start_ns"),
        "duration_ns",
        (pl.col("context_reqs") + pl.col("decode_reqs")).alias("num_scheduled_reqs"),
        (pl.col("context_tokens") + pl.col("decode_tokens")).alias("num_scheduled_tokens"),
        pl.col("decode_reqs").alias("num_decode_reqs"),
        "kv_cache_usage",
    )


def requests(rows: Sequence[Request]) -> pl.DataFrame:
    """One row a request. Inside a second the order of lines is kept by a nanosecond each."""
    seen: dict[str, int] = {}
    counts = []
    for row in rows:
        seen[row.source_id] = count = seen.get(row.source_id, 0) + 1
        counts.append(count)
    columns: dict[str, list[Any]] = {
        "line": [row.line for row in rows],
        "time": [row.time for row in rows],
        "finished": [row.finished for row in rows],
        "request_id": [
            row.source_id if count == 1 else f"{row.source_id}#{count}" for row, count in zip(rows, counts, strict=True)
        ],
        "source_request_id": [None if count == 1 else row.source_id for row, count in zip(rows, counts, strict=True)],
        "max_tokens": [row.max_tokens for row in rows],
        "num_prompt_tokens": [row.num_prompt_tokens for row in rows],
        "finish_reason": [row.finish_reason for row in rows],
        "num_generated_tokens": [row.num_generated_tokens for row in rows],
    }
    hashes = hash_lists([row.block_hashes for row in rows]).alias("block_hashes")
    frame = _frame(columns, REQUESTS).with_columns(hashes)
    return frame.with_columns(tie=pl.int_range(pl.len()).over("time"))


def events(rows: Sequence[Event], access: pl.DataFrame, where: WhereOf) -> pl.DataFrame:
    """The rows of events, access lines among them, in the order of lines."""
    made = [
        {
            "line": e.line,
            "time": e.time,
            "kind": e.kind,
            "request_id": e.request_id,
            "value": e.value,
            "engine": e.engine,
        }
        for e in rows
    ]
    frames = []
    if made:
        frames.append(frame_of(made, EVENTS))
    if access.height:
        frames.append(
            access.select(
                "line", "time", pl.lit("access").alias("kind"), pl.col("status").cast(pl.Float64).alias("value")
            )
        )
    if not frames:
        return pl.DataFrame()
    merged = pl.concat(frames, how="diagonal").sort("line", maintain_order=True)
    return merged.with_columns(where.columns(merged["line"]))
