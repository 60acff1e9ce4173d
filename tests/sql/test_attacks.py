"""A query reads the runs' tables and nothing else, and writes nothing (design section 7)."""

from pathlib import Path

import duckdb
import pytest

from tests.sql.runs import request, run, step
from tracekit.compare.database import connect
from tracekit.compare.run_sql import sql
from tracekit.errors import InputError
from tracekit.run import Run, load

ATTACKS = [
    "COPY (SELECT 1) TO '{tmp}/stolen.csv'",
    "COPY (SELECT 1) TO '.tmp/stolen.csv'",
    "COPY (SELECT 1) TO 'file://{tmp}/stolen.csv'",
    "COPY (SELECT 1) TO '{tmp}/stolen.csv.gz'",
    "COPY (SELECT 1) TO '/dev/stdout'",
    "COPY (SELECT 1) TO '{run}/requests.parquet' (FORMAT parquet)",
    "COPY (SELECT * FROM requests) TO '{run}/run.json' (FORMAT json)",
    "EXPLAIN ANALYZE COPY (SELECT 1) TO '{tmp}/stolen.csv'",
    "PREPARE p AS COPY (SELECT 1) TO '{tmp}/stolen.csv'",
    "SELECT 1; COPY (SELECT 1) TO '{tmp}/stolen.csv'",
    "SELECT 1 /* ; */; -- ; \n COPY (SELECT 1) TO '{tmp}/stolen.csv'",
    "CREATE TABLE t(x VARCHAR); COPY t FROM '/etc/passwd'",
    "CREATE TABLE t AS SELECT * FROM '/etc/passwd'",
    "SELECT * FROM '/etc/passwd'",
    "SELECT * FROM '{run}/requests.parquet'",
    "SELECT * FROM read_text('/etc/passwd')",
    "SELECT * FROM read_blob('/etc/passwd')",
    "SELECT * FROM read_csv('/etc/passwd')",
    "SELECT * FROM read_csv_auto('/etc/passwd')",
    "SELECT * FROM read_json('/etc/passwd')",
    "SELECT * FROM read_ndjson_objects('/etc/passwd')",
    "SELECT * FROM sniff_csv('/etc/passwd')",
    "SELECT * FROM read_parquet('{run}/requests.parquet')",
    "SELECT * FROM parquet_metadata('{run}/requests.parquet')",
    "SELECT * FROM read_duckdb('{tmp}/x.db')",
    "SELECT * FROM glob('/etc/*')",
    "SELECT * FROM query_table('/etc/passwd')",
    "SELECT * FROM query('COPY (SELECT 1) TO ''{tmp}/stolen.csv''')",
    "ATTACH '{tmp}/x.db'",
    "ATTACH '{tmp}/x.db' AS other (TYPE duckdb)",
    "INSTALL httpfs",
    "FORCE INSTALL httpfs",
    "LOAD httpfs",
    "LOAD '{tmp}/x.duckdb_extension'",
    "UPDATE EXTENSIONS",
    "EXPORT DATABASE '{tmp}/stolen'",
    "IMPORT DATABASE '{tmp}/stolen'",
    "SET enable_external_access = true",
    "SET disabled_filesystems = ''",
    "SET lock_configuration = false",
    "RESET lock_configuration",
    "RESET disabled_filesystems",
    "SET memory_limit = '1TB'",
    "SET temp_directory = '{tmp}'",
    "SET profiling_output = '{tmp}/stolen'",
    "PRAGMA memory_limit='1TB'",
    "PRAGMA enable_profiling",
    "PRAGMA profiling_output='{tmp}/stolen'",
    "SET log_query_path = '{tmp}/stolen'",
    "CALL enable_logging(storage='file', storage_path='{tmp}/stolen')",
    "SELECT * FROM enable_logging(storage='file', storage_path='{tmp}/stolen')",
    "SELECT * FROM enable_profiling(save_location='{tmp}/stolen')",
    "CREATE PERSISTENT SECRET s (TYPE http, BEARER_TOKEN 'x')",
    "SELECT getenv('HOME')",
    "SELECT * FROM visible_frame",
    "SELECT * FROM visible_rows",
    "SELECT * FROM python_arrow_scan(1)",
    "SELECT * FROM pandas_scan(1)",
    "SELECT * FROM arrow_scan(1, 2, 3)",
    "SELECT list(a) FROM range(1000000000) AS t(a)",
    "SELECT * FROM range(1000000000) AS t(a) ORDER BY hash(a)",
    "CREATE TABLE t AS SELECT * FROM range(1000000000)",
]


@pytest.fixture
def stored(tmp_path: Path) -> Run:
    run(requests=[request("a", first=1, last=2, tokens=2)], steps=[step(0, 0, 1, 1)]).save(tmp_path / "incident")
    return load(tmp_path / "incident")


def _files(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("attack", ATTACKS)
def test_attack_fails_and_leaves_no_trace(
    attack: str, stored: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    visible_frame = stored.requests
    visible_rows = visible_frame.to_arrow()
    working = tmp_path / "working"
    working.mkdir()
    monkeypatch.chdir(working)
    before = _files(tmp_path)
    query = attack.format(tmp=tmp_path, run=stored.path)
    with pytest.raises(InputError) as caught:
        sql({"observed": stored}, query, memory_limit="256MB")
    assert "root:" not in str(caught.value)
    assert _files(tmp_path) == before
    assert visible_rows.num_rows == 1


@pytest.mark.parametrize("attack", ATTACKS)
def test_the_connection_alone_withstands_it(
    attack: str, stored: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Without the list of allowed statements: the database's own locks must hold.
    working = tmp_path / "working"
    working.mkdir()
    monkeypatch.chdir(working)
    before = _files(tmp_path)
    query = attack.format(tmp=tmp_path, run=stored.path) + ("; EXECUTE p" if attack.startswith("PREPARE") else "")
    with connect({"observed": stored}, memory_limit="256MB") as connection, pytest.raises(duckdb.Error):
        connection.execute(query).fetchall()
    assert _files(tmp_path) == before


def test_memory_and_temporary_space_are_bounded(stored: Run) -> None:
    settings = (
        "SELECT current_setting('temp_directory'), current_setting('lock_configuration'), current_setting('threads')"
    )
    with connect({"observed": stored}) as connection:
        temp, locked, threads = connection.execute(settings).fetchone() or ()
    assert (temp, locked) == ("", True)
    assert 1 <= threads <= 16


def test_views_and_tables_in_memory_are_fine(stored: Run) -> None:
    query = "CREATE TEMP VIEW v AS SELECT request_id FROM requests; SELECT count(*) AS n FROM v"
    assert sql({"observed": stored}, query).rows() == [(1,)]


@pytest.mark.parametrize("alias", ["main", "TEMP", "a b", 'x"; DROP', "1a", ""])
def test_alias_that_is_no_plain_name_is_refused(alias: str, stored: Run) -> None:
    with pytest.raises(InputError, match="alias"):
        sql({alias: stored}, "SELECT 1")
