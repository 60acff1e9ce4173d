"""The lines about requests that print nothing unusual, whole columns at a time.

A line is usual when one expression matches all of it: then its fields can be cut out without looking at it singly, and
nothing in a quoted prompt can be taken for one. Every other line about a request is looked at singly, as is every line
of a request of which an unusual line or two equal ones stand in the piece.
"""

import re
from typing import Final, NamedTuple, cast

import polars as pl

from tracekit.sources.vllm_log.prompt_hashes import Hashing
from tracekit.sources.vllm_log.records import FIRST_RECORD, LEVELS

ADDED, RECEIVED, FINISHED = "Added", "Received", "Finished"
_STRING: Final = r"""(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")"""
_NAME: Final = "[!#-&(-9;-~]+"
"""An id of plain letters and signs: no blank, quote or colon."""
_PLAIN: Final = r"[^'\"()\[\]{}]"
_USUAL_SHORT: Final = rf"{FIRST_RECORD}(?:Added|Finished) request {_NAME}\.$"
_USUAL_RECEIVED: Final = (
    rf"{FIRST_RECORD}Received request {_NAME}: (?:prompt: (?:{_STRING}|None), )?params: \w+\((?:{_PLAIN}|\[{_PLAIN}*\])*\)"
    r"(?:, prompt_token_ids: (?:None|\[[0-9, ]*\]))?(?:, [a-z_]+(?: [a-z]+)?: [^'\"\[\]()]*)*$"
)
_BEHIND_PROMPT: Final = r"params: \w+\([^'\"]*$"
_ANY_ID: Final = re.compile(rf"equest(?:\(s\))? ({_NAME}?)(?=\.?(?:(?:{LEVELS})\b|\(|$)|[:\s,])")
_MARK: Final = " request "
_EDGE_LINES: Final = 64
"""Copies stand at most so far apart: near a piece's ends the other one may be in another piece."""


class RequestLine(NamedTuple):
    """One usual line. ``time``: of its record, None before the first.

    ``num_printed``, ``hashes``: the prompt's token ids, None when they are not printed (see ``chain_printed_tokens``).
    """

    line: int
    kind: str
    request_id: str
    max_tokens: int | None
    num_printed: int | None
    hashes: bytes | None
    time: int | None


def rows_of(lines: pl.DataFrame) -> list[RequestLine]:
    """The usual lines of a piece, in order; plain tuples, as there may be a million."""
    columns = (lines[name].to_list() for name in RequestLine._fields)
    return cast("list[RequestLine]", list(zip(*columns, strict=True)))


def hashed(lines: pl.DataFrame, hashing: Hashing) -> pl.DataFrame:
    """Put the hashes of token ids in their place."""
    printed = lines["token_ids"].is_not_null().arg_true()
    hashes, num_printed = (pl.repeat(None, lines.height, dtype=dtype, eager=True) for dtype in (pl.Binary, pl.Int64))
    if printed.len():
        chains, sizes = hashing.chains(lines["token_ids"].gather(printed).to_list())
        hashes, num_printed = hashes.scatter(printed, chains), num_printed.scatter(printed, sizes)
    return lines.drop("token_ids").with_columns(hashes.alias("hashes"), num_printed.alias("num_printed"))


_SCHEMA: Final = {
    "line": pl.Int64,
    "kind": pl.String,
    "request_id": pl.String,
    "max_tokens": pl.Int64,
    "token_ids": pl.String,
}
NO_LINES: Final = pl.DataFrame(schema=_SCHEMA)


