"""What a record of a vLLM log looks like, whatever stands around it.

A record is ``LEVEL MM-DD HH:MM:SS [file.py:LINE] message`` (no opening bracket before 0.8). In front of it may stand the
process (``(EngineCore_DP0 pid=31)``), a Ray or compose prefix, an outer time stamp, a line number or an indent; never a
quote, so that text quoted in a message (a prompt) is never taken for a record. ``RECORD`` is the same expression in the
dialect that polars and ``re`` share.
"""

import re
from functools import lru_cache
from typing import Final, NamedTuple

LEVELS: Final = "DEBUG|INFO|WARNING|ERROR|CRITICAL"
_STAMP: Final = "[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}"
_PLACE: Final = r"\[?[0-9A-Za-z_./-]+:[0-9]+\]"
HEAD: Final = rf"(?:{LEVELS}) {_STAMP} {_PLACE}(?:[ \r]|$)"
RECORD: Final = rf"""^[^'"]*?{HEAD}"""
"""A line that holds a record."""

FIRST_RECORD: Final = rf"""^(?:\[[^\]'"]*\] )?[^\]'"]*?{HEAD}"""
"""A line that holds a record, matched at the first one: nothing before it ends like a head."""

GLUED: Final = rf"{_PLACE} .*{HEAD}"
"""A record whose message is followed by another record on the same line."""

ACCESS: Final = r"""^[^'"]*?INFO: +[^ '"]* ?- "[A-Z]+ [^"]*" [0-9]{3}"""
"""uvicorn's access line, which carries no time."""

ACCESS_MESSAGE: Final = rf"""^[^'"]*?(?:{LEVELS}) {_STAMP} {_PLACE} [^ '"]* ?- "[A-Z]+ [^"]*" [0-9]{{3}}"""
"""The same as the message of a record."""

UVICORN: Final = r"""^[^'"]*?(?:INFO|WARNING|ERROR): {2,}[A-Z(]"""
"""Any other line of uvicorn's."""

OUTER_TIME: Final = (
    r"""^[^'"]{0,80}?\b([0-9]{4}-[0-9]{2}-[0-9]{2})[T ]([0-9]{2}:[0-9]{2}:[0-9]{2})"""
    r"""(?:[.,]([0-9]{1,9}))?(Z|[+-][0-9]{2}:?[0-9]{2})?(?: |$)"""
)
"""The time stamp of docker, kubernetes, journald or a JSON formatter in front of a record: date, time, fraction, zone."""

FREE_TEXT: Final = ("Received request ", " details: prompt", "Generated response ", " JSON body: ")
"""Messages that quote what users and models wrote: nothing in them but their own fields is to be believed."""

_HEAD = re.compile(rf"({LEVELS}) ({_STAMP}) \[?([0-9A-Za-z_./-]+):([0-9]+)\](?:[ \r]|$)")
_FREE_TEXT = re.compile("|".join(map(re.escape, FREE_TEXT)))
_PROCESS = re.compile(r"\(([A-Za-z_]\w*(?: [A-Za-z]+\d*| rank=\d+)*) pid=(\d+)[^)]*\)")
_RANK = re.compile(r"(?:EngineCore|ApiServer|APIServer)_(?:DP)?(\d{1,9})$")
_REPEATED = re.compile(r" \[repeated \d+x across cluster\][^\[\]]*$")


class Record(NamedTuple):
    """One record: what stands before it, its head and its message."""

    before: str
    level: str
    stamp: str
    place: str
    message: str

    @property
    def process(self) -> str:
        """The innermost process named before the record (``EngineCore_DP0``), or ''."""
        return self.process_id.rpartition(" ")[0]

    @property
    def process_id(self) -> str:
        """The innermost process with its number, or ''."""
        return _process_id(self.before)

    @property
    def engine(self) -> int | None:
        """The data-parallel rank that the process name tells; None when it tells none."""
        return engine_of(self.process)

    @property
    def key(self) -> tuple[str, ...]:
        """The same for a record and its copy, whatever an outer tool wrote before each."""
        return (self.process_id, self.level, self.stamp, self.place, self.message)

    @property
    def is_free_text(self) -> bool:
        """Whether the message quotes a prompt or an answer."""
        return _FREE_TEXT.search(self.message, 0, 200) is not None


@lru_cache(maxsize=1024)
def _process_id(before: str) -> str:
    found = _PROCESS.findall(before)
    return f"{found[-1][0]} {found[-1][1]}" if found else ""


def engine_of(process: str) -> int | None:
    """The data-parallel rank in the name of an engine's process: ``EngineCore_DP1`` is 1, ``EngineCore`` is 0."""
    if not process.startswith("EngineCore"):
        return None
    found = _RANK.match(process)
    return int(found[1]) if found else 0


def split_records(line: str, *, glued: bool = True) -> list[Record]:
    """The records of a line, in order; most lines hold one, a ``glued`` line several, a foreign line none."""
    first = _HEAD.search(line)
    if first is None or "'" in line[: first.start()] or '"' in line[: first.start()]:
        return []
    if not glued:
        return [_record(line, first, len(line), 0)]
    heads = [first]
    if not _record(line, first, len(line), 0).is_free_text:
        heads.extend(_HEAD.finditer(line, first.end()))
    records = []
    start = 0
    for position, head in enumerate(heads):
        end = len(line) if position + 1 == len(heads) else _message_end(line, head.end(), heads[position + 1].start())
        records.append(_record(line, head, end, start))
        start = end
    return records


def _message_end(line: str, low: int, high: int) -> int:
    """Where a glued message ends: before the process prefix of the next record, if there is one."""
    prefix = re.search(r"(?:\([^()]*pid=\d+[^()]*\) *)+$", line[low:high])
    return low + prefix.start() if prefix else high


def _record(line: str, head: "re.Match[str]", end: int, start: int) -> Record:
    message = line[head.end() : end].rstrip("\r")
    if message.endswith("across cluster]"):
        message = _REPEATED.sub("", message)
    return Record(line[start : head.start()], head[1], head[2], f"{head[3]}:{head[4]}", message)
