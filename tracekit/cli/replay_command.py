"""tracekit replay"""

import click

from tracekit.cli.output import (
    common_options,
    json_option,
    print_json,
    progress_bar,
    said_once,
    say,
    window_options,
)


@click.command("replay", short_help="recorded arrivals through vLLM's scheduler -> simulated run")
@click.argument("trace", metavar="TRACE")
@click.option("-o", "--output", metavar="RUN", help="Directory to write (or FILE.parquet: the requests alone).")
@click.option("--set", "settings", multiple=True, metavar="K=V", help="vLLM's flags, num_gpu_blocks, t0_ms, ...")
@click.option("--gpu", metavar="G", help="Short for --set gpu=G.")
@click.option("--model", metavar="M", help="Short for --set model=M.")
@click.option("--rules", metavar="VERSION", help="Decide as this vLLM version does.")
@click.option("--step-time", metavar="FILE", help="Step time of the device: a JSON file, or aiconfigurator's tables.")
@click.option("--fit", is_flag=True, help="Calibrate the step time on the trace's own latencies first.")
@click.option("--closed-loop", is_flag=True, help="A later turn follows its parent in the simulation.")
@click.option(
    "--max-concurrency", type=click.IntRange(min=1), metavar="N", help="The client keeps at most N in flight."
)
@click.option("--rate", metavar="1.5x", default="1x", help="Compress the recorded arrivals.")
@click.option(
    "--steps", type=click.Choice(["all", "none", "sample"]), help="Which steps to keep (default: all up to 2 million)."
)
@click.option(
    "--engine", type=click.Choice(["auto", "kernel", "model"]), default="auto", show_default=True, help="Who decides."
)
@click.option("--force", is_flag=True, help="Replace the output if it is a run.")
@window_options
@json_option
@common_options
def command(
    trace: str,
    output: str | None,
    settings: tuple[str, ...],
    gpu: str | None,
    model: str | None,
    rules: str | None,
    step_time: str | None,
    rate: str,
    max_concurrency: int | None,
    steps: str | None,
    engine: str,
    since: str | None,
    until: str | None,
    last: str | None,
    *,
    fit: bool,
    closed_loop: bool,
    force: bool,
    as_json: bool,
    verbose: bool,
    quiet: bool,
) -> None:
    """Replay a run's or a Parquet trace's arrivals through vLLM's scheduler and KV cache.

    Prints observed against simulated where the trace knows what became of its requests.
    """
    from tracekit.api import compare, replay
    from tracekit.report.show import has_outcomes, replay_text, show_json
    from tracekit.run import check_output, load
    from tracekit.window import windowed

    if output is not None:
        check_output(output, force=force)
    observed = windowed(load(trace), since=since, until=until, last=last)
    simulated = replay(
        observed,
        settings=settings,
        step_time=step_time,
        fit=fit,
        rules=rules,
        gpu=gpu,
        model=model,
        closed_loop=closed_loop,
        max_concurrency=max_concurrency,
        rate=_rate(rate),
        engine=engine,
        steps=steps,
        announce=say,
        progress=progress_bar(quiet=quiet),
    )
    lost = simulated.save(output, force=force) if output is not None else []
    said_once(simulated.info["notes"], quiet=quiet)
    if lost and not quiet:
        say(f"note: {output} holds the requests alone; left out: {', '.join(lost)}")
    comparison = compare(observed, simulated) if has_outcomes(observed) else None
    said_once(comparison.warnings if comparison else [], quiet=quiet)
    if as_json:
        rows = comparison.to_rows() if comparison else None
        print_json({"run": output, **show_json(simulated), "comparison": rows})
        return
    click.echo(replay_text(observed, simulated, comparison, verbose=verbose))
    if output is None and not quiet:
        say("note: the simulated run was not kept; -o RUN keeps it")


def _rate(text: str) -> float:
    try:
        return float(text.removesuffix("x"))
    except ValueError:
        msg = "--rate: expected a factor such as 1.5x"
        raise click.UsageError(msg) from None
