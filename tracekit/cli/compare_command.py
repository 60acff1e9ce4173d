"""tracekit compare"""

import click

from tracekit.cli.output import common_options, json_option, print_json, progress_bar, said_once, window_options


@click.command("compare", short_help="two runs side by side")
@click.argument("left", metavar="LEFT")
@click.argument("right", metavar="RIGHT")
@click.option("--skip-first", type=click.FloatRange(0, 1, max_open=True), default=0.0, metavar="F",
              help="Leave out the first share of the requests, e.g. 0.25.")  # fmt: skip
@window_options
@json_option
@common_options
def command(
    left: str,
    right: str,
    skip_first: float,
    since: str | None,
    until: str | None,
    last: str | None,
    *,
    as_json: bool,
    verbose: bool,
    quiet: bool,
) -> None:
    """Put two runs side by side: concurrency over time, preemptions, latency percentiles, throughput.

    The error is RIGHT / LEFT - 1. Observed against simulated, or one configuration against another. Two replays of
    one trace under different vLLM versions: also where their decisions part, and which rule is responsible.
    """
    from tracekit.api import compare
    from tracekit.report.difference import difference_text
    from tracekit.report.text import comparison_text
    from tracekit.rule_difference import rule_difference
    from tracekit.run import load
    from tracekit.window import windowed

    runs = [windowed(load(run), since=since, until=until, last=last) for run in (left, right)]
    comparison = compare(*runs, skip_first=skip_first)
    if as_json:
        print_json(comparison.to_rows())
        return
    click.echo(comparison_text(comparison, runs[0].name, runs[1].name))
    difference = rule_difference(runs[0], runs[1], progress_bar(quiet=quiet))
    if difference is not None:
        click.echo(f"\n{difference_text(difference)}")
    if verbose:
        said_once(comparison.notes, quiet=quiet)
