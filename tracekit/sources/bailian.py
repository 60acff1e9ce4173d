"""Qwen-Bailian traces: JSON lines with ``timestamp`` in seconds, ``chat_id``, ``parent_chat_id`` and ids of 16 tokens."""

from typing import Final

import polars as pl

from tracekit.sources.any_rows import good_rows, refuse_nothing_usable
from tracekit.sources.block_hashes import stored_block_size
from tracekit.sources.files import left_out_note
from tracekit.sources.observation import Accounting, ColumnMapping, Material, Observation, Options, Source
from tracekit.sources.request_rows import finish
from tracekit.sources.table_read import batches, open_table, parse_json
from tracekit.sources.table_rows import Converter

_TOKENS_PER_ID: Final = 16
_LENGTHS: Final = frozenset({"num_prompt_tokens", "num_output_tokens"})
_KEYS: Final = frozenset({"chat_id", "timestamp", "input_length", "output_length"})
_LINES_LOOKED_AT: Final = 3


def detects(material: Material) -> bool:
    """One of the first lines is an object with a chat, a time and lengths."""
    head = material.head.lstrip(b"\xef\xbb\xbf \r\n\t")
    if not head.startswith(b"{") or b'"chat_id"' not in head:
        return False
    rows = [parse_json(line.partition(b', "hash_ids"')[0].rstrip(b"}") + b"}") for line in head.split(b"\n")]
    return any(isinstance(row, dict) and row.keys() >= _KEYS for row in rows[:_LINES_LOOKED_AT])


def read(material: Material, options: Options) -> Observation:
    """Read arrivals, lengths (output holds reasoning tokens), turns and prefix structure.

    Raises ``InputError`` when no row can be used, or for the first refused one under ``strict``.
    """
    observation = Observation("bailian", material.name, "relative", accounting=Accounting("rows"))
    observation.notes.extend(left_out_note(material))
    table = open_table(material.files, material.head)
    size = stored_block_size(_TOKENS_PER_ID, options.config)
    has = set(table.columns)
    mappings = (
        ColumnMapping("request_id", ("chat_id",)),
        ColumnMapping("arrival", ("timestamp",), "s"),
        ColumnMapping("num_prompt_tokens", ("input_length",)),
        ColumnMapping("num_output_tokens", ("output_length",)),
        *((ColumnMapping("parent_request_id", ("parent_chat_id",)),) if "parent_chat_id" in has else ()),
        *((ColumnMapping("block_hashes", ("hash_ids",)),) if "hash_ids" in has else ()),
    )
    where = str(material.path)
    converter = Converter(mappings, where, hashing=(_TOKENS_PER_ID, size), required=_LENGTHS)
    rows = batches(table, converter.wanted, observation.accounting, options.progress)
    good = list(good_rows(rows, converter, observation, strict=options.strict))
    refuse_nothing_usable(observation, where)
    frame = pl.concat(good) if good else converter.no_rows()
    if "parent_request_id" in frame.columns:
        # -1 marks a first turn; a parent that the trace was cut before cannot be followed either.
        known = pl.col("parent_request_id").is_in(frame["request_id"].drop_nulls().to_list())
        frame = frame.with_columns(parent_request_id=pl.when(known).then("parent_request_id"))
    if "hash_ids" in has:
        observation.hash_block_size = size
    observation.tables["requests"] = finish(frame, observation)
    return observation


SOURCE: Final = Source(
    "bailian", "Qwen-Bailian trace (JSON lines: chat_id, timestamp, input_length, ...)", detects, read
)
