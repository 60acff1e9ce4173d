"""Azure LLM inference traces: ``TIMESTAMP,ContextTokens,GeneratedTokens`` (2025: ``NumImages`` besides), a row a request."""

from typing import Final

import polars as pl

from tracekit.sources.any_rows import good_rows, refuse_nothing_usable
from tracekit.sources.files import left_out_note
from tracekit.sources.observation import Accounting, ColumnMapping, Material, Observation, Options, Source
from tracekit.sources.request_rows import finish
from tracekit.sources.table_csv import csv_columns, looks_like_csv
from tracekit.sources.table_read import batches, open_table
from tracekit.sources.table_rows import Converter

_NEEDED: Final = frozenset({"TIMESTAMP", "ContextTokens", "GeneratedTokens"})
_KNOWN: Final = _NEEDED | {"NumImages"}
_MAPPINGS: Final = (
    ColumnMapping("arrival", ("TIMESTAMP",), "iso"),
    ColumnMapping("num_prompt_tokens", ("ContextTokens",)),
    ColumnMapping("num_output_tokens", ("GeneratedTokens",)),
)
_REQUIRED: Final = frozenset({"num_prompt_tokens", "num_output_tokens"})


def detects(material: Material) -> bool:
    """A CSV file with exactly the trace's columns, in any order."""
    if not looks_like_csv(material.head):
        return False
    columns = set(csv_columns(material.head))
    return columns >= _NEEDED and columns <= _KNOWN


def read(material: Material, options: Options) -> Observation:
    """Read arrivals and lengths; no latency was recorded, so what each request really got stays unknown.

    Instants have seven decimals (100 ns) and no zone: they are read as UTC. Raises ``InputError`` when no row can be
    used, or for the first refused one under ``strict``.
    """
    observation = Observation("azure", material.name, "unix", accounting=Accounting("rows"))
    observation.notes.extend(left_out_note(material))
    table = open_table(material.files, material.head)
    converter = Converter(_MAPPINGS, str(material.path), required=_REQUIRED)
    rows = batches(table, converter.wanted, observation.accounting, options.progress)
    good = list(good_rows(rows, converter, observation, strict=options.strict))
    refuse_nothing_usable(observation, str(material.path))
    observation.notes.append(f"{observation.file}: its times name no zone; they are read as UTC")
    if "NumImages" in table.columns:
        observation.notes.append(f"{observation.file}: NumImages is not used; image tokens are part of ContextTokens")
    frame = pl.concat(good) if good else converter.no_rows()
    observation.tables["requests"] = finish(frame, observation)
    return observation


SOURCE: Final = Source(
    "azure", "Azure LLM inference trace (CSV: TIMESTAMP,ContextTokens,GeneratedTokens)", detects, read
)
