"""The figures of one run alone: what a replay without an observed side prints."""

from typing import Any

from tracekit.compare.database import connect
from tracekit.compare.queries import named_query
from tracekit.run import Run


def summarise(run: Run) -> dict[str, list[dict[str, Any]]]:
    """The rows of the queries ``latency_stats``, ``totals`` and ``concurrency_quantiles``, by the query's name."""
    found: dict[str, list[dict[str, Any]]] = {}
    with connect({"run": run}) as connection:
        for name in ("latency_stats", "totals", "concurrency_quantiles"):
            text = named_query(name).sql
            result = connection.execute(text, {"from_ns": None} if "$from_ns" in text else None)
            columns = [column[0] for column in result.description or ()]
            found[name] = [dict(zip(columns, row, strict=True)) for row in result.fetchall()]
    return found
