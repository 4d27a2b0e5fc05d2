"""Predicted against measured times of cases, and the errors of each size and kind."""

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

import numpy as np

from steptime.core.units import counted
from steptime.records.row import grouped
from steptime.reports.charts import style

SIDE = 380
LEVEL = {"labelAngle": 0, "labelAlign": "left"}  # words beside a row may be longer than it is high
SIZES = ("below 0.1 ms", "0.1 to 10 ms", "above 10 ms")


def chart(rows: Sequence[Mapping[str, Any]], name: str) -> style.Spec:
    """Return predicted over measured seconds, and the middle 80 % of their ratio by size and kind.

    `rows` are those of an evaluation by the method `name`; a sample is drawn if there are many.
    """
    sample, sample_remarks = style.sample_items(rows, "case")
    points = [_point(row) for row in sample]
    ends = [point[side] for point in points for side in ("measured", "predicted")]
    corners = [{"at": end, "even": end} for end in (min(ends), max(ends))]
    x = style.log_number("measured", ends, "measured time (s)", "s")
    y = style.log_number("predicted", ends, "predicted time (s)", "s")
    tip = [{"field": field} for field in ("place", "kind", "device", "ratio")]
    several = len({point["device"] for point in points}) > 1
    colour = style.encode_categories("device" if several else "kind", points)["color"]
    even = {"x": {**x, "field": "at"}, "y": {**y, "field": "even"}}
    dots, width = {"x": x, "y": y, "color": colour, "tooltip": tip}, 40 if len(points) < 300 else 18
    scatter = {
        "width": SIDE,
        "height": SIDE,
        "layer": [
            style.layer("line", even, "at", style="ink", fill=None, strokeWidth=1.2),
            style.layer("point", dots, "measured", filled=True, opacity=0.5, size=width),
        ],
    }
    spans = _spans(rows)
    reach = [span[end] for span in spans for end in ("low", "high")]
    ratio = style.log_number("low", [*reach, 1.0], "predicted / measured, middle 80 %")
    kind_axis = style.name("kind", title=None)
    layers = [
        style.layer("rule", {"x": ratio, "x2": {"field": "high"}, "y": kind_axis}, strokeWidth=3),
        style.layer("point", {"x": {**ratio, "field": "middle"}, "y": kind_axis}, filled=True),
        style.layer("rule", {"x": {**ratio, "field": "one"}}, style="quiet", strokeDash=[4, 3]),
    ]
    by_size = {
        "transform": [{"filter": "isValid(datum.middle)"}],
        "facet": {"row": style.name("regime", title=None, sort=SIZES, header=LEVEL)},
        "spec": {"width": SIDE, "layer": layers},
        "resolve": {"scale": {"y": "independent"}},
    }
    caption = [f"{counted(len(rows), 'case')} by {name}; the line is equality.", *sample_remarks]
    if sample_remarks:
        caption.append("At the right all of them count.")
    data = [*corners, *points, *spans]
    return style.finish("Predicted against measured", caption, data, hconcat=[scatter, by_size])


def _point(row: Mapping[str, Any]) -> style.Row:
    return {
        "place": row["place"],
        "kind": row["kind"],
        "device": row["device"],
        "measured": row["measured_s"],
        "predicted": row["predicted_s"],
        "ratio": f"{row['ratio']:.2f}",
    }


def _spans(rows: Sequence[Mapping[str, Any]]) -> list[style.Row]:
    """Return the middle 80 % and the median of the ratios of each kind and size."""
    spans = []
    for (size, kind), cases in sorted(grouped(rows, itemgetter("regime", "kind")).items()):
        low, middle, high = np.quantile([case["ratio"] for case in cases], (0.1, 0.5, 0.9)).tolist()
        spans.append(
            {"regime": size, "kind": kind, "one": 1.0, "low": low, "middle": middle, "high": high}
        )
    return spans
