"""Roofline (Williams, Waterman, Patterson 2009): speed over intensity, below two ceilings."""

from __future__ import annotations

from collections.abc import Sequence

from steptime.core.units import si
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
    wrapped,
)

LESS, MORE = 2.2, 6.0  # of the ceilings before and beyond the points, as factors
TOOLTIP = (
    *("network", "measured_step", "predicted_step", "measured_speed", "predicted_speed"),
    *("of_peak", "of_roof", "FLOP_per_byte", "platform"),
)


def chart(data: Data) -> Spec:
    """Return the networks under the roofline of their platform and dtype, a panel for each.

    Raises `EmptyPlotError`.
    """
    rows = [row for row in data.results if row["intensity"] and row["predicted_flop_per_s"]]
    if not rows:
        raise EmptyPlotError("roofline: no predicted record here holds FLOP, bytes and a time")
    points = [_point(row) for row in rows]
    speeds = [p[name] for p in points for name in ("measured", "predicted") if p[name]]
    roofs = {panel_of(row): row for row in rows}
    drawn = roof_rows(roofs, [point["x"] for point in points], speeds)
    rows = [*drawn, *points]
    kept, view = wrapped(rows, "panel", _panel(points, axes(rows)), 2, width=330, height=260)
    both = "Filled: measured. Hollow: predicted. A line joins the two of a network."
    alone = "Hollow: predicted; nothing is measured here."
    caption = [both if any(p["measured"] for p in points) else alone, sources(data.records)]
    return finish("Networks under the roofline", caption, kept, **view)


def axes(rows: Sequence[Row]) -> Spec:
    """Return the encodings of intensity and speed, which show all of the rows."""
    across = "intensity (FLOP per byte)"
    speeds = [row.get(name) for row in rows for name in ("roof", "measured", "predicted", "speed")]
    return {
        "x": log_number("x", [row.get("x") for row in rows], across),
        "y": log_number("y", speeds, "speed (FLOP/s)", "FLOP/s"),
    }


def at(place: Spec, field: str) -> Spec:
    """Return the encodings of a place with another field as the speed."""
    return {**place, "y": {**place["y"], "field": field}}


def _panel(points: Sequence[Row], place: Spec) -> Spec:
    told = told_by("family", points)
    gap = {
        "transform": having("measured"),
        "mark": {"type": "rule", "style": "quiet", "opacity": 0.45},
        "encoding": {**at(place, "measured"), "y2": {"field": "predicted"}},
    }
    marks: list[Spec] = [
        {
            "transform": having(side),
            "mark": {"type": "point", "filled": side == "measured"},
            "encoding": {**at(place, side), **told, "tooltip": tooltip(*TOOLTIP)},
        }
        for side in ("predicted", "measured")
    ]
    return {"layer": [*roof_layers(place), gap, *marks]}


def _point(row: Row) -> Row:
    return {
        "panel": panel_of(row),
        "family": row["family"],
        "x": rounded(row["intensity"]),
        "measured": rounded(row["flop_per_s"]),
        "predicted": rounded(row["predicted_flop_per_s"]),
        **texts(row, *TOOLTIP),
    }


def panel_of(row: Row) -> str:
    """Return the name of the roofline that a row of results lies under."""
    return f"{row['platform']}, {row['dtype']}"


def roof_rows(
    roofs: dict[str, Row], intensities: Sequence[float], speeds: Sequence[float]
) -> list[Row]:
    """Return the corners of each panel's roofline, where both are known.

    From where the slope comes up to the slowest point to beyond the ridge and the points.
    """
    known = {
        panel: (peak, rate)
        for panel, row in roofs.items()
        if (peak := row["peak_flop_per_s"]) and (rate := row["memory_bytes_per_s"])
    }
    ridges = [peak / rate for peak, rate in known.values()]
    left, low = min([*intensities, *ridges]) / LESS, min(speeds) / LESS
    right = max([*intensities, *ridges]) * MORE
    rows: list[Row] = []
    for panel, (peak, rate) in known.items():
        start = min(max(left, low / rate), peak / rate)
        text = f"memory {si(rate, 'B/s', 3)}, peak {si(peak, 'FLOP/s', 3)}"
        places = {start: {}, peak / rate: {}, right: {"text": text}}
        rows += [
            {"panel": panel, "x": rounded(x), "roof": rounded(min(peak, x * rate)), **more}
            for x, more in places.items()
        ]
    return rows


def roof_layers(place: Spec, rise: int = 9) -> list[Spec]:
    """Return the layers of the rooflines and of their names, `rise` pixels above."""
    line: Spec = {
        "transform": having("roof"),
        "mark": {"type": "line", "style": "ink", "fill": None, "strokeWidth": 1.6},
        "encoding": {**at(place, "roof"), "order": {"field": "x"}},
    }
    text: Spec = {
        "transform": having("text"),
        "mark": {"type": "text", "align": "right", "dy": -rise},
        "encoding": {**at(place, "roof"), "text": {"field": "text"}},
    }
    return [line, text]
