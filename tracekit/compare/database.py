"""The only door to DuckDB: runs become views, and the connection can reach nothing but them.

A run's tables stay where they are: Parquet files are scanned as Arrow datasets (columns and filters are pushed down),
frames in memory without a copy. DuckDB itself never opens a file: its file system is switched off, so that no query
can read or write one, whatever function it finds (``allowed_directories`` would let COPY write there).

Invariants of a locked connection: no file is read or written, no extension loads, no setting changes, no Python
variable is seen, memory is bounded and nothing spills to disk.
"""

import os
from collections.abc import Mapping
from importlib.resources import files
from typing import Any, Final

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds

from tracekit.errors import InputError
from tracekit.run import Run
from tracekit.schema.column import Column, Table
from tracekit.schema.parquet import arrow_schema
from tracekit.schema.tables import TABLES

VIEWS: Final = ("latencies", "histograms", "phases", "samples", "states")
"""Derived views in the order of their dependence; each is documented in ``views/<name>.sql``.

``states`` is ``states_from_steps``, ``states_from_requests`` or ``states_from_samples``: the best that the run has.
"""

_SQL_TYPES: Final = {
    "int64": "BIGINT",
    "int32": "INTEGER",
    "float64": "DOUBLE",
    "string": "VARCHAR",
    "list<uint64>": "UBIGINT[]",
    "list<int64>": "BIGINT[]",
}
_RESERVED: Final = frozenset({"main", "memory", "system", "temp", "information_schema", "pg_catalog"})
_MAX_THREADS: Final = 16
_CONFIG: Final = {
    "temp_directory": "",
    "allow_persistent_secrets": "false",
    "autoload_known_extensions": "false",
    "autoinstall_known_extensions": "false",
    # Its guess of the rows on the left is often too low, and the loop takes minutes over millions of steps.
    "asof_loop_join_threshold": 0,
}


def connect(
    runs: Mapping[str, Run], *, locked: bool = True, memory_limit: str | None = None, threads: int | None = None
) -> duckdb.DuckDBPyConnection:
    """Open an in-memory database with each run's tables as views ``alias.requests``, ``alias.steps``, ...

    Absent tables are empty views. Beside the tables stand the derived ``VIEWS``, ``config`` (name, value, origin,
    found_at), ``tables`` (table_name, is_present) and ``dictionary`` (every column's unit and meaning). The tables of
    a single run are also found without the alias. ``memory_limit``: such as ``"4GB"``; half of the machine's when not
    given. Raises ``InputError`` for an alias that is no plain name or a table that cannot be read.
    """
    config: dict[str, Any] = {
        **_CONFIG,
        "memory_limit": memory_limit or f"{_half_of_memory_mb()}MB",
        "threads": threads or min(os.cpu_count() or 1, _MAX_THREADS),
    }
    connection = duckdb.connect(":memory:", config=config)
    for alias, run in runs.items():
        _check_alias(alias)
        _add_run(connection, alias, run)
    if len(runs) == 1:
        connection.execute(f"USE {_quoted(*runs)}")
    if locked:
        _lock(connection)
    return connection


def view_sql(name: str) -> str:
    """The documented text of a derived view."""
    return (files("tracekit.compare") / "views" / f"{name}.sql").read_text(encoding="utf-8")


def _lock(connection: duckdb.DuckDBPyConnection) -> None:
    connection.execute("SET enable_external_access = false")
    connection.execute("SET python_enable_replacements = false")
    connection.execute("SET disabled_filesystems = 'LocalFileSystem'")
    connection.execute("SET lock_configuration = true")


