"""What ``ingest``, ``show`` and ``replay`` print: a run for people (80 columns) and for programs."""

import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import polars as pl

from tracekit.compare.bands import bounds_of
from tracekit.report.answers import answers, recording_flags
from tracekit.report.text import comparison_text, guessed, humanised, one_line, sanitise
from tracekit.run import Run

if TYPE_CHECKING:
    from tracekit.compare.metrics import Comparison
    from tracekit.config import ConfigValue

_WIDTH = 80


def has_outcomes(run: Run) -> bool:
    """Whether anything observed is known of a run beyond its arrivals, so that a comparison can say something."""
    outcomes = run.requests.select("first_token_ns", "last_token_ns", "finished_ns").count().row(0)
    return any(outcomes) or run.has("engine_stats") or run.has("steps") or run.has("distributions")


def show_json(run: Run) -> dict[str, Any]:
    """The run for programs: figures, configuration with origins, what it can answer."""
    return {
        **run.describe_json(),
        "summary": run.describe(),
        "answers": [{"question": a.question, "known": a.known, "why": a.why} for a in answers(run)],
        "would_record_more": [{"flag": flag, "adds": adds} for flag, adds in recording_flags(run)],
    }


def ingest_text(run: Run, target: str, *, verbose: bool = False) -> str:
    """What an ingest did: an account per file, what was found, where it lies."""
    lines = []
    for source in run.info["sources"]:
        account, clock = source["accounting"], source["clock"]
        counts = f"{_counted(account['read'], account['unit'])}: {account['understood']:,} understood, {account['other']:,} other"
        if account["duplicates"]:
            counts += f", {account['duplicates']:,} of them duplicates"
        counts += f", {account['unreadable']:,} unreadable"
        if account["unreadable_at"]:
            counts += f" ({account['unit'][:-1]} {', '.join(map(str, account['unreadable_at'][:5]))})"
        lines += _wrapped(f"{source['file']} ({source['format']})", counts)
        if len(run.info["sources"]) > 1 or verbose:
            offset = f", {clock['offset_ns'] / 1e9:+,.3f} s" if clock.get("offset_ns") else ""
            lines += _wrapped("  clock", f"{clock['kind']}: {clock.get('how', '')}{offset}")
    for skipped in run.info.get("skipped", []):
        lines.append(f"  skipped {skipped['count']:,}: {skipped['what']}")
    found = ", ".join(_counted(run.table(name).height, name) for name in run.describe_json()["tables"])
    lines += ["", *_wrapped(target, found), "", f"next: tracekit show {target}   tracekit replay {target}"]
    return sanitise("\n".join(lines))


def _counted(count: int, what: str) -> str:
    is_one = count == 1 and "_" not in what
    return f"{count:,} {what.removesuffix('s') if is_one else what}"


def show_text(run: Run, *, verbose: bool = False) -> str:
    """A run on one screen."""
    lines = [f"{one_line(run.name)}: {run.kind} run", "", *_figures(run), "", "config", *_config(run)]
    skipped = run.info.get("skipped") or []
    if skipped:
        lines += ["", "skipped", *(f"  {s['count']:>9,}  {s['what']}" for s in skipped)]
    lines += ["", "can it answer?"]
    for answer in answers(run):
        lines += _wrapped(f"  {'yes' if answer.known else 'no ':3} {answer.question}", answer.why, 32)
    flags = recording_flags(run)
    if flags and run.kind == "observed":
        lines += ["", "would record more next time"]
        for flag, adds in flags:
            lines += [f"  {flag}", f"      {adds}"]
    notes = run.info.get("notes") or []
    if notes and verbose:
        lines += ["", "notes", *(line for note in notes for line in _wrapped("  -", str(note), 4))]
    return sanitise("\n".join(lines))


