"""Names as people and logs write them, reduced to what tells them apart."""

import difflib
import re
from collections.abc import Iterable
from typing import Final

_LONGEST: Final = 200
_SPLIT: Final = re.compile(r"[^a-z0-9.+]+")


def words(name: str) -> list[str]:
    """Lower-case words of a name: ``NVIDIA H100 80GB HBM3`` -> nvidia, h100, 80gb, hbm3."""
    return [word for word in _SPLIT.split(name.lower().replace("™", "").replace("®", "")) if word]


def shortened(name: str, letters: int = 60) -> str:
    """A name for a message: quoted, and cut where it goes on and on."""
    return repr(name) if len(name) <= letters else f"{name[:letters]!r}..."


def squeezed(name: str) -> str:
    """A name without separators and case."""
    return "".join(words(name))


def nearest(name: str, known: Iterable[str]) -> list[str]:
    """The known names most like this one, best first."""
    # An endless name is like nothing, and takes for ever to compare.
    by_key = {squeezed(candidate): candidate for candidate in known}
    return [by_key[key] for key in difflib.get_close_matches(squeezed(name[:_LONGEST]), by_key, 3, 0.5)]
