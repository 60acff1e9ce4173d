"""The reader's state: what each record that carries something does to the tables to be."""

from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import polars as pl

from tracekit.sources.observation import Accounting
from tracekit.sources.vllm_log import startup
from tracekit.sources.vllm_log.block import NO_ITERATIONS, Block
from tracekit.sources.vllm_log.lifecycle import parse_end
from tracekit.sources.vllm_log.lines import Physical
from tracekit.sources.vllm_log.records import Record, split_records
from tracekit.sources.vllm_log.request_lines import rows_of
from tracekit.sources.vllm_log.requests import Requests
from tracekit.sources.vllm_log.rows import Event, StatsRow
from tracekit.sources.vllm_log.shapes import (
    ITERATION_START,
    PERIODIC,
    PREEMPTION,
    STATS_START,
    V0_PREFIX,
    Stats,
    parse_headless_stats,
    parse_iteration,
    parse_stats,
)
from tracekit.sources.vllm_log.sizes import note_settings, note_sizes
from tracekit.sources.vllm_log.starts import Printed, Start
from tracekit.sources.vllm_log.stats_lines import COPY_LINES, StatsLines, usual_row
from tracekit.sources.vllm_log.wrapped import Lines, Wrapped

MAX_ACCESS_ROWS: Final = 4_000_000
_SHORT: Final = 40
_RECENT: Final = 4096
_CRLF_SHARE: Final = 0.95