def _half_of_memory_mb() -> int:
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        total = 8 << 30
    return max(256, (total // 2) >> 20)


def _check_alias(alias: str) -> None:
    if not (alias.isascii() and alias.isidentifier()) or alias.lower() in _RESERVED:
        msg = f"alias {alias!r}: expected a plain name (letters, digits, _) that DuckDB does not use itself"
        raise InputError(msg)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _add_run(connection: duckdb.DuckDBPyConnection, alias: str, run: Run) -> None:
    schema = _quoted(alias)
    connection.execute(f"CREATE SCHEMA {schema}")
    for table in TABLES:
        columns = _register(connection, f"{alias}__{table.name}", table, run)
        source = _quoted(f"{alias}__{table.name}")
        connection.execute(f"CREATE VIEW {schema}.{table.name} AS SELECT {columns} FROM {source}")  # noqa: S608 - our names
    for name, content in (("config", _config(run)), ("tables", _presence(run)), ("dictionary", _dictionary())):
        connection.register(f"{alias}__{name}", content)
        source = _quoted(f"{alias}__{name}")
        connection.execute(f"CREATE VIEW {schema}.{name} AS SELECT * FROM {source}")  # noqa: S608 - our names
    for name in VIEWS:
        text = view_sql(_states_view(connection, schema, run) if name == "states" else name)
        # A view finds unqualified names in its own schema first.
        connection.execute(f"CREATE VIEW {schema}.{name} AS {text}")


def _states_view(connection: duckdb.DuckDBPyConnection, schema: str, run: Run) -> str:
    """Which of the ``states_from_*`` views the run can answer best.

    Where a replay kept a sample of its steps, its periodic samples are exact and the states between those steps are not.
    """
    if (run.info.get("replayed") or {}).get("steps") == "sample" and run.has("engine_stats"):
        return "states_from_samples"
    # Requests are complete only where every served one says when it was scheduled, and none was evicted.
    by_requests = "COUNT(scheduled_ns) > 0 AND COUNT(first_token_ns) FILTER (WHERE scheduled_ns IS NULL) = 0"
    no_evictions = f"(SELECT COUNT(*) FROM {schema}.preemptions) = 0"  # noqa: S608 - our names
    checks = (
        ("states_from_steps", f"SELECT COUNT(num_running_reqs) > 0 FROM {schema}.steps"),  # noqa: S608
        ("states_from_requests", f"SELECT {by_requests} AND {no_evictions} FROM {schema}.requests"),  # noqa: S608
    )
    for name, check in checks:
        found = connection.execute(check).fetchone()
        if found and found[0]:
            return name
    return "states_from_samples"


def _register(connection: duckdb.DuckDBPyConnection, name: str, table: Table, run: Run) -> str:
    """Register the table's data; returns the select list that gives it the declared columns."""
    dataset = _dataset(table, run)
    if dataset is None:
        connection.register(name, run.table(table.name).to_arrow())
        return ", ".join(column.name for column in table.columns)
    connection.register(name, dataset)
    known = set(dataset.schema.names)
    return ", ".join(
        column.name if column.name in known else f"NULL::{_SQL_TYPES[column.type]} AS {column.name}"
        for column in table.columns
    )


def _dataset(table: Table, run: Run) -> ds.Dataset | None:
    """The table's Parquet file as a dataset, or None when it is not on disk or not of the declared types."""
    if table.name in run.tables or run.path is None:
        return None
    path = run.path / f"{table.name}.parquet"
    if not path.is_file():
        return None
    try:
        dataset = ds.dataset(path, format="parquet")
    except (pa.ArrowException, OSError):
        return None  # run.table says what is wrong with it
    declared = arrow_schema(table)
    fits = all(_is_type(dataset.schema, declared, column) for column in table.columns)
    return dataset if fits else None


def _is_type(found: pa.Schema, declared: pa.Schema, column: Column) -> bool:
    index = found.get_field_index(column.name)
    if index < 0:
        return column.nullable and column.name not in found.names
    return bool(found.field(index).type.equals(declared.field(column.name).type))


def _config(run: Run) -> pa.Table:
    rows = [(name, str(v.value), v.origin, v.where) for name, v in sorted(run.config.items())]
    names = ("name", "value", "origin", "found_at")
    return pl.DataFrame(rows, schema=dict.fromkeys(names, pl.String), orient="row").to_arrow()


def _presence(run: Run) -> pa.Table:
    return pl.DataFrame(
        [(table.name, run.has(table.name)) for table in TABLES],
        schema={"table_name": pl.String, "is_present": pl.Boolean},
        orient="row",
    ).to_arrow()


def _dictionary() -> pa.Table:
    rows = [(table.name, c.name, _SQL_TYPES[c.type], c.unit, c.doc) for table in TABLES for c in table.columns]
    names = ("table_name", "column_name", "type", "unit", "meaning")
    return pl.DataFrame(rows, schema=dict.fromkeys(names, pl.String), orient="row").to_arrow()
