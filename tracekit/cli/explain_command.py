"""tracekit explain"""

from dataclasses import asdict

import click

from tracekit.cli.output import common_options, json_option, print_json, said_once


@click.command("explain", short_help="one request's story, one step's decision")
@click.argument("run", metavar="RUN")
@click.option("--request", "request_id", metavar="ID", help="Tell this request's story.")
@click.option("--step", metavar="N[:M]", help="Tell this step's decision, or those of a window of steps.")
@click.option("--engine", type=int, default=0, metavar="E", help="The engine that --step means (data parallel).")
@click.option("--mermaid", "as_mermaid", is_flag=True, help="Draw it as a Mermaid sequence diagram.")
@click.option("--set", "settings", multiple=True, metavar="K=V", help="As of replay, for an observed run.")
@click.option("--step-time", metavar="FILE", help="As of replay, for an observed run.")
@json_option
@common_options
def command(
    run: str,
    request_id: str | None,
    step: str | None,
    engine: int,
    settings: tuple[str, ...],
    step_time: str | None,
    *,
    as_mermaid: bool,
    as_json: bool,
    verbose: bool,
    quiet: bool,
) -> None:
    """Tell why: one request's way through the engine, or one step's decision and what stopped the next request."""
    del verbose
    from tracekit.api import explain
    from tracekit.explain import mermaid
    from tracekit.report.story import story_text
    from tracekit.report.text import sanitise

    if (request_id is None) == (step is None):
        msg = "give either --request ID or --step N"
        raise click.UsageError(msg)
    window = _window(step) if step is not None else None
    story = explain(run, request=request_id, step=window, engine=engine, settings=settings, step_time=step_time)
    said_once(story.notes, quiet=quiet)
    if as_json:
        print_json(asdict(story))
    else:
        click.echo(sanitise(mermaid(story) if as_mermaid else story_text(story)))


def _window(text: str) -> tuple[int, int]:
    first, colon, last = text.partition(":")
    if not first.isdigit() or (colon and not last.isdigit()):
        msg = "--step: expected a step such as 120, or a window such as 120:130"
        raise click.UsageError(msg)
    if colon and int(last) < int(first):
        msg = "--step: the window ends before it begins"
        raise click.UsageError(msg)
    return int(first), int(last) if colon else int(first)
