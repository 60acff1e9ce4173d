"""tracekit report"""

import click

from tracekit.cli.output import common_options, progress_bar, say, window_options


@click.command("report", short_help="one self-contained HTML page")
@click.argument("runs", nargs=-1, required=True, metavar="RUN [RUN]")
@click.option("-o", "--output", required=True, metavar="F", help="The page to write, such as report.html.")
@click.option("--set", "settings", multiple=True, metavar="K=V", help="As of replay, for an observed run alone.")
@click.option("--step-time", metavar="FILE", help="Step time of the device, a JSON file.")
@click.option("--no-remedies", is_flag=True, help="Replay nothing to test remedies.")
@click.option("--image", "images", multiple=True, nargs=2, metavar="CHART F", help="Also draw a chart to F, .png or .svg: "
              "timeline, ttft, tpot, e2e, limits or requests.")  # fmt: skip
@click.option("--force", is_flag=True, help="Replace the page if it is there.")
@window_options
@common_options
def command(
    runs: tuple[str, ...],
    output: str,
    settings: tuple[str, ...],
    step_time: str | None,
    images: tuple[tuple[str, str], ...],
    since: str | None,
    until: str | None,
    last: str | None,
    *,
    no_remedies: bool,
    force: bool,
    verbose: bool,
    quiet: bool,
) -> None:
    """Write one HTML page about a run, or about an observed one and a simulated one.

    Findings and remedies first, then concurrency, latencies, what the steps held, which limit bound, the requests of a
    storm. The page asks no network and opens from disk. An observed run alone is put beside its replay.
    """
    del verbose
    from tracekit.api import report
    from tracekit.run import load
    from tracekit.window import windowed

    found = [windowed(load(run), since=since, until=until, last=last) for run in runs]
    path = report(
        *found, output=output, settings=settings, step_time=step_time, remedies=not no_remedies, images=images, force=force,
        progress=progress_bar(quiet=quiet), announce=None if quiet else say,
    )  # fmt: skip
    if not quiet:
        click.echo(f"{path}: {path.stat().st_size / 1e6:.1f} MB, opens in any browser")
