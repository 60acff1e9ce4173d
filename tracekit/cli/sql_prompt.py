"""Run queries for ``tracekit sql``: once, or from a prompt."""

import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tracekit.cli.output import say
from tracekit.errors import OutputExistsError, TracekitError

if TYPE_CHECKING:
    from tracekit.compare.queries import ParameterValue
    from tracekit.run import Run

_HELP = ".tables  .schema TABLE  .queries  .quit; anything else is SQL and ends with a semicolon"
_FORMATS = {".csv": "csv", ".json": "json", ".jsonl": "jsonl", ".parquet": "parquet"}


def run_query(
    runs: "Mapping[str, Run]",
    query: str,
    *,
    parameters: "Mapping[str, ParameterValue]",
    output_format: str | None,
    output: str | None,
    force: bool,
) -> None:
    """Run one query and print its answer, or write it to a file."""
    from tracekit.compare.export import write_sql
    from tracekit.compare.run_sql import sql
    from tracekit.report.text import frame_text

    if output is not None:
        target = Path(output)
        if target.suffix not in _FORMATS:
            msg = f"-o {output}: expected a name that ends in {', '.join(_FORMATS)}"
            raise click.UsageError(msg)
        if target.exists() and not force:
            msg = f"{target} exists; choose another name or give --force"
            raise OutputExistsError(msg)
        sibling = target.with_name(f".{target.name}.new")
        try:
            write_sql(runs, query, sibling, _FORMATS[target.suffix], parameters=parameters)  # type: ignore[arg-type]
            sibling.replace(target)
        finally:
            sibling.unlink(missing_ok=True)
    elif output_format is not None:
        write_sql(runs, query, sys.stdout.buffer, output_format, parameters=parameters)  # type: ignore[arg-type]
    else:
        click.echo(frame_text(sql(runs, query, parameters=parameters), _width()))


def prompt(runs: "Mapping[str, Run]", *, is_terminal: bool) -> None:
    """Read queries until the input ends; errors are printed and the prompt goes on."""
    from tracekit.compare.database import connect
    from tracekit.compare.run_sql import ask
    from tracekit.report.text import frame_text

    if is_terminal:
        say(f"tables: {', '.join(runs)}. {_HELP}")
    with connect(runs) as connection:
        for text in _statements(is_terminal=is_terminal):
            try:
                click.echo(frame_text(ask(connection, text), _width()))
            except TracekitError as error:
                say(f"error: {error}")


def _statements(*, is_terminal: bool) -> Iterator[str]:
    """Each statement that is typed or piped in, up to its semicolon; dot commands become queries."""
    pending = ""
    while True:
        try:
            line = input("sql> " if not pending else "...> ") if is_terminal else _next_line()
        except (EOFError, KeyboardInterrupt):
            break
        command = line.strip()
        if not pending and command in {".quit", ".exit"}:
            return
        if not pending and command.startswith("."):
            if (query := _dot_command(command)) is not None:
                yield query
            continue
        pending += line + "\n"
        if command.endswith(";"):
            yield pending
            pending = ""
    if pending.strip():
        yield pending


def _next_line() -> str:
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line.rstrip("\n")


def _dot_command(command: str) -> str | None:
    name, _, argument = command.partition(" ")
    if name == ".tables":
        return "SELECT * FROM tables"
    if name == ".schema" and argument.strip().isidentifier():
        return f"SELECT * EXCLUDE (table_name) FROM dictionary WHERE table_name = '{argument.strip()}'"  # noqa: S608 - an identifier
    if name == ".queries":
        from tracekit.compare.queries import list_queries

        for query in list_queries():
            click.echo(f"{query.name:28} {query.summary}")
        return None
    say(_HELP)
    return None


def _width() -> int:
    return shutil.get_terminal_size((80, 24)).columns
