"""tracekit conform"""

from pathlib import Path
from typing import Literal

import click

from tracekit.cli.output import common_options, json_option, print_json, progress_bar


@click.command("conform", short_help="recordings of real vLLM against the model")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("--rules", metavar="VERSION", help="The version of a single recording.")
@click.option("--v0", "is_v0", is_flag=True, help="The recording is of that version's V0 engine.")
@click.option(
    "--engine", "decider", type=click.Choice(["model", "kernel"]), default="model", show_default=True,
    help="Whose decisions are compared: the model's, or the compiled kernel's (V1).",
)  # fmt: skip
@click.option("--jobs", type=click.IntRange(min=1), default=1, show_default=True, help="Processes to use.")
@click.option("--certificate", metavar="FILE", help="Write the page that lists every label.")
@json_option
@common_options
def command(
    paths: tuple[str, ...],
    rules: str | None,
    decider: Literal["model", "kernel"],
    jobs: int,
    certificate: str | None,
    *,
    is_v0: bool,
    as_json: bool,
    verbose: bool,
    quiet: bool,
) -> int:
    """Replay recordings of real schedulers step by step and compare every field of every step.

    PATH is a set with index.json, or a folder with config.json, workload.jsonl and steps.jsonl[.gz] of one's own; or a
    FILE.jsonl[.gz] of start-ups, which are planned anew (blocks, tokens, concurrency, start-up errors). The last line is the verdict; exit code 1 when a decision differs. docs/conformance.md says how to record.
    """
    from tracekit.conform import conform
    from tracekit.report.conformance import certificate as certificate_page
    from tracekit.report.conformance import conformance_json, conformance_text
    from tracekit.report.text import sanitise

    engine: Literal["v0", "v1"] | None = "v0" if is_v0 else None
    report = conform(paths, rules=rules, engine=engine, decider=decider, jobs=jobs, progress=progress_bar(quiet=quiet))
    if certificate is not None:
        Path(certificate).write_text(
            certificate_page(report, ", ".join(f"`{Path(path).name}`" for path in paths)), encoding="utf-8"
        )
    if as_json:
        print_json(conformance_json(report))
    else:
        click.echo(sanitise(conformance_text(report, verbose=verbose)))
    return 0 if report.agrees else 1
