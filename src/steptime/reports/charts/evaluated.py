"""Predicted against measured, case by case, and how far off each size and kind is."""

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
    """Return predicted over measured [s], and the middle 80 % of their ratio by size and kind.

    `rows` are those of an evaluation by the method `name`; of many some are drawn.
    """
    drawn, thinned_ = style.sample_items(rows, "case")
    points = [_point(row) for row in drawn]
    ends = [point[side] for point in points for side in ("measured", "predicted")]
    edges = [{"at": one, "even": one} for one in (min(ends), max(ends))]
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
    where = style.name("kind", title=None)
    layers = [
        style.layer("rule", {"x": ratio, "x2": {"field": "high"}, "y": where}, strokeWidth=3),
        style.layer("point", {"x": {**ratio, "field": "middle"}, "y": where}, filled=True),
        style.layer("rule", {"x": {**ratio, "field": "one"}}, style="quiet", strokeDash=[4, 3]),
    ]
    by_size = {
        "transform": [{"filter": "isValid(datum.middle)"}],
        "facet": {"row": style.name("regime", title=None, sort=SIZES, header=LEVEL)},
        "spec": {"width": SIDE, "layer": layers},
        "resolve": {"scale": {"y": "independent"}},
    }
    caption = [f"{counted(len(rows), 'case')} by {name}; the line is equality.", *thinned_]
    caption += ["At the right all of them count."] if thinned_ else []
    every = [*edges, *points, *spans]
    return style.finish("Predicted against measured", caption, every, hconcat=[scatter, by_size])


def _point(row: Mapping[str, Any]) -> dict[str, Any]:
    found = {name: row[name] for name in ("place", "kind", "device")}
    times = {"measured": row["measured_s"], "predicted": row["predicted_s"]}
    return found | times | {"ratio": f"{row['ratio']:.2f}"}


def _spans(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the middle 80 % and the median of the ratios of each kind and size."""
    found = []
    for (size, kind), held in sorted(grouped(rows, itemgetter("regime", "kind")).items()):
        ends = np.quantile([row["ratio"] for row in held], (0.1, 0.5, 0.9)).tolist()
        told = dict(zip(("low", "middle", "high"), ends, strict=True))
        found.append({"regime": size, "kind": kind, "one": 1.0, **told})
    return found
