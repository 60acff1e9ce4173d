"""tracekit postmortem"""

import click

from tracekit.cli.output import common_options, json_option, print_json, progress_bar, say, window_options


@click.command("postmortem", short_help="findings, causes, tested remedies")
@click.argument("run", metavar="RUN")
@click.option(
    "--set", "settings", multiple=True, metavar="K=V", help="As of replay: vLLM's flags, num_gpu_blocks, t0_ms, ..."
)
@click.option("--rules", metavar="VERSION", help="Decide as this vLLM version does.")
@click.option("--step-time", metavar="FILE", help="Step time of the device: a JSON file, or aiconfigurator's tables.")
@click.option("--closed-loop", is_flag=True, help="A later turn follows its parent in the simulation.")
@click.option(
    "--max-concurrency", type=click.IntRange(min=1), metavar="N", help="The client keeps at most N in flight."
)
@click.option("--no-remedies", is_flag=True, help="Find causes only; replay nothing to test remedies.")
@click.option(
    "--fail-on", multiple=True, metavar="KIND", help="Exit code 1 when such a finding is there; 'any' for all."
)
@click.option("--show-sql", is_flag=True, help="Print the query behind every number.")
@click.option("--markdown", is_flag=True, help="Markdown for the incident ticket.")
@window_options
@json_option
@common_options
def command(
    run: str,
    settings: tuple[str, ...],
    rules: str | None,
    step_time: str | None,
    max_concurrency: int | None,
    fail_on: tuple[str, ...],
    since: str | None,
    until: str | None,
    last: str | None,
    *,
    closed_loop: bool,
    no_remedies: bool,
    show_sql: bool,
    markdown: bool,
    as_json: bool,
    verbose: bool,
    quiet: bool,
) -> int:
    """Say why it happened and what would have helped.

    Finds preemption storms, queueing with free KV blocks, head-of-line blocking, prefills that stall decodes, a collapse
    of the prefix cache, requests that can never run, clients that cap the load, silence of the log; what the run does
    not know itself is found in a replay of its requests. Each remedy is replayed on the same requests.
    """
    from tracekit.api import postmortem
    from tracekit.postmortem import KINDS
    from tracekit.report.postmortem import postmortem_json, postmortem_markdown, postmortem_text
    from tracekit.report.text import sanitise
    from tracekit.run import load
    from tracekit.window import windowed

    unknown = [kind for kind in fail_on if kind not in {*KINDS, "any"}]
    if unknown:
        msg = f"--fail-on {unknown[0]}: expected any, {', '.join(KINDS)}"
        raise click.UsageError(msg)
    found = postmortem(
        windowed(load(run), since=since, until=until, last=last),
        settings=settings,
        rules=rules,
        step_time=step_time,
        closed_loop=closed_loop,
        max_concurrency=max_concurrency,
        remedies=not no_remedies,
        progress=progress_bar(quiet=quiet),
        announce=say,
    )
    if as_json:
        print_json(postmortem_json(found))
    elif markdown:
        click.echo(sanitise(postmortem_markdown(found)))
    else:
        click.echo(sanitise(postmortem_text(found, verbose=verbose)))
    if show_sql:
        for name, parameters, text in found.sql():
            said = "".join(f"\n-- ${key} = {value}" for key, value in parameters.items())
            click.echo(f"\n-- {name}{said}\n{text.rstrip()}", err=as_json)
    kinds = {finding.kind for finding in found.findings}
    return int(bool(kinds & set(fail_on)) or ("any" in fail_on and bool(kinds)))
