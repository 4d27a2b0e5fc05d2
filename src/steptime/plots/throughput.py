"""Examples a second by batch: a panel a family, a line a network on one kind of machine."""

from __future__ import annotations

from collections.abc import Sequence

from steptime.plots import Data, EmptyPlotError
from steptime.plots.style import (
    MOST_PANELS,
    Row,
    Spec,
    finish,
    log_number,
    rounded,
    sources,
    texts,
    told_by,
    tooltip,
)

MOST_LINES = 24  # with names of their own
TOOLTIP = ("network", "batch", "examples_per_s", "measured_step", "platform")


def chart(data: Data) -> Spec:
    """Return measured examples a second over batch, both logarithmic; raises `EmptyPlotError`."""
    rows = [row for row in data.results if row["examples_per_s"]]
    if not rows:
        raise EmptyPlotError("throughput: no record here holds a measured time of a step")
    points = [_point(row) for row in rows]
    families = list(dict.fromkeys(point["family"] for point in points))
    panels = [_panel(family, points) for family in families[:MOST_PANELS]]
    caption = [
        "Speed: batch over mean time of a step. Logarithmic axes, a speed axis a family.",
        sources(data.records),
    ]
    view: Spec = {name: value for name, value in panels[0].items() if name != "title"}
    if len(panels) > 1:
        panels = [{**panel, "width": 290, "height": 190} for panel in panels]
        apart = {"scale": {"color": "independent", "shape": "independent"}}
        view = {"concat": panels, "columns": 2, "resolve": apart, "spacing": 30}
    return finish("Throughput by batch", caption, points, **view)


def _panel(family: str, points: Sequence[Row]) -> Spec:
    mine = [point for point in points if point["family"] == family]
    batches = sorted({point["batch"] for point in mine})
    lines = len({point["line"] for point in mine})
    place = {
        "x": log_number("batch", batches, "batch (examples)", grid=False),
        "y": log_number("speed", [p["speed"] for p in mine], "speed (examples/s)"),
    }
    place["x"]["axis"] |= {"values": batches, "labelExpr": "format(datum.value, 'd')"}
    clear = 0.9 if lines <= MOST_LINES else 0.25
    told = told_by("line", mine, " ", orient="bottom", columns=1)
    if lines > MOST_LINES:
        colour = told_by("platform", mine, "platform", orient="bottom", columns=1)["color"]
        told = {"color": colour, "detail": {"field": "line"}}
    along = {kind: one for kind, one in told.items() if kind != "shape"}
    marks = [
        {"mark": {"type": "line", "opacity": clear}, "encoding": {**place, **along}},
        {
            "mark": {"type": "point", "filled": True, "opacity": clear},
            "encoding": {**place, **told, "tooltip": tooltip(*TOOLTIP)},
        },
    ]
    return {
        "title": {
            "text": family if lines <= MOST_LINES else f"{family}, {lines} lines",
            "fontSize": 13,
            "offset": 8,
        },
        "transform": [{"filter": {"field": "family", "equal": family}}],
        "layer": marks,
    }


def _point(row: Row) -> Row:
    words = row["label"].removeprefix(row["family"]).strip().split(", ")
    line = ", ".join(word for word in words if word not in ("", f"batch {row['batch']}"))
    return {
        "family": row["family"],
        "line": line or row["family"],
        "speed": rounded(row["examples_per_s"]),
        **texts(row, *TOOLTIP),
        "batch": row["batch"],
    }