def replay_text(observed: Run, simulated: Run, comparison: "Comparison | None", *, verbose: bool = False) -> str:
    """What a replay gives: who was replayed under which rules, then observed against simulated."""
    replayed = simulated.info["replayed"]
    rules = f"vLLM {replayed['rules']}, {_pool(simulated)}"
    lines = [*_wrapped(f"{one_line(observed.name)} replayed", rules), *_counts(simulated)]
    if verbose:
        lines += ["", *_decided(replayed), "", "config", *_config(simulated)]
    lines.append("")
    if comparison is not None:
        lines.append(comparison_text(comparison, "observed", "simulated"))
    else:
        lines += _simulated_figures(simulated)
    return sanitise("\n".join(lines))


def _ends(run: Run) -> str:
    """How the requests ended; those of which only an instant is known have finished somehow."""
    ended = pl.when(pl.col("finished_ns").is_null()).then(pl.lit("unknown")).otherwise(pl.lit("finished, not told why"))
    reasons = run.requests.group_by(pl.coalesce("finish_reason", ended).alias("end")).len().sort("end").rows()
    return ", ".join(f"{count:,} {reason}" for reason, count in reasons)


def _pool(run: Run) -> str:
    config = run.config
    scheduling = "asynchronous" if config["async_scheduling"].value else "synchronous"
    blocks, size = int(config["num_gpu_blocks"].value), int(config["block_size"].value)
    return (
        f"{blocks:,} KV blocks of {size} tokens, max_num_seqs {config['max_num_seqs'].value}, "
        f"max_num_batched_tokens {config['max_num_batched_tokens'].value}, {scheduling}"
    )


def _counts(run: Run) -> list[str]:
    lines = _wrapped(_counted(run.requests.height, "requests"), _ends(run) or "none")
    lines += [line for s in run.info.get("skipped", []) for line in _wrapped(f"  {s['count']:,}", str(s["what"]))]
    cache = run.info.get("prefix_cache") or {}
    if cache.get("num_queries"):
        share = cache["num_hits"] / cache["num_queries"]
        lines.append(
            f"prefix cache  {cache['num_hits']:,} of {cache['num_queries']:,} queried tokens hit ({share:.1%})"
        )
    return lines


def _decided(replayed: Mapping[str, Any]) -> list[str]:
    """Which engine decided and why, and which of its steps are kept."""
    why = f" ({replayed['why_not_kernel']})" if "why_not_kernel" in replayed else ""
    steps = f"{replayed['num_steps']:,} steps"
    kept = {
        "all": f"{steps}, all kept",
        "none": f"{steps}, none kept",
        "sample": f"{steps}, kept: the first of every second and every one that preempts",
    }
    return [*_wrapped("decided by", f"the {replayed['engine']}{why}"), *_wrapped("steps", kept[replayed["steps"]])]


def _simulated_figures(run: Run) -> list[str]:
    from tracekit.compare.summary import summarise

    found = summarise(run)
    rows = {(row["metric"], row["stat"]): row["value"] for row in (*found["latency_stats"], *found["totals"])}
    bounds = {(row["metric"], row["stat"]): bounds_of(row["low"], row["high"]) for row in found["latency_stats"]}
    stats = ("mean", "p50", "p90", "p99")
    lines = [f"{'simulated':14}" + "".join(f"{stat:>13}" for stat in stats)]
    for metric, label in (("ttft_ms", "TTFT"), ("tpot_ms", "TPOT"), ("e2e_ms", "E2E"), ("queue_ms", "queue")):
        values = [guessed(metric, rows.get((metric, stat)), bounds.get((metric, stat))) for stat in stats]
        lines.append(f"  {label:12}" + "".join(f"{value:>13}" for value in values))
    for row in found["concurrency_quantiles"]:
        label = "running" if len(found["concurrency_quantiles"]) == 1 else f"running on {row['engine']}"
        values = [f"{row['mean_running_reqs']:.1f}", *(f"{row[f'{stat}_running_reqs']:,.0f}" for stat in stats[1:])]
        lines.append(f"  {label:12}" + "".join(f"{value:>13}" for value in values) + "  of device time")
    for metric, label, unit in (
        ("peak_running_reqs", "peak running", "requests"),
        ("num_preemptions", "preemptions", ""),
        ("output_tps", "output", "tokens/s"),
    ):
        value = next((v for (name, _), v in rows.items() if name == metric), None)
        lines.append(f"  {label:12}{humanised(metric, value):>13} {unit}".rstrip())
    if bound_by := run.info.get("ns_bound_by"):
        total = max(sum(bound_by.values()), 1)
        longest = sorted(bound_by.items(), key=lambda item: (-item[1], item[0]))[:4]
        told = ", ".join(f"{name} {duration / total:.0%}" for name, duration in longest)
        lines += _wrapped("  time bound by", told, 16)
    return lines


