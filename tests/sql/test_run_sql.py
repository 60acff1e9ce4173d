"""Queries of users: parameters, several statements, types, errors for people, files."""

import io
import json
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow.parquet as pq
import pytest

from tests.sql.runs import request, run, step
from tracekit.compare.export import write_sql
from tracekit.compare.run_sql import aliases_for, sql
from tracekit.errors import InputError
from tracekit.run import load
from tracekit.schema.column import Table
from tracekit.schema.tables import TABLES

ONE = run(requests=[request("a", first=1, last=2, tokens=2, block_hashes=[1, 2])])


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        (["observed"], ["observed"]),
        (["simulated"], ["simulated"]),
        (["observed", "simulated"], ["observed", "simulated"]),
        (["simulated", "simulated", "observed", "simulated"], ["simulated", "simulated2", "observed", "simulated3"]),
    ],
)
def test_default_aliases(kinds: list[str], expected: Any) -> None:
    assert list(aliases_for([run(kind) for kind in kinds])) == expected


def test_plain_names_for_one_run_and_aliases_for_several() -> None:
    assert sql({"observed": ONE}, "SELECT request_id FROM requests").rows() == [("a",)]
    assert sql({"observed": ONE}, "SELECT request_id FROM observed.requests").rows() == [("a",)]
    both = {"observed": ONE, "simulated": run("simulated")}
    query = "SELECT (SELECT count(*) FROM observed.requests), (SELECT count(*) FROM simulated.requests)"
    assert sql(both, query).rows() == [(1, 0)]
    with pytest.raises(InputError, match="requests does not exist"):
        sql(both, "SELECT * FROM requests")


@pytest.mark.parametrize("table", TABLES, ids=lambda t: t.name)
def test_absent_table_is_an_empty_one_with_its_columns(table: Table) -> None:
    frame = sql({"observed": run()}, f"FROM {table.name}")
    assert (tuple(frame.columns), frame.height) == (table.column_names, 0)


def test_presence_config_and_dictionary_are_tables() -> None:
    presence = sql({"o": ONE}, "SELECT table_name FROM tables WHERE is_present").rows()
    assert presence == [("requests",)]
    assert sql({"o": ONE}, "SELECT unit FROM dictionary WHERE column_name = 'duration_ns'").rows() == [("ns",)]
    assert sql({"o": ONE}, "SELECT * FROM config").columns == ["name", "value", "origin", "found_at"]


def test_run_on_disk_answers_as_in_memory(tmp_path: Path) -> None:
    run(requests=ONE.requests.to_dicts()).save(tmp_path / "one")
    on_disk = load(tmp_path / "one")
    query = "SELECT * FROM requests WHERE first_token_ns > 0 AND request_id = 'a'"
    assert sql({"o": on_disk}, query).equals(sql({"o": ONE}, query))
    assert "requests" not in on_disk.tables


def test_foreign_parquet_on_disk_gets_the_declared_columns(tmp_path: Path) -> None:
    run(requests=ONE.requests.to_dicts()).save(tmp_path / "one")
    pl.DataFrame({"step": [0], "start_ns": [5], "extra": ["x"]}).write_parquet(tmp_path / "one" / "steps.parquet")
    assert sql({"o": load(tmp_path / "one")}, "SELECT step, start_ns, bound_by FROM steps").rows() == [(0, 5, None)]
    pl.DataFrame({"step": [0], "start_ns": ["now"]}).write_parquet(tmp_path / "one" / "steps.parquet")
    with pytest.raises(InputError, match="start_ns must be int64"):
        sql({"o": load(tmp_path / "one")}, "SELECT 1")


@pytest.mark.parametrize(
    ("query", "parameters", "expected"),
    [
        ("SELECT $a + 1 AS b", {"a": 2}, [{"b": 3}]),
        ("-- $a = 5: a number\nSELECT $a AS b", {}, [{"b": 5}]),
        ("-- $a = 5: a number\nSELECT $a AS b", {"a": 6}, [{"b": 6}]),
        ("CREATE TEMP VIEW v AS SELECT 7 AS x; SELECT x + $a AS b FROM v", {"a": 1}, [{"b": 8}]),
        ("SELECT 1 AS a, 2 AS a", {}, [{"a": 1, "a_2": 2}]),
        ("SELECT SUM(x) AS s FROM range(3) AS t(x)", {}, [{"s": 3}]),
        ("SELECT SUM(x * 1.5) AS s FROM range(3) AS t(x)", {}, [{"s": 4.5}]),
        ("SELECT INTERVAL 2 DAY AS i, MAP {'k': 1} AS m", {}, [{"i": "2 days", "m": "{k=1}"}]),
        ("SELECT [1, 2] AS l, {'x': 1} AS s", {}, [{"l": [1, 2], "s": {"x": 1}}]),
        ("SELECT block_hashes FROM requests", {}, [{"block_hashes": [1, 2]}]),
        ("SELECT NULL AS n", {}, [{"n": None}]),
        ("FROM range(2)", {}, [{"range": 0}, {"range": 1}]),
        ("", {}, []),
        ("-- nothing", {}, []),
    ],
)  # fmt: skip
def test_result(query: Any, parameters: dict[str, Any], expected: Any) -> None:
    assert sql({"observed": ONE}, query, parameters=parameters).to_dicts() == expected


