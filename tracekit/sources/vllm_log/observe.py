"""Read a vLLM server's log into an observation."""

import gc
import re
import secrets
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Final

import polars as pl

from tracekit.errors import InputError
from tracekit.sources.block_hashes import DEFAULT_BLOCK_SIZE
from tracekit.sources.files import oldest_first, open_bytes
from tracekit.sources.observation import ClockKind, Material, Observation, Options
from tracekit.sources.vllm_log import tables
from tracekit.sources.vllm_log.block import Block, classify, has_outer_times
from tracekit.sources.vllm_log.clock import Calendar, calendar
from tracekit.sources.vllm_log.lines import pieces
from tracekit.sources.vllm_log.prompt_hashes import Hashing
from tracekit.sources.vllm_log.reader import Reader
from tracekit.sources.vllm_log.requests import Requests
from tracekit.sources.vllm_log.starts import Start, WhereOf, choose, config_of

_AHEAD: Final = 3
_DATED: Final = re.compile(rb"(?:^|[\s\[])(20\d\d)-(\d\d-\d\d)[T ]\d\d:\d\d:\d\d")
_DATE_BYTES: Final = 1 << 20


@dataclass
class Survey:
    """Everything a log says, of all its starts, before one of them is chosen as the run.

    ``calendar`` turns stamps without a year into instants; None when the log's times are instants.
    """

    reader: Reader
    where: WhereOf
    clock: ClockKind
    times: pl.DataFrame
    calendar: Calendar | None


@dataclass
class _Kind:
    """Whether times come from a stamp in front of the records, and whether that has a zone."""

    outer: bool
    zoned: bool
    year: tuple[int, int] | None


def survey(material: Material, options: Options) -> Survey:
    """Read all lines of all files of a log."""
    block_size = options.config.get("block_size")
    size = int(block_size.value) if block_size else DEFAULT_BLOCK_SIZE
    hashing = Hashing(size, options.hash_key or secrets.token_bytes(32))
    reader = Reader(requests=Requests(hashing))
    files: list[tuple[int, str]] = []
    kind: _Kind | None = None
    done, total = 0, sum(path.stat().st_size for path in material.files)
    for path in oldest_first(material.files):
        name = material.name if len(material.files) == 1 else path.name
        first = reader.num_lines
        files.append((first, name))
        with open_bytes(path) as stream:
            source = pieces(stream)
            start = next(source, None)
            if start is None:
                continue
            kind = kind or _kind_of(start)
            with _collector_off():
                for block in _blocks(chain([start], source), partial(classify, outer=kind.outer, hashing=hashing)):
                    reader.consume(block, reader.num_lines - first)
                    done += block.physical.num_bytes
                    options.progress(f"reading {name}", min(done, total), total)
    return _surveyed(reader, WhereOf(files or [(0, material.name)]), kind or _Kind(False, False, None), material)


