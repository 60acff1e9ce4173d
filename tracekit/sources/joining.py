"""Requests seen by several sources of one incident: one row each."""

from collections.abc import Sequence
from typing import Any, Final

import polars as pl

from tracekit.schema.parquet import conform
from tracekit.schema.tables import REQUESTS
from tracekit.sources.observation import Observation
from tracekit.sources.request_rows import unique_ids

_FROM_LOG: Final = (
    "max_tokens",
    "priority",
    "finish_reason",
    "finished_ns",
    "block_hashes",
    "num_prompt_tokens",
    "engine",
)
_CLOSED_LOOP_SHARE: Final = 0.7


def join_requests(observations: Sequence[Observation]) -> tuple[pl.DataFrame | None, list[dict[str, Any]]]:
    """One requests table of all sources, ordered by arrival, and what was left out of it.

    Tables of clients are put one behind the other. A server log's request lines only fill what the clients' rows
    with the same id leave open; where no client table exists they are the requests.
    """
    found = [o for o in observations if o.tables.get("requests") is not None]
    clients = [o for o in found if o.format != "vllm-log"]
    logs = [o for o in found if o.format == "vllm-log"]
    lost: list[dict[str, Any]] = []
    chosen = clients or logs
    if not chosen:
        return None, lost
    merged = pl.concat([conform(REQUESTS, o.tables["requests"], o.file) for o in chosen])
    if clients:
        for log in logs:
            logged = conform(REQUESTS, log.tables["requests"], log.file)
            merged, unmatched = _fill_from_log(merged, logged)
            if unmatched:
                lost.append(
                    {"file": log.file, "what": "request lines without a row in the client's table", "count": unmatched}
                )
    merged = unique_ids(merged)
    return merged.sort("arrival_ns", "request_id", nulls_last=True), lost


def _fill_from_log(requests: pl.DataFrame, logged: pl.DataFrame) -> tuple[pl.DataFrame, int]:
    """Fill nulls from the log's row of the same request; a client id may carry the suffix of its first choice (-0)."""
    key = pl.coalesce("source_request_id", "request_id")
    left = requests.with_columns(key.alias("_key"))
    right = logged.with_columns(key.str.replace(r"-0$", "").alias("_key")).unique("_key", keep="first")
    matched = left.join(right.select("_key", *_FROM_LOG), on="_key", how="left", suffix="_log", maintain_order="left")
    unmatched = right.join(left.select("_key"), on="_key", how="anti").height
    filled = matched.with_columns(pl.coalesce(name, f"{name}_log").alias(name) for name in _FROM_LOG)
    return filled.select(REQUESTS.column_names), unmatched


def looks_closed_loop(requests: pl.DataFrame) -> int | None:
    """The client's bound on requests in flight when arrivals follow completions, else None.

    A client that keeps N in flight sends while N - 1 are: so most arrivals, after the first N, find exactly N - 1.
    """
    done = requests.filter(pl.col("arrival_ns").is_not_null() & pl.col("last_token_ns").is_not_null())
    if done.height < 2:  # noqa: PLR2004 - one request says nothing about a loop
        return None
    arrivals, ends = done["arrival_ns"].sort(), done["last_token_ns"].sort()
    before = pl.Series(range(done.height)) - ends.search_sorted(arrivals, side="right").cast(pl.Int64)
    highest = before.max()
    bound = (highest if isinstance(highest, int) else 0) + 1
    later = before[bound:]
    if later.len() < max(bound, 2):
        return None
    share = float((later == bound - 1).mean() or 0.0)  # type: ignore[arg-type]
    return bound if share >= _CLOSED_LOOP_SHARE else None
