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
    words = f"{_count_inside(data):,} of {count:,} within a factor of 2 (shaded)."
    caption = [
        words + _describe_bars(points),
        *style.describe_sample(count, "network"),
        data.source,
    ]
    values = [*_find_line_ends(times_s), *points]
    layers = _layers(points, times_s)
    return style.finish(
        "Predicted against measured", caption, values, width=SIDE, height=SIDE, layer=layers
    )


def _count_inside(data: Data) -> int:
    """Return the number of networks whose step is predicted within a factor of `BAND`."""
    is_inside = pl.col("ratio").is_between(1 / BAND, BAND)
    return len(data.results_frame(["ratio"]).filter(is_inside))


def _have_bars(points: Sequence[style.Row]) -> bool:
    """Return whether points are so few that intervals are drawn."""
    return len(points) <= MAX_BARS


def _describe_bars(points: Sequence[style.Row]) -> str:
    """Return the sentences that say what intervals are; "" without any."""
    if not _have_bars(points):
        return ""
    words = " Bars: 95 % interval."
    if any(point["predicted_high_s"] for point in points):
        words += " Lines across: 80 % of steps, as predicted."
    return words


def _find_line_ends(times_s: Sequence[float]) -> list[style.Row]:
    """Return the two ends of the line of equality, with the band around it."""
    margin = 1.5  # factor beyond the points
    start_s, end_s = min(times_s) / margin, max(times_s) * margin
    start = {"at": start_s, "low": start_s / BAND, "high": start_s * BAND}
    end = {"at": end_s, "low": end_s / BAND, "high": end_s * BAND, "text": "equal"}
    return [start, end]


def _layers(points: Sequence[style.Row], times_s: Sequence[float]) -> list[style.Spec]:
    """Return the band around equality, the points, and their intervals if they have bars."""
    axes = {
        "x": style.encode_log_number("predicted_s", times_s, "predicted time of a step (s)", "s"),
        "y": style.encode_log_number("measured_s", times_s, "measured time of a step (s)", "s"),
    }
    has_platforms = len({point["platform"] for point in points}) > 1
    colour_field = "platform" if has_platforms else "family"
    colour = {"color": style.encode_categories(colour_field, points)["color"]}
    shape = style.encode_categories("family", points)["shape"]
    point = {**axes, **colour, "shape": shape, "tooltip": style.tooltip(TOOLTIP)}
    size = {} if _have_bars(points) else {"size": 18}
    return [
        *_equality_layers(axes),
        *(_interval_layers(axes, colour) if _have_bars(points) else []),
        style.layer("point", point, needed_fields=("measured_s",), filled=True, **size),
    ]


def _equality_layers(axes: style.Spec) -> list[style.Spec]:
    """Return the line of equal times with its text, on the band of a factor around it."""
    line = {"x": {**axes["x"], "field": "at"}, "y": {**axes["y"], "field": "at"}}
    band = {**line, "y": {**axes["y"], "field": "low"}, "y2": {"field": "high"}}
    text = {**line, "text": {"field": "text"}}
    line_look: style.Spec = {"style": "ink", "fill": None, "strokeWidth": 1.2}
    return [
        style.layer("area", band, needed_fields=("at",), style="band"),
        style.layer("line", line, needed_fields=("at",), **line_look),
        style.layer("text", text, needed_fields=("text",), align="right", dx=-22, dy=2),
    ]


def _interval_layers(axes: style.Spec, colour: style.Spec) -> list[style.Spec]:
    """Return the intervals of measurements (upright) and of predictions (across)."""
    x, y = axes["x"], axes["y"]
    measured = {"y": {**y, "field": "measured_low_s"}, "y2": {"field": "measured_high_s"}}
    predicted = {"x": {**x, "field": "predicted_low_s"}, "x2": {"field": "predicted_high_s"}}
    predicted_look = {"strokeWidth": 1, "opacity": 0.5}
    return [
        style.layer(
            "rule",
            {"x": x, **measured, **colour},
            needed_fields=("measured_low_s",),
            strokeWidth=1.4,
        ),
        style.layer(
            "rule",
            {"y": y, **predicted, **colour},
            needed_fields=("predicted_high_s",),
            **predicted_look,
        ),
    ]
