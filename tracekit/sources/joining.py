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
_SERVER_SIDE: Final = ("otlp",)
"""Formats whose instants are the server's own."""
_INSTANTS: Final = (
    "arrival_ns",
    "queued_ns",
    "scheduled_ns",
    "first_token_ns",
    "last_token_ns",
    "finished_ns",
    "itl_ns",
)
_CLOSED_LOOP_SHARE: Final = 0.7


def join_requests(observations: Sequence[Observation]) -> tuple[pl.DataFrame | None, list[dict[str, Any]]]:
    """One requests table of all sources, ordered by arrival, and what was left out of it.

    Tables of clients are put one behind the other. What the server measured of the same requests (spans) takes the
    place of the client's instants, which are kept as ``client_*``. A server log's request lines only fill what rows
    with the same id leave open; where no other table exists they are the requests.
    """
    found = [o for o in observations if o.tables.get("requests") is not None]
    logs = [o for o in found if o.format == "vllm-log"]
    servers = [o for o in found if o.format in _SERVER_SIDE]
    clients = [o for o in found if o.format not in {"vllm-log", *_SERVER_SIDE}]
    lost: list[dict[str, Any]] = []
    chosen = clients or servers or logs
    if not chosen:
        return None, lost
    alone = len(found) == len(chosen)
    frames = [conform(REQUESTS, o.tables["requests"], o.file, fill=not alone) for o in chosen]
    merged = pl.concat(frames, how="diagonal")
    if clients:
        for server in servers:
            merged = _with_server(merged, conform(REQUESTS, server.tables["requests"], server.file))
    if chosen is not logs:
        for log in logs:
            logged = conform(REQUESTS, log.tables["requests"], log.file)
            merged, unmatched = _fill_from_log(merged, logged, by_server=not clients)
            if unmatched:
                lost.append(
                    {"file": log.file, "what": "request lines without a row in the client's table", "count": unmatched}
                )
    merged = unique_ids(merged)
    merged = merged.sort([name for name in ("arrival_ns", "request_id") if name in merged.columns], nulls_last=True)
    # Millions of nulls take room: columns that no source has are added last.
    return conform(REQUESTS, merged, "requests"), lost


def _keyed(requests: pl.DataFrame, *, by_server: bool) -> pl.DataFrame:
    """The rows with ``_key``: the id as the client gave it.

    vLLM makes ``cmpl-ID-0`` (with the number of the choice, which the client never sees) and ``chatcmpl-ID`` of the
    ``ID`` that a client sends along; a client may note its own or the one in the response.
    """
    name = pl.coalesce("source_request_id", "request_id")
    if by_server:
        name = name.str.replace(r"^(cmpl-.*)-[0-9]+$", "$1")
    return requests.with_columns(name.str.replace(r"^(?:chat|chatcmpl|cmpl)-", "").alias("_key"))


def _with_server(clients: pl.DataFrame, server: pl.DataFrame) -> pl.DataFrame:
    """The client's rows with the server's instants where it has the request, else as they are; then the server's others."""
    left = _keyed(clients, by_server=False)
    right = _keyed(server, by_server=True).unique("_key", keep="first", maintain_order=True)
    names = [name for name in REQUESTS.column_names if name not in {"request_id", "source_request_id"}]
    matched = left.join(
        right.select("_key", *names, _seen=pl.lit(value=True)),
        on="_key",
        how="left",
        suffix="_server",
        maintain_order="left",
    )
    seen = pl.col("_seen").fill_null(value=False)
    own = {
        "client_send_ns": "arrival_ns",
        "client_first_token_ns": "first_token_ns",
        "client_last_token_ns": "last_token_ns",
    }
    filled = matched.with_columns(
        *(pl.coalesce(name, f"{name}_server").alias(name) for name in names if name not in {*own, *_INSTANTS}),
        # All of a row's instants are of one clock and one boundary.
        *(pl.when(seen).then(f"{name}_server").otherwise(name).alias(name) for name in _INSTANTS),
        *(pl.coalesce(name, pl.when(seen).then(source)).alias(name) for name, source in own.items()),
    ).with_columns(arrival_ns=pl.coalesce("arrival_ns", "client_send_ns"))
    others = right.join(left.select("_key"), on="_key", how="anti")
    return pl.concat([filled.select(REQUESTS.column_names), others.select(REQUESTS.column_names)])


def _fill_from_log(requests: pl.DataFrame, logged: pl.DataFrame, *, by_server: bool) -> tuple[pl.DataFrame, int]:
    """Fill nulls from the log's row of the same request."""
    left = _keyed(requests, by_server=by_server)
    right = _keyed(logged, by_server=True).unique("_key", keep="first")
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
