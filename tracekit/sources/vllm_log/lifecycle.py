"""Request lines: what arrived, when it ended. Prompt text is stepped over and never kept."""

import re
from collections.abc import Container
from typing import Final, NamedTuple

from tracekit.sources.vllm_log.pairs import simple_value

_STRING: Final = re.compile(r"""'[^'\\]*(?:\\.[^'\\]*)*'|"[^"\\]*(?:\\.[^"\\]*)*\"""", re.DOTALL)
_RECEIVED: Final = re.compile(r"Received request (\S+?): (?=prompt: |params: |sampling params: )")
_DETAILS: Final = re.compile(r"Request (\S+?) details: (?=prompt: )")
_PARAMS: Final = re.compile(r"(?:, )?(?:sampling )?params: \w+\(")
_TOKEN_IDS: Final = re.compile(r"(?:, )?prompt[_ ]token[_ ]ids: \[([\d, ]*)\]")
_FIELD: Final = re.compile(r"\b(max_tokens|n|temperature)=([\d.e-]+|None)(?=[,)]|$)")
_BRACKET: Final = re.compile(rf"{_STRING.pattern}|[()\[\]{{}}]", re.DOTALL)
_ENDS: Final = (
    (re.compile(r"Finished request (\S+?)\.$"), None),
    (re.compile(r"Aborted request\(s\) (\S+?)\.$"), "abort"),
    (re.compile(r"Aborted request (\S+?)\.$"), "abort"),
    (re.compile(r"Request (\S+) aborted\.$"), "abort"),
    (re.compile(r"Request (\S+) failed \(engine dead\)\.$"), "error"),
    (re.compile(r"Request (\S+) failed \(bad request\)\.$"), "rejected"),
    (re.compile(r"Request (\S+) failed \(.*$"), "error"),
)
_OPEN: Final = frozenset("([{")
_CLOSE: Final = frozenset(")]}")
_ADDED: Final = re.compile(r"Added request (\S+?)\.$")
_GENERATED: Final = re.compile(r"Generated response (\S+?)(?: \((streaming delta|streaming complete)\))?: output: ")
_GENERATED_REST: Final = re.compile(r"(?:, output_token_ids: (None|\[[\d, ]*\]))?, finish_reason: '?(\w+)'?")
_SUFFIX: Final = re.compile(r"^(.+)-[0-9a-f]{8}$")


class Received(NamedTuple):
    """A request as it arrived. ``prompt_span``: where the quoted prompt stands in the message, None if not printed.

    ``token_ids``: as printed.
    ``is_details``: the DEBUG line of 0.13 and later, which stands before or behind the request's own and repeats nothing.
    """

    request_id: str
    max_tokens: int | None
    num_choices: int | None
    temperature: float | None
    token_ids: str | None
    prompt_span: tuple[int, int] | None
    is_details: bool


class End(NamedTuple):
    """The end of requests; ``reason`` None: the line does not tell."""

    request_ids: list[str]
    reason: str | None
    num_generated_tokens: int | None = None


def parse_received(message: str) -> Received | None:
    """Read ``Received request ...`` or the ``Request ... details:`` of later versions; None when it is cut or neither.

    The prompt is a Python representation, so its end is the first unescaped quote of its own kind: whatever a prompt
    says, it says it inside.
    """
    start = _RECEIVED.match(message) or _DETAILS.match(message)
    if start is None:
        return None
    position, span = start.end(), None
    if message.startswith("prompt: ", position):
        position += len("prompt: ")
        quoted = _STRING.match(message, position)
        if quoted:
            span = quoted.span()
            position = span[1]
        elif message.startswith("None", position):
            position += len("None")
        else:
            return None
    params = _PARAMS.match(message, position)
    fields: dict[str, str] = {}
    if params:
        position = _closing(message, params.end())
        # Stop strings and schemas are quoted: without them only the fields' own names are left.
        bare = _STRING.sub("", message[params.end() : position])
        fields = {found[1]: found[2] for found in reversed(list(_FIELD.finditer(bare)))}
    elif start.re is _RECEIVED:
        return None
    tokens = _TOKEN_IDS.match(message, position)
    temperature = simple_value(fields.get("temperature", ""))
    return Received(
        start[1],
        _whole(fields.get("max_tokens")),
        _whole(fields.get("n")),
        float(temperature) if isinstance(temperature, (int, float)) else None,
        tokens[1] if tokens else None,
        span,
        start.re is _DETAILS,
    )


def _closing(message: str, position: int) -> int:
    depth = 1
    for found in _BRACKET.finditer(message, position):
        token = found[0]
        if token in _OPEN:
            depth += 1
        elif token in _CLOSE:
            depth -= 1
            if depth == 0:
                return found.end()
    return len(message)


def _whole(raw: str | None) -> int | None:
    value = simple_value(raw) if raw else None
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def parse_added(message: str) -> str | None:
    """The internal id in ``Added request R.``."""
    found = _ADDED.match(message)
    return found[1] if found else None


def parse_end(message: str) -> End | None:
    """Read a line that ends requests; None when it is none."""
    for pattern, reason in _ENDS:
        found = pattern.match(message)
        if found:
            return End([part for part in found[1].split(",") if part], reason)
    return _generated(message)


def _generated(message: str) -> End | None:
    start = _GENERATED.match(message)
    if start is None or start[2] == "streaming delta":
        return None
    output = _STRING.match(message, start.end())
    rest = _GENERATED_REST.match(message, output.end()) if output else None
    if rest is None:
        return None
    listed = rest[1] if rest[1] and rest[1] != "None" else None
    count = listed.count(",") + bool(listed.strip("[] ")) if listed else None
    reason = rest[2] if rest[2] in {"stop", "length", "abort"} else None
    return End([start[1]], reason, count)


def without_suffix(internal_id: str, known: Container[str]) -> str:
    """The id a client knows: 0.33 adds eight random hexadecimal digits, choices beyond the first a number in front."""
    if internal_id in known:
        return internal_id
    for candidate in (internal_id, re.sub(r"^\d+_", "", internal_id)):
        found = _SUFFIX.match(candidate)
        for shorter in (candidate, found[1] if found else candidate):
            if shorter in known:
                return shorter
    found = _SUFFIX.match(internal_id)
    return found[1] if found else internal_id
