"""From a run's requests to what arrives at the engine: which requests take part, with which lengths and hashes."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import polars as pl

from tracekit.config import EngineConfig
from tracekit.hashing import resize_chain, sizes_fit

_COLUMNS: Final = (
    "request_id", "engine", "arrival_ns", "parent_request_id", "session_id", "think_ns", "num_prompt_tokens",
    "num_output_tokens", "max_tokens", "priority", "block_hashes", "finished_ns", "finish_reason",
)  # fmt: skip


@dataclass(slots=True)
class Arrival:
    """One request of the trace as the client sends it; instants in ns from the run's start, null as in the trace."""

    row: int
    request_id: str
    engine: int | None
    arrival_ns: int | None
    parent_request_id: str | None
    think_ns: int | None
    num_prompt_tokens: int
    num_output_tokens: int
    max_tokens: int | None
    priority: int
    block_hashes: list[int]
    abort_after_ns: int | None
    recorded_end_ns: int | None


@dataclass
class Workload:
    """The arrivals in order of ``(arrival_ns, request_id)``, and how many rows were left out and why."""

    arrivals: list[Arrival]
    left_out: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)


def compressed(requests: pl.DataFrame, rate: float) -> pl.DataFrame:
    """The requests with their arrivals compressed towards the first by ``rate``; sessions keep their think times.

    A later turn keeps its distance from the first turn of its session, and every request its own distance from arrival
    to end.
    """
    first = requests["arrival_ns"].min()
    if rate == 1 or not isinstance(first, int):
        return requests
    arrival = pl.col("arrival_ns")
    shift = (first + ((arrival - first) / rate).round().cast(pl.Int64)) - arrival
    shifts = requests.select("request_id", "parent_request_id", shift.alias("shift"))
    by_id = dict(zip(shifts["request_id"], shifts["shift"], strict=True))
    parents = {child: parent for child, parent, _ in shifts.rows() if parent in by_id}
    if parents:
        moved = [by_id[_first_turn(name, parents)] for name in shifts["request_id"]]
        shifts = shifts.with_columns(shift=pl.Series(moved, dtype=pl.Int64))
    return requests.with_columns(
        arrival_ns=arrival + shifts["shift"], finished_ns=pl.col("finished_ns") + shifts["shift"]
    )


def _first_turn(request_id: str, parents: Mapping[str, str]) -> str:
    seen = {request_id}
    while (parent := parents.get(request_id)) is not None and parent not in seen:
        request_id = parent
        seen.add(parent)
    return request_id


def workload_of(requests: pl.DataFrame, engine: EngineConfig, hash_block_size: int | None) -> Workload:
    """Turn a requests table into arrivals.

    ``hash_block_size``: tokens an entry of ``block_hashes`` stands for (null: the engine's block size); where it does
    not fit the engine's block size the hashes are dropped, with a note. Where neither ``max_tokens`` nor a stop is
    recorded, the output is taken to end at its limit, which the scheduler foresees (benchmarks ignore EOS). Left out
    and counted: rows that never entered the engine (rejected), rows without lengths, rows without an arrival or a
    parent to follow.
    """
    workload = Workload([])
    stored = hash_block_size or engine.block_size
    use_hashes = engine.enable_prefix_caching
    if (
        use_hashes
        and not sizes_fit(stored, engine.block_size)
        and requests["block_hashes"].null_count() < requests.height
    ):
        workload.notes.append(
            f"block hashes of {stored} tokens do not fit blocks of {engine.block_size}: every prompt is taken as unique"
        )
        use_hashes = False
    ordered = requests.select(_COLUMNS).with_row_index("row").sort("arrival_ns", "request_id", nulls_last=True)
    num_empty = requests.filter(num_output_tokens=0).height
    if num_empty:
        workload.notes.append(f"{num_empty:,} requests of output length 0 get the one token that every prefill yields")
    known_ids = set(ordered["request_id"])
    orphans = requests.filter(pl.col("parent_request_id").is_not_null() & ~pl.col("parent_request_id").is_in(known_ids))
    if orphans.height:
        workload.notes.append(
            f"{orphans.height:,} requests name a parent that is no request_id of this trace: they count as first turns"
        )
    for row in ordered.iter_rows(named=True):
        reason = _why_left_out(row, known_ids)
        if reason:
            workload.left_out[reason] += 1
            continue
        hashes = (
            resize_chain(row["block_hashes"], stored, engine.block_size) if use_hashes and row["block_hashes"] else []
        )
        workload.arrivals.append(_arrival(row, hashes, engine.max_model_len))
    if use_hashes:
        _name_generated_blocks(workload.arrivals, engine.block_size)
    return workload


def _why_left_out(row: Mapping[str, Any], known_ids: set[str]) -> str | None:
    if row["finish_reason"] == "rejected":
        return "refused before the engine saw it (HTTP 4xx)"
    if not row["num_prompt_tokens"]:
        return "prompt length unknown or 0"
    if row["num_output_tokens"] is None and row["max_tokens"] is None and row["finish_reason"] != "abort":
        return "output length unknown"
    if row["arrival_ns"] is None and row["parent_request_id"] not in known_ids:
        return "no arrival time and no earlier turn to follow"
    return None


def _arrival(row: Mapping[str, Any], hashes: list[int], max_model_len: int) -> Arrival:
    arrival = row["arrival_ns"]
    aborted = row["finish_reason"] == "abort" and row["finished_ns"] is not None and arrival is not None
    output = row["num_output_tokens"]
    if output is None or aborted:
        # How long an aborted request would have run is unknown: until its limit, or the model's.
        output = row["max_tokens"] or max(output or 0, max_model_len - row["num_prompt_tokens"])
    return Arrival(
        row=row["row"],
        request_id=row["request_id"],
        engine=row["engine"],
        arrival_ns=arrival,
        parent_request_id=row["parent_request_id"],
        think_ns=row["think_ns"],
        num_prompt_tokens=row["num_prompt_tokens"],
        num_output_tokens=max(output, 1),
        max_tokens=row["max_tokens"] or (None if row["finish_reason"] == "stop" else max(output, 1)),
        priority=row["priority"] or 0,
        block_hashes=hashes,
        recorded_end_ns=row["finished_ns"],
        abort_after_ns=max(0, row["finished_ns"] - arrival) if aborted else None,
    )


def _name_generated_blocks(arrivals: list[Arrival], block_size: int) -> None:
    """Give a parent the hashes of the blocks it will generate: a child's hashes behind the parent's prompt name them."""
    by_id = {arrival.request_id: arrival for arrival in arrivals}
    for child, parent in _turns(arrivals, by_id):
        held = len(parent.block_hashes)
        end = (parent.num_prompt_tokens + parent.num_output_tokens) // block_size
        prompt_is_named = held >= parent.num_prompt_tokens // block_size
        if prompt_is_named and child.block_hashes[:held] == parent.block_hashes:
            parent.block_hashes = parent.block_hashes + child.block_hashes[held:end]


def _turns(arrivals: list[Arrival], by_id: Mapping[str, Arrival]) -> Iterator[tuple[Arrival, Arrival]]:
    for child in arrivals:
        parent = by_id.get(child.parent_request_id) if child.parent_request_id is not None else None
        if parent is not None and parent is not child:
            yield child, parent
