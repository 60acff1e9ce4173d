"""Classify a piece's lines at the speed of compiled expressions; only lines that carry something come out singly."""

from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import polars as pl

from tracekit.sources.vllm_log.access import NO_ACCESS, access_rows, usual_access
from tracekit.sources.vllm_log.lines import Lines, Physical, split_lines
from tracekit.sources.vllm_log.prompt_hashes import Hashing
from tracekit.sources.vllm_log.records import (
    ACCESS,
    ACCESS_MESSAGE,
    FIRST_RECORD,
    FREE_TEXT,
    GLUED,
    LEVELS,
    OUTER_TIME,
    RECORD,
    UVICORN,
)
from tracekit.sources.vllm_log.request_lines import cut, hashed, usual_requests
from tracekit.sources.vllm_log.shapes import ITERATION, ITERATION_NUMBERS, STATS_NUMBERS, USUAL_STATS

_WORDS: Final = (
    r"Avg prompt throughput|Iteration\(|Sequence group|metrics: |cache hit rate: GPU"
    r"|Received request |Added request |Finished request |Aborted request|Request .*(?:details: prompt|aborted|failed)"
    r"|Generated response "
    r"|vLLM API server version|args: |engine \(v|max model len|max_num_batched_tokens|max_num_seqs"
    r"|Asynchronous scheduling|weights took|Model loading took|(?:GPU|cuda|CPU) blocks: |KV cache size|Maximum concurrency"
    r"|Available KV cache memory|Free memory on device|num_gpu_blocks|for KV Cache is|gpu_memory_utilization \(| version |Application "
    r"|Traceback \(most recent|Starting vLLM"
)
_LOUD: Final = "(?:WARNING|ERROR|CRITICAL) [0-9]{2}-"
_REST: Final = (
    r"Traceback \(most recent call last\)|Application startup complete|generation throughput: "
    r"|(?:Value|Runtime)Error: (?:No available memory|Free memory on|To serve at least|The model's max seq|Engine core|.*out of memory)"
)
_ITERATION_LINE: Final = rf"{FIRST_RECORD}(?:Engine [0-9]{{1,9}}: )?{ITERATION}"
_STAMP_SHAPE: Final = "[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}"
_LEVEL_STAMP: Final = f"(?:{LEVELS}) {_STAMP_SHAPE} "
_LEVEL_LETTERS: Final = "".join(sorted({*LEVELS} - {"|"})) + " "
_STAMP_LETTERS: Final = len("03-05 10:00:00")
_LEVEL_STAMP_BYTES: Final = len("CRITICAL ") + _STAMP_LETTERS
_STATS_WORDS: Final = "Avg prompt throughput: "
_STATS_FIELDS: Final = {
    field: pl.Float64 for place, name in enumerate(STATS_NUMBERS) for field in (name, " " * (place + 1))
}
"""A colon is a comma too, so that an empty field stands behind every number."""
_FREE: Final = "|".join(mark.strip() for mark in FREE_TEXT)
_USUAL_LINE: Final = f"{FIRST_RECORD}{USUAL_STATS}"
_NO_SLOW: Final = pl.DataFrame(
    schema={
        "line": pl.Int64,
        "text": pl.String,
        "glued": pl.Boolean,
    }
)
NO_STATS: Final = pl.DataFrame(
    schema={
        "line": pl.Int64,
        **dict.fromkeys(STATS_NUMBERS, pl.Float64),
        "engine": pl.Int64,
        "stamp": pl.String,
        "head": pl.String,
    }
)
_WRAP_COLUMNS: Final = 60
_COLON_TO_COMMA: Final = bytes.maketrans(b":", b",")
_NO_NUMBER: Final = bytes(code for code in range(256) if code not in b"0123456789.,:\n")
_ITERATION_FIELDS: Final = {
    **dict.fromkeys(("step", *(name for name in ITERATION_NUMBERS if name != "ms")), pl.Int64),
    "": pl.String,
    "ms": pl.Float64,
    " ": pl.String,
    "usage": pl.Float64,
}
_NS: Final = 1_000_000_000
NO_ITERATIONS: Final = pl.DataFrame(
    schema={
        "line": pl.Int64,
        "engine": pl.Int32,
        **dict.fromkeys(("step", *(name for name in ITERATION_NUMBERS if name != "ms"), "duration_ns"), pl.Int64),
        "is_dummy": pl.Boolean,
        "kv_cache_usage": pl.Float64,
    }
)


