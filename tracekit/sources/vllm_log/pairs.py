"""A careful small scanner of ``key=value`` and ``'key': value`` lists as Python prints them.

The values hold commas, equal signs, quotes, enums and class representations, so neither a split nor ``literal_eval``
reads them. Only simple values are given a meaning; everything else stays text.
"""

import re
from collections.abc import Iterator
from typing import Final

from tracekit.config import Scalar

_STRING: Final = r"""'[^'\\]*(?:\\.[^'\\]*)*'|"[^"\\]*(?:\\.[^"\\]*)*\""""
_STEP: Final = re.compile(rf"{_STRING}|[\[({{<]|[\])}}>]|,|[^'\"\[({{<\])}}>,]+|.", re.DOTALL)
_KEY: Final = re.compile(rf"\s*(?:({_STRING})\s*:|([A-Za-z_]\w*)=)\s*", re.DOTALL)
_INT: Final = re.compile(r"-?\d{1,18}")
_FLOAT: Final = re.compile(r"-?\d+\.\d*(?:e[+-]?\d+)?|-?\d+e[+-]?\d+")
_TEXT: Final = re.compile(_STRING, re.DOTALL)
_ENUM: Final = re.compile(rf"<\w+\.\w+: ({_STRING})>", re.DOTALL)
_OPEN: Final = frozenset("[({<")
_CLOSE: Final = frozenset("])}>")


def scan_pairs(text: str) -> Iterator[tuple[str, str]]:
    """Give the pairs at the outermost level of ``text``, which stands inside the brackets; ends where they close."""
    depth = 0
    start = 0
    for found in _STEP.finditer(text):
        token = found[0]
        if token in _OPEN:
            depth += 1
        elif token in _CLOSE:
            depth -= 1
        if depth < 0 or (depth == 0 and found[0] == ","):
            yield from _pair(text[start : found.start()])
            start = found.end()
        if depth < 0:
            return
    yield from _pair(text[start:])


def closes(text: str) -> bool:
    """Whether the bracket in which ``text`` stands is closed in it."""
    depth = 0
    for found in _STEP.finditer(text):
        depth += (found[0] in _OPEN) - (found[0] in _CLOSE)
        if depth < 0:
            return True
    return False


def _pair(part: str) -> Iterator[tuple[str, str]]:
    found = _KEY.match(part)
    if found:
        yield (found[1][1:-1] if found[1] else found[2]), part[found.end() :].strip()


def simple_value(raw: str) -> Scalar | None:
    """The value of a number, boolean or string as Python prints it, or of a list of one; None of anything else."""
    if raw.startswith("[") and raw.endswith("]"):
        raw = raw[1:-1].partition(", ")[0].strip()
    if raw in {"True", "False"}:
        return raw == "True"
    if _INT.fullmatch(raw):
        return int(raw)
    if _FLOAT.fullmatch(raw):
        return float(raw)
    if _TEXT.fullmatch(raw):
        return raw[1:-1]
    enum = _ENUM.fullmatch(raw)
    return enum[1][1:-1] if enum else None
