"""tracekit ingest"""

import click

from tracekit.cli.output import common_options, json_option, print_json, progress_bar, said_once, say


@click.command("ingest", short_help="any source -> observed run")
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@click.option("-o", "--output", metavar="RUN", help="Directory to write (or FILE.parquet: the requests alone).")
@click.option("--format", "format_", metavar="F", help="Do not detect the format: it is this one.")
@click.option("--column", "columns", multiple=True, metavar="TARGET=SOURCE[,SOURCE][:UNIT]",
              help="Where a column of a table comes from, e.g. arrival=t_send:s.")  # fmt: skip
@click.option("--set", "settings", multiple=True, metavar="K=V", help="A setting that the sources do not tell.")
@click.option("--timezone", metavar="ZONE", help="Zone of the server log's clock, e.g. UTC or Europe/Berlin.")
@click.option("--start", type=click.IntRange(min=1), metavar="N", help="The Nth start of the server in the log.")
@click.option("--hash-key", metavar="KEY", help="Key for hashing token ids (default: random).")
@click.option("--strict", is_flag=True, help="Any unreadable line or row is an error.")
@click.option("--force", is_flag=True, help="Replace the output if it is a run.")
@json_option
@common_options
def command(
    sources: tuple[str, ...],
    output: str | None,
    format_: str | None,
    columns: tuple[str, ...],
    settings: tuple[str, ...],
    timezone: str | None,
    start: int | None,
    hash_key: str | None,
    *,
    strict: bool,
    force: bool,
    as_json: bool,
    verbose: bool,
    quiet: bool,
) -> None:
    """Read vLLM logs, /metrics scrapes, traces and client results into an observed run.

    All sources together are one incident: the configuration and samples come from the server log, counters from the
    scrapes, requests from the table. Formats are detected by content; - is standard input. Every line or row is counted:
    understood, other (nothing in it is kept) or unreadable.

    \b
    tracekit ingest server.log metrics/ client.jsonl -o incident \\
        --column arrival=t_send --column first_token=t_first --column last_token=t_end \\
        --column num_prompt_tokens=usage.prompt_tokens \\
        --column num_output_tokens=usage.completion_tokens \\
        --column block_hashes=hash_ids:16
    """
    from tracekit.api import ingest
    from tracekit.report.show import ingest_text, show_json
    from tracekit.run import check_output

    target = output or default_output(sources)
    check_output(target, force=force)
    run = ingest(
        *sources,
        format=format_,
        columns=columns,
        settings=settings,
        timezone=timezone,
        start=start,
        hash_key=hash_key,
        strict=strict,
        progress=progress_bar(quiet=quiet),
    )
    lost = run.save(target, force=force)
    said_once(run.info["notes"], quiet=quiet)
    if lost and not quiet:
        say(f"note: {target} holds the requests alone; left out: {', '.join(lost)}")
    if as_json:
        print_json(show_json(run))
    elif not quiet:
        click.echo(ingest_text(run, target, verbose=verbose))


def default_output(sources: tuple[str, ...]) -> str:
    """Where a run goes when ``-o`` is not given: the first source's name without its endings, in this directory."""
    from pathlib import Path

    name = "stdin" if sources[0] == "-" else Path(sources[0]).name or "incident"
    stem = name.split(".")[0] or "incident"
    return f"{stem}.run"
