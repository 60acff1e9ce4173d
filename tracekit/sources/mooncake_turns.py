"""Sessions of a Mooncake dialect: a later turn's row gives what was added behind the parent's prompt and output."""

from typing import Any

import polars as pl

from tracekit.hashing import mix, opaque_id
from tracekit.sources.observation import Observation


def with_turns(frame: pl.DataFrame, block_size: int, observation: Observation) -> pl.DataFrame:
    """Link the rows of each session to the turn before and give the later ones their whole prompt.

    A row whose ids start with the whole parent's has its whole prompt already. Another one with a delay adds its tokens
    to the parent's prompt and output; it arrives its delay after the parent's end, not at a time of its own. The rest
    stands for itself. What a turn adds starts within a block, so its own ids cannot be chained: blocks behind the
    parent's prompt get names that no other session has. Needs unique ``request_id``; rows in source order.
    """
    shared = pl.col("session_id").is_not_null() & (pl.len().over("session_id") > 1)
    at = frame.select(shared.arg_true())[:, 0].to_list()
    if not at:
        return frame
    missing = [
        pl.lit(None).alias(name)
        for name in ("think_ns", "block_hashes", "parent_request_id")
        if name not in frame.columns
    ]
    frame = frame.with_columns(missing)
    rows = frame.to_dicts() if len(at) == frame.height else frame[at].to_dicts()
    last: dict[str, dict[str, Any]] = {}
    num_later = num_added = 0
    for row in rows:
        parent = last.get(row["session_id"])
        if parent is not None:
            is_added = _follow(row, parent)
            num_added += is_added
            num_later += row["parent_request_id"] is not None
        row["block_hashes"] = _named(
            row["block_hashes"] or [], row["num_prompt_tokens"] // block_size, row["request_id"]
        )
        last[row["session_id"]] = row
    if not num_later:
        return frame
    observation.hash_block_size = block_size
    observation.notes.append(
        f"{observation.file}: {num_later} rows are later turns of a session; {num_added} of them give only what was added, so "
        "their prompt is the parent's prompt and output and their own tokens"
    )
    changed: dict[str, Any] = {
        "arrival_ns": pl.Int64, "num_prompt_tokens": pl.Int64, "parent_request_id": pl.String,
        "block_hashes": pl.List(pl.UInt64),
    }  # fmt: skip
    replaced = []
    for name, dtype in changed.items():
        values = frame[name].to_list()
        for position, row in zip(at, rows, strict=True):
            values[position] = row[name]
        replaced.append(pl.Series(name, values, dtype=dtype))
    return frame.with_columns(replaced).with_columns(pl.col("think_ns").cast(pl.Int64))


def _follow(row: dict[str, Any], parent: dict[str, Any]) -> bool:
    """Make a row a later turn of the parent where it is one; returns whether it gives only what was added."""
    held, own = parent["block_hashes"], row["block_hashes"] or []
    if held and own[: len(held)] == held:
        row["parent_request_id"] = parent["request_id"]
        return False
    if row["think_ns"] is None:
        return False
    row["parent_request_id"] = parent["request_id"]
    row["num_prompt_tokens"] += parent["num_prompt_tokens"] + parent["num_output_tokens"]
    row["block_hashes"] = held
    row["arrival_ns"] = None
    return True


def _named(known: list[int], num_blocks: int, request_id: str) -> list[int]:
    """The known hashes followed by ones that no other prompt has, up to the number of full blocks."""
    chained = known[:num_blocks]
    parent = chained[-1] if chained else 0
    own = opaque_id(request_id)
    while len(chained) < num_blocks:
        parent = mix(parent, own)
        chained.append(parent)
    return chained
