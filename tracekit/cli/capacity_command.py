"""tracekit capacity"""

import click

from tracekit.cli.output import common_options, json_option, print_json


@click.command("capacity", short_help="KV cache size, blocks, maximum concurrency")
@click.option("--from", "run", metavar="RUN", help="Start from what this run's server logged.")
@click.option("--model", metavar="M", help="A name as people write it, a repository, or a config.json.")
@click.option("--gpu", metavar="G", help="Such as H100, L40S, 'NVIDIA A100-SXM4-80GB'.")
@click.option(
    "--rules", metavar="VERSION", help="Plan as this vLLM version does (default: the run's, else the newest)."
)
@click.option("--set", "settings", multiple=True, metavar="K=V", help="vLLM's flags, available_kv_gib, num_gpu_blocks.")
@click.option(
    "--lengths", metavar="IN:OUT[,IN:OUT...]", help="Also: how many such requests fit (tokens in and out; a mix)."
)
@click.option("--trace", metavar="TRACE", help="Also: how many requests of this trace's lengths fit.")
@json_option
@common_options
def command(
    run: str | None,
    model: str | None,
    gpu: str | None,
    rules: str | None,
    settings: tuple[str, ...],
    lengths: str | None,
    trace: str | None,
    *,
    as_json: bool,
    verbose: bool,
    quiet: bool,
) -> None:
    """Say what vLLM will print at start-up: where the memory goes, blocks, tokens, maximum concurrency.

    \b
    tracekit capacity --model Llama-3.1-8B --gpu H100 --set max_model_len=32768
    tracekit capacity --from incident --gpu H100 --set gpu_memory_utilization=0.95

    From a run, its measured memory is moved by what changes; else it is an estimate, with a band.
    """
    from tracekit.api import capacity
    from tracekit.report.capacity import capacity_json, capacity_text
    from tracekit.report.text import sanitise

    if run is None and model is None:
        msg = "give --model M and --gpu G, or --from RUN"
        raise click.UsageError(msg)
    found = capacity(run, model=model, gpu=gpu, rules=rules, settings=settings, lengths=lengths, trace=trace)
    if as_json:
        print_json(capacity_json(found))
        return
    click.echo(sanitise(capacity_text(found, verbose=verbose or not quiet)))
