"""Predicted against measured time of a step, with the line of equality and a band of a factor 2."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt

from steptime.analysis.results import results
from steptime.core.record import Record
from steptime.plots import EmptyPlotError
from steptime.plots.style import (
    INK,
    QUIET,
    Row,
    Spec,
    family_colour,
    family_shape,
    finish,
    log_axis,
    log_domain,
    log_scale,
    over_rows,
    rounded,
    sources,
    time_text,
    tooltip,
)

SIDE = 460
BAND = 2.0


def chart(records: Sequence[Record]) -> Spec:
    """Give measured [s] over predicted [s], both logarithmic; raises `EmptyPlotError`."""
    rows = [row for row in results(records) if row["ratio"] is not None]
    if not rows:
        raise EmptyPlotError("predicted: no network here is both measured and predicted")
    points = [_point(row) for row in rows]
    ends = ("measured", "measured_low", "measured_high", "predicted")
    domain = log_domain([p[name] for p in points for name in ends if p[name]], 1.5)
    scale = log_scale(domain)
    x = alt.X(
        "predicted:Q", scale=scale, axis=log_axis("predicted time of a step (s)", domain, "s")
    )
    y = alt.Y("measured:Q", scale=scale, axis=log_axis("measured time of a step (s)", domain, "s"))
    corners = [
        {"predicted": at, "measured": at, "low": at / BAND, "high": at * BAND} for at in domain
    ]
    band = (
        over_rows(corners)
        .mark_area(color="#E8EEF4", clip=True)
        .encode(x=x, y=alt.Y("low:Q", scale=scale), y2="high:Q")
    )
    equal = over_rows(corners).mark_line(color=INK, strokeWidth=1.2).encode(x=x, y=y)
    high = domain[1]
    edges = [(high / BAND, high, f"{BAND:g}x"), (high, high, "equal"), (high, high / BAND, "0.5x")]
    labels = [{"predicted": x, "measured": y, "text": text} for x, y, text in edges]
    texts = (
        over_rows(labels)
        .mark_text(color=QUIET, fontSize=12, align="left", baseline="bottom", dx=3, dy=-2)
        .encode(x=x, y=y, text="text:N")
    )
    families = [point["family"] for point in points]
    base = over_rows(points).encode(
        x=x,
        color=family_colour(families),
        tooltip=tooltip("network", "measured_step", "predicted_step", "ratio", "platform"),
    )
    intervals = (
        base.mark_rule(strokeWidth=1.4)
        .encode(y=alt.Y("measured_low:Q", scale=scale), y2="measured_high:Q")
        .transform_filter("isValid(datum.measured_low)")
    )
    marks = base.mark_point(filled=True, size=75, opacity=0.9).encode(
        y=y, shape=family_shape(families)
    )
    inside = sum(1 / BAND <= row["ratio"] <= BAND for row in rows)
    caption = [
        f"{inside} of {len(rows)} within a factor of 2 (shaded). Bars: 95 % interval.",
        sources(records),
    ]
    layers = alt.layer(band, equal, texts, intervals, marks).properties(width=SIDE, height=SIDE)
    return finish(layers, "Predicted against measured", caption, legend_offset=50)


def _point(row: Row) -> Row:
    return {
        "family": row["family"],
        "predicted": rounded(row["predicted_s"]),
        "measured": rounded(row["measured_s"]),
        "measured_low": rounded(row["measured_low_s"]),
        "measured_high": rounded(row["measured_high_s"]),
        "network": row["name"],
        "measured_step": time_text(
            row["measured_s"], row["measured_low_s"], row["measured_high_s"]
        ),
        "predicted_step": time_text(row["predicted_s"]),
        "ratio": f"{row['ratio']:.3g}",
        "platform": row["platform"],
    }
