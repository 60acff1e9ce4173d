"""Chained block hashes of many prompts at once: what ``hashing.chain_ids`` gives, computed in columns.

A chain is sequential within a prompt but independent between prompts: one pass over position 1 of every prompt, one
over position 2, and so on.
"""

from collections.abc import Sequence
from itertools import chain
from typing import Any, Final

import numpy as np
import polars as pl
import pyarrow as pa

from tracekit.config import Config
from tracekit.hashing import chain_ids, mix, opaque_id, sizes_fit

_MASK: Final = (1 << 64) - 1
_FEW: Final = 16
DEFAULT_BLOCK_SIZE: Final = 16


def _constant(value: int) -> pl.Series:
    return pl.Series([value & _MASK], dtype=pl.UInt64)


_MULTIPLIER: Final = _constant(0x9E3779B97F4A7C15)
_INCREMENT: Final = _constant(0x632BE59BD9B4E019)
_MIX_1: Final = _constant(0xBF58476D1CE4E5B9)
_MIX_2: Final = _constant(0x94D049BB133111EB)
_ALL_ONES: Final = _constant(_MASK)


def _mix(parent: pl.Series, value: pl.Series) -> pl.Series:
    """``hashing.mix`` on columns; unsigned products wrap."""
    z = parent * _MULTIPLIER + value + _INCREMENT
    z = (z ^ (z // (1 << 30))) * _MIX_1
    z = (z ^ (z // (1 << 27))) * _MIX_2
    return z ^ (z // (1 << 31))


def stored_block_size(tokens_per_id: int, config: Config) -> int:
    """The block size to store hashes at: the engine's (else 16) where the ids can tell it, else the ids' own."""
    known = config.get("block_size")
    size = known.value if known is not None else DEFAULT_BLOCK_SIZE
    return size if isinstance(size, int) and size > 0 and sizes_fit(tokens_per_id, size) else tokens_per_id


def chained_lists(
    id_lists: Sequence[Sequence[object] | None], tokens_per_id: int, block_size: int, num_tokens: Sequence[int | None]
) -> pl.Series:
    """The block hashes of each prompt (list<uint64>); null where there are no ids or the prompt's length is unknown."""
    known = [
        index
        for index, (ids, tokens) in enumerate(zip(id_lists, num_tokens, strict=True))
        if ids is not None and tokens is not None
    ]
    lists = [id_lists[index] or () for index in known]
    lengths = [len(ids) for ids in lists]
    if tokens_per_id < block_size:
        chains = [
            chain_ids(ids, tokens_per_id, block_size, num_tokens[at] or 0) for at, ids in zip(known, lists, strict=True)
        ]
        return to_lists(
            pl.Series(list(chain.from_iterable(chains)), dtype=pl.UInt64), list(map(len, chains)), known, len(id_lists)
        )
    parts = tokens_per_id // block_size
    flat = _with_parts(_chain(_flat_ids(lists), lengths), parts)
    whole = to_lists(flat, [length * parts for length in lengths], known, len(id_lists))
    num_blocks = pl.Series([(tokens or 0) // block_size for tokens in num_tokens], dtype=pl.Int64)
    return pl.DataFrame({"hashes": whole, "n": num_blocks}).select(pl.col("hashes").list.head(pl.col("n")))["hashes"]


def _flat_ids(lists: Sequence[Sequence[object]]) -> pl.Series:
    ids: list[Any] = list(chain.from_iterable(lists))
    if set(map(type, ids)) <= {int}:
        try:
            return pl.Series(ids, dtype=pl.UInt64)
        except (OverflowError, TypeError):
            pass
    return pl.Series([opaque_id(value) for value in ids], dtype=pl.UInt64)


def _chain(ids: pl.Series, lengths: Sequence[int]) -> pl.Series:
    """The hash of each id chained to those before it in its list; in the lists' order."""
    frame = pl.DataFrame({"length": pl.Series(lengths, dtype=pl.Int64)})
    frame = frame.with_columns(start=pl.col("length").cum_sum() - pl.col("length")).sort("length", descending=True)
    starts, sizes = frame["start"], frame["length"]
    parent = pl.Series([0], dtype=pl.UInt64).new_from_index(0, len(lengths))
    where: list[pl.Series] = []
    found: list[pl.Series] = []
    for position in range(max(lengths, default=0)):
        active = int(sizes.search_sorted(position, side="left", descending=True))
        if active <= _FEW and position:
            rest = [
                _chain_one(ids[s : s + n].to_list(), p, position)
                for s, n, p in zip(starts[:active], sizes, parent, strict=False)
            ]
            where.extend(
                pl.Series(range(s + position, s + n), dtype=pl.Int64)
                for s, n in zip(starts[:active], sizes, strict=False)
            )
            found.extend(rest)
            break
        at = starts[:active] + position
        parent = _mix(parent[:active], ids.gather(at))
        where.append(at)
        found.append(parent)
    if not found:
        return pl.Series([], dtype=pl.UInt64)
    return pl.DataFrame({"at": pl.concat(where), "hash": pl.concat(found)}).sort("at")["hash"]


def _chain_one(ids: Sequence[int], parent: int, position: int) -> pl.Series:
    hashes = []
    for value in ids[position:]:
        parent = mix(parent, value)
        hashes.append(parent)
    return pl.Series(hashes, dtype=pl.UInt64)


def _with_parts(hashes: pl.Series, parts: int) -> pl.Series:
    """Each id's hash preceded by those of its ``parts - 1`` first blocks."""
    if parts == 1 or not hashes.len():
        return hashes
    turned = hashes ^ _ALL_ONES
    columns = {str(j): _mix(turned, _constant(j)) for j in range(1, parts)}
    frame = pl.DataFrame({**columns, str(parts): hashes})
    return frame.select(pl.concat_arr(pl.all()))[:, 0].explode(empty_as_null=False, keep_nulls=True)


def to_lists(flat: pl.Series, sizes: Sequence[int], rows: Sequence[int], height: int) -> pl.Series:
    """Cut a flat column into lists for ``rows`` of ``height`` rows; the other rows are null."""
    lengths = np.zeros(height, np.int64)
    is_null = np.ones(height, np.bool_)
    at = np.asarray(rows, np.int64)
    lengths[at], is_null[at] = sizes, False
    offsets = pl.Series(np.append(0, np.cumsum(lengths)))
    # By way of polars: pyarrow would import pandas, where that is installed, to look at a list.
    mask = pl.Series(is_null).to_arrow()
    lists = pa.LargeListArray.from_arrays(offsets.to_arrow(), flat.to_arrow(), mask=mask)
    series = pl.from_arrow(lists)
    return pl.Series(series, dtype=pl.List(pl.UInt64))
