"""tracekit show"""

import click

from tracekit.cli.output import common_options, json_option, print_json, window_options


@click.command("show", short_help="what is in a run")
@click.argument("run", metavar="RUN")
@window_options
@json_option
@common_options
def command(
    run: str, since: str | None, until: str | None, last: str | None, *, as_json: bool, verbose: bool, quiet: bool
) -> None:
    """Show what is in a run: counts, span, rates, lengths, the configuration and where each value comes from.

    Also says what the run can and cannot answer, and which vLLM flags would have recorded more.
    """
    del quiet
    from tracekit.report.show import show_json, show_text
    from tracekit.run import load
    from tracekit.window import windowed

    shown = windowed(load(run), since=since, until=until, last=last)
    if as_json:
        print_json(show_json(shown))
    else:
        click.echo(show_text(shown, verbose=verbose))
