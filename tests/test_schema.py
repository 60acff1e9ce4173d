from pathlib import Path

import polars as pl
import pyarrow.parquet as pq
import pytest

from tracekit.errors import InputError
from tracekit.schema.documents import drifted
from tracekit.schema.parquet import conform, read_table, write_table
from tracekit.schema.tables import ENGINE_STATS, PREEMPTIONS, REQUESTS, TABLES

ROOT = Path(__file__).parents[1]


def test_generated_files_say_what_the_tables_say() -> None:
    assert drifted(ROOT) == []


def test_every_column_has_a_meaning_and_instants_have_a_unit() -> None:
    for table in TABLES:
        assert len(set(table.column_names)) == len(table.columns)
        for column in table.columns:
            assert column.doc.endswith(".")
            assert (column.unit == "ns") == (column.name.endswith("_ns"))


def test_units_and_meanings_travel_with_the_file(tmp_path: Path) -> None:
    frame = pl.DataFrame({"time_ns": [5], "request_id": ["a"]})
    write_table(PREEMPTIONS, frame, tmp_path / "p.parquet")
    field = pq.read_schema(tmp_path / "p.parquet").field("time_ns")
    assert field.metadata[b"unit"] == b"ns"
    assert not field.nullable
    assert read_table(PREEMPTIONS, tmp_path / "p.parquet")["time_ns"].to_list() == [5]


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("arrival_ns", ["soon"], "must be int64, found string"),
        ("request_id", [None], "must not be null"),
        ("arrival_ns", [1.5], "a value does not fit"),
        ("arrival_ns", [float("nan")], "a value does not fit"),
        ("block_hashes", [3], "must be list<uint64>"),
        ("colour", ["red"], "has no column"),
    ],
)
def test_what_does_not_fit_is_refused(column: str, values: list[object], message: str) -> None:
    frame = pl.DataFrame({"request_id": ["a"], column: values})
    with pytest.raises(InputError, match=message):
        conform(REQUESTS, frame, "x.parquet")


def test_whole_floats_fit() -> None:
    frame = pl.DataFrame({"request_id": ["a"], "num_prompt_tokens": [21073.0]})
    assert conform(REQUESTS, frame, "x")["num_prompt_tokens"].to_list() == [21073]


def test_negative_counts_from_a_stranger_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "e.parquet"
    pl.DataFrame({"time_ns": [1], "source": ["log"], "num_running_reqs": [-1]}).write_parquet(path)
    with pytest.raises(InputError, match="num_running_reqs must not be negative"):
        read_table(ENGINE_STATS, path)


def test_a_file_that_is_no_parquet_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_bytes(b"\x89PNG\r\n\x1a\n")
    with pytest.raises(InputError, match="cannot be read as Parquet"):
        read_table(REQUESTS, tmp_path / "x.parquet")
