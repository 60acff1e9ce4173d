"""The charts of a report: a table in, an ``alt.Chart`` out; nothing is read, saved or shown here (the door to Altair)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import altair as alt
import polars as pl

from tracekit.report.series import GANTT_REQUESTS, Series

Chart = Any
_PHASES: Final = {"waiting": "#9da7b6", "prefill": "#f0a030", "decode": "#3a9a5c", "preempted": "#d0453a"}
_ONE: Final = ["#3b8ee0"]
_TWO: Final = ["#a3acb9", "#3b8ee0"]
_WIDE: Final = "container"
NAMES: Final = ("timeline", "ttft", "tpot", "e2e", "limits", "requests")
_KINDS: Final = {"decode": "#3a9a5c", "short_extend": "#8fc7a4", "long_extend": "#f6cf8a", "prefill": "#f0a030"}
_OVER_TIME: Final = (
    "Means over equal intervals. Running: the concurrency; waiting: the queue, where a preempted request waits again; "
    "KV cache in use: share of its blocks; preemptions: how many in an interval (a counter's growth shows when it was read). "
    "Requests a step: decodes get one token each; extends and prefills compute prompt tokens, recomputed ones included."
)
LATENCIES: Final = {
    "TTFT": "time to first token: first token - arrival",
    "TPOT": "time per output token: (last - first token) / (generated - 1)",
    "E2E": "end to end: last token - arrival",
}


@dataclass(frozen=True)
class Drawn:
    """A chart with the name it is asked for by, its heading and what it means."""

    name: str
    title: str
    meaning: str
    chart: Chart


def drawn(sides: Sequence[Series], storms: Sequence[tuple[float, float]]) -> list[Drawn]:
    """Every chart that the sides have data for, in the order of the page; the last side is shown where one must do."""
    main = sides[-1]
    of = f" ({main.label})" if len(sides) > 1 else ""
    found = [
        ("timeline", "Over time", _OVER_TIME, timeline(sides, storms)),
        *((metric.lower(), metric, meaning, latencies(sides, metric)) for metric, meaning in LATENCIES.items()),
        ("limits", f"Time by binding limit{of}",
         "Why the head of the waiting queue was not admitted, by device time; none: nobody waited.", bound_by(main)),
        ("requests", f"Requests around the worst preemptions{of}",
         f"At most {GANTT_REQUESTS} requests; red: preempted, its KV blocks given to another.", gantt(main)),
    ]  # fmt: skip
    return [Drawn(*parts) for parts in found if parts[-1] is not None]


def timeline(sides: Sequence[Series], storms: Sequence[tuple[float, float]]) -> Chart | None:
    """Running, waiting, KV usage and preemptions, observed over simulated, storms shaded; one brush zooms all panels."""
    states = _sided(sides, "states")
    if not states.height:
        return None
    brush = alt.selection_interval(encodings=["x"], name="zoom")
    shade = pl.DataFrame(storms, schema={"from_s": pl.Float64, "to_s": pl.Float64}, orient="row")
    panels = [
        _panel(states, shade, brush, field, title, height)
        for field, title, height in (
            ("running", "running requests", 150),
            ("waiting", "waiting requests", 110),
            ("kv_percent", "KV cache in use, %", 110),
        )
        if states[field].count()
    ]
    evictions = _sided(sides, "evictions")
    if evictions.height and evictions["preemptions"].sum():
        panels.append(_panel(evictions, shade, brush, "preemptions", "preemptions", 80))
    upper = alt.vconcat(*panels, spacing=8).resolve_scale(x="shared")
    upper = alt.vconcat(upper, *_composition(sides[-1], brush), spacing=8).resolve_scale(
        x="shared", color="independent"
    )
    return alt.vconcat(upper, _overview(states, brush), spacing=8).resolve_scale(color="independent")


def _overview(states: pl.DataFrame, brush: Any) -> Chart:  # noqa: ANN401 - an Altair parameter
    title = alt.Title("drag here to zoom every panel", fontSize=11, anchor="start", fontWeight="normal")
    return (
        alt.Chart(states, title=title)
        .mark_area(opacity=0.5, interpolate="step-after")
        .encode(
            x=alt.X("time_s:Q", title="seconds since the first arrival").scale(nice=False),
            y=alt.Y("running:Q", title=None).stack(None),
            color=_colour(states).legend(None),
        )
        .properties(width=_WIDE, height=50)
        .add_params(brush)
    )


def _sided(sides: Sequence[Series], table: str) -> pl.DataFrame:
    """A table of all sides that have it, with the side's label."""
    parts = [part for part in (_labelled(side, table) for side in sides) if part.height]
    return pl.concat(parts, how="diagonal_relaxed") if parts else pl.DataFrame()


def _zoomed(brush: Any, field: str = "time_s") -> Any:  # noqa: ANN401 - an Altair parameter and channel
    return alt.X(f"{field}:Q", title=None).scale(domain=brush, nice=False)


def _labelled(side: Series, table: str) -> pl.DataFrame:
    frame: pl.DataFrame = getattr(side, table)
    return frame.with_columns(side=pl.lit(side.label))


def _colour(frame: pl.DataFrame) -> Any:  # noqa: ANN401 - an Altair channel
    labels = frame["side"].unique(maintain_order=True).to_list()
    colours = _ONE if len(labels) == 1 else _TWO
    return alt.Color("side:N", title=None).scale(domain=labels, range=colours).legend(orient="top")


