"""Speed-ups: their histogram and their course over a hyperparameter; a panel per level."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from steptime.core.tables.table import Column, Table
from steptime.reports.charts import style

MAX_LEVELS = 4  # of a picture
MAX_TICKS = 16  # values of a hyperparameter that an axis names
GOLDEN_SHARE = 0.618  # of the golden ratio: its multiples, modulo 1, fill an interval evenly
INTEGER_LABEL = "datum.value % 1 ? '' : format(datum.value, ',d')"
RATIO_LABEL = "format(datum.value, datum.value < 1 ? '~g' : ',~r') + 'x'"
QUIET_LINE: style.Spec = {"style": "quiet", "strokeDash": [4, 3]}
COLUMNS = (
    Column("name", "network"),
    Column("level"),
    Column("speedup", "speed-up"),
    Column("verdict"),
)


def chart(table: Table) -> style.Spec:
    """Return the histogram of speed-ups above their scatter over a hyperparameter, 1x marked.

    Four levels at most stand side by side, with the same axes.
    """
    level_names = [row["level"] for row in table.summary["levels"]]
    levels = level_names[:MAX_LEVELS]
    # A row with `speedup` is a point of the scatter, one with `low` a bar of the histogram.
    rows = [row | {"panel": row["level"]} for row in map(dict, table.chart_rows)]
    level_rows = [row for row in rows if row["level"] in levels]
    points = _make_points([row for row in level_rows if "speedup" in row])
    bars = [row for row in level_rows if "low" in row]
    chart_rows = [*points, *bars]
    width = style.WIDTH if len(levels) == 1 else 300
    panels = [_draw_level(level, chart_rows, table.summary, width) for level in levels]
    title = f"Speed-ups by {table.summary['by_column']}"
    caption = _describe_chart(table, len(level_names))
    return style.finish(title, caption, chart_rows, **_arrange_panels(panels))


def _make_points(rows: Sequence[style.Row]) -> list[style.Row]:
    """Return the points of the scatter with their tooltips, spread where they are crowded."""
    points = [style.point(row, ("panel", "speedup", "x", "color"), COLUMNS) for row in rows]
    _spread_crowded_points(points)
    return points


def _arrange_panels(panels: Sequence[style.Spec]) -> style.Spec:
    """Return the view of a single panel, or of several side by side.

    `finish` gives the picture its title, in place of one that the view has itself. A histogram
    without a scatter has its level as title: as a panel in a `concat` it keeps it.
    """
    if len(panels) == 1 and "title" not in panels[0]:
        return panels[0]
    return {"concat": panels, "columns": 2, "spacing": 30}


def _describe_chart(table: Table, level_count: int) -> list[str]:
    """Return the caption: the line of 1x, and how many points and levels are left out."""
    summary = table.summary
    point_count = sum("speedup" in row for row in table.chart_rows)
    pairs_per_point = math.ceil(summary["pairs"] / point_count)
    return [
        f"Above 1x: better than {summary['against']} in {summary['quantity']}. Line: the median.",
        f"One point in {pairs_per_point} is drawn." if pairs_per_point > 1 else "",
        f"{level_count} levels, the first {MAX_LEVELS}." if level_count > MAX_LEVELS else "",
        table.source,
    ]


def _spread_crowded_points(points: Sequence[style.Row]) -> None:
    """Set `at` of each point, shifted from its value so that points do not hide one another."""
    xs = [point["x"] for point in points]
    values = sorted({x for x in xs if isinstance(x, int | float) and x > 0})
    has_several_values = len(values) > 1
    is_crowded = has_several_values and len(points) > 2 * len(values)
    smallest_ratio = min((larger / value for value, larger in pairwise(values)), default=1.0)
    for number, point in enumerate(points):
        point["at"] = point["x"]
        if is_crowded and point["x"] in values:
            offset = number * GOLDEN_SHARE % 1 - 0.5  # -0.5 to 0.5, evenly
            # On a logarithmic axis, by a quarter of the smallest distance of two values at most.
            point["at"] *= smallest_ratio ** (0.5 * offset)


def _draw_level(
    level: str, rows: Sequence[style.Row], summary: Mapping[str, Any], width: int
) -> style.Spec:
    """Return the histogram of a level, above its scatter where there is a hyperparameter."""
    bars = [row for row in rows if row["panel"] == level and "low" in row]
    # The axis shows all bars, and 1x.
    bar_ends = [1.0, *(row[end] for row in bars for end in ("low", "high"))]
    view = {"width": width, "transform": [{"filter": {"field": "panel", "equal": level}}]}
    title = {"text": level, "fontSize": 13, "offset": 8}
    histogram = {"title": title, "height": 120, "layer": _draw_histogram(bar_ends), **view}
    has_hyperparameter = summary["x"] is not None
    if not has_hyperparameter:
        return histogram
    scatter = {"height": 280, "layer": _draw_scatter(rows, bar_ends, summary), **view}
    scales = {"color": "independent", "x": "independent", "y": "independent"}
    return {"vconcat": [histogram, scatter], "resolve": {"scale": scales}, "spacing": 24}


def _draw_histogram(bar_ends: Sequence[float]) -> list[style.Spec]:
    """Return the number of networks by speed-up, with a rule at 1x."""
    x = style.encode_log_number("low", bar_ends, "speed-up", labelExpr=RATIO_LABEL, grid=False)
    count = style.encode_number("networks", "networks", labelExpr=INTEGER_LABEL, tickMinStep=1)
    bars = {"x": x, "x2": {"field": "high"}, "y": count, "y2": {"datum": 0}}
    return [
        style.layer("bar", bars, needed_fields=("networks",)),
        style.layer("rule", {"x": {"datum": 1}}, **QUIET_LINE),
    ]


def _draw_scatter(
    rows: Sequence[style.Row], bar_ends: Sequence[float], summary: Mapping[str, Any]
) -> list[style.Spec]:
    """Return speed-ups over a hyperparameter, with their median and a rule at 1x."""
    y = style.encode_log_number("speedup", bar_ends, "speed-up", labelExpr=RATIO_LABEL)
    points = {
        "x": _encode_x(rows, "at", summary["x"]),
        "y": y,
        **_encode_color(rows, summary["color"]),
        "tooltip": style.tooltip(COLUMNS),
    }
    median = {"x": _encode_x(rows, "x", summary["x"]), "y": {**y, "aggregate": "median"}}
    point_look: style.Spec = {"filled": True, "opacity": 0.7, "size": 60 if len(rows) < 500 else 20}
    median_look: style.Spec = {"style": "ink", "fill": None, "opacity": 0.8}
    return [
        style.layer("rule", {"y": {"datum": 1}}, **QUIET_LINE),
        style.layer("point", points, needed_fields=("speedup",), **point_look),
        style.layer("line", median, needed_fields=("speedup",), **median_look),
    ]


def _encode_color(rows: Sequence[style.Row], title: str) -> style.Spec:
    """Return the colours of points; empty if they do not differ."""
    colors = {row["color"] for row in rows if row.get("color") is not None}
    if len(colors) <= 1:
        return {}
    return {"color": style.encode_categories("color", rows, title)["color"]}


def _encode_x(rows: Sequence[style.Row], field: str, title: str) -> style.Spec:
    """Return the axis of a hyperparameter: logarithmic with its values, or their names."""
    values = {row["x"] for row in rows if row.get("x") is not None}
    are_positive_numbers = all(isinstance(value, int | float) and value > 0 for value in values)
    if not are_positive_numbers:
        return style.encode_name(field, title=title)
    ends = [*values, *(row["at"] for row in rows if "at" in row)]
    encoding = style.encode_log_number(field, ends, title, grid=False)
    encoding["axis"]["labelExpr"] = "format(datum.value, ',~r')"
    if len(values) <= MAX_TICKS:
        encoding["axis"]["values"] = sorted(values)
    return encoding
