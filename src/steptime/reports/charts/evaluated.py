"""Predicted against measured times of cases, and the errors of each size and kind."""

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

import numpy as np

from steptime.core.units import format_count
from steptime.records.row import group_by
from steptime.reports.charts import style

SIDE = 380  # pixels
EQUALITY = 1.0  # the ratio at which the chart has a line
MANY_POINTS = 300  # from which on dots are small
LEVEL = {"labelAngle": 0, "labelAlign": "left"}  # words beside a row may be longer than it is high
SIZES = ("below 0.1 ms", "0.1 to 10 ms", "above 10 ms")


def chart(rows: Sequence[Mapping[str, Any]], name: str) -> style.Spec:
    """Return predicted over measured seconds, and the middle 80 % of their ratio by size and kind.

    `rows` are those of an evaluation by the method `name`; a sample is drawn if there are many.
    """
    sample, sample_remarks = style.sample_items(rows, "case")
    points = [_make_case_point(row) for row in sample]
    spans = _measure_ratio_spans(rows)
    times_s = [point[side] for point in points for side in ("measured", "predicted")]
    equality_line = [{"at": end_s, "even": end_s} for end_s in (min(times_s), max(times_s))]
    caption = [
        f"{format_count(len(rows), 'case')} by {name}; the line is equality.",
        *sample_remarks,
    ]
    if sample_remarks:
        caption.append("At the right all of them count.")
    data = [*equality_line, *points, *spans]
    views = [_scatter(points, times_s), _ratios_by_size(spans)]
    return style.finish("Predicted against measured", caption, data, hconcat=views)


def _scatter(points: Sequence[style.Row], times_s: Sequence[float]) -> style.Spec:
    """Return the panel of predicted over measured seconds, with the line of equality."""
    x = style.encode_log_number("measured", times_s, "measured time (s)", "s")
    y = style.encode_log_number("predicted", times_s, "predicted time (s)", "s")
    tooltip = [{"field": field} for field in ("place", "kind", "device", "ratio")]
    has_several_devices = len({point["device"] for point in points}) > 1
    color_field = "device" if has_several_devices else "kind"
    colour = style.encode_categories(color_field, points)["color"]
    equality = {"x": {**x, "field": "at"}, "y": {**y, "field": "even"}}
    dots = {"x": x, "y": y, "color": colour, "tooltip": tooltip}
    dot_size = 40 if len(points) < MANY_POINTS else 18
    return {
        "width": SIDE,
        "height": SIDE,
        "layer": [
            style.layer(
                "line", equality, needed_fields=("at",), style="ink", fill=None, strokeWidth=1.2
            ),
            style.layer(
                "point", dots, needed_fields=("measured",), filled=True, opacity=0.5, size=dot_size
            ),
        ],
    }


def _ratios_by_size(spans: Sequence[style.Row]) -> style.Spec:
    """Return the panels of the ratios' middle 80 %, one per size, with a line at equality."""
    ends = [span[end] for span in spans for end in ("low", "high")]
    ratio = style.encode_log_number("low", [*ends, EQUALITY], "predicted / measured, middle 80 %")
    kind_axis = style.encode_name("kind", title=None)
    span_rule = {"x": ratio, "x2": {"field": "high"}, "y": kind_axis}
    median_point = {"x": {**ratio, "field": "middle"}, "y": kind_axis}
    equality_rule = {"x": {**ratio, "field": "one"}}
    layers = [
        style.layer("rule", span_rule, strokeWidth=3),
        style.layer("point", median_point, filled=True),
        style.layer("rule", equality_rule, style="quiet", strokeDash=[4, 3]),
    ]
    return {
        "transform": [{"filter": "isValid(datum.middle)"}],  # the rows of spans
        "facet": {"row": style.encode_name("regime", title=None, sort=SIZES, header=LEVEL)},
        "spec": {"width": SIDE, "layer": layers},
        "resolve": {"scale": {"y": "independent"}},
    }


def _make_case_point(row: Mapping[str, Any]) -> style.Row:
    return {
        "place": row["place"],
        "kind": row["kind"],
        "device": row["device"],
        "measured": row["measured_s"],
        "predicted": row["predicted_s"],
        "ratio": f"{row['ratio']:.2f}",
    }


def _measure_ratio_spans(rows: Sequence[Mapping[str, Any]]) -> list[style.Row]:
    """Return the middle 80 % and the median of the ratios of each kind and size."""
    spans = []
    by_regime_and_kind = group_by(rows, itemgetter("regime", "kind"))  # a regime is a size
    for (regime, kind), cases in sorted(by_regime_and_kind.items()):
        ratios = [case["ratio"] for case in cases]
        low, middle, high = np.quantile(ratios, (0.1, 0.5, 0.9)).tolist()
        span = {"regime": regime, "kind": kind, "one": EQUALITY}  # "one": the line of the chart
        spans.append(span | {"low": low, "middle": middle, "high": high})
    return spans
