"""The charts of a report: a table in, an ``alt.Chart`` out; nothing is read, saved or shown here (the door to Altair)."""

from collections.abc import Sequence
from typing import Any, Final

import altair as alt
import polars as pl

from tracekit.report.series import Series

Chart = Any
_PHASES: Final = {"waiting": "#c9ced6", "prefill": "#f0a030", "decode": "#3a9a5c", "preempted": "#d0453a"}
_ONE: Final = ["#3b8ee0"]
_TWO: Final = ["#a3acb9", "#3b8ee0"]
_WIDE: Final = "container"


def timeline(sides: Sequence[Series], storms: Sequence[tuple[float, float]]) -> Chart | None:
    """Running, waiting and KV usage over time, observed over simulated, storms shaded, one brush for all panels."""
    parts = [part for part in (_labelled(side, "states") for side in sides) if part.height]
    if not parts:
        return None
    states = pl.concat(parts, how="diagonal_relaxed")
    brush = alt.selection_interval(encodings=["x"], name="zoom")
    shade = pl.DataFrame(storms, schema={"from_s": pl.Float64, "to_s": pl.Float64}, orient="row")
    zoomed = alt.X("time_s:Q", title=None).scale(domain=brush, nice=False)
    panels = [
        _panel(states, shade, zoomed, field, title, height)
        for field, title, height in (
            ("running", "running requests", 150),
            ("waiting", "waiting requests", 110),
            ("kv_percent", "KV cache in use, %", 110),
        )
    ]
    evictions = [part for part in (_labelled(side, "evictions") for side in sides) if part.height]
    if evictions:
        marks = alt.Chart(pl.concat(evictions, how="diagonal_relaxed")).mark_bar(color="#d0453a")
        panels.append(
            marks.encode(
                x=zoomed, y=alt.Y("preemptions:Q", title="preemptions"),
                tooltip=[alt.Tooltip("time_s:Q", title="s", format=".1f"), "preemptions:Q"],
            ).properties(width=_WIDE, height=70)
        )  # fmt: skip
    overview = (
        alt.Chart(
            states, title=alt.Title("drag here to zoom every panel", fontSize=11, anchor="start", fontWeight="normal")
        )
        .mark_area(opacity=0.5)
        .encode(
            x=alt.X("time_s:Q", title="seconds since the first arrival"),
            y=alt.Y("running:Q", title=None).stack(None),
            color=_colour(states),
        )
        .properties(width=_WIDE, height=50)
        .add_params(brush)
    )
    return alt.vconcat(alt.vconcat(*panels, spacing=8).resolve_scale(x="shared"), overview, spacing=8)


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


def _panel(states: pl.DataFrame, shade: pl.DataFrame, zoomed: Any, field: str, title: str, height: int) -> Chart:  # noqa: ANN401
    line = (
        alt.Chart(states)
        .mark_line(interpolate="step-after", clip=True)
        .encode(
            x=zoomed, y=alt.Y(f"{field}:Q", title=title), color=_colour(states), strokeWidth=_width(states),
            tooltip=[alt.Tooltip("time_s:Q", title="s", format=".1f"), "side:N", alt.Tooltip(f"{field}:Q", title=title, format=".1f")],
        )
    )  # fmt: skip
    storms = alt.Chart(shade).mark_rect(color="#d0453a", opacity=0.1, clip=True).encode(x="from_s:Q", x2="to_s:Q")  # fmt: skip
    layered = alt.layer(storms, line) if shade.height else line
    return layered.properties(width=_WIDE, height=height)


def composition(side: Series) -> Chart | None:
    """What a step holds, averaged over time: decodes, short and long extends, prefills."""
    if not side.composition.height:
        return None
    kinds = ["decode", "short_extend", "long_extend", "prefill"]
    long = side.composition.select("time_s", *kinds).unpivot(
        kinds, index="time_s", variable_name="kind", value_name="requests"
    )
    return (
        alt.Chart(long)
        .mark_area(interpolate="step-after")
        .encode(
            x=alt.X("time_s:Q", title="seconds since the first arrival"),
            y=alt.Y("requests:Q", title="requests a step"),
            color=alt.Color("kind:N", title=None, sort=kinds).scale(domain=kinds, range=["#3a9a5c", "#8fc7a4", "#f6cf8a", "#f0a030"]).legend(orient="top"),
            tooltip=[alt.Tooltip("time_s:Q", format=".1f"), "kind:N", alt.Tooltip("requests:Q", format=".1f")],
        )
        .properties(width=_WIDE, height=150)
    )  # fmt: skip


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
    parts = [part for part in (_labelled(side, "ecdf") for side in sides) if part.height]
    if not parts:
        return None
    rows = pl.concat(parts, how="diagonal_relaxed").filter(pl.col("metric") == metric, pl.col("ms") > 0)
    if not rows.height:
        return None
    scale = alt.Scale(type="linear", zero=False) if metric == "TPOT" else alt.Scale(type="log")
    return (
        alt.Chart(rows)
        .mark_line(interpolate="step-after")
        .encode(
            x=alt.X("ms:Q", title=f"{metric}, ms").scale(scale),
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