@pytest.mark.parametrize("query", ["DESCRIBE requests", "SUMMARIZE requests", "EXPLAIN SELECT 1", "SHOW TABLES"])
def test_looking_around_works(query: Any) -> None:
    assert sql({"observed": ONE}, query).height


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("SELECT\n  nothing FROM requests", "query, line 2, column 3: .*nothing"),
        ("SELECT 1;\nSELECT\n  nothing FROM requests", "query, line 3, column 3: .*nothing"),
        ("SELEC 1", "query, line 1, column 1: .*syntax error"),
        ("SELECT * FROM nowhere", "nowhere"),
        ("SELECT $a", r"parameter \$a has no value"),
        ("SELECT 'x'::INTEGER", "Could not convert"),
        ("COPY requests TO 'x'", "COPY is not possible here"),
        ("SELECT * FROM read_text('/etc/passwd')", "out of reach"),
    ],
)
def test_error_names_the_place_in_one_line(query: Any, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        sql({"observed": ONE}, query)
    assert "\n" not in str(caught.value)
    assert "/etc" not in str(caught.value)


QUERY = "SELECT x AS n, 'a,\"' || x AS s, [x] AS l, CASE WHEN x = 0 THEN 'nan'::DOUBLE ELSE 0.5 END AS f FROM range(2) AS t(x) ORDER BY x"


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ("csv", 'n,s,l,f\n0,"a,""0",[0],NaN\n1,"a,""1",[1],0.5\n'),
        ("jsonl", '{"n": 0, "s": "a,\\"0", "l": [0], "f": null}\n{"n": 1, "s": "a,\\"1", "l": [1], "f": 0.5}\n'),
    ],
)
def test_text_formats(form: Any, expected: Any) -> None:
    stream = io.BytesIO()
    assert write_sql({"o": ONE}, QUERY, stream, form) == 2
    assert stream.getvalue().decode() == expected


def test_json_is_one_list_and_csv_has_a_header_even_when_empty() -> None:
    for query, expected in ((QUERY, 2), (f"FROM ({QUERY}) WHERE n > 9", 0)):
        stream = io.BytesIO()
        assert write_sql({"o": ONE}, query, stream, "json") == expected
        assert len(json.loads(stream.getvalue())) == expected
    stream = io.BytesIO()
    write_sql({"o": ONE}, "SELECT 1 AS a WHERE false", stream, "csv")
    assert stream.getvalue() == b"a\n"


def test_parquet_holds_the_answer(tmp_path: Path) -> None:
    count = write_sql({"o": ONE}, "SELECT x FROM range(100000) AS t(x)", tmp_path / "x.parquet", "parquet")
    assert (count, pq.read_table(tmp_path / "x.parquet").num_rows) == (100_000, 100_000)


def test_large_answers_stream(tmp_path: Path) -> None:
    subject = run(steps=[step(n, n, 1, 1) for n in range(1000)])
    query = "SELECT a.step, b.start_ns FROM steps AS a, steps AS b WHERE b.step < 200 ORDER BY ALL"
    assert write_sql({"o": subject}, query, tmp_path / "x.csv", "csv") == 200_000
    assert len((tmp_path / "x.csv").read_text().splitlines()) == 200_001


def test_failed_query_leaves_no_file(tmp_path: Path) -> None:
    for query in (
        "SELECT nothing",
        "SELECT CASE WHEN x = 90000 THEN error('stop') ELSE x END FROM range(100000) AS t(x)",
    ):
        with pytest.raises(InputError):
            write_sql({"o": ONE}, query, tmp_path / "x.csv", "csv")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(InputError, match="cannot be written"):
        write_sql({"o": ONE}, "SELECT 1", tmp_path / "none" / "x.csv", "csv")
