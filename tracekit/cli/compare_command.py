"""tracekit compare"""

import click

from tracekit.cli.output import common_options, json_option, print_json, progress_bar, said_once, say, window_options


@click.command("compare", short_help="two runs side by side")
@click.argument("left", metavar="LEFT")
@click.argument("right", metavar="RIGHT")
@click.option("--skip-first", type=click.FloatRange(0, 1, max_open=True), default=0.0, metavar="F",
              help="Leave out the first share of the requests, e.g. 0.25.")  # fmt: skip
@click.option(
    "--slo", metavar="M=MS,...", help="Objectives, e.g. ttft_ms=500,tpot_ms=50: goodput, share that meets all."
)
@click.option("--fail-if", "fail_if", multiple=True, metavar="COND",
              help='Exit 1 if it holds: "ttft_ms.p99>+10%" asks for the error (RIGHT over LEFT), "ttft_ms.p99>500" for the '
                   'value of RIGHT.')  # fmt: skip
@window_options
@json_option
@common_options
@click.pass_context
def command(
    context: click.Context,
    left: str,
    right: str,
    skip_first: float,
    slo: str | None,
    fail_if: tuple[str, ...],
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
    one trace under different vLLM versions: also where their decisions part, and which rule is responsible. Behind a
    percentile stands how far chance alone moves LEFT's (95 %, bootstrap over requests with a fixed seed). ~ marks
    a guess within a bucket of a histogram.
    """
    from tracekit.api import compare
    from tracekit.compare.conditions import judge, parse_condition
    from tracekit.report.difference import difference_text
    from tracekit.report.text import comparison_text, verdicts_text
    from tracekit.rule_difference import rule_difference
    from tracekit.run import load
    from tracekit.window import windowed

    conditions = [parse_condition(text) for text in fail_if]
    runs = [windowed(load(run), since=since, until=until, last=last) for run in (left, right)]
    comparison = compare(*runs, skip_first=skip_first, slo=slo)
    said_once(comparison.warnings, quiet=quiet)
    verdicts = judge(comparison, conditions)
    failed = sum(verdict.failed for verdict in verdicts)
    if as_json:
        print_json(comparison.to_rows())
        if verdicts and not quiet:
            say(verdicts_text(verdicts))
        context.exit(1 if failed else 0)
    click.echo(comparison_text(comparison, runs[0].name, runs[1].name))
    difference = rule_difference(runs[0], runs[1], progress_bar(quiet=quiet))
    if difference is not None:
        click.echo(f"\n{difference_text(difference)}")
    if verdicts:
        click.echo(f"\n{verdicts_text(verdicts)}")
    if verbose:
        said_once(comparison.notes, quiet=quiet)
    context.exit(1 if failed else 0)
