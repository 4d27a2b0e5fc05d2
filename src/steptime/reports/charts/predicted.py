"""Predicted against measured time of a step, with the line of equality and a band of a factor 2."""

from collections.abc import Sequence

import polars as pl

from steptime.core.tables.table import Column
from steptime.records.data import Data
from steptime.reports.charts import EmptyPlotError, style

SIDE = 460
BAND = 2.0
MAX_BARS = 300  # points with intervals
TIMES = ("predicted_s", "measured_s", "measured_low_s", "measured_high_s")
ENDS = ("predicted_low_s", "predicted_high_s")
FIELDS = ("family", *TIMES, *ENDS)
TOOLTIP = (
    Column("label", "network"),
    Column("measured_s", "measured step"),
    Column("interval_95"),
    Column("predicted_s", "predicted step"),
    Column("ratio"),
    Column("platform"),
)


def chart(data: Data) -> style.Spec:
    """Return measured [s] over predicted [s], both logarithmic.

    One platform has a colour a family, several have a colour a platform.

    Raises:
        EmptyPlotError: where no network is both measured and predicted.
    """
    columns = style.point_columns(FIELDS, TOOLTIP)
    has_ratio = pl.col("ratio").is_not_null()
    rows, count = data.draw_results(columns, has_ratio, style.MAX_POINTS)
    if not rows:
        raise EmptyPlotError("predicted: no network here is both measured and predicted")
    points = [style.point(row, FIELDS, TOOLTIP) for row in rows]
    times_s = [point[name] for point in points for name in (*TIMES, *ENDS) if point[name]]
    # The two ends of the line of equality, with the band around it.
    line_start_s, line_end_s = min(times_s) / 1.5, max(times_s) * 1.5
    line_ends: list[style.Row] = [
        {"at": line_start_s, "low": line_start_s / BAND, "high": line_start_s * BAND},
        {
            "at": line_end_s,
            "low": line_end_s / BAND,
            "high": line_end_s * BAND,
            "text": "equal",
        },
    ]
    has_bars = len(points) <= MAX_BARS
    inside_count = len(
        data.results_frame(["ratio"]).filter(pl.col("ratio").is_between(1 / BAND, BAND))
    )
    words = f"{inside_count:,} of {count:,} within a factor of 2 (shaded)."
    if has_bars:
        words += " Bars: 95 % interval."
        if any(point["predicted_high_s"] for point in points):
            words += " Lines across: 80 % of steps, as predicted."
    caption = [words, *style.describe_sample(count, "network"), data.source]
    view = {"width": SIDE, "height": SIDE, "layer": _layers(points, times_s, has_bars)}
    return style.finish("Predicted against measured", caption, [*line_ends, *points], **view)


def _layers(
    points: Sequence[style.Row], times_s: Sequence[float], has_bars: bool
) -> list[style.Spec]:
    """Return the band around equality, the points, and their intervals if they have bars."""
    has_platforms = len({point["platform"] for point in points}) > 1
    colour_field = "platform" if has_platforms else "family"
    colour = style.encode_categories(colour_field, points)["color"]
    shape = style.encode_categories("family", points)["shape"]
    x = style.encode_log_number("predicted_s", times_s, "predicted time of a step (s)", "s")
    y = style.encode_log_number("measured_s", times_s, "measured time of a step (s)", "s")
    along = {"x": {**x, "field": "at"}, "y": {**y, "field": "at"}}
    band = {**along, "y": {**y, "field": "low"}, "y2": {"field": "high"}}
    equal = {**along, "text": {"field": "text"}}
    measured = {
        "x": x,
        "y": {**y, "field": "measured_low_s"},
        "y2": {"field": "measured_high_s"},
        "color": colour,
    }
    predicted = {
        "x": {**x, "field": "predicted_low_s"},
        "x2": {"field": "predicted_high_s"},
        "y": y,
        "color": colour,
    }
    point = {"x": x, "y": y, "color": colour, "shape": shape, "tooltip": style.tooltip(TOOLTIP)}
    layers = [
        style.layer("area", band, needed_fields=("at",), style="band"),
        style.layer("line", along, needed_fields=("at",), style="ink", fill=None, strokeWidth=1.2),
        style.layer("text", equal, needed_fields=("text",), align="right", dx=-22, dy=2),
    ]
    if has_bars:
        layers.append(
            style.layer("rule", measured, needed_fields=("measured_low_s",), strokeWidth=1.4)
        )
        layers.append(
            style.layer(
                "rule", predicted, needed_fields=("predicted_high_s",), strokeWidth=1, opacity=0.5
            )
        )
    size = {} if has_bars else {"size": 18}
    layers.append(style.layer("point", point, needed_fields=("measured_s",), filled=True, **size))
    return layers
