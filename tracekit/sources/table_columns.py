"""``--column TARGET=SOURCE[,SOURCE][:UNIT]``: what a table's columns mean, as the user says or as their names suggest."""

import difflib
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from tracekit.errors import InputError
from tracekit.schema.tables import REQUESTS
from tracekit.sources.observation import ColumnMapping

UNITS: Final = ("s", "ms", "us", "ns", "iso")
TARGETS: Final = {column.name.removesuffix("_ns"): column for column in REQUESTS.columns}
"""What ``--column`` may fill: the canonical request columns without ``_ns``."""
TIMES: Final = tuple(
    name for name, column in TARGETS.items() if column.unit == "ns" and not column.type.startswith("list")
)
DURATIONS: Final = ("think",)
INSTANTS: Final = tuple(name for name in TIMES if name not in DURATIONS)
LISTS: Final = ("block_hashes", "itl")
NEEDED: Final = ("arrival", "num_prompt_tokens", "num_output_tokens")

_KNOWN_NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "arrival": (
        "arrival_time",
        "arrived_at",
        "arrival_ts",
        "arrival_timestamp",
        "t_send",
        "send_time",
        "sent_at",
        "send_ts",
        "t_arrival",
        "request_start_time",
        "start_time",
        "request_time",
        "queued_ts",
        "timestamp",
        "created_at",
        "created",
        "time",
        "ts",
        "arrival_time_ns",
        "t",
    ),
    "first_token": (
        "t_first",
        "first_token_time",
        "first_token_ts",
        "t_first_token",
        "first_token_timestamp",
        "completion_start_time",
    ),
    "last_token": (
        "t_end",
        "t_last",
        "last_token_time",
        "last_token_ts",
        "end_time",
        "finish_time",
        "completed_at",
        "finished_at",
    ),
    "num_prompt_tokens": (
        "usage.prompt_tokens",
        "prompt_tokens",
        "input_tokens",
        "input_length",
        "prompt_len",
        "input_len",
        "input_toks",
        "prompt_length",
        "num_input_tokens",
        "contexttokens",
        "request_tokens",
        "server_input_tokens",
        "isl",
        "in",
    ),
    "num_output_tokens": (
        "usage.completion_tokens",
        "completion_tokens",
        "output_tokens",
        "output_length",
        "output_len",
        "output_toks",
        "num_generated_tokens",
        "generated_tokens",
        "generatedtokens",
        "response_tokens",
        "completion_length",
        "osl",
        "out",
    ),
    "request_id": ("request_id", "req_id", "requestid", "id"),
    "session_id": ("session_id", "session", "conversation_id", "chat_id"),
    "queued": ("queued_ts", "queued_at"),
    "scheduled": ("scheduled_ts", "scheduled_at"),
    "finish_reason": ("finish_reason", "status", "status_code", "error"),
    "block_hashes": ("hash_ids",),
}
_MAX_SHOWN: Final = 40
_MAX_NAME: Final = 60


