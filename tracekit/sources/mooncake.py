"""Mooncake traces: JSON lines with ``timestamp`` (ms), ``input_length``, ``output_length`` and ``hash_ids`` of 512 tokens.

``timestamp`` is bucketed, so order matters and no time is unique. Dialects: no ``hash_ids``; a header object on line 1
(``block_size``); ``session_id`` with later turns that give only what was added (``delay`` after the turn before);
``not_before_ms`` with ``dependencies``, of which one completion is followed.
"""

from collections.abc import Iterator
from typing import Any, Final

import polars as pl

from tracekit.sources.any_rows import good_rows, refuse_nothing_usable
from tracekit.sources.block_hashes import stored_block_size
from tracekit.sources.files import left_out_note
from tracekit.sources.mooncake_turns import with_turns
from tracekit.sources.observation import Accounting, ColumnMapping, Material, Observation, Options, Source
from tracekit.sources.request_rows import finish, unique_ids
from tracekit.sources.table_read import TableFiles, batches, open_table, parse_json
from tracekit.sources.table_rows import BLANK, Converter

DEFAULT_TOKENS_PER_ID: Final = 512
_TIMES: Final = ("timestamp", "not_before_ms")
_OF_ANOTHER_KIND: Final = frozenset({"chat_id", "parent_chat_id", "requests", "t"})
_LINES_LOOKED_AT: Final = 3
_UNCLEAR: Final = "turn that waits for several requests or for a dispatch"


def detects(material: Material) -> bool:
    """One of the first lines is an object with the trace's lengths and a time, an id list or a session."""
    if not material.head.lstrip(b"\xef\xbb\xbf \r\n\t").startswith(b"{"):
        return False
    return any(_is_row(row) for row in _first_rows(material.head))


def _first_rows(head: bytes) -> list[Any]:
    lines = head.split(b"\n")
    whole = lines if len(lines) == 1 else lines[:-1]
    found = [parse_json(line) for line in whole[:_LINES_LOOKED_AT]]
    if not any(isinstance(row, dict) for row in found):
        # The first prompt may have more ids than the head has room for: what stands before them tells enough.
        found = [parse_json(lines[0].partition(b'"hash_ids"')[0].rstrip(b" ,") + b"}")]
    return found


def _is_row(row: Any) -> bool:  # noqa: ANN401 - JSON
    if (
        not isinstance(row, dict)
        or not {"input_length", "output_length"} <= row.keys()
        or row.keys() & _OF_ANOTHER_KIND
    ):
        return False
    return bool(row.keys() & {*_TIMES, "hash_ids", "session_id"})


def read(material: Material, options: Options) -> Observation:
    """Read arrivals, lengths and prefix structure; ids become block hashes at the engine's block size (16 if unknown).

    A row without a length or an arrival is unreadable; one with dependencies that cannot be followed is other.
    Raises ``InputError`` when no row can be used, or for the first refused one under ``strict``.
    """
    observation = Observation("mooncake", material.name, "relative", accounting=Accounting("rows"))
    observation.notes.extend(left_out_note(material))
    table = open_table(material.files, material.head)
    tokens_per_id = _tokens_per_id(material, options)
    block_size = stored_block_size(tokens_per_id, options.config)
    converter = Converter(
        _mappings(table),
        str(material.path),
        hashing=(tokens_per_id, block_size),
        required=frozenset({"num_prompt_tokens", "num_output_tokens"}),
    )
    raw = [name for name in converter.wanted if not name.startswith("#")]
    rows = batches(table, [*raw, *_linked(table)], observation.accounting, options.progress)
    if _linked(table):
        rows = _followable(rows, observation)
    good = list(good_rows(rows, converter, observation, strict=options.strict))
    refuse_nothing_usable(observation, str(material.path))
    if (headers := observation.skipped.pop(BLANK, 0)) > 0:
        observation.skipped["line without a request (header)"] = headers
    if "hash_ids" in table.columns:
        observation.hash_block_size = block_size
        observation.notes.append(
            f"{observation.file}: an id of hash_ids stands for {tokens_per_id} tokens; hashed in blocks of {block_size}"
        )
    frame = unique_ids(pl.concat(good) if good else converter.no_rows())
    if "session_id" in frame.columns and not _linked(table):
        frame = with_turns(frame, block_size, observation)
    observation.tables["requests"] = finish(frame, observation)
    return observation


def _mappings(table: TableFiles) -> tuple[ColumnMapping, ...]:
    optional = [
        ColumnMapping("request_id", ("request_id",)),
        ColumnMapping("session_id", ("session_id",)),
        ColumnMapping("priority", ("priority",)),
        ColumnMapping("block_hashes", ("hash_ids",)),
    ]
    linked = _linked(table)
    if not linked:
        optional.append(ColumnMapping("think", ("delay",), "ms"))
    return (
        ColumnMapping("arrival", tuple(name for name in _TIMES if name in table.columns) or ("timestamp",), "ms"),
        ColumnMapping("num_prompt_tokens", ("input_length",)),
        ColumnMapping("num_output_tokens", ("output_length",)),
        *(mapping for mapping in optional if mapping.sources[0] in table.columns),
        *(
            (ColumnMapping("parent_request_id", ("#parent",)), ColumnMapping("think", ("#delay",), "ms"))
            if linked
            else ()
        ),
    )


def _linked(table: TableFiles) -> tuple[str, ...]:
    return ("dependencies",) if "dependencies" in table.columns else ()


def _followable(rows: Iterator[pl.DataFrame], observation: Observation) -> Iterator[pl.DataFrame]:
    """Rows with no dependency, or with the completion of one request; the others are counted as other."""
    for batch in rows:
        links = [_link(text) for text in batch["dependencies"].to_list()]
        kept = pl.Series([link is not None for link in links], dtype=pl.Boolean)
        if (left := int((~kept).sum())) > 0:
            observation.accounting.other += left
            observation.skipped[_UNCLEAR] = observation.skipped.get(_UNCLEAR, 0) + left
        frame = batch.with_columns(
            pl.Series("#parent", [link[0] if link else None for link in links], dtype=pl.String),
            pl.Series("#delay", [link[1] if link else None for link in links], dtype=pl.String),
        )
        # A turn that follows another arrives when that one ended, not at a time of its own.
        times = [
            pl.when(pl.col("#parent").is_null()).then(name).alias(name) for name in _TIMES if name in frame.columns
        ]
        yield frame.with_columns(times).filter(kept)


def _link(text: str | None) -> tuple[str | None, str | None] | None:
    found = parse_json(text.encode()) if text else []
    if found == []:
        return None, None
    if isinstance(found, list) and len(found) == 1 and isinstance(found[0], dict):
        parent, trigger = found[0].get("request_id"), found[0].get("trigger")
        if isinstance(parent, str) and trigger == "completion":
            return parent, str(found[0].get("delay_ms") or 0)
    return None


def _tokens_per_id(material: Material, options: Options) -> int:
    header = parse_json(material.head.split(b"\n", 1)[0])
    size = header.get("block_size") if isinstance(header, dict) and "input_length" not in header else None
    if isinstance(size, int) and not isinstance(size, bool) and size > 0:
        return size
    known = options.config.get("hash_block_size")
    return int(known.value) if known is not None else DEFAULT_TOKENS_PER_ID


SOURCE: Final = Source(
    "mooncake", "Mooncake trace (JSON lines: timestamp, input_length, output_length, hash_ids)", detects, read
)
