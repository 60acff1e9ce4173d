"""tracekit export"""

import click

from tracekit.cli.output import common_options, say


@click.command("export", short_help="a run in a form for others")
@click.argument("run", metavar="RUN")
@click.option("--anonymous", metavar="F", help="A trace to share: no names, no text, prefixes hashed anew. F: directory "
              "or .parquet.")  # fmt: skip
@click.option("--force", is_flag=True, help="Replace the output if it is there.")
@common_options
def command(run: str, anonymous: str | None, *, force: bool, verbose: bool, quiet: bool) -> None:
    """Write a run in a form for others.

    --anonymous keeps arrivals, lengths, latencies, prefix structure and numeric settings, so that a replay decides the
    same, and nothing that names anybody: it can be attached to a public bug report.
    """
    del verbose
    if anonymous is None:
        msg = "nothing to export: give --anonymous F"
        raise click.UsageError(msg)
    from tracekit.anonymous import left_out
    from tracekit.api import export_anonymous
    from tracekit.run import check_output, load

    check_output(anonymous, force=force)
    loaded = load(run)
    written = export_anonymous(loaded, anonymous, force=force)
    if quiet:
        return
    if lost := left_out(loaded):
        say(f"note: left out: {', '.join(lost)}")
    click.echo(f"{anonymous}: {written.requests.height:,} requests without names; replay it with: "
               f"tracekit replay {anonymous}")  # fmt: skip
