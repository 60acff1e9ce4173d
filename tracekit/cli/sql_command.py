"""tracekit sql"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tracekit.cli.output import common_options, say

if TYPE_CHECKING:
    from tracekit.compare.queries import ParameterValue
    from tracekit.run import Run


@click.command("sql", short_help="DuckDB SQL over the tables of runs")
@click.argument("arguments", nargs=-1, metavar="[ALIAS=]RUN... [QUERY]")
@click.option(
    "--query-file", type=click.Path(exists=True, dir_okay=False), metavar="F", help="Read the query from a file."
)
@click.option("--name", "query_name", metavar="N", help="Run a named query (see --list).")
@click.option("--param", "parameters", multiple=True, metavar="NAME=VALUE", help="Value of $NAME in the query.")
@click.option("--list", "list_names", is_flag=True, help="List the named queries and what they answer.")
@click.option("--csv", "output_format", flag_value="csv", help="Print CSV.")
@click.option("--json", "output_format", flag_value="json", help="Print JSON, one array of objects.")
@click.option("-o", "--output", metavar="FILE", help="Write a .parquet, .csv or .json file.")
@click.option("--force", is_flag=True, help="Replace the output file.")
@common_options
def command(
    arguments: tuple[str, ...],
    query_file: str | None,
    query_name: str | None,
    output_format: str | None,
    output: str | None,
    parameters: tuple[str, ...],
    *,
    list_names: bool,
    force: bool,
    verbose: bool,
    quiet: bool,
) -> None:
    """Ask runs in DuckDB SQL: tables of one run are requests, steps, ...; of several, ALIAS.requests.

    The last argument is the query if no such file exists. Without a query a prompt opens. Queries can read the runs
    and nothing else, and write nothing.

    \b
    tracekit sql incident "SELECT finish_reason, count(*) FROM requests GROUP BY ALL"
    tracekit sql observed=incident simulated=sim --name latency_percentiles
    """
    del verbose
    from tracekit.cli.sql_prompt import prompt, run_query
    from tracekit.compare.queries import list_queries, named_query

    if list_names:
        for query in list_queries():
            click.echo(f"{query.name:28} {query.summary}")
        return
    runs, query_text = _split(arguments)
    if query_file is not None:
        query_text = Path(query_file).read_text(encoding="utf-8")
    if query_name is not None:
        query_text = named_query(query_name).sql
    if not runs:
        msg = "give at least one RUN"
        raise click.UsageError(msg)
    named = _named_runs(runs)
    if query_text is None:
        prompt(named, is_terminal=sys.stdin.isatty())
        return
    run_query(
        named, query_text, parameters=_parameters(parameters), output_format=output_format, output=output, force=force
    )
    if output is not None and not quiet:
        say(f"wrote {output}")


def _split(arguments: tuple[str, ...]) -> tuple[list[str], str | None]:
    """The runs, and the query if the last argument is one (no such file exists)."""
    if not arguments:
        return [], None
    *runs, last = arguments
    path = last.partition("=")[2] if _has_alias(last) else last
    if Path(path).exists() or not any(c.isspace() for c in last):
        return list(arguments), None
    return runs, last


def _has_alias(argument: str) -> bool:
    alias, equals, _ = argument.partition("=")
    return bool(equals) and alias.isidentifier() and not Path(argument).exists()


def _parameters(given: tuple[str, ...]) -> "dict[str, ParameterValue]":
    """``name=value``; numbers are numbers, anything else is text."""
    values: dict[str, ParameterValue] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            msg = "--param: expected NAME=VALUE"
            raise click.UsageError(msg)
        try:
            values[name] = int(value)
        except ValueError:
            try:
                values[name] = float(value)
            except ValueError:
                values[name] = value
    return values


def _named_runs(arguments: list[str]) -> "dict[str, Run]":
    from tracekit.compare.run_sql import aliases_for
    from tracekit.run import load

    given = {a: load(p) for a, _, p in (arg.partition("=") for arg in arguments if _has_alias(arg))}
    plain = [load(arg) for arg in arguments if not _has_alias(arg)]
    return {**given, **aliases_for(plain)} if plain else dict(given)