def usual_requests(
    line: pl.Series, text: pl.Series, num_lines: int, begins: pl.Series | None = None
) -> tuple[pl.DataFrame, pl.Series]:
    """The usual lines about requests among records, and which of the records they are.

    ``line``: the records' positions in their piece of ``num_lines`` lines; ``begins``: whether each is a record of its
    own and no further line of the one before (None: all are).
    """
    none = pl.repeat(False, text.len(), dtype=pl.Boolean, eager=True)
    at = text.str.contains(_MARK, literal=True).arg_true()
    if not at.len():
        return NO_LINES, none
    some = text.gather(at)
    is_received = some.str.contains("Received request ", literal=True)
    begin = pl.repeat(value=True, n=at.len(), dtype=pl.Boolean, eager=True) if begins is None else begins.gather(at)
    short, long = (~is_received & begin).arg_true(), (is_received & begin).arg_true()
    short = short.filter(some.gather(short).str.contains(_USUAL_SHORT))
    long = long.filter(some.gather(long).str.contains(_USUAL_RECEIVED))
    lines = line.gather(at)
    is_added = some.gather(short).str.contains("Added request ", literal=True)
    added, finished = short.filter(is_added), short.filter(~is_added)
    found = pl.concat([_short(added, some, ADDED), _short(finished, some, FINISHED), _received(long, some)])
    found = found.with_columns(line=lines.gather(found["at"]).cast(pl.Int64))
    kept = found.filter(pl.col("line").is_between(_EDGE_LINES, num_lines - _EDGE_LINES) & pl.col("is_single"))
    is_unusual = pl.repeat(True, some.len(), dtype=pl.Boolean, eager=True).scatter(found["at"], False)
    if is_unusual.any():
        found_names = {name for each in some.filter(is_unusual).to_list() for name in _ANY_ID.findall(each)}
        # A stop behind the name may end the record.
        named = found_names | {name.removesuffix(".") for name in found_names}
        kept = kept.join(
            pl.DataFrame({"request_id": list(named)}, schema={"request_id": pl.String}), on="request_id", how="anti"
        )
    chosen = none.scatter(at.gather(kept["at"]), True)
    return kept.select(pl.col(name).cast(dtype) for name, dtype in _SCHEMA.items()).sort("line"), chosen


def _between(text: pl.Series, before: str, after: str) -> pl.Series:
    """What stands between the first ``before`` and the ``after`` behind it; null where there is no ``before``.

    Finding and cutting is several times faster than a capturing group, and copies no text.
    """
    rest = cut(text, text.str.find(before, literal=True) + len(before))
    return cut(rest, 0, rest.str.find(after, literal=True))


def cut(text: pl.Series, start: pl.Series | int, length: pl.Series | int | None = None) -> pl.Series:
    """Text from a byte on, so many bytes of it (all, if None).

    Raises polars' ``ComputeError`` where that cuts through a letter.
    """
    first, last = (pl.lit(at) if isinstance(at, pl.Series) else at for at in (start, length))
    return pl.select(pl.lit(text.cast(pl.Binary)).bin.slice(first, last)).to_series().cast(pl.String)


def _short(at: pl.Series, text: pl.Series, kind: str) -> pl.DataFrame:
    request_id = text.gather(at).str.splitn(_MARK, 2).struct.field("field_1").str.strip_suffix(".")
    frame = pl.DataFrame({"at": at, "kind": _repeated(kind, at.len()), "request_id": request_id})
    return frame.with_columns(
        is_single=request_id.is_unique(), max_tokens=pl.lit(None, pl.Int64), token_ids=pl.lit(None, pl.String)
    )


def _repeated(word: str, count: int) -> pl.Series:
    return pl.repeat(word, count, dtype=pl.String, eager=True)


def _received(at: pl.Series, text: pl.Series) -> pl.DataFrame:
    texts = text.gather(at)
    tail = texts
    if texts.str.contains(": prompt: ", literal=True).any():
        # A prompt ends with its quote, and none follows: what it says is cut off before anything is looked for.
        tail = cut(texts, texts.str.find(_BEHIND_PROMPT))
    request_id = _between(texts, "Received request ", ": ")
    max_tokens = _between(tail, " max_tokens=", ",").str.strip_chars_end(")")
    # A number that stands there in another way is left to the look at single lines.
    is_known = max_tokens.str.contains("^(?:[0-9]+|None)$").fill_null(value=False)
    other = (~is_known).arg_true()
    if other.len():
        is_known = is_known.scatter(other, ~tail.gather(other).str.contains("max_tokens=", literal=True))
    return pl.DataFrame(
        {
            "at": at,
            "kind": _repeated(RECEIVED, at.len()),
            "request_id": request_id,
            "is_single": request_id.is_unique() & is_known,
            "max_tokens": max_tokens.cast(pl.Int64, strict=False),
            "token_ids": _between(tail, "prompt_token_ids: [", "]"),
        }
    )
