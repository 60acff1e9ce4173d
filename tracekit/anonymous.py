"""A run without what could tell who it is of: a trace fit to be attached to a public bug report."""

import hashlib
import secrets
from typing import Final

import polars as pl

from tracekit.config import ConfigValue
from tracekit.errors import InputError
from tracekit.run import Run
from tracekit.schema.tables import REQUESTS

_NAMES: Final = ("request_id", "source_request_id", "session_id", "parent_request_id")
_PUBLIC_WORDS: Final = frozenset(
    {
        "vllm_version", "engine_generation", "dtype", "quantization", "kv_cache_dtype", "scheduling_policy",
        "preemption_mode", "performance_mode",
    }
)  # fmt: skip
"""Settings of words that vLLM itself defines; other words (model, gpu) may name a product, and are left out."""
_KEY_BYTES: Final = 32


def anonymous(run: Run, *, key: bytes | None = None) -> Run:
    """The run's requests and numeric settings alone: numbered names, prefixes hashed anew, times from the first arrival.

    Equal prefixes stay equal, so a replay decides the same; the hashes themselves cannot be compared with those of any
    other export, since ``key`` is random unless given. The wall clock, file names, notes, events and all free text are
    gone. Raises ``InputError`` when the run has no requests.
    """
    requests = run.requests
    if not requests.height:
        msg = f"{run.name}: it has no requests, so there is nothing to export"
        raise InputError(msg)
    secret = key or secrets.token_bytes(_KEY_BYTES)
    frame = requests.with_columns(
        _numbered(requests, "r", "request_id"),
        _numbered(requests, "s", "session_id"),
        _parents(requests),
        pl.lit(None, pl.String).alias("source_request_id"),
        _rehashed(requests["block_hashes"], secret),
    )
    config = {
        name: ConfigValue(value.value, value.origin)
        for name, value in run.config.items()
        if name in _PUBLIC_WORDS or not isinstance(value.value, str)
    }
    info = {"notes": ["anonymous: names are numbers, prefixes are hashed anew, free text is left out"]}
    return Run(run.kind, {"requests": frame.select(REQUESTS.column_names)}, config, None, info)


def left_out(run: Run) -> list[str]:
    """What an anonymous copy does not hold of this run: settings by name, and tables."""
    settings = [name for name, v in run.config.items() if isinstance(v.value, str) and name not in _PUBLIC_WORDS]
    tables = [
        name for name in ("steps", "preemptions", "engine_stats", "events", "distributions") if run.table(name).height
    ]
    return [*sorted(settings), *tables]


def _numbers(names: pl.Series) -> pl.DataFrame:
    """Every name once, in order of appearance, with its number."""
    return pl.DataFrame({"name": names.drop_nulls().unique(maintain_order=True)}).with_row_index("number", offset=1)


def _looked_up(values: pl.Series, known: pl.DataFrame, letter: str) -> pl.Series:
    joined = pl.DataFrame({"name": values}).join(known, on="name", how="left", maintain_order="left")
    return joined.select(letter + pl.col("number").cast(pl.String)).to_series()


def _numbered(requests: pl.DataFrame, letter: str, column: str) -> pl.Series:
    return _looked_up(requests[column], _numbers(requests[column]), letter).alias(column)


def _parents(requests: pl.DataFrame) -> pl.Series:
    """Parents by their numbers; a parent that is not in the table gets a number behind all others."""
    parents = requests["parent_request_id"]
    known = _numbers(pl.concat([requests["request_id"], parents]))
    return _looked_up(parents, known, "r").alias("parent_request_id")


def _rehashed(hashes: pl.Series, key: bytes) -> pl.Series:
    """Every hash replaced by a keyed one of its own, so that equal ones stay equal."""
    different = hashes.explode().drop_nulls().unique(maintain_order=True)
    anew = [
        int.from_bytes(hashlib.blake2b(value.to_bytes(8, "big"), digest_size=8, key=key).digest(), "big")
        for value in different.to_list()
    ]
    replaced = pl.Series(anew, dtype=pl.UInt64)
    return pl.DataFrame({"block_hashes": hashes}).select(
        pl.col("block_hashes").list.eval(
            pl.element().replace_strict(different, replaced, return_dtype=pl.UInt64, default=None)
        )
    )["block_hashes"]
