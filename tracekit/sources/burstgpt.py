"""BurstGPT traces (CSV): ``Timestamp, Request tokens, Response tokens, ...`` in seconds, with or without sessions."""

from typing import Final

import polars as pl

from tracekit.sources.any_rows import good_rows, refuse_nothing_usable
from tracekit.sources.files import left_out_note
from tracekit.sources.observation import Accounting, ColumnMapping, Material, Observation, Options, Source
from tracekit.sources.request_rows import finish
from tracekit.sources.table_csv import csv_columns, looks_like_csv
from tracekit.sources.table_read import batches, open_table
from tracekit.sources.table_rows import Converter

_NEEDED: Final = frozenset({"Timestamp", "Request tokens", "Response tokens"})
_MAPPINGS: Final[tuple[ColumnMapping, ...]] = (
    ColumnMapping("arrival", ("Timestamp",), "s"),
    ColumnMapping("num_prompt_tokens", ("Request tokens",)),
    ColumnMapping("num_output_tokens", ("Response tokens",)),
)


def detects(material: Material) -> bool:
    """A CSV file with the trace's three columns of numbers."""
    return looks_like_csv(material.head) and set(csv_columns(material.head)) >= _NEEDED


def read(material: Material, options: Options) -> Observation:
    """Read arrivals (seconds from midnight of the first day, whose zone is unknown) and lengths.

    No response tokens mark a failed request: it keeps its arrival and its prompt. Raises ``InputError`` when no row can
    be used, or for the first refused one under ``strict``.
    """
    observation = Observation("burstgpt", material.name, "relative", accounting=Accounting("rows"))
    observation.notes.extend(left_out_note(material))
    table = open_table(material.files, material.head)
    mappings = _MAPPINGS
    if "Session ID" in table.columns:
        mappings = (*_MAPPINGS, ColumnMapping("session_id", ("Session ID",)))
    where = str(material.path)
    converter = Converter(mappings, where, required=frozenset({"num_prompt_tokens", "num_output_tokens"}))
    rows = batches(table, converter.wanted, observation.accounting, options.progress)
    good = list(good_rows(rows, converter, observation, strict=options.strict))
    refuse_nothing_usable(observation, where)
    frame = pl.concat(good) if good else converter.no_rows()
    failed = frame["num_output_tokens"] == 0
    if failed.any():
        observation.notes.append(f"{observation.file}: {failed.sum()} requests without response tokens failed")
        frame = frame.with_columns(finish_reason=pl.when(failed).then(pl.lit("error")))
    observation.tables["requests"] = finish(frame, observation)
    return observation


SOURCE: Final = Source("burstgpt", "BurstGPT trace (CSV: Timestamp, Request tokens, Response tokens)", detects, read)
