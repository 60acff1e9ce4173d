"""Two versions on one trace, as text of at most 80 columns."""

from tracekit.rule_difference import RuleDifference, Switch


def difference_text(difference: RuleDifference) -> str:
    """Where the decisions part, what each rule alone changes, and which one is responsible."""
    versions = f"vLLM {difference.left_version} against {difference.right_version}"
    if difference.first_step is None:
        return f"{versions}: every decision is the same"
    lines = [
        f"{versions}: decisions part at step {difference.first_step:,}, {difference.num_steps_differing:,} steps differ",
        "",
        f"  {'with this alone switched':38} {'preemptions':>11} {'mean TTFT ms':>13} {'steps':>9}",
        _line(f"none (rules of {difference.left_version})", difference.left),
    ]
    effective = [s for s in difference.switches if _figures(s) != _figures(difference.left)]
    lines += [_line(f"{s.name}: {s.left} -> {s.right}", s) for s in effective]
    lines.append(_line(f"all (rules of {difference.right_version})", difference.right))
    idle = len(difference.switches) - len(effective)
    if idle:
        lines.append(f"  {idle} more differences change nothing here")
    lines.append("")
    lines.append(
        f"responsible: {difference.responsible}"
        if difference.responsible
        else "no single rule explains it: several act together"
    )
    return "\n".join(lines)


def _figures(switch: Switch) -> tuple[object, ...]:
    return switch.num_preemptions, switch.mean_ttft_ms, switch.num_steps


def _line(label: str, switch: Switch) -> str:
    ttft = "-" if switch.mean_ttft_ms is None else f"{switch.mean_ttft_ms:,.1f}"
    shown = label if len(label) <= 38 else f"{label[:37]}…"  # noqa: PLR2004 - the column's width
    return f"  {shown:38} {switch.num_preemptions:>11,} {ttft:>13} {switch.num_steps:>9,}"
