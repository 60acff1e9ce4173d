"""Progress is a callback that cannot change the answer; only the command line draws it."""

from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""Called as ``progress(what, done, total)``: a short label and how much of it is done; total 0 means unknown."""


def no_progress(what: str, done: int, total: int) -> None:
    """Ignore the report; what the library uses when the caller gives no callback."""