@dataclass
class Reader:
    """Everything read so far. Lines are counted over all files, from 0."""

    accounting: Accounting = field(default_factory=Accounting)
    physical: Physical = field(default_factory=Physical)
    starts: list[Start] = field(default_factory=list)
    printed: Printed = field(default_factory=Printed)
    stats: StatsLines = field(default_factory=StatsLines)
    events: list[Event] = field(default_factory=list)
    requests: Requests = field(default_factory=Requests)
    access: list[pl.DataFrame] = field(default_factory=list)
    iterations: list[pl.DataFrame] = field(default_factory=list)
    times: list[pl.DataFrame] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    truncated: list[StatsRow] = field(default_factory=list)
    num_lines: int = 0
    is_crlf_file: bool = False
    _recent: dict[int, int] = field(default_factory=dict)
    _last_time: int | None = None
    _joined: int = 0
    _joined_until: int = -1
    _num_access: int = 0

    @property
    def current(self) -> Start:
        """The start to which a line belongs; a log cut before its first start gets a nameless one."""
        if not self.starts:
            self.starts.append(Start(0))
        return self.starts[-1]

    def consume(self, block: Block, line_in_file: int) -> None:
        """Take in a classified piece; ``line_in_file``: number of lines of its file before it."""
        base = self.num_lines
        if base == 0:
            self.is_crlf_file = block.physical.num_crlf > _CRLF_SHARE * block.physical.num_lf
        for name in ("access", "iterations", "times"):
            rows: pl.DataFrame = getattr(block, name)
            if rows.height:
                moved = rows.with_columns(line=pl.col("line").cast(pl.Int64) + base)
                if name != "times":
                    moved = moved.with_columns(pl.col("time").fill_null(pl.lit(self._last_time, dtype=pl.Int64)))
                getattr(self, name).append(self._bounded(moved) if name == "access" else moved)
        unreadable = self.accounting.unreadable
        self._joined = 0
        before = self._last_time
        usual = rows_of(block.requests)
        stats = block.stats.with_columns(
            pl.col("line") + base, pl.col("time").fill_null(pl.lit(before, dtype=pl.Int64))
        )
        taken = stats_taken = 0
        until = block.requests["line"].search_sorted(block.slow["line"]).to_list()
        stats_until = block.stats["line"].search_sorted(block.slow["line"]).to_list()
        for (line, text, glued, followed, time), end, stats_end in zip(
            block.slow.iter_rows(), until, stats_until, strict=True
        ):
            if taken < end:
                self.requests.take_usual(usual[taken:end], base, before, self)
                taken = end
            if stats_taken < stats_end:
                self._usual_stats(stats[stats_taken:stats_end])
                stats_taken = stats_end
            if base + line <= self._joined_until:
                continue
            when = before if time is None else time
            lines = Lines(block, line, followed, self.is_crlf_file)
            if not self._slow_line(base + line, text, split_records(text, glued=bool(glued)), when, lines):
                self.accounting.add_unreadable(line_in_file + line + 1)
        self.requests.take_usual(usual[taken:], base, before, self)
        self._usual_stats(stats[stats_taken:])
        if block.iterations.height:
            self.current.has_data = True
        if block.times.height:
            self._last_time = block.times["time"][-1]
        self._account(block, self.accounting.unreadable - unreadable)
        self.num_lines += block.text.len()

    def _bounded(self, access: pl.DataFrame) -> pl.DataFrame:
        """Bound the memory that access lines take: beyond many, those that say 200 are only counted."""
        if self._num_access >= MAX_ACCESS_ROWS:
            failed = access.filter(pl.col("status") != 200)  # noqa: PLR2004 - HTTP's own number
            self.count("access lines with status 200 beyond the first 4,000,000", access.height - failed.height)
            access = failed
        self._num_access += access.height
        return access

    def _account(self, block: Block, unreadable: int) -> None:
        read = block.text.len()
        understood = block.num_understood + self._joined - unreadable
        self.accounting.read += read
        self.accounting.understood += understood
        self.accounting.other += read - understood - unreadable
        for name in ("num_bytes", "num_lf", "num_crlf", "num_bare_cr"):
            setattr(self.physical, name, getattr(self.physical, name) + getattr(block.physical, name))
        self.physical.has_ansi |= block.physical.has_ansi

    def count(self, what: str, more: int = 1) -> None:
        """Count a kind of line of which nothing else is kept."""
        self.counts[what] = self.counts.get(what, 0) + more

    def _join(self, line: int, lines: int) -> None:
        """Note that so many lines behind a line belong to its record."""
        already = max(self._joined_until - line, 0)
        self._joined += max(lines - already, 0)
        self._joined_until = max(self._joined_until, line + lines)

    def event(self, line: int, time: int | None, kind: str, **more: Any) -> None:  # noqa: ANN401 - fields of Event
        """Add a row of events."""
        self.events.append(Event(line, time, kind, **more))

    def _slow_line(self, line: int, text: str, records: list[Record], time: int | None, lines: Lines) -> bool:
        """Take in a line; returns False when a part of it starts like a known shape and is not one."""
        if not records:
            self._foreign(line, text, time, lines)
            return True
        if lines.is_continuation(records[0]):
            self._continuation(line, records[0])
            return True
        readable = True
        for position, record in enumerate(records):
            copied = self._is_copy(record, line)
            # Only the last record of a glued line can be wrapped.
            behind = lines if position + 1 == len(records) else None
            message = Wrapped(record.message, behind, len(text), partial(self._join, line))
            readable &= self._record(line, record, time, message, copied=copied)
            self.accounting.duplicates += copied
        return readable

    def _is_copy(self, record: Record, line: int) -> bool:
        """Whether the same record stands a few lines above; such copies come from a tool that prints a log twice."""
        key = hash(record.key)
        before = self._recent.get(key)
        if len(self._recent) > _RECENT:
            self._recent = {k: at for k, at in self._recent.items() if line - at <= COPY_LINES}
        self._recent[key] = line
        return before is not None and line - before <= COPY_LINES

    def _record(self, line: int, record: Record, time: int | None, message: Wrapped, *, copied: bool) -> bool:
        """Take in one record; returns False when it starts like a known shape and is not one."""
        text = record.message
        if len(text) < _SHORT and message.looks_wrapped:
            # The words by which a record is known may be broken themselves.
            text = message.joined()
        if PERIODIC.match(text):
            if STATS_START.match(text):
                return self._stats(line, record, time, message, copied=copied)
            return copied or self._periodic(line, record, time, text, message)
        if record.is_free_text or text.startswith(("Added request ", "Finished request ", "Aborted request")):
            return copied or self.requests.take(line, time, record, message.read, self)
        if note_sizes(self, record, line, message.read) or copied:
            return True
        if text.startswith("Request ") and parse_end(text) is not None:
            return self.requests.take(line, time, record, message.read, self)
        return note_settings(self, record, line, time, message)

    def _periodic(self, line: int, record: Record, time: int | None, text: str, message: Wrapped) -> bool:
        """Take in what an engine prints again and again."""
        if ITERATION_START.match(text):
            return self._iteration(line, record, time, message)
        if text.startswith("Sequence group"):
            warning = message.read(PREEMPTION.match)
            if warning is not None:
                self.event(line, time, "preemption_warning", value=float(warning[3]), request_id=warning[1])
            return warning is not None
        last = self.stats.last
        if (rate := V0_PREFIX.match(text)) and last is not None and last.time == time:
            last.prefix_hit_rate = round(float(rate[1]) / 100, 6)
        elif " metrics: " in text[:40]:
            self.count("kv_transfer" if text.startswith("KV") else "spec_decoding")
        return True

    def _usual_stats(self, rows: pl.DataFrame) -> None:
        """Take in statistics lines whose numbers are known already."""
        if rows.height and rows["line"][0] <= self._joined_until:
            rows = rows.filter(pl.col("line") > self._joined_until)
        while rows.height and self.current.stats_place is None:
            self.accounting.duplicates += not self._add_stats(usual_row(rows.row(0, named=True)))
            rows = rows[1:]
        if rows.height:
            self.accounting.duplicates += self.stats.add_usual(rows)

    def _stats(self, line: int, record: Record, time: int | None, message: Wrapped, *, copied: bool) -> bool:
        found = message.read(_complete_stats)
        if found is None:
            partial = parse_stats(message.joined()) or parse_stats(record.message)
            if partial is not None:
                self.truncated.append(StatsRow(line, time, record.stamp, record.place, partial))
            return False
        found = message.better(found, _complete_stats, lambda stats: sum(value is not None for value in stats))
        row = StatsRow(line, time, record.stamp, record.place, found, found.prefix_hit_rate)
        if not self._add_stats(row) and not copied:
            self.accounting.duplicates += 1
        return True

    def _add_stats(self, row: StatsRow) -> bool:
        """Take in a statistics line; False when it is a copy."""
        if not self.stats.add(row):
            return False
        start = self.current
        if start.stats_place is None:
            start.stats_place = (row.place, row.line)
        if "engine_generation" not in start.said:
            start.said["engine_generation"] = (row.stats.generation, "inferred", row.line)
        start.has_data = True
        return True

    def _iteration(self, line: int, record: Record, time: int | None, message: Wrapped) -> bool:
        found = message.read(parse_iteration)
        if found is None:
            return False
        self.current.has_data = True
        engine = found.engine if found.engine is not None else record.engine or 0
        row = {
            "line": line,
            "engine": engine,
            "step": found.step,
            "context_reqs": found.context_requests,
            "context_tokens": found.context_tokens,
            "decode_reqs": found.generation_requests,
            "decode_tokens": found.generation_tokens,
            "duration_ns": round(found.elapsed_ms * 1e6),
            "is_dummy": found.is_dummy,
            "kv_cache_usage": found.kv_usage,
            "time": time,
        }
        self.iterations.append(pl.DataFrame([row], schema={**NO_ITERATIONS.schema, "time": pl.Int64}))
        return True

    def _foreign(self, line: int, text: str, time: int | None, lines: Lines) -> None:
        """Take in a line that is no record: uvicorn's, a traceback, a statistics line that lost its head."""
        if "Traceback (most recent call last)" in text:
            self.event(line, time, "traceback")
        elif "Application startup complete" in text:
            self.current.is_ready = True
            self.event(line, time, "ready")
        elif "Error: " in text:
            self.current.has_failed = True
            self.event(line, time, "startup_failed" if any(f in text for f in startup.FAILURES) else "error")
        elif "generation throughput: " in text:
            message = Wrapped(text.strip(), lines, len(text), partial(self._join, line))
            found = message.read(lambda joined: _if_complete(parse_headless_stats(joined)))
            if found is not None:
                self._joined += 1
                self.current.has_data = True
                self.stats.append(StatsRow(line, time, "", "", found, found.prefix_hit_rate))

    def _continuation(self, line: int, record: Record) -> None:
        """Take in a further line of a record of several: the banner, V0's memory figures, a traceback."""
        if banner := startup.BANNER_VERSION.match(record.message):
            self.mark(line, "banner", record).say([startup.Said("vllm_version", banner[1])], line)
        elif found := startup.V0_AVAILABLE.search(record.message):
            self.current.least("available_kv_gib", float(found[1]), line)
        elif record.message.startswith("Traceback (most recent call last)"):
            self.event(line, None, "traceback", engine=record.engine)
        else:
            self.current.say(startup.plain_settings(record.message), line)

    def mark(self, line: int, marker: str, record: Record, time: int | None = None) -> Start:
        """Take in a line that only a starting server prints; begin a new start if it cannot belong to the current."""
        process = (record.process, record.process_id)
        served = any(start.is_marked or start.served for start in self.starts)
        if not self.starts or self.starts[-1].begins_anew(marker, *process):
            self.starts.append(Start(line))
        if not self.starts[-1].is_marked:
            self.event(line, time, "restart" if served else "start")
        self.starts[-1].mark(marker, *process)
        return self.starts[-1]


def _complete_stats(text: str) -> Stats | None:
    return _if_complete(parse_stats(text))


def _if_complete(stats: Stats | None) -> Stats | None:
    return stats if stats is not None and stats.is_complete else None
