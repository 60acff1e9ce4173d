"""A postmortem as one screen, as Markdown for the incident ticket, and for programs."""

import textwrap
from collections.abc import Iterable
from typing import Any, Final

from tracekit.postmortem import Finding, Postmortem, Remedy
from tracekit.report.text import one_line

_WIDTH: Final = 80
SHOWN: Final = (("ttft_ms.p99", "TTFT99"), ("tpot_ms.p50", "TPOT50"), ("e2e_ms.p99", "E2E99"), ("output_tps.total", "tok/s"))  # fmt: skip
_NAMES: Final = {
    "preemption_storm": "preemption storm", "queueing_with_free_kv": "queueing with free KV blocks",
    "head_of_line_blocking": "head-of-line blocking", "prefill_stall": "prefills stall decodes",
    "prefix_cache_collapse": "prefix-cache collapse", "inadmissible_request": "requests that can never run",
    "client_cap": "the client caps the load", "log_silence": "silence of the log",
}  # fmt: skip
_MOST: Final = 4


def verdict(found: Postmortem) -> str:
    """One sentence."""
    if found.is_blind and not found.findings:
        return "cannot tell: the run holds nothing that most findings could be seen in"
    if found.is_healthy:
        return "healthy: nothing of what this looks for was found"
    if not found.findings:
        return "cannot tell: the replay found nothing, but it is not what happened"
    kinds = list(dict.fromkeys(finding.kind for finding in found.findings))
    return f"{len(found.findings)} finding{'s' if len(found.findings) > 1 else ''}: " + ", ".join(
        _NAMES[k] for k in kinds
    )


def postmortem_text(found: Postmortem, *, verbose: bool = False) -> str:
    """Verdict, evidence, lever, and what could not be told; at most 80 columns."""
    lines = [*_wrap(f"{one_line(found.run.name)}: {verdict(found)}")]
    if found.source == "replayed":
        lines += _wrap("(found in the replay of its requests)", "  ")
    if found.doubt:
        lines += _wrap(f"DOUBTFUL: {found.doubt}")
    lines += _outcome(found.outcome)
    for number, (finding, remedies) in enumerate(zip(found.findings, found.remedies, strict=True), 1):
        lines += ["", *_finding(number, finding, remedies, verbose=verbose)]
    if found.num_replays:
        lines += ["", f"{found.num_replays} remedies were replayed; what no replay or recording shows is not claimed"]
    if found.unknown:
        lines += ["", "could not be told", *(line for text in found.unknown for line in _wrap(f"- {text}", "  "))]
    return "\n".join(lines)


def _outcome(outcome: dict[str, Any]) -> list[str]:
    if not outcome or outcome.get("duration_s") is None:
        return []
    tax = outcome.get("preemption_tax")
    said = f"{outcome['num_preemptions']:,} preemptions in {outcome['duration_s']:.0f} s"
    if tax:
        said += f", {outcome['num_lost_tokens']:,} computed tokens lost ({tax:.1%} of all work)"
    if outcome.get("mean_waiting_reqs") is not None:
        said += (
            f"; {outcome['mean_waiting_reqs']:.1f} requests waiting and {outcome['mean_kv_cache_usage']:.0%} of the KV cache "
            "in use while the device worked"
        )
    return _wrap(said)


def _finding(number: int, finding: Finding, remedies: list[Remedy], *, verbose: bool) -> list[str]:
    when = (
        ""
        if finding.start_s is None or finding.end_s is None
        else f", {finding.start_s:.1f} s to {finding.end_s:.1f} s"
    )
    lines = [*_wrap(f"{number}. {_NAMES[finding.kind]}{when}"), *_wrap(finding.title, "   ")]
    lines += [line for text in _evidence(finding) for line in _wrap(text, "   ")]
    lines += [line for cause in finding.causes for line in _wrap(f"because  {cause}", "   ", "            ")]
    if verbose:
        lines += [line for link in finding.chain[:10] for line in _wrap(_link(link), "     ")]
    if remedies:
        lines += ["", *_remedies(remedies)]
    return lines


def finding_lines(finding: Finding) -> tuple[str, list[str]]:
    """A finding's heading, and its sentences."""
    when = ""
    if finding.start_s is not None and finding.end_s is not None:
        when = f", {finding.start_s:.1f} s to {finding.end_s:.1f} s"
    causes = [f"because {cause}" for cause in finding.causes]
    return f"{_NAMES[finding.kind]}{when}", [finding.title, *_evidence(finding), *causes]


def _evidence(finding: Finding) -> list[str]:
    if finding.kind != "preemption_storm":
        return []
    found, states = finding.evidence, finding.evidence["states"]
    said = []
    if found.get("preemption_tax") is not None:
        said.append(
            f"{found['num_lost_tokens']:,} computed tokens lost, {found['preemption_tax']:.1%} of the work meanwhile"
        )
    if found.get("total_delay_s"):
        said.append(
            f"victims waited {found['mean_delay_s']:.1f} s on average to run again ({found['max_delay_s']:.1f} s at most); "
            f"hardest hit: {found['hardest_hit']} ({found['num_hits']} times)"
        )
    parts = [
        f"{place} {state['mean_kv_cache_usage']:.0%} / {state['mean_waiting_reqs']:.0f}"
        for place in ("before", "during", "after")
        if (state := states.get(place)) is not None
    ]
    if parts:
        said.append("KV usage / waiting: " + ", ".join(parts))
    return said