@contextmanager
def _collector_off() -> Iterator[None]:
    """Millions of rows without cycles: walking them again and again takes as long as making them."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _surveyed(reader: Reader, where: WhereOf, kind: _Kind, material: Material) -> Survey:
    parts = reader.times
    times = pl.concat(parts) if parts else pl.DataFrame(schema={"line": pl.Int64, "time": pl.Int64})
    date = max((path.stat().st_mtime_ns for path in material.files), default=0)
    found = None if kind.outer or not times.height else calendar(times, date, kind.year)
    return Survey(reader, where, "unix" if kind.outer and kind.zoned else "local", times, found)


def _kind_of(piece: bytes) -> _Kind:
    outer, zoned = has_outer_times(piece)
    return _Kind(outer, zoned, None if outer else _year_told(piece))


def _year_told(piece: bytes) -> tuple[int, int] | None:
    """A line of another program that prints full dates, on the day of a record: the line and its year."""
    for found in _DATED.finditer(piece, 0, _DATE_BYTES):
        line = piece[piece.rfind(b"\n", 0, found.start()) + 1 : found.start()]
        if b" %b " % found[2] in piece[:_DATE_BYTES] and not {b"'", b'"'} & {line[i : i + 1] for i in range(len(line))}:
            return piece.count(b"\n", 0, found.start()), int(found[1])
    return None


def _blocks(source: Iterator[bytes], classified: Callable[[bytes], Block]) -> Iterator[Block]:
    """Classify pieces on two threads, a few ahead of the reader (polars works outside Python's lock)."""
    with ThreadPoolExecutor(max_workers=2) as pool:
        waiting: list[Future[Block]] = []
        for piece in source:
            waiting.append(pool.submit(classified, piece))
            if len(waiting) > _AHEAD:
                yield waiting.pop(0).result()
        for future in waiting:
            yield future.result()


def read(material: Material, options: Options) -> Observation:
    """Read a log; see the package's docstring for what fills which table. Raises ``InputError``."""
    return observe(survey(material, options), material, options)


def observe(found: Survey, material: Material, options: Options) -> Observation:
    """Choose the start that is the run and give its tables."""
    starts = found.reader.starts
    if options.start is not None and not 1 <= options.start <= len(starts):
        msg = f"{material.path}: --start {options.start}: the log holds {len(starts)} starts"
        raise InputError(msg)
    chosen = choose(starts, options.start)
    observation = Observation("vllm-log", material.name, found.clock, accounting=found.reader.accounting)
    if chosen is None:
        _Filling(observation, found, Start(0), (0, found.reader.num_lines)).fill()
        return observation
    start = starts[chosen]
    last = chosen + 1 == len(starts)
    lines = (0 if chosen == 0 else start.first_line, found.reader.num_lines if last else starts[chosen + 1].first_line)
    observation.config, notes = config_of(start, found.where)
    observation.notes.extend(notes)
    if len(starts) > 1:
        observation.notes.append(f"the log holds {len(starts)} starts of the server; the run is number {chosen + 1}")
    _Filling(observation, found, start, lines).fill()
    return observation


@dataclass
class _Filling:
    """Fills an observation's tables with the rows of one start, which are those of ``lines``."""

    observation: Observation
    found: Survey
    start: Start
    lines: tuple[int, int]

    def fill(self) -> None:
        """Fill all tables."""
        reader = self.found.reader
        self._note_clock()
        warnings = [e for e in reader.events if e.kind == "preemption_warning" and self._has(e.line)]
        if (stats := self._inside(reader.stats.frame(), "statistics lines")).height:
            first = self.start.first_line if self.start.is_marked else None
            rows = self._timed(tables.engine_stats(stats, warnings, first), "statistics lines")
            self._put("engine_stats", rows.rename({"time": "time_ns"}).drop("line"))
        if reader.iterations:
            inside = self._inside(pl.concat(reader.iterations), "iteration lines")
            ordered = inside if inside["line"].is_sorted() else inside.sort("line")
            self._fill_steps(self._timed(ordered, "iteration lines"))
        requests = [row for row in reader.requests.rows if self._has(row.line)]
        self._skip("requests of another start", len(reader.requests.rows) - len(requests))
        if requests:
            self._fill_requests(self._timed(tables.requests(requests), "requests"))
        self._fill_events()
        for what, count in reader.counts.items():
            if what.startswith(("ends of", "access lines")):
                self._skip(what, count)
        if warnings:
            last = int(max(e.value or 0 for e in warnings))
            self.observation.notes.append(
                f"V0 prints one in fifty preemptions: the run had {last} to {last + tables.WARNING_STRIDE - 1}"
            )

    def _has(self, line: int) -> bool:
        return self.lines[0] <= line < self.lines[1]

    def _put(self, name: str, frame: pl.DataFrame) -> None:
        if frame.height:
            self.observation.tables[name] = frame

    def _skip(self, what: str, count: int) -> None:
        if count:
            self.observation.skipped[what] = self.observation.skipped.get(what, 0) + count

    def _inside(self, rows: pl.DataFrame, what: str) -> pl.DataFrame:
        """The rows of the run; those of other starts are counted."""
        is_inside = rows["line"].is_between(*self.lines, closed="left")
        inside = rows if is_inside.all() else rows.filter(is_inside)
        self._skip(f"{what} of another start", rows.height - inside.height)
        return inside

    def _timed(self, frame: pl.DataFrame, what: str) -> pl.DataFrame:
        """Give instants; a line before the first time stamp takes that one."""
        times = self.found.times
        if not times.height:
            self._skip(f"{what} in a log without any time", frame.height)
            return frame.clear()
        return tables.placed(frame.with_columns(pl.col("time").fill_null(times["time"][0])), self.found.calendar)

    def _fill_steps(self, rows: pl.DataFrame) -> None:
        real = rows.filter(~pl.col("is_dummy")) if rows["is_dummy"].any() else rows
        self._skip("dummy iterations", rows.height - real.height)
        unique = real
        if not _steps_rise(real):
            unique = real.unique(["engine", "step", "duration_ns", "time"], keep="first", maintain_order=True)
        self.observation.accounting.duplicates += real.height - unique.height
        exact = self.found.calendar is None and bool((unique["time"] % tables.SECOND != 0).any())
        self._put("steps", tables.steps(unique, exact=exact))

    def _fill_requests(self, rows: pl.DataFrame) -> None:
        ended = tables.placed(rows.select("line", time="finished"), self.found.calendar)["time"]
        frame = rows.with_columns(arrival_ns=pl.col("time") + pl.col("tie"), finished_ns=ended)
        # An end in the second of the arrival must not come before it.
        frame = frame.with_columns(
            finished_ns=pl.max_horizontal("finished_ns", pl.when(ended.is_not_null()).then("arrival_ns"))
        )
        self._put("requests", frame.drop("line", "time", "finished", "tie"))
        if frame["block_hashes"].null_count() < frame.height:
            self.observation.hash_block_size = self.found.reader.requests.hashing.block_size

    def _fill_events(self) -> None:
        """Events of all starts, but access lines of the run alone."""
        reader = self.found.reader
        access = pl.concat(reader.access) if reader.access else tables.NO_ACCESS
        inside = self._inside(access, "access lines")
        merged = tables.events(reader.events, inside, self.found.where)
        if merged.height:
            timed = self._timed(merged.with_columns(pl.col("time").forward_fill()), "events")
            self._put("events", timed.drop("line").rename({"time": "time_ns", "number": "line"}))

    def _note_clock(self) -> None:
        dated, notes = self.found.calendar, self.observation.notes
        if dated is None:
            return
        if len({b.years for b in dated.breaks}) > 1:
            notes.append("the log runs over a New Year")
        if dated.num_clock_changes:
            notes.append("the log's clock was set back an hour; later instants are moved on by it")
        for line in dated.goes_back[:1]:
            times = f"{len(dated.goes_back)} times in all" if len(dated.goes_back) > 1 else "once"
            notes.append(f"{self.found.where[line]}: the log's clock goes back ({times})")


def _steps_rise(rows: pl.DataFrame) -> bool:
    """Whether every step of an engine has a higher number than the one before, so that none stands twice."""
    return bool(rows.select((pl.col("step").diff().over("engine").fill_null(1) > 0).all()).item())