@dataclass
class Block:
    """The lines of one piece, classified. Rows carry ``line``: the position in the piece, from 0.

    ``is_own``: whether a line is a record or uvicorn's, not a foreign one or the continuation of a wrapped record.
    ``requests``: usual lines about requests (see ``request_lines``).
    ``slow``: lines to be looked at singly; ``glued``: it holds several records; ``followed``: by a line that is not own.
    ``stats``: usual statistics lines; percentages as printed, ``engine`` null where none is named, ``head``: what stands
    in front of the numbers.
    ``times``: records' instants (ns; of the stamp in year 2024, or of the outer time stamp), where they change.
    """

    physical: Physical
    text: pl.Series
    ends_cr: pl.Series | None
    is_own: pl.Series
    times: pl.DataFrame
    access: pl.DataFrame
    iterations: pl.DataFrame
    slow: pl.DataFrame
    requests: pl.DataFrame
    stats: pl.DataFrame
    num_understood: int


class _Part(NamedTuple):
    """Some of a piece's lines. Series, not a frame: for pieces of this size a query would cost more than its work."""

    line: pl.Series
    text: pl.Series

    def split(self, chosen: pl.Series) -> "tuple[_Part, _Part]":
        """The lines chosen, and the others."""
        others = ~chosen
        return _Part(self.line.filter(chosen), self.text.filter(chosen)), _Part(
            self.line.filter(others), self.text.filter(others)
        )


def classify(piece: bytes, *, outer: bool, hashing: Hashing) -> Block:
    """Classify the lines of a piece; ``outer``: take instants from the time stamp in front of each line."""
    lines = split_lines(piece)
    physical = Physical()
    physical.add(piece, lines.text.len())
    everything = _Part(pl.int_range(lines.text.len(), dtype=pl.Int64, eager=True), lines.text)
    # What is settled is put aside, so that the costly expressions see few lines.
    served, rest = everything.split(usual_access(lines.text))
    records, rest = rest.split(rest.text.str.contains(RECORD))
    stamps = None if outer else _stamps(records.text)
    times = _changes(records.line, stamps) if stamps is not None else _outer_times(everything)
    accesses, others = rest.split(rest.text.str.contains(ACCESS))
    access = [access_rows(served.line), access_rows(accesses.line, accesses.text)]
    begins = _begins(records, lines.ends_cr)
    iterations, remaining = _iterations(records, begins)
    if remaining.text.str.contains(' - "', literal=True).any():
        more, remaining = remaining.split(remaining.text.str.contains(ACCESS_MESSAGE))
        access.append(access_rows(more.line, more.text))
    requests, remaining = _requests(remaining, lines)
    foreign = others.line.filter(~others.text.str.contains(UVICORN))
    is_own = pl.repeat(True, lines.text.len(), dtype=pl.Boolean, eager=True).scatter(foreign, False)
    begins = _begins(remaining, lines.ends_cr)
    is_usual = remaining.text.str.contains(_USUAL_LINE)
    usual, remaining = remaining.split(is_usual if begins is None else is_usual & begins)
    stats = _stats(usual, _stamps(usual.text) if stamps is None else _of(records, stamps, usual))
    slow = [_slow_records(remaining, lines, is_own), _frame(others.split(others.text.str.contains(_REST))[0])]
    rows = pl.concat(slow, how="diagonal").sort("line") if slow[1].height else slow[0]
    is_followed = ~is_own.shift(-1, fill_value=True)
    return Block(
        physical,
        lines.text,
        lines.ends_cr,
        is_own,
        times,
        _timed(_in_order(access), times),
        _timed(iterations, times),
        _timed(rows.with_columns(followed=is_followed.gather(rows["line"])), times),
        _timed(hashed(requests, hashing), times),
        _timed(stats, times),
        int(is_own.sum()),
    )


def _requests(records: _Part, lines: Lines) -> tuple[pl.DataFrame, _Part]:
    """The usual lines about requests, and the other records."""
    found, chosen = usual_requests(records.line, records.text, lines.text.len(), _begins(records, lines.ends_cr))
    return found, records.split(chosen)[1] if found.height else records


def _begins(records: _Part, ends_cr: pl.Series | None) -> pl.Series | None:
    """Whether a record is no further line of the one before, which would have ended in CR LF; None: none is."""
    return None if ends_cr is None else ~ends_cr.shift(1, fill_value=False).gather(records.line)


def _in_order(parts: list[pl.DataFrame]) -> pl.DataFrame:
    filled = [part for part in parts if part.height]
    return pl.concat(filled).sort("line") if len(filled) > 1 else (filled or [NO_ACCESS])[0]


def _frame(part: _Part) -> pl.DataFrame:
    return pl.DataFrame({"line": part.line, "text": part.text})


