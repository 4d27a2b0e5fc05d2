"""Predicted against measured time of a step, with the line of equality and a band of a factor 2."""

from __future__ import annotations

from steptime.plots import Data, EmptyPlotError
from steptime.plots.style import (
    Row,
    Spec,
    finish,
    having,
    log_number,
    rounded,
    sources,
    texts,
    told_by,
    tooltip,
)

SIDE = 460
BAND = 2.0
TOOLTIP = ("network", "measured_step", "predicted_step", "ratio", "platform")


def chart(data: Data) -> Spec:
    """Return measured [s] over predicted [s], both logarithmic; raises `EmptyPlotError`.

    One platform has a colour a family, several have a colour a platform.
    """
    rows = [row for row in data.results if row["ratio"] is not None]
    if not rows:
        raise EmptyPlotError("predicted: no network here is both measured and predicted")
    points = [_point(row) for row in rows]
    several = len({point["platform"] for point in points}) > 1
    colour = told_by("platform" if several else "family", points)["color"]
    told = {"color": colour, "shape": told_by("family", points)["shape"]}
    ends = [p[n] for p in points for n in (*SIDES, "measured_low", "measured_high") if p[n]]
    edges = (
        {"at": low, "low": low / BAND, "high": low * BAND}
        for low in (min(ends) / 1.5, max(ends) * 1.5)
    )
    corners: list[Row] = [{name: rounded(value) for name, value in edge.items()} for edge in edges]
    corners[-1]["text"] = "equal"
    x = log_number("predicted", ends, "predicted time of a step (s)", "s")
    y = log_number("measured", ends, "measured time of a step (s)", "s")
    along = {"x": {**x, "field": "at"}, "y": {**y, "field": "at"}}
    layers = [
        {
            "transform": having("at"),
            "mark": {"type": "area", "style": "band"},
            "encoding": {**along, "y": {**y, "field": "low"}, "y2": {"field": "high"}},
        },
        {
            "transform": having("at"),
            "mark": {"type": "line", "style": "ink", "fill": None, "strokeWidth": 1.2},
            "encoding": along,
        },
        {
            "transform": having("text"),
            "mark": {"type": "text", "align": "right", "dx": -22, "dy": 2},
            "encoding": {**along, "text": {"field": "text"}},
        },
        {
            "transform": having("measured_low"),
            "mark": {"type": "rule", "strokeWidth": 1.4},
            "encoding": {
                "x": x,
                "y": {**y, "field": "measured_low"},
                "y2": {"field": "measured_high"},
                "color": colour,
            },
        },
        {
            "transform": having("measured"),
            "mark": {"type": "point", "filled": True},
            "encoding": {"x": x, "y": y, **told, "tooltip": tooltip(*TOOLTIP)},
        },
    ]
    inside = sum(1 / BAND <= row["ratio"] <= BAND for row in rows)
    caption = [
        f"{inside} of {len(rows)} within a factor of 2 (shaded). Bars: 95 % interval.",
        sources(data.records),
    ]
    size = {"width": SIDE, "height": SIDE}
    return finish("Predicted against measured", caption, [*corners, *points], layer=layers, **size)


SIDES = ("predicted", "measured")


def _point(row: Row) -> Row:
    return {
        "family": row["family"],
        "predicted": rounded(row["predicted_s"]),
        "measured": rounded(row["measured_s"]),
        "measured_low": rounded(row["measured_low_s"]),
        "measured_high": rounded(row["measured_high_s"]),
        **texts(row, *TOOLTIP),
    }
