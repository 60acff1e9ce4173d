"""tracekit fit"""

import click

from tracekit.cli.output import common_options, json_option, print_json, progress_bar, said_once, say, window_options


@click.command("fit", short_help="calibrate the step time on observed runs")
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
@click.option("-o", "--output", metavar="FILE", help="Write the step time there (JSON, for replay --step-time).")
@click.option("--first", type=click.FloatRange(0, 1, min_open=True, max_open=True), metavar="F",
              help="Fit on the first share of the arrivals' span, e.g. 0.25, and score the rest apart.")  # fmt: skip
@click.option("--form", type=click.Choice(["auto", "affine", "physical"]), default="auto", show_default=True,
              help="physical: around the catalogue's kernels, needs GPU and model; auto: where both are known.")  # fmt: skip
@click.option("--set", "settings", multiple=True, metavar="K=V", help="vLLM's flags that the runs do not say.")
@click.option("--gpu", metavar="G", help="Short for --set gpu=G.")
@click.option("--model", metavar="M", help="Short for --set model=M.")
@click.option("--rules", metavar="VERSION", help="Decide as this vLLM version does.")
@click.option("--force", is_flag=True, help="Replace the output.")
@window_options
@json_option
@common_options
def command(
    runs: tuple[str, ...],
    output: str | None,
    first: float | None,
    form: str,
    settings: tuple[str, ...],
    gpu: str | None,
    model: str | None,
    rules: str | None,
    since: str | None,
    until: str | None,
    last: str | None,
    *,
    force: bool,
    as_json: bool,
    verbose: bool,
    quiet: bool,
) -> None:
    """Find the step time that reproduces what was observed, and say how well it does.

    From the durations of steps where they were logged (iteration lines), else end to end: the run is replayed a few
    dozen times until TTFT, TPOT and E2E of its requests fit. Prints the errors in sample and, with --first, held out.
    """
    from tracekit.api import fit
    from tracekit.report.fit import fit_text
    from tracekit.run import load
    from tracekit.window import windowed

    found = fit(
        *(windowed(load(run), since=since, until=until, last=last) for run in runs),
        first=first,
        form=form,
        settings=settings,
        rules=rules,
        gpu=gpu,
        model=model,
        output=output,
        force=force,
        progress=progress_bar(quiet=quiet),
    )
    said_once(found.notes, quiet=quiet)
    if as_json:
        print_json(found.to_dict())
    else:
        click.echo(fit_text(found, verbose=verbose))
    if output is None and not quiet:
        say("note: the step time was not kept; -o FILE keeps it for replay --step-time")
