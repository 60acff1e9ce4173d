"""From a run's requests to the kernel's request records, column by column: what ``workload`` and ``clients`` do."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl

from tracekit.config import EngineConfig
from tracekit.hashing import sizes_fit
from tracekit.kernel.layout import NONE
from tracekit.kernel.memory import empty_requests
from tracekit.kernel.prepare import name_generated_blocks
from tracekit.model.rules import Rules
from tracekit.replay.clients import ArrivalMode

Column = np.ndarray[Any, np.dtype[Any]]

REFUSALS = (
    "prompt leaves no room for output within max_model_len",
    "longer than the whole KV cache",
)
_LARGEST = 2**31 - 1


@dataclass
class Columns:
    """The kernel's requests (those with an arrival of their own first), and the trace's row of each."""

    requests: Column
    hashes: Column
    rows: Column
    num_open: int
    num_arrivals: int
    engine: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)


def columns_of(
    trace: pl.DataFrame,
    config: EngineConfig,
    rules: Rules,
    mode: ArrivalMode,
    hash_block_size: int | None,
) -> Columns:
    """Settle which requests take part and what the kernel knows of them; the same as ``workload_of`` and ``Clients``."""
    notes: list[str] = []
    stored = hash_block_size or config.block_size
    use_hashes = config.enable_prefix_caching
    has_hashes = trace["block_hashes"].null_count() < trace.height
    if use_hashes and has_hashes and not sizes_fit(stored, config.block_size):
        notes.append(
            f"block hashes of {stored} tokens do not fit blocks of {config.block_size}: every prompt is taken as unique"
        )
        use_hashes = False
    num_empty = trace.filter(num_output_tokens=0).height
    if num_empty:
        notes.append(f"{num_empty:,} requests of output length 0 get the one token that every prefill yields")
    if _has_parents(trace):
        known = pl.col("parent_request_id").is_in(trace["request_id"].implode())
        num_orphans = trace.filter(pl.col("parent_request_id").is_not_null() & ~known).height
        if num_orphans:
            notes.append(
                f"{num_orphans:,} requests name a parent that is no request_id of this trace: they count as first turns"
            )
    ordered = trace.with_row_index("row").sort("arrival_ns", "request_id", nulls_last=True)
    ordered, left_out = _leave_out(ordered)
    arrivals = _arrivals(ordered, config.max_model_len)
    parents = _parents(ordered)
    has_parent = (parents != NONE) & (parents != np.arange(len(parents)))
    follows = arrivals["arrival_ns"].is_null().to_numpy() | (mode.closed_loop & (parents != NONE))
    is_turn = follows & has_parent
    is_open = ~is_turn & arrivals["arrival_ns"].is_not_null().to_numpy()
    num_lost = int((~is_turn & ~is_open).sum())
    if num_lost:
        left_out["no arrival time and no earlier turn to follow"] += num_lost
    taken = np.concatenate([np.flatnonzero(is_open), np.flatnonzero(is_turn)])
    requests = empty_requests(len(taken))
    hashes = _fill_hashes(requests, ordered, arrivals, parents, taken, stored, config, use=use_hashes and has_hashes)
    _fill(requests, arrivals, taken, config, rules)
    _fill_turns(requests, arrivals, parents, taken, is_turn)
    if _needs_rank(config, arrivals):
        rank = arrivals["request_id"].rank("ordinal").to_numpy()
        requests["rank"] = rank[taken]
    engines = arrivals["engine"].drop_nulls().unique().to_list()
    return Columns(
        requests, hashes, arrivals["row"].to_numpy()[taken], int(is_open.sum()), arrivals.height,
        engines[0] if engines else 0, left_out, notes,
    )  # fmt: skip


def _leave_out(ordered: pl.DataFrame) -> tuple[pl.DataFrame, Counter[str]]:
    """Drop and count the rows that cannot be replayed."""
    known = (
        pl.col("parent_request_id").is_in(ordered["request_id"].implode())
        if _has_parents(ordered)
        else pl.lit(value=False)
    )
    reason = (
        pl.when(pl.col("finish_reason").eq("rejected").fill_null(value=False))
        .then(pl.lit("refused before the engine saw it (HTTP 4xx)"))
        .when(pl.col("num_prompt_tokens").fill_null(0) == 0)
        .then(pl.lit("prompt length unknown or 0"))
        .when(
            pl.col("num_output_tokens").is_null()
            & pl.col("max_tokens").is_null()
            & pl.col("finish_reason").ne("abort").fill_null(value=True)
        )
        .then(pl.lit("output length unknown"))
        .when(pl.col("arrival_ns").is_null() & ~known.fill_null(value=False))
        .then(pl.lit("no arrival time and no earlier turn to follow"))
    )
    reasons = ordered.select(reason.alias("reason"))["reason"]
    if reasons.null_count() == ordered.height:
        return ordered, Counter()
    counts: Counter[str] = Counter()
    for what, count in reasons.drop_nulls().value_counts().iter_rows():
        counts[what] += count
    return ordered.filter(reasons.is_null()), counts


def _has_parents(frame: pl.DataFrame) -> bool:
    return frame["parent_request_id"].null_count() < frame.height


def _arrivals(ordered: pl.DataFrame, max_model_len: int) -> pl.DataFrame:
    """What ``workload._arrival`` makes of a row, for all rows."""
    aborted = pl.col("finish_reason").eq("abort").fill_null(value=False) & pl.col("finished_ns").is_not_null()
    aborted &= pl.col("arrival_ns").is_not_null()
    limit = pl.when(pl.col("max_tokens") != 0).then(pl.col("max_tokens"))
    unlimited = pl.max_horizontal(
        pl.col("num_output_tokens").fill_null(0), pl.lit(max_model_len, pl.Int64) - pl.col("num_prompt_tokens")
    )
    output = pl.when(pl.col("num_output_tokens").is_null() | aborted).then(limit.fill_null(unlimited))
    produced = pl.max_horizontal(output.otherwise(pl.col("num_output_tokens")), pl.lit(1, pl.Int64))
    return ordered.select(
        "row",
        "request_id",
        "engine",
        "think_ns",
        "num_prompt_tokens",
        pl.col("priority").fill_null(0),
        pl.col("finished_ns").alias("recorded_end_ns"),
        produced.alias("num_output_tokens"),
        pl.when(limit.is_not_null())
        .then(limit)
        .when(pl.col("finish_reason").ne("stop").fill_null(value=True))
        .then(produced)
        .alias("max_tokens"),
        pl.when(aborted)
        .then((pl.col("finished_ns") - pl.col("arrival_ns")).clip(lower_bound=0))
        .alias("abort_after_ns"),
        "arrival_ns",
    )


def _parents(ordered: pl.DataFrame) -> Column:
    """The position of each request's parent, or ``NONE``."""
    if not _has_parents(ordered):
        return np.full(ordered.height, NONE, np.int64)
    positions = ordered.select(pl.col("request_id").alias("parent_request_id")).with_row_index("position")
    joined = ordered.select("parent_request_id").join(
        positions, on="parent_request_id", how="left", maintain_order="left"
    )
    return joined["position"].cast(pl.Int64).fill_null(NONE).to_numpy()