def _outer_times(everything: _Part) -> pl.DataFrame:
    """The instants of lines, where they are known and change."""
    known = pl.DataFrame({"line": everything.line, "time": _outer_instants(everything.text)}).drop_nulls()
    return known.filter(known["time"].ne_missing(known["time"].shift(1)))


def _changes(line: pl.Series, stamp: pl.Series) -> pl.DataFrame:
    """The instants of records' stamps, where they change."""
    changes = stamp.ne_missing(stamp.shift(1))
    # Of a stamp without a year it is 2024, which has every day.
    time = ("2024-" + stamp.filter(changes)).str.to_datetime("%Y-%m-%d %H:%M:%S", strict=False, time_unit="us")
    return pl.DataFrame({"line": line.filter(changes), "time": time.cast(pl.Int64) * 1000}).drop_nulls()


def _of(part: _Part, values: pl.Series, some: _Part) -> pl.Series:
    """Of values of a part's lines those of some of them."""
    return values.gather(part.line.search_sorted(some.line))


def _stamps(text: pl.Series) -> pl.Series:
    """The records' stamps. Finding and cutting is several times faster than a capturing group."""
    try:
        return _cut_stamps(text)
    except pl.exceptions.ComputeError:
        # Something like a stamp stands so close to a letter of several bytes that a cut went through it.
        return text.str.extract(f"(?:{LEVELS}) ({_STAMP_SHAPE}) ", 1)


def _cut_stamps(text: pl.Series) -> pl.Series:
    before = text[:1].str.extract(f"^(.*?(?:{LEVELS}) ){_STAMP_SHAPE} ", 1)
    if before.null_count() or not text.len():
        return _found_stamps(text)
    # Most records begin with the same words, so that their stamps stand at the same place.
    alike = text.str.starts_with(before.item())
    stamp = cut(text, before.str.len_bytes().item(), _STAMP_LETTERS + 1)
    changes = stamp.ne_missing(stamp.shift(1)) | alike.ne_missing(alike.shift(1))
    if not stamp.filter(changes & alike).str.contains(f"^{_STAMP_SHAPE} $").all():
        return _found_stamps(text)
    others = (~alike).arg_true()
    stamp = cut(stamp, 0, _STAMP_LETTERS)
    return stamp.scatter(others, _found_stamps(text.gather(others))) if others.len() else stamp


def _found_stamps(text: pl.Series) -> pl.Series:
    stamp = cut(text, text.str.find(_LEVEL_STAMP), _LEVEL_STAMP_BYTES)
    return stamp.str.strip_chars_start(_LEVEL_LETTERS).str.slice(0, _STAMP_LETTERS)


def has_outer_times(piece: bytes) -> tuple[bool, bool]:
    """Whether most records carry a time stamp of another tool in front, and whether that has a zone."""
    text = split_lines(piece[: 1 << 20]).text
    known = text.filter(text.str.contains(RECORD) | text.str.contains(ACCESS))
    if not known.len():
        return False, False
    before = known.str.extract(r"^(.*?)(?:INFO|DEBUG|WARNING|ERROR|CRITICAL)", 1)
    found = before.str.extract(OUTER_TIME, 1).is_not_null().sum()
    zoned = before.str.extract(OUTER_TIME, 4).is_not_null().sum()
    return 2 * found >= known.len(), 2 * zoned >= known.len()


def _outer_instants(text: pl.Series) -> pl.Series:
    """Instants in ns since 1970; where the stamp has no zone, as if it were UTC's."""
    parts = text.str.extract_groups(OUTER_TIME).struct.unnest()
    date, clock, fraction, zone = (parts[name] for name in parts.columns)
    base = (date + " " + clock).str.to_datetime("%Y-%m-%d %H:%M:%S", strict=False, time_unit="us").cast(pl.Int64)
    nanoseconds = fraction.fill_null("0").str.pad_end(9, "0").str.slice(0, 9).cast(pl.Int64, strict=False)
    sign = zone.str.slice(0, 1).replace_strict({"+": 1, "-": -1}, default=0, return_dtype=pl.Int64)
    hours = zone.str.extract(r"^.([0-9]{2})", 1).cast(pl.Int64).fill_null(0)
    minutes = zone.str.extract(r"([0-9]{2})$", 1).cast(pl.Int64).fill_null(0)
    offset = sign.fill_null(0) * (hours * 3600 + minutes * 60)
    return (base * 1000 + nanoseconds - offset * _NS).rename("time")


