"""Ask runs questions in SQL, as users do: a locked connection, a frame as the answer, errors for people."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

import duckdb
import polars as pl

from tracekit.compare.database import connect
from tracekit.compare.queries import ParameterValue, declared_parameters
from tracekit.errors import InputError
from tracekit.run import Run

Parameters = Mapping[str, ParameterValue]

_ALLOWED: Final = ("SELECT", "EXPLAIN", "CREATE", "DROP", "INSERT", "UPDATE", "DELETE", "TRANSACTION")
_AS_TEXT: Final = ("INTERVAL", "TIME_NS", "TIME WITH TIME ZONE", "TIMETZ", "UNION", "VARIANT", "BIT", "MAP", "GEOMETRY")
_CARET: Final = re.compile(r"^LINE (\d+): (.*)\n( *)\^", re.MULTILINE)


def aliases_for(runs: Sequence[Run]) -> dict[str, Run]:
    """Default aliases: a run's kind (``observed``, ``simulated``, ``reconstructed``), numbered when it is taken."""
    named: dict[str, Run] = {}
    for run in runs:
        alias, number = str(run.kind), 1
        while alias in named:
            number += 1
            alias = f"{run.kind}{number}"
        named[alias] = run
    return named


def sql(
    runs: Mapping[str, Run], query: str, *, parameters: Parameters | None = None, memory_limit: str | None = None
) -> pl.DataFrame:
    """The answer to a query over the tables of the named runs; see ``connect`` for what it may name.

    ``parameters``: values of ``$name`` in the query. A query may hold several statements, parted by semicolons, and
    gives the result of the last. Raises ``InputError`` for anything DuckDB refuses, with line and column.
    """
    with connect(runs, memory_limit=memory_limit) as connection:
        return ask(connection, query, parameters)


def ask(connection: duckdb.DuckDBPyConnection, query: str, parameters: Parameters | None = None) -> pl.DataFrame:
    """As ``sql``, on an open connection (a prompt asks many questions of one)."""
    with errors_for_people():
        relation = last_relation(connection, query, parameters or {})
        if relation is None:
            return pl.DataFrame()
        frame = pl.DataFrame(relation.to_arrow_table())
    return plain_integers(frame)


def last_relation(
    connection: duckdb.DuckDBPyConnection, query: str, parameters: Parameters
) -> duckdb.DuckDBPyRelation | None:
    """Run every statement and give the last one's answer, not yet fetched; null when it has none.

    Parameters without a value take the default that the query's header declares (``-- $name = value: meaning``).
    """
    statements = connection.extract_statements(query)
    parameters = {**declared_parameters(query), **parameters}
    relation: duckdb.DuckDBPyRelation | None = None
    lines_before = 0
    for statement in statements:
        kind = _kind(statement)
        if kind not in _ALLOWED:
            msg = f"query: {kind} is not possible here; a query reads the runs' tables (SELECT, EXPLAIN, CREATE VIEW)"
            raise InputError(msg)
        missing = sorted(statement.named_parameters - set(parameters))
        if missing:
            msg = f"query: parameter ${missing[0]} has no value"
            raise InputError(msg)
        given = {name: parameters[name] for name in statement.named_parameters}
        # As text, and in its place: an error then names line and column of the whole query.
        text = "\n" * lines_before + statement.query
        try:
            relation = connection.sql(text, params=given or None)
        except duckdb.BinderException:
            connection.execute(text, given or None)  # the same error, with its place
            raise
        lines_before += statement.query.count("\n")
    return _presentable(relation) if relation is not None else None


def _kind(statement: duckdb.Statement) -> str:
    try:
        return str(statement.type.name)
    except ValueError:  # kinds that the Python enumeration does not know yet
        return "this statement"


def _presentable(relation: duckdb.DuckDBPyRelation) -> duckdb.DuckDBPyRelation:
    """Types that a frame cannot hold become text, columns of the same name get a number."""
    types = [str(kind) for kind in relation.types]
    taken: set[str] = set()
    chosen = []
    for place, (column, kind) in enumerate(zip(relation.columns, types, strict=True), start=1):
        name, number = column, 1
        while name.lower() in taken:
            number += 1
            name = f"{column}_{number}"
        taken.add(name.lower())
        cast = "::VARCHAR" if any(word in kind for word in _AS_TEXT) else ""
        chosen.append(f"#{place}{cast} AS {_quoted(name)}")
    return relation.project(", ".join(chosen))


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def plain_integers(frame: pl.DataFrame) -> pl.DataFrame:
    """Sums of integers come as 38-digit decimals; those that fit become plain integers again, the rest stay."""
    changes = []
    for name, dtype in frame.schema.items():
        if isinstance(dtype, pl.Decimal) and dtype.scale == 0:
            cast = frame[name].cast(pl.Int64, strict=False)
            changes.append(cast if cast.null_count() == frame[name].null_count() else frame[name].cast(pl.Float64))
        elif isinstance(dtype, pl.Decimal):
            changes.append(frame[name].cast(pl.Float64))
    return frame.with_columns(changes) if changes else frame


@contextmanager
def errors_for_people() -> Iterator[None]:
    """Turn DuckDB's errors into ``InputError``s that name line and column and no path."""
    try:
        yield
    except duckdb.InterruptException:
        raise KeyboardInterrupt from None
    except duckdb.OutOfMemoryException:
        msg = "query: needs more memory than it may use; narrow it down with WHERE or LIMIT"
        raise InputError(msg) from None
    except duckdb.Error as error:
        raise InputError(_friendly(str(error))) from None


def _friendly(text: str) -> str:
    found = _CARET.search(text)
    first = text.partition("\n\n")[0].replace("\n", " ")
    if "File system LocalFileSystem" in first or "disabled" in first or "configuration" in first:
        return "query: files, extensions and settings are out of reach; a query reads the runs' tables and nothing else"
    first = re.sub(r"(?:/[\w.\-]+){2,}/?", "<path>", first)
    if found is None:
        return f"query: {first}"
    prefix = len(f"LINE {found[1]}: ")
    return f"query, line {found[1]}, column {len(found[3]) - prefix + 1}: {first}"
