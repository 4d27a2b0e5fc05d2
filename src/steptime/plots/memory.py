"""Peak memory of each network: measured, predicted, and the gap between."""

from __future__ import annotations

from collections.abc import Iterator

from steptime.plots import Data, EmptyPlotError
from steptime.plots.style import (
    Row,
    Spec,
    finish,
    log_number,
    name,
    rounded,
    sources,
    texts,
    told_by,
    tooltip,
)

ROW_HEIGHT = 19
MOST_ROWS = 120
SIDES = ("measured", "predicted")
TOOLTIP = ("network", "measured_memory", "predicted_memory", "platform")


def chart(data: Data) -> Spec:
    """Return a row a network with its peaks [byte], logarithmic; raises `EmptyPlotError`."""
    rows = [r for r in data.results if any(r[f"{side}_memory_bytes"] for side in SIDES)]
    if not rows:
        raise EmptyPlotError("memory: no record here holds a peak of memory")
    kept = rows
    if len(rows) > MOST_ROWS:
        kept = sorted(rows, key=_largest, reverse=True)[:MOST_ROWS]
    points = [point for row in kept for point in _points(row)]
    several = len({point["platform"] for point in points}) > 1
    order = list(dict.fromkeys(point["network"] for point in points))
    sizes = [point["bytes"] for point in points]
    place = {
        "x": log_number("bytes", sizes, "peak memory of a step (byte)", "B", orient="top"),
        "y": name("network", sort=order, axis={"title": None, "grid": True}),
    }
    told = {"color": told_by("platform", points)["color"]} if several else {}
    join = {
        "mark": {"type": "line", "style": "quiet", "fill": None, "opacity": 0.6},
        "encoding": {**place, "detail": name("network")},
    }
    marks: list[Spec] = [
        {
            "transform": [{"filter": {"field": "kind", "equal": side}}],
            "mark": {"type": "point", "filled": side == "measured"},
            "encoding": {**place, **told, "tooltip": tooltip(*TOOLTIP)},
        }
        for side in SIDES
        if any(point["kind"] == side for point in points)
    ]
    left_out = [f"The {len(kept)} of {len(rows)} that need most."] if len(kept) < len(rows) else []
    caption = [*left_out, "Filled: measured. Hollow: predicted.", sources(data.records)]
    size = {"height": ROW_HEIGHT * len(order), "layer": [join, *marks]}
    return finish("Peak memory by network", caption, points, **size)


def _largest(row: Row) -> float:
    return float(max(row[f"{side}_memory_bytes"] or 0 for side in SIDES))


def _points(row: Row) -> Iterator[Row]:
    for kind in SIDES:
        if value := row[f"{kind}_memory_bytes"]:
            yield {**texts(row, *TOOLTIP), "kind": kind, "bytes": rounded(value)}