def _figures(run: Run) -> list[str]:
    figures = run.describe()
    rows = [
        ("started", figures["started"]),
        ("requests", figures["num_requests"]),
        ("arrivals over", _seconds(figures["arrivals_span_s"])),
        ("arrival rate", _rate(run)),
        ("prompt tokens", _lengths(run, "num_prompt_tokens")),
        ("output tokens", _lengths(run, "num_output_tokens")),
        ("ended", _ends(run)),
        ("steps", figures["num_steps"]),
        ("preemptions", figures["num_preemptions"]),
        ("samples", figures["num_engine_stats"]),
    ]
    lines = []
    for label, value in rows:
        if value not in (None, ""):
            lines += _wrapped(f"  {label}", f"{value:,}" if isinstance(value, int) else str(value), 20)
    return lines


def _lengths(run: Run, column: str) -> str | None:
    length = pl.col(column)
    figures = run.requests.select(
        length.mean().alias("mean"),
        length.quantile(0.5, "linear").alias("p50"),
        length.quantile(0.99, "linear").alias("p99"),
        length.max().cast(pl.Float64).alias("max"),
    ).row(0, named=True)
    if figures["mean"] is None:
        return None
    return ", ".join(f"{name} {value:,.0f}" for name, value in figures.items())


def _rate(run: Run) -> str | None:
    span = run.describe()["arrivals_span_s"]
    return f"{run.requests['arrival_ns'].count() / span:,.2f} requests/s" if span else None


def _seconds(span: float | None) -> str | None:
    if span is None:
        return None
    return f"{span:,.1f} s" if span < 600 else f"{span / 60:,.1f} min" if span < 36_000 else f"{span / 3600:,.1f} h"  # noqa: PLR2004


def _config(run: Run) -> list[str]:
    if not run.config:
        return ["  nothing is known of the engine's configuration"]
    lines = []
    for name, value in sorted(run.config.items()):
        shown = f"{value.value:g}" if isinstance(value.value, float) else str(value.value)
        start = f"  {name:36} {shown:16} "
        origin = _origin(value, _WIDTH - len(start))
        lines += (
            [start + origin] if len(start + origin) <= _WIDTH else [start.rstrip(), f"{' ' * 56}{origin}"[-_WIDTH:]]
        )
    return lines


def _origin(value: "ConfigValue", width: int) -> str:
    """Where a value comes from; of a file in a folder the folder alone, where there is no room for both."""
    whole = f"{value.origin} ({value.where})" if value.where else value.origin
    folder, slash, _ = (value.where or "").partition("/")
    return f"{value.origin} ({folder}/...)" if slash and len(whole) > width else whole


def _wrapped(label: str, text: str, indent: int = 4) -> list[str]:
    """The label and its text on one line if they fit, else wrapped below with an indent."""
    gap = max(indent - len(label), 2) if indent > 4 else 2  # noqa: PLR2004
    return textwrap.wrap(
        f"{label}{' ' * gap}{text}",
        _WIDTH,
        subsequent_indent=" " * indent,
        drop_whitespace=True,
        replace_whitespace=False,
    ) or [label]