def _fill(requests: Column, arrivals: pl.DataFrame, taken: Column, config: EngineConfig, rules: Rules) -> None:
    prompt = arrivals["num_prompt_tokens"].to_numpy()[taken]
    output = arrivals["num_output_tokens"].to_numpy()[taken]
    given = arrivals["max_tokens"].fill_null(NONE).to_numpy()[taken]
    limited = np.where(given >= 0, given, config.max_model_len)
    # A sum cannot overflow: whoever asks for more than max_model_len gets what fits it.
    longest = np.minimum(config.max_model_len, prompt + np.minimum(limited, config.max_model_len))
    requests["stop_length"] = np.minimum(longest, prompt + np.minimum(output, config.max_model_len))
    requests["schedule_limit"] = (longest if rules.foresees_max_tokens else config.max_model_len) - 1
    requests["max_tokens"] = np.minimum(given, _LARGEST)
    requests["num_prompt_tokens"] = np.minimum(prompt, _LARGEST)
    requests["num_tokens"] = requests["num_prompt_tokens"]
    requests["priority"] = arrivals["priority"].to_numpy()[taken]
    requests["order"] = taken
    requests["due_ns"] = arrivals["arrival_ns"].fill_null(0).to_numpy()[taken]
    requests["abort_after_ns"] = arrivals["abort_after_ns"].fill_null(NONE).to_numpy()[taken]
    wanted = np.minimum(np.minimum(output, np.where(given >= 0, given, output)), config.max_model_len)
    needed = np.minimum(prompt + wanted, config.max_model_len) - 1
    too_large = -(-needed // config.block_size) > config.num_gpu_blocks - rules.has_null_block
    requests["refused"] = np.where(prompt >= config.max_model_len, 1, np.where(too_large, 2, 0))


def _fill_turns(requests: Column, arrivals: pl.DataFrame, parents: Column, taken: Column, is_turn: Column) -> None:
    """Link the later turns to their parents, each parent's in order, with their think times."""
    if not is_turn.any():
        return
    place = np.full(len(parents), NONE, np.int64)
    place[taken] = np.arange(len(taken))
    ends = arrivals["recorded_end_ns"]
    turns = np.flatnonzero(is_turn)
    recorded = arrivals[turns]["arrival_ns"] - ends[parents[turns]]
    think = arrivals[turns]["think_ns"].fill_null(recorded.clip(lower_bound=0)).fill_null(0).to_numpy()
    requests["think_ns"][place[turns]] = think
    last: dict[int, int] = {}
    for turn, parent in zip(place[turns].tolist(), place[parents[turns]].tolist(), strict=True):
        if parent == NONE:
            continue
        if parent in last:
            requests["next_turn"][last[parent]] = turn
        else:
            requests["first_turn"][parent] = turn
        last[parent] = turn


def _needs_rank(config: EngineConfig, arrivals: pl.DataFrame) -> bool:
    return config.scheduling_policy == "priority" or arrivals["abort_after_ns"].null_count() < arrivals.height


def _fill_hashes(
    requests: Column,
    ordered: pl.DataFrame,
    arrivals: pl.DataFrame,
    parents: Column,
    taken: Column,
    stored: int,
    config: EngineConfig,
    *,
    use: bool,
) -> Column:
    """Say which part of all block hashes each request has; hashes are resized to the engine's blocks."""
    if not use:
        return np.zeros(1, np.int64)
    lists = ordered["block_hashes"].fill_null([])
    counts = lists.list.len().to_numpy().astype(np.int64)
    values = lists.explode(empty_as_null=False).to_numpy() if counts.sum() else np.zeros(0, np.uint64)
    values, counts = resize_all(values, counts, stored, config.block_size)
    starts = np.cumsum(counts) - counts
    hashes = np.append(values, np.uint64(0)).view(np.int64)
    if (parents != NONE).any():
        name_generated_blocks(
            hashes, starts, counts, parents,
            arrivals["num_prompt_tokens"].to_numpy(), arrivals["num_output_tokens"].to_numpy(), config.block_size,
        )  # fmt: skip
    requests["hashes_start"] = starts[taken]
    requests["num_hashes"] = counts[taken]
    return hashes


def resize_all(values: Column, counts: Column, stored: int, block_size: int) -> tuple[Column, Column]:
    """``hashing.resize_chain`` for all requests at once: the hashes, and how many each request has."""
    if stored == block_size:
        return values, counts
    if block_size % stored == 0:
        stride = block_size // stored
        position = np.arange(len(values)) - np.repeat(np.cumsum(counts) - counts, counts)
        return values[position % stride == stride - 1], counts // stride
    parts = stored // block_size
    resized = np.empty((len(values), parts), np.uint64)
    for number in range(1, parts):
        resized[:, number - 1] = _mix(values ^ np.uint64(2**64 - 1), number)
    resized[:, parts - 1] = values
    return resized.ravel(), counts * parts


def _mix(parents: Column, value: int) -> Column:
    """``hashing.mix`` on a column; 64-bit arithmetic wraps."""
    z = parents * np.uint64(0x9E3779B97F4A7C15) + np.uint64((value + 0x632BE59BD9B4E019) % 2**64)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
