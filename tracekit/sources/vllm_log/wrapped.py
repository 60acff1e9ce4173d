"""Records that something wrapped: a terminal at its width, a text editor between words."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from tracekit.sources.vllm_log.block import Block
from tracekit.sources.vllm_log.records import Record, split_records

_MAX_WRAPPED: Final = 80
_MIN_WRAPPED: Final = 60
_OPTIONAL: Final = 4
_T = TypeVar("_T")


@dataclass
class Lines:
    """A line's neighbours in its block."""

    block: Block
    line: int
    followed: bool
    is_crlf_file: bool

    def following(self) -> list[str]:
        """The lines that follow and are no records: a wrapped record's continuation, or foreign output."""
        if not self.followed:
            return []
        found = []
        for position in range(self.line + 1, min(self.line + 1 + _MAX_WRAPPED, self.block.text.len())):
            if self.block.is_own[position]:
                break
            found.append(self.block.text[position])
        return found

    def is_continuation(self, record: Record) -> bool:
        """Whether the line goes on a record: the line before ended in CR LF and had the same head."""
        if self.is_crlf_file or self.block.ends_cr is None or not self.line or not self.block.ends_cr[self.line - 1]:
            return False
        before = split_records(self.block.text[self.line - 1])
        return bool(before) and before[-1].key[:-1] == record.key[:-1]


class Wrapped:
    """A message with the lines behind it, which may be its continuation where a terminal or a blog wrapped it."""

    def __init__(self, message: str, lines: Lines | None, width: int, count_joined: Callable[[int], None]) -> None:
        self.message, self._lines, self._width, self._count_joined = message, lines, width, count_joined
        self._tail: list[str] | None = None
        self._used = 0

    @property
    def tail(self) -> list[str]:
        """The lines behind, looked up when first needed."""
        if self._tail is None:
            self._tail = self._lines.following() if self._lines else []
        return self._tail

    @property
    def looks_wrapped(self) -> bool:
        """Whether the lines that follow go on the message: it fills its line, and they begin right behind it."""
        return self._width >= _MIN_WRAPPED and bool(self.tail) and bool(self.tail[0].strip())

    def read(self, parse: Callable[[str], _T | None], most: int = 8) -> _T | None:
        """Parse the message; if that fails, with one to ``most`` of the following lines joined to it."""
        found = parse(self.message)
        if found is not None:
            return found
        for used in range(1, min(len(self.tail), most) + 1):
            if not self.tail[used - 1].strip():
                continue
            for joined in self._joined(used):
                found = parse(joined)
                if found is not None:
                    self._use(used)
                    return found
        return None

    def joined(self) -> str:
        """The message with all that follows, as a terminal wraps it."""
        return self.message + "".join(self.tail)

    def use_all(self) -> None:
        """Take all that follows as a part of the record."""
        self._use(len(self.tail))

    def better(self, found: _T, parse: Callable[[str], _T | None], size: Callable[[_T], int]) -> _T:
        """What one more line adds to something found, or the same: optional parts may stand behind the break."""
        if not self.looks_wrapped:
            return found
        for used in range(1, min(len(self.tail), _OPTIONAL) + 1):
            for joined in self._joined(used):
                longer = parse(joined)
                if longer is not None and size(longer) > size(found):
                    found = longer
                    self._use(used)
        return found

    def _use(self, lines: int) -> None:
        self._used = max(self._used, lines)
        self._count_joined(self._used)

    def _joined(self, used: int) -> tuple[str, str]:
        parts = [part for part in self.tail[:used] if part.strip()]
        # A terminal breaks anywhere, a text editor between words.
        return self.message + "".join(parts), " ".join(part.strip() for part in (self.message, *parts))
