"""Small runs as literals."""

from typing import Any

import polars as pl

from tracekit.run import Run
from tracekit.schema.parquet import conform, polars_schema
from tracekit.schema.tables import TABLES_BY_NAME

SECOND = 1_000_000_000
MS = 1_000_000

Rows = list[dict[str, Any]]


def run(kind: str = "observed", **tables: Rows) -> Run:
    """A run whose named tables hold these rows; unnamed tables are absent, unnamed columns null."""
    frames = {}
    for name, rows in tables.items():
        schema = polars_schema(TABLES_BY_NAME[name])
        full = [{column: row.get(column) for column in schema} for row in rows]
        frames[name] = conform(TABLES_BY_NAME[name], pl.DataFrame(full, schema=schema, orient="row"), "test")
    return Run(kind, frames)  # type: ignore[arg-type]


def request(
    name: str,
    *,
    arrival: float = 0,
    scheduled: float | None = None,
    first: float | None = None,
    last: float | None = None,
    tokens: int | None = None,
    reason: str | None = "stop",
    **more: Any,
) -> dict[str, Any]:
    """A request; instants in ms."""

    def ns(ms: float | None) -> int | None:
        return None if ms is None else round(ms * MS)

    return {
        "request_id": name,
        "arrival_ns": ns(arrival),
        "queued_ns": ns(arrival) if scheduled is not None else None,
        "scheduled_ns": ns(scheduled),
        "first_token_ns": ns(first),
        "last_token_ns": ns(last),
        "finished_ns": ns(last),
        "num_generated_tokens": tokens,
        "finish_reason": reason,
        **more,
    }


def step(
    number: int, start: float, duration: float, running: int, waiting: int = 0, finished: int = 0, **more: Any
) -> dict[str, Any]:
    """A step; times in ms, decided when it starts unless ``scheduled_ns`` says otherwise."""
    return {
        "step": number,
        "start_ns": round(start * MS),
        "duration_ns": round(duration * MS),
        "scheduled_ns": round(start * MS),
        "num_running_reqs": running,
        "num_waiting_reqs": waiting,
        "num_finished_reqs": finished,
        **more,
    }


def sample(
    at: float, running: int | None = None, waiting: int | None = 0, source: str = "log", **more: Any
) -> dict[str, Any]:
    """A periodic sample; time in ms."""
    return {
        "time_ns": round(at * MS),
        "num_running_reqs": running,
        "num_waiting_reqs": waiting,
        "source": source,
        **more,
    }
