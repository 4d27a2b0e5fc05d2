"""Roofline (Williams, Waterman, Patterson 2009): speed over intensity, below two ceilings."""

from __future__ import annotations

from collections.abc import Sequence

from steptime.analysis.data import Data
from steptime.core.table import columns
from steptime.core.units import si
from steptime.plots import EmptyPlotError, style

LESS, MORE = 2.2, 6.0  # of the ceilings before and beyond the points, as factors
X, MEASURED, PREDICTED = "intensity", "flop_per_s", "predicted_flop_per_s"
TOOLTIP = columns(
    *("label=network", "measured_s=measured step", "interval_95", "predicted_s=predicted step"),
    *(f"{MEASURED}=measured speed", f"{PREDICTED}=predicted speed", "peak_fraction=of peak"),
    *("roof_fraction=of roof", "intensity=FLOP per byte", "platform"),
)


def chart(data: Data) -> style.Spec:
    """Return the networks under the roofline of their platform and dtype, a panel for each.

    Raises `EmptyPlotError`.
    """
    rows = [row for row in data.results if row[X] and row[PREDICTED]]
    if not rows:
        raise EmptyPlotError("roofline: no predicted record here holds FLOP, bytes and a time")
    roofs = {f"{row['platform']}, {row['dtype']}": row for row in rows}
    points = [
        style.point(row, f"family {X} {MEASURED} {PREDICTED}", TOOLTIP)
        | {"panel": f"{row['platform']}, {row['dtype']}"}
        for row in rows
    ]
    speeds = [p[name] for p in points for name in (MEASURED, PREDICTED) if p[name]]
    drawn = [*roof_rows(roofs, [point[X] for point in points], speeds), *points]
    place, told = axes(drawn), style.told_by("family", points)
    tooltip = style.tooltip(TOOLTIP)
    gap = {**at(place, MEASURED), "y2": {"field": PREDICTED}}
    layers = [
        *roof_layers(place),
        style.layer("rule", gap, MEASURED, style="quiet", opacity=0.45),
        *(
            style.layer("point", {**at(place, side), **told, "tooltip": tooltip}, side, filled=full)
            for side, full in ((PREDICTED, False), (MEASURED, True))
        ),
    ]
    kept, view = style.wrapped(drawn, "panel", {"layer": layers}, 2, width=330, height=260)
    both = "Filled: measured. Hollow: predicted. A line joins the two of a network."
    alone = "Hollow: predicted; nothing is measured here."
    caption = [both if any(p[MEASURED] for p in points) else alone, data.source]
    return style.finish("Networks under the roofline", caption, kept, **view)


def axes(rows: Sequence[style.Row]) -> style.Spec:
    """Return the encodings of intensity and speed, which show all of the rows."""
    speeds = [row.get(name) for row in rows for name in ("roof", "speed", MEASURED, PREDICTED)]
    return {
        "x": style.log_number(X, [row.get(X) for row in rows], "intensity (FLOP per byte)"),
        "y": style.log_number("speed", speeds, "speed (FLOP/s)", "FLOP/s"),
    }


def at(place: style.Spec, field: str) -> style.Spec:
    """Return the encodings of a place with another field as the speed."""
    return {**place, "y": {**place["y"], "field": field}}


def roof_rows(
    roofs: dict[str, style.Row], intensities: Sequence[float], speeds: Sequence[float]
) -> list[style.Row]:
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
    rows: list[style.Row] = []
    for panel, (peak, rate) in known.items():
        start = min(max(left, low / rate), peak / rate)
        text = f"memory {si(rate, 'B/s', 3)}, peak {si(peak, 'FLOP/s', 3)}"
        places = {start: {}, peak / rate: {}, right: {"text": text}}
        rows += [
            {"panel": panel, X: x, "roof": min(peak, x * rate), **more}
            for x, more in places.items()
        ]
    return rows


def roof_layers(place: style.Spec, rise: int = 9) -> list[style.Spec]:
    """Return the layers of the rooflines and of their names, `rise` pixels above."""
    line = {**at(place, "roof"), "order": {"field": X}}
    text = {**at(place, "roof"), "text": {"field": "text"}}
    return [
        style.layer("line", line, "roof", style="ink", fill=None, strokeWidth=1.6),
        style.layer("text", text, "text", align="right", dy=-rise),
    ]
