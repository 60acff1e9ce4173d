"""What one source tells: tables on its own clock, configuration, and an account of every line or row."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, NamedTuple

import polars as pl

from tracekit.config import Config, ConfigValue
from tracekit.progress import Progress, no_progress

ClockKind = Literal["unix", "local", "relative"]
"""``unix``: ns since 1970 UTC. ``local``: the same of a wall clock whose zone is unknown (read as if UTC), seconds
truncated. ``relative``: ns from an arbitrary zero."""


STDIN: Final = Path("-")
"""The path that stands for standard input."""


@dataclass
class Accounting:
    """Every line or row read is understood, other or unreadable; duplicates are a part of understood."""

    unit: str = "lines"
    read: int = 0
    understood: int = 0
    other: int = 0
    unreadable: int = 0
    duplicates: int = 0
    unreadable_at: list[int] = field(default_factory=list)

    def add_unreadable(self, number: int) -> None:
        """Count an unreadable line or row; its number (from 1) is kept for the first ten."""
        self.unreadable += 1
        if len(self.unreadable_at) < 10:  # noqa: PLR2004 - enough to find them, few enough to print
            self.unreadable_at.append(number)


@dataclass
class Observation:
    """What one source tells. Instants in ``tables`` are on the source's own clock; absent tables are not observed.

    ``skipped`` counts rows left out, by reason; ``notes`` are sentences a user should read once.
    ``hash_block_size``: tokens an entry of ``block_hashes`` stands for, where the source has any.
    """

    format: str
    file: str
    clock: ClockKind
    tables: dict[str, pl.DataFrame] = field(default_factory=dict)
    config: dict[str, ConfigValue] = field(default_factory=dict)
    accounting: Accounting = field(default_factory=Accounting)
    notes: list[str] = field(default_factory=list)
    skipped: dict[str, int] = field(default_factory=dict)
    hash_block_size: int | None = None


@dataclass(frozen=True)
class ColumnMapping:
    """``--column TARGET=SOURCE[,SOURCE][:UNIT]``: where a canonical column comes from; the first non-null source wins."""

    target: str
    sources: tuple[str, ...]
    unit: str | None = None


@dataclass(frozen=True)
class Options:
    """What the user said about the sources.

    ``config`` holds the settings given or already read from other sources of the same incident (a log is read before
    a table), e.g. ``block_size`` and ``hash_block_size``.
    """

    columns: tuple[ColumnMapping, ...] = ()
    config: Config = field(default_factory=dict)
    hash_key: bytes | None = None
    strict: bool = False
    start: int | None = None
    progress: Progress = no_progress


@dataclass(frozen=True)
class Material:
    """A source as given: one file, or a directory of files in name order. ``head`` is the start of the first file,
    decompressed.
    """

    path: Path
    files: tuple[Path, ...]
    head: bytes

    @property
    def name(self) -> str:
        """The name shown to people and stored: the last component, without a compression suffix."""
        if self.path == STDIN:
            return "stdin"
        name = self.path.name
        for suffix in (".gz", ".zst", ".xz", ".bz2"):
            name = name.removesuffix(suffix)
        return name


class Source(NamedTuple):
    """A foreign format: ``detects`` looks at the content alone, ``read`` gives what it tells."""

    name: str
    doc: str
    detects: Callable[[Material], bool]
    read: Callable[[Material, Options], Observation]
