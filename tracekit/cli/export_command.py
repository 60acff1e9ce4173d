"""tracekit export"""

import click

from tracekit.cli.output import common_options, say, window_options


@click.command("export", short_help="a run in a form for others")
@click.argument("run", metavar="RUN")
@click.option("--anonymous", metavar="F", help="A trace to share: no names, no text, prefixes hashed anew. F: directory "
              "or .parquet.")  # fmt: skip
@click.option("--perfetto", metavar="F", help="Steps, counters and request phases for ui.perfetto.dev (JSON).")
@click.option("--force", is_flag=True, help="Replace the output if it is there.")
@window_options
@common_options
def command(
    run: str,
    anonymous: str | None,
    perfetto: str | None,
    since: str | None,
    until: str | None,
    last: str | None,
    *,
    force: bool,
    verbose: bool,
    quiet: bool,
) -> None:
    """Write a run in a form for others.

    --anonymous keeps arrivals, lengths, latencies, prefix structure and numeric settings, so that a replay decides the
    same, and nothing that names anybody: it can be attached to a public bug report. --perfetto writes the Chrome trace
    format: a track of steps, counters of running and waiting requests and KV usage, a track a request with its phases.
    """
    del verbose
    if anonymous is None and perfetto is None:
        msg = "nothing to export: give --anonymous F or --perfetto F"
        raise click.UsageError(msg)
    from tracekit.anonymous import left_out
    from tracekit.api import export_anonymous, export_perfetto
    from tracekit.run import check_output, load
    from tracekit.window import windowed

    if anonymous is not None:
        check_output(anonymous, force=force)
    loaded = windowed(load(run), since=since, until=until, last=last)
    if perfetto is not None:
        count = export_perfetto(loaded, perfetto, force=force)
        if not quiet:
            click.echo(f"{perfetto}: {count:,} events; open it in ui.perfetto.dev")
    if anonymous is None:
        return
    written = export_anonymous(loaded, anonymous, force=force)
    if quiet:
        return
    if lost := left_out(loaded):
        say(f"note: left out: {', '.join(lost)}")
    click.echo(f"{anonymous}: {written.requests.height:,} requests without names; replay it with: "
               f"tracekit replay {anonymous}")  # fmt: skip