def _link(link: dict[str, Any]) -> str:
    usage = "" if link["kv_cache_usage"] is None else f", {link['kv_cache_usage']:.0%} of the pool in use"
    return (
        f"{link['time_s']:.2f} s: {link['victim']} evicted for {link['needed_by']}, {link['num_computed_tokens']:,} tokens and "
        f"{link['num_blocks']} blocks lost{usage}"
    )


def _remedies(remedies: list[Remedy]) -> list[str]:
    lines = [f"   {'replayed with':30}{'gone?':>6}{'preempt.':>9}" + "".join(f"{label:>8}" for _, label in SHOWN)]
    for remedy in remedies:
        label = remedy.candidate.label + (" *" if remedy.candidate.estimated else "")
        if remedy.failed is not None:
            lines += _wrap(f"{label}: vLLM would not start: {remedy.failed}", "   ", "     ")
            continue
        preemptions = remedy.values.get("num_preemptions.total")
        count = "-" if preemptions is None else f"{preemptions:,.0f}"
        effects = "".join(f"{_percent(remedy.effects.get(key)):>8}" for key, _ in SHOWN)
        lines.append(f"   {label[:29]:30}{'yes' if remedy.removes_it else 'no':>6}{count:>9}{effects}"[:_WIDTH])
    notes = {r.candidate.estimated for r in remedies if r.candidate.estimated and r.failed is None}
    lines += [line for note in sorted(n for n in notes if n) for line in _wrap(f"* {note}", "   ", "     ")]
    return lines


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:+.0%}"


def _wrap(text: str, indent: str = "", following: str | None = None) -> list[str]:
    return textwrap.wrap(
        text, _WIDTH, initial_indent=indent, subsequent_indent=indent + "  " if following is None else following
    )


def postmortem_json(found: Postmortem) -> dict[str, Any]:
    """For programs: the keys of design.md section 8."""
    return {
        "run": found.run.name,
        "verdict": verdict(found),
        "healthy": found.is_healthy,
        "source": found.source,
        "outcome": found.outcome,
        "findings": [
            {
                "kind": finding.kind,
                "start_s": finding.start_s,
                "end_s": finding.end_s,
                "title": finding.title,
                "evidence": finding.evidence,
                "causes": list(finding.causes),
                "preemptions": list(finding.chain),
                "remedies": [_remedy_json(remedy) for remedy in remedies],
                "queries": list(finding.queries),
            }
            for finding, remedies in zip(found.findings, found.remedies, strict=True)
        ],
        "unknown": found.unknown,
        "doubt": found.doubt,
        "num_replays": found.num_replays,
    }


def _remedy_json(remedy: Remedy) -> dict[str, Any]:
    return {
        "set": list(remedy.candidate.settings),
        "label": remedy.candidate.label,
        "family": remedy.candidate.family,
        "removes_it": remedy.removes_it,
        "effects": remedy.effects,
        "values": remedy.values,
        "estimated": remedy.candidate.estimated,
        "failed": remedy.failed,
    }


def postmortem_markdown(found: Postmortem) -> str:
    """For the incident ticket; names from logs are escaped."""
    lines = [f"# Postmortem: {_escaped(found.run.name)}", "", f"**{_escaped(verdict(found))}**", ""]
    if found.doubt:
        lines += [f"**Doubtful**: {_escaped(found.doubt)}", ""]
    lines += [_escaped(" ".join(_outcome(found.outcome))), ""]
    for finding, remedies in zip(found.findings, found.remedies, strict=True):
        when = (
            ""
            if finding.start_s is None or finding.end_s is None
            else f" ({finding.start_s:.1f} s to {finding.end_s:.1f} s)"
        )
        lines += [f"## {_NAMES[finding.kind]}{when}", "", _escaped(finding.title), ""]
        lines += [f"- {_escaped(text)}" for text in (*_evidence(finding), *(f"because {c}" for c in finding.causes))]
        lines += ["", *_table(remedies)] if remedies else []
        lines.append("")
    if found.unknown:
        lines += ["## Could not be told", "", *(f"- {_escaped(text)}" for text in found.unknown), ""]
    return "\n".join(lines)


def _table(remedies: Iterable[Remedy]) -> list[str]:
    lines = ["| replayed with | removes it | preemptions | " + " | ".join(label for _, label in SHOWN) + " |"]
    lines.append("|---" * (3 + len(SHOWN)) + "|")
    for remedy in remedies:
        label = _escaped(remedy.candidate.label) + (
            f" ({_escaped(remedy.candidate.estimated)})" if remedy.candidate.estimated else ""
        )
        if remedy.failed is not None:
            lines.append(f"| {label} | would not start: {_escaped(remedy.failed)} |" + " |" * (1 + len(SHOWN)))
            continue
        count = remedy.values.get("num_preemptions.total")
        cells = [label, "yes" if remedy.removes_it else "no", "-" if count is None else f"{count:,.0f}"]
        cells += [_percent(remedy.effects.get(key)) for key, _ in SHOWN]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _escaped(text: str) -> str:
    """Text from logs as Markdown shows it, and nothing else: no HTML, no links, no table cells."""
    safe = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return "".join(f"\\{c}" if c in "\\`*_[]()#|!~" else c for c in safe)