def _width(frame: pl.DataFrame) -> Any:  # noqa: ANN401 - an Altair channel
    """The first side is the wider line, so that it shows where the second covers it."""
    labels = frame["side"].unique(maintain_order=True).to_list()
    return (
        alt.value(1.4)
        if len(labels) == 1
        else alt.condition(alt.datum.side == labels[0], alt.value(3.2), alt.value(1.3))
    )


def _panel(states: pl.DataFrame, shade: pl.DataFrame, brush: Any, field: str, title: str, height: int) -> Chart:  # noqa: ANN401
    line = (
        alt.Chart(states)
        .mark_line(interpolate="step-after", clip=True)
        .encode(
            x=_zoomed(brush), y=alt.Y(f"{field}:Q", title=title), color=_colour(states), strokeWidth=_width(states),
            tooltip=[alt.Tooltip("time_s:Q", title="s", format=".1f"), "side:N", alt.Tooltip(f"{field}:Q", title=title, format=".1f")],
        )
    )  # fmt: skip
    storms = alt.Chart(shade).mark_rect(color="#d0453a", opacity=0.1, clip=True).encode(x=_zoomed(brush, "from_s"), x2="to_s:Q")  # fmt: skip
    layered = alt.layer(storms, line) if shade.height else line
    return layered.properties(width=_WIDE, height=height)


def _composition(side: Series, brush: Any) -> list[Chart]:  # noqa: ANN401 - an Altair parameter
    """What a step holds, averaged over time: requests by kind, and prompt tokens."""
    if not side.composition.height:
        return []
    kinds = {name: name.replace("_", " ") for name in _KINDS}
    long = side.composition.rename(kinds).unpivot(
        list(kinds.values()), index="time_s", variable_name="kind", value_name="requests"
    )
    time = alt.Tooltip("time_s:Q", title="s", format=".1f")
    requests = (
        alt.Chart(long)
        .mark_area(interpolate="step-after", clip=True)
        .encode(
            x=_zoomed(brush), y=alt.Y("requests:Q", title="requests a step"),
            color=alt.Color("kind:N", title=None, sort=list(kinds.values())).scale(domain=list(kinds.values()), range=list(_KINDS.values())).legend(orient="top"),
            order=alt.Order("rank:Q"),
            tooltip=[time, "kind:N", alt.Tooltip("requests:Q", format=".1f")],
        )
        .transform_calculate(rank=f"indexof({list(kinds.values())}, datum.kind)")
        .properties(width=_WIDE, height=110)
    )  # fmt: skip
    tokens = (
        alt.Chart(side.composition)
        .mark_area(interpolate="step-after", clip=True, color=_KINDS["prefill"])
        .encode(
            x=_zoomed(brush), y=alt.Y("prompt_tps:Q", title="prompt tokens/s").axis(format="~s"),
            tooltip=[time, alt.Tooltip("prompt_tps:Q", title="prompt tokens/s", format=",.0f")],
        )
        .properties(width=_WIDE, height=90)
    )  # fmt: skip
    return [requests, tokens]


def bound_by(side: Series) -> Chart | None:
    """Device time by the limit that kept the head of the queue out."""
    if not side.bound_by.height:
        return None
    return (
        alt.Chart(side.bound_by)
        .mark_bar(color="#3b8ee0")
        .encode(
            x=alt.X("seconds:Q", title="seconds of device time"), y=alt.Y("bound_by:N", title=None, sort="-x"),
            tooltip=["bound_by:N", alt.Tooltip("seconds:Q", format=",.1f")],
        )
        .properties(width=_WIDE, height=22 * side.bound_by.height)
    )  # fmt: skip


def latencies(sides: Sequence[Series], metric: str) -> Chart | None:
    """The share of requests that were at least so fast, observed and simulated."""
    every = _sided(sides, "ecdf")
    if not every.height:
        return None
    rows = every.filter(pl.col("metric") == metric, pl.col("ms") > 0)
    if not rows.height:
        return None
    scale = alt.Scale(type="linear", zero=False) if metric == "TPOT" else alt.Scale(type="log")
    return (
        alt.Chart(rows)
        .mark_line(interpolate="step-after")
        .encode(
            x=alt.X("ms:Q", title=f"{metric}, ms").scale(scale).axis(tickCount=5),
            y=alt.Y("share:Q", title="share of requests").axis(format="%"),
            color=_colour(rows),
            strokeWidth=_width(rows),
            tooltip=["side:N", alt.Tooltip("ms:Q", format=",.1f"), alt.Tooltip("share:Q", format=".1%")],
        )
        .properties(width=_WIDE, height=170)
    )  # fmt: skip


def gantt(side: Series) -> Chart | None:
    """The phases of the requests in the middle of the preemptions."""
    if not side.gantt.height:
        return None
    order = (
        side.gantt.group_by("request_id")
        .agg(pl.col("start_s").min())
        .sort("start_s", "request_id")["request_id"]
        .to_list()
    )
    return (
        alt.Chart(side.gantt)
        .mark_bar(height=7)
        .encode(
            x=alt.X("start_s:Q", title="seconds since the first arrival").scale(zero=False, nice=False), x2="end_s:Q",
            y=alt.Y("request_id:N", title=None, sort=order).axis(labelLimit=110, labelFontSize=8),
            color=alt.Color("phase:N", title=None).scale(domain=list(_PHASES), range=list(_PHASES.values())).legend(orient="top"),
            tooltip=["request_id:N", "phase:N", alt.Tooltip("start_s:Q", format=".2f"), alt.Tooltip("end_s:Q", format=".2f")],
        )
        .properties(width=_WIDE, height=10 * len(order))
    )  # fmt: skip
