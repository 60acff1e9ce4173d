"""One self-contained HTML page: opens from disk, asks no network, escapes whatever came from a log."""

import base64
import hashlib
import html
import json
from collections.abc import Sequence
from itertools import groupby
from typing import Final

from tracekit.postmortem import Postmortem
from tracekit.report import charts
from tracekit.report.postmortem import SHOWN, finding_lines, verdict

_STYLE: Final = """
:root { --ink: #1c2430; --soft: #5c6675; --paper: #ffffff; --panel: #f5f6f8; --line: #dfe3e8; --bad: #c0392b; --good: #2e7d4f; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e9ee; --soft: #9aa4b2; --paper: #14181e; --panel: #1c222b; --line: #2c343f; --bad: #ff7b6b; --good: #6fce96; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.2rem; max-width: 72rem; color: var(--ink); background: var(--paper);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.4rem; margin: 0 0 .2rem; } h2 { font-size: 1.1rem; margin: 2rem 0 .4rem; }
p { margin: .3rem 0; } .soft { color: var(--soft); } .verdict { font-size: 1.05rem; font-weight: 600; }
section.finding { background: var(--panel); border: 1px solid var(--line); border-radius: 8px; padding: .8rem 1rem; margin: .8rem 0; }
section.finding h3 { margin: 0 0 .3rem; font-size: 1rem; color: var(--bad); }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-size: .9rem; margin: .5rem 0; }
th, td { text-align: right; padding: .15rem .6rem; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; } .yes { color: var(--good); font-weight: 600; } .no { color: var(--soft); }
.chart { width: 100%; margin: .3rem 0 1rem; } .row { display: grid; grid-template-columns: repeat(auto-fit, minmax(19rem, 1fr)); gap: 1rem; }
footer { margin-top: 2rem; color: var(--soft); font-size: .85rem; }
"""
_EMBED: Final = """
const dark = window.matchMedia('(prefers-color-scheme: dark)').matches;
const ink = dark ? '#c3cad4' : '#3a4452', grid = dark ? '#2c343f' : '#e6e9ed';
const config = { background: 'transparent', view: { stroke: grid }, font: 'system-ui, sans-serif',
  axis: { labelColor: ink, titleColor: ink, gridColor: grid, domainColor: grid, tickColor: grid },
  legend: { labelColor: ink, titleColor: ink }, title: { color: ink } };
window.reportViews = [];
function widen(part, width) {
  if (part.width === 'container') part.width = width;
  for (const inner of part.vconcat || []) widen(inner, width);
}
for (const holder of document.querySelectorAll('.chart')) {
  const spec = JSON.parse(document.getElementById(holder.dataset.spec).textContent);
  if (spec.vconcat) widen(spec, Math.max(holder.clientWidth - 80, 150));
  vegaEmbed(holder, spec, { actions: false, renderer: 'svg', ast: true, logLevel: 1, config })
    .then(found => window.reportViews.push(found.view));
}
"""


def page(title: str, subtitle: str, drawn: Sequence[charts.Drawn], found: Postmortem | None) -> str:
    """The whole report; ``found``: the postmortem to put first."""
    import vl_convert

    library = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    specs: list[str] = []
    body = [f"<h1>{html.escape(title)}</h1>", f'<p class="soft">{html.escape(subtitle)}</p>']
    if found is not None:
        body += _findings(found)
    for in_a_row, group in groupby(drawn, lambda one: one.title in charts.LATENCIES):
        parts = [text for one in group for text in _part(specs, one)]
        body += ['<div class="row">', *parts, "</div>"] if in_a_row else parts
    blocks = "".join(
        f'<script type="application/json" id="spec-{number}">{spec}</script>' for number, spec in enumerate(specs)
    )
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; font-src data:; script-src " + " ".join(
        _hash(text) for text in (library, _EMBED)
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{html.escape(policy)}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark">'
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style></head><body>"
        + "".join(body)
        + "<footer>made by tracekit; everything on this page is in the file</footer>"
        + f"{blocks}<script>{library}</script><script>{_EMBED}</script></body></html>\n"
    )


def _hash(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def _part(specs: list[str], one: charts.Drawn) -> list[str]:
    number = len(specs)
    specs.append(_json_in_script(one.chart.to_dict()))
    return [
        f"<div><h2>{html.escape(one.title)}</h2>",
        f'<p class="soft">{html.escape(one.meaning)}</p><div class="chart" data-spec="spec-{number}"></div></div>',
    ]


def _json_in_script(value: object) -> str:
    """JSON that cannot end its script element."""
    text = json.dumps(value, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026").replace("\u2028", "\\u2028")


def _findings(found: Postmortem) -> list[str]:
    lines = [f'<p class="verdict">{html.escape(verdict(found))}</p>']
    if found.source == "replayed":
        lines.append('<p class="soft">found in the replay of its requests</p>')
    if found.doubt:
        lines.append(f"<p><strong>Doubtful</strong>: {html.escape(found.doubt)}</p>")
    for number, finding in enumerate(found.findings):
        title, texts = finding_lines(finding)
        lines.append(f'<section class="finding"><h3>{html.escape(title)}</h3>')
        lines += [f"<p>{html.escape(text)}</p>" for text in texts]
        lines += _remedies(found, number)
        lines.append("</section>")
    if found.unknown:
        lines.append('<p class="soft">could not be told: ' + html.escape("; ".join(found.unknown)) + "</p>")
    return lines


def _remedies(found: Postmortem, number: int) -> list[str]:
    remedies = found.remedies[number]
    if not remedies:
        return []
    heads = "".join(
        f"<th>{html.escape(label)}</th>"
        for label in ("replayed with", "gone?", "preemptions", *(label for _, label in SHOWN))
    )
    rows = []
    for remedy in remedies:
        label = html.escape(remedy.candidate.label)
        if remedy.failed is not None:
            rows.append(
                f'<tr><td>{label}</td><td class="no" colspan="{2 + len(SHOWN)}">'
                f"vLLM would not start: {html.escape(remedy.failed)}</td></tr>"
            )
            continue
        count = remedy.values.get("num_preemptions.total")
        cells = ["-" if count is None else f"{count:,.0f}"]
        cells += ["-" if (effect := remedy.effects.get(key)) is None else f"{effect:+.0%}" for key, _ in SHOWN]
        star = " *" if remedy.candidate.estimated else ""
        gone = '<td class="yes">yes</td>' if remedy.removes_it else '<td class="no">no</td>'
        rows.append(
            f"<tr><td>{label}{star}</td>{gone}"
            + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"
        )  # fmt: skip
    notes = sorted({r.candidate.estimated for r in remedies if r.candidate.estimated and r.failed is None})
    return [
        f'<div class="scroll"><table><tr>{heads}</tr>{"".join(rows)}</table></div>',
        *(f'<p class="soft">* {html.escape(note)}</p>' for note in notes),
    ]
