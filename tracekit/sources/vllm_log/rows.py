"""Rows to be, with the line they come from."""

from dataclasses import dataclass

from tracekit.sources.vllm_log.shapes import Stats


@dataclass
class StatsRow:
    """A statistics line; ``stamp`` as printed ('' when its head is lost), ``time`` None until the next record."""

    line: int
    time: int | None
    stamp: str
    place: str
    stats: Stats
    prefix_hit_rate: float | None = None


@dataclass
class Event:
    """A row of events."""

    line: int
    time: int | None
    kind: str
    value: float | None = None
    request_id: str | None = None
    engine: int | None = None
