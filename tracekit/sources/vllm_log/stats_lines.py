"""The statistics lines of a log: the latest as rows, which a later line may still change, all others as columns.

A server prints one every ten seconds for years, so that objects for each would take more memory than all else.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import polars as pl

from tracekit.sources.vllm_log.rows import StatsRow
from tracekit.sources.vllm_log.shapes import STATS_NUMBERS, Stats

COPY_LINES: Final = 64
"""Copies of a record stand at most so many lines apart."""

_NEAR: Final = 16
_MANY: Final = 4096
_PLACE: Final = re.compile(r"([^ \[]+)\] (?:Engine [0-9]+: )?$")
COLUMNS: Final = {
    "line": pl.Int64,
    "time": pl.Int64,
    "engine": pl.Int32,
    "prompt_tps": pl.Float64,
    "generation_tps": pl.Float64,
    "num_running_reqs": pl.Int64,
    "num_waiting_reqs": pl.Int64,
    "num_swapped_reqs": pl.Int64,
    "num_deferred_reqs": pl.Int64,
    "kv_cache_usage": pl.Float64,
    "prefix_hit_rate": pl.Float64,
    "warns": pl.Boolean,
}
"""``warns``: printed by an engine that warns of preemptions (V0; 0.2.7 printed its statistics elsewhere and did not)."""


@dataclass
class StatsLines:
    """All statistics lines taken in so far, each once."""

    recent: list[StatsRow] = field(default_factory=list)
    _older: list[pl.DataFrame] = field(default_factory=list)

    @property
    def last(self) -> StatsRow | None:
        """The line taken in last."""
        return self.recent[-1] if self.recent else None

    def add(self, row: StatsRow) -> bool:
        """Take in a line; False when it is a copy of one a few lines above."""
        for before in reversed(self.recent[-_NEAR:]):
            if row.line - before.line > COPY_LINES:
                break
            if (before.stamp, before.stats) == (row.stamp, row.stats):
                return False
        if self.recent and self.recent[-1].time is None:
            # A statistics line that lost its head was printed before this one.
            self.recent[-1].time = row.time
        self.append(row)
        return True

    def append(self, row: StatsRow) -> None:
        """Take in a line that cannot be a copy."""
        self.recent.append(row)
        if len(self.recent) > _MANY:
            self._settle(keep=_NEAR)

    def add_usual(self, rows: pl.DataFrame) -> int:
        """Take in usual lines (see ``Block.stats``); returns how many are copies."""
        behind = self.recent[-1].line + COPY_LINES if self.recent else -1
        singly = int(rows["line"].search_sorted(behind, side="right"))
        rest = rows[singly:]
        if rest.height < _NEAR or _may_repeat(rows):
            singly, rest = rows.height, rest.clear()
        copies = sum(not self.add(usual_row(row)) for row in rows[:singly].iter_rows(named=True))
        if rest.height:
            self._settle(keep=0)
            self._older.append(_settled(rest[:-_NEAR]))
            self.recent = [usual_row(row) for row in rest[-_NEAR:].iter_rows(named=True)]
        return copies

    def _settle(self, keep: int) -> None:
        until = len(self.recent) - keep
        self._older.append(_columns(self.recent[:until]))
        self.recent = self.recent[until:]

    def frame(self) -> pl.DataFrame:
        """All lines, in order; see ``COLUMNS``."""
        return pl.concat([*self._older, _columns(self.recent)])


def usual_row(row: dict[str, Any]) -> StatsRow:
    """A row of ``Block.stats`` as the look at its line alone gives it."""
    engine, rate = row["engine"], row["hit_rate"]
    label = "" if engine is None else f"Engine {engine:03d}"
    rate = None if rate is None else round(rate / 100, 6)
    counts = (int(row["running"]), int(row["waiting"]), None, None)
    shares = (round(row["usage"] / 100, 6), None, rate, None, None)
    stats = Stats(engine or 0, label, row["prompt"], row["generation"], *counts, *shares)
    place = _PLACE.search(row["head"])
    return StatsRow(row["line"], row["time"], row["stamp"], place[1] if place else "", stats, rate)


def _may_repeat(rows: pl.DataFrame) -> bool:
    """Whether one of the lines may be a copy of another, or has no time of its own."""
    is_timed = not rows["time"].null_count()
    return not (is_timed and rows.select("stamp", "engine", *STATS_NUMBERS).is_unique().all())


def _settled(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.select(
        "line",
        "time",
        pl.col("engine").fill_null(0).cast(pl.Int32),
        prompt_tps="prompt",
        generation_tps="generation",
        num_running_reqs=pl.col("running").cast(pl.Int64),
        num_waiting_reqs=pl.col("waiting").cast(pl.Int64),
        num_swapped_reqs=pl.lit(None, pl.Int64),
        num_deferred_reqs=pl.lit(None, pl.Int64),
        kv_cache_usage=(pl.col("usage") / 100).round(6),
        prefix_hit_rate=(pl.col("hit_rate") / 100).round(6),
        warns=pl.lit(value=False),
    )


def _columns(rows: Sequence[StatsRow]) -> pl.DataFrame:
    made = [
        (row.line, row.time, s.engine, s.prompt_tps, s.generation_tps, s.running, s.waiting, s.swapped, s.deferred,
         s.kv_usage, row.prefix_hit_rate, s.generation == "v0" and not row.place.startswith("llm_engine.py"))
        for row in rows for s in (row.stats,)
    ]  # fmt: skip
    return pl.DataFrame(made, schema=COLUMNS, orient="row")