def _iterations(records: _Part, begins: pl.Series | None) -> tuple[pl.DataFrame, _Part]:
    """The iteration lines that parse, and the records that are none."""
    valid = records.text.str.contains("Iteration(", literal=True)
    if valid.any():
        valid &= records.text.str.contains(_ITERATION_LINE)
        valid = valid if begins is None else valid & begins
    found, remaining = records.split(valid)
    if not found.line.len():
        return NO_ITERATIONS, records
    start = found.text.str.find("Iteration(", literal=True)
    before, words = cut(found.text, 0, start), cut(found.text, start)
    if words.str.contains(", encoder", literal=True).any():
        words = words.str.splitn(", encoder", 2).struct.field("field_0")
    fields = _numbers(words, _ITERATION_FIELDS)
    columns = {
        "line": found.line,
        "engine": _engines(before),
        "step": fields["step"],
        **{name: fields[name] for name in ITERATION_NUMBERS if name != "ms"},
        "duration_ns": (fields["ms"] * 1e6).round().cast(pl.Int64, strict=False),
        "is_dummy": words.str.contains("(dummy)", literal=True),
        "kv_cache_usage": fields["usage"] / 100,
    }
    return pl.DataFrame(columns), remaining


def _numbers(words: pl.Series, fields: dict[str, Any]) -> pl.DataFrame:
    """The numbers of lines whose shape an expression has checked: without words and signs each is a row of a CSV."""
    rows = words.str.join("\n").to_list()[0].encode().translate(_COLON_TO_COMMA, _NO_NUMBER)
    return pl.read_csv(
        rows, has_header=False, schema=fields, truncate_ragged_lines=True, missing_columns="insert", ignore_errors=True
    )


def _engines(before: pl.Series) -> pl.Series:
    """The engine that a message or the process in front of it names, 0 where none does."""
    if before.str.ends_with(" Engine 000: ").all():
        return pl.repeat(0, before.len(), dtype=pl.Int32, eager=True)
    process = before.str.extract(r"EngineCore_(?:DP)?([0-9]{1,9}) pid=", 1)
    engine = before.str.extract(r"Engine ([0-9]+): $", 1).fill_null(process).fill_null("0")
    return engine.cast(pl.Int32, strict=False)


def _slow_records(records: _Part, lines: Lines, is_own: pl.Series) -> pl.DataFrame:
    """Records that need a look of their own: known words, loud levels, glued records, and wrapped ones of these."""
    free, records = records.split(records.text.str.contains(_FREE))
    glued = records.text.str.contains(GLUED)
    found = glued | records.text.str.contains(_WORDS) | records.text.str.contains(_LOUD)
    next_is_own = is_own.shift(-1, fill_value=True).gather(records.line)
    broken = (~found & ~next_is_own & (records.text.str.len_bytes() >= _WRAP_COLUMNS)).arg_true()
    if broken.len():
        following = lines.text.gather(records.line.gather(broken) + 1).str.slice(0, 400)
        found = found.scatter(broken, (records.text.gather(broken) + following).str.contains(_WORDS))
    chosen = _Part(records.line.filter(found), records.text.filter(found))
    parts = [_frame(chosen).with_columns(glued=glued.filter(found)), _frame(free)]
    filled = [part for part in parts if part.height]
    return pl.concat([_NO_SLOW, *filled], how="diagonal").sort("line")


def _stats(usual: _Part, stamps: pl.Series) -> pl.DataFrame:
    """The usual statistics lines with their numbers; percentages as printed."""
    if not usual.line.len():
        return NO_STATS
    start = usual.text.str.find(_STATS_WORDS, literal=True)
    head = cut(usual.text, 0, start)
    numbers = _numbers(cut(usual.text, start + len(_STATS_WORDS)), _STATS_FIELDS)
    columns = {
        "line": usual.line,
        **{name: numbers[name] for name in STATS_NUMBERS},
        "engine": _named_engines(head),
        "stamp": stamps,
        "head": head,
    }
    return pl.DataFrame(columns)


def _named_engines(head: pl.Series) -> pl.Series:
    """The engine that the message names, null where it names none."""
    if head.str.ends_with(" Engine 000: ").all():
        return pl.repeat(0, head.len(), dtype=pl.Int64, eager=True)
    return head.str.extract("Engine ([0-9]+): $", 1).cast(pl.Int64, strict=False)


def _timed(rows: pl.DataFrame, times: pl.DataFrame) -> pl.DataFrame:
    """Give each row the instant of its own record, or of the record before it; null before the first."""
    if not rows.height or not times.height:
        return rows.with_columns(time=pl.lit(None, dtype=pl.Int64))
    before = times["line"].search_sorted(rows["line"], side="right")
    index = pl.Series([None], dtype=pl.Int64).append(times["time"])
    return rows.with_columns(index.gather(before).alias("time"))