def parse_column(text: str) -> ColumnMapping:
    """Read one ``--column`` option; raises ``InputError`` that names the known targets or units and the nearest one.

    ``block_hashes`` takes a whole number in place of a unit: the tokens that one id stands for.
    """
    target, equals, rest = text.partition("=")
    target = target.strip()
    if not equals or not rest.strip():
        msg = "--column: expected TARGET=SOURCE[,SOURCE][:UNIT], e.g. arrival=send_time:ms"
        raise InputError(msg)
    if target not in TARGETS:
        near = difflib.get_close_matches(target.removesuffix("_ns"), TARGETS, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        msg = f"--column: unknown target '{printable(target)}'{hint} (targets: {', '.join(TARGETS)})"
        raise InputError(msg)
    sources, unit = _split_unit(target, rest)
    names = tuple(name.strip() for name in sources.split(",") if name.strip())
    if not names:
        msg = f"--column {target}: expected a source column before the unit"
        raise InputError(msg)
    return ColumnMapping(target, names, unit)


def _split_unit(target: str, rest: str) -> tuple[str, str | None]:
    sources, colon, unit = rest.rpartition(":")
    if not colon:
        return rest, None
    if target == "block_hashes":
        if unit.isascii() and unit.isdigit() and int(unit) > 0:
            return sources, str(int(unit))
        msg = "--column block_hashes: expected a whole number of tokens an id stands for, e.g. block_hashes=hash_ids:16"
        raise InputError(msg)
    if target in TIMES or target == "itl":
        allowed = UNITS if target in INSTANTS else UNITS[:-1]
        if unit in allowed:
            return sources, unit
        msg = f"--column {target}: unknown unit '{printable(unit)}'; expected one of {' '.join(allowed)}"
        raise InputError(msg)
    if unit in UNITS:
        msg = f"--column {target}: takes no unit; only times do"
        raise InputError(msg)
    return rest, None


def mappings_for(
    given: Sequence[ColumnMapping], found: Sequence[str], where: str
) -> tuple[tuple[ColumnMapping, ...], bool]:
    """The mappings to read a table with these columns by, and whether they are the canonical names themselves.

    Without given mappings the table must be canonical (``arrival_ns`` or ``arrival_s``, ``num_prompt_tokens``,
    ``num_output_tokens``). Raises ``InputError`` for a source that is not there and for a needed target without one;
    the message lists the columns and proposes a complete command line.
    """
    for asked in given:
        missing = next((name for name in asked.sources if name not in found), None)
        if missing is not None and not set(asked.sources) & set(found):
            near = difflib.get_close_matches(missing, found, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            msg = f"{where}: no column '{printable(missing)}' for {asked.target}{hint} ({_listed(found)})"
            raise InputError(msg)
    targets = [mapping.target for mapping in given]
    twice = next((target for target in targets if targets.count(target) > 1), None)
    if twice is not None:
        msg = f"--column {twice}: given twice; put alternatives into one, {twice}=a,b"
        raise InputError(msg)
    wanted = TARGETS if not given else NEEDED
    own = [mapping for target in wanted if target not in targets and (mapping := _canonical(target, found)) is not None]
    complete = (*given, *own)
    reached = {mapping.target for mapping in complete}
    later_turns = {"parent_request_id", "think"} <= reached
    lacking = [target for target in NEEDED if target not in reached and not (target == "arrival" and later_turns)]
    if lacking:
        raise InputError(_lacking(lacking, complete if given else (), found, where))
    return complete, not given


def _canonical(target: str, found: Iterable[str]) -> ColumnMapping | None:
    if target not in TIMES and target != "itl":
        return ColumnMapping(target, (target,)) if target in found else None
    # A canonical name carries its unit: arrival_ns, arrival_s.
    unit = next((unit for unit in ("ns", "us", "ms", "s") if f"{target}_{unit}" in found), None)
    return ColumnMapping(target, (f"{target}_{unit}",), unit) if unit else None


def _lacking(lacking: Sequence[str], given: Sequence[ColumnMapping], found: Sequence[str], where: str) -> str:
    proposed = dict(propose(found))
    parts = [f"{where}: no column is known to be {', '.join(lacking)} ({_listed(found)})"]
    if all(target in proposed for target in lacking):
        kept = {
            mapping.target: ",".join(mapping.sources) + (f":{mapping.unit}" if mapping.unit else "")
            for mapping in given
        }
        line = " ".join(f"--column {shlex.quote(f'{target}={source}')}" for target, source in (proposed | kept).items())
        parts.append(f"perhaps: {line}")
    else:
        parts.append(f"name it with {' '.join(f'--column {target}=SOURCE' for target in lacking)}")
    return "; ".join(parts)


def propose(found: Sequence[str]) -> list[tuple[str, str]]:
    """Which of the columns probably feed which target, judged by their names alone."""
    by_key = {_key(name): printable(name) for name in reversed(found)}
    proposals = []
    for target, names in _KNOWN_NAMES.items():
        own = (target, f"{target}_ns", f"{target}_s", f"{target}_ms")
        source = next((by_key[_key(name)] for name in (*own, *names) if _key(name) in by_key), None)
        if source is not None:
            proposals.append((target, source))
    return proposals


def _key(name: str) -> str:
    return "".join(character for character in name.lower() if character.isalnum() or character == ".")


def _listed(found: Sequence[str]) -> str:
    shown = ", ".join(printable(name) for name in found[:_MAX_SHOWN])
    more = f" and {len(found) - _MAX_SHOWN} more" if len(found) > _MAX_SHOWN else ""
    return f"columns: {shown}{more}" if found else "no columns"


def printable(name: str) -> str:
    """A column's name fit for a message: no control characters, not long."""
    clean = "".join(character for character in name if character.isprintable())
    return clean if len(clean) <= _MAX_NAME else clean[: _MAX_NAME - 3] + "..."
