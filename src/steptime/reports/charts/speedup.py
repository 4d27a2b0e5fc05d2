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


def chart(table: Table) -> style.Spec:
    """Return the histogram of speed-ups above their scatter over a hyperparameter, 1x marked.

    Four levels at most stand side by side, with the same axes.
    """
    summary = table.summary
    names = [row["level"] for row in summary["levels"]]
    levels = names[:MAX_LEVELS]
    rows = [dict(row) for row in table.chart_rows if row["level"] in levels]
    columns = (
        Column("name", "network"),
        Column("level"),
        Column("speedup", "speed-up"),
        Column("verdict"),
    )
    # A row with `speedup` is a point of the scatter, one with `low` a bar of the histogram.
    panel_rows = [row | {"panel": row["level"]} for row in rows]
    points = [
        style.point(row, ("panel", "speedup", "x", "color"), columns)
        for row in panel_rows
        if "speedup" in row
    ]
    point_count = sum("speedup" in row for row in table.chart_rows)
    pairs_per_point = math.ceil(summary["pairs"] / point_count)
    _spread_crowded_points(points)
    bars = [row for row in panel_rows if "low" in row]
    chart_rows = [*points, *bars]
    tooltip = style.tooltip(columns)
    width = style.WIDTH if len(levels) == 1 else 300
    panels = [_draw_level(level, chart_rows, summary, tooltip, width) for level in levels]
    # `finish` gives the picture its title, in place of one that the view has itself. A histogram
    # without a scatter has its level as title: as a panel in a `concat` it keeps it.
    is_picture = len(panels) == 1 and "title" not in panels[0]
    view = panels[0] if is_picture else {"concat": panels, "columns": 2, "spacing": 30}
    caption = [
        f"Above 1x: better than {summary['against']} in {summary['quantity']}. Line: the median.",
        f"One point in {pairs_per_point} is drawn." if pairs_per_point > 1 else "",
        f"{len(names)} levels, the first {MAX_LEVELS}." if len(names) > MAX_LEVELS else "",
        table.source,
    ]
    return style.finish(f"Speed-ups by {summary['by_column']}", caption, chart_rows, **view)


def _spread_crowded_points(points: Sequence[style.Row]) -> None:
    """Set `at` of each point, shifted from its value so that points do not hide one another."""
    xs = [point["x"] for point in points]
    values = sorted({x for x in xs if isinstance(x, int | float) and x > 0})
    smallest_ratio = min((larger / value for value, larger in pairwise(values)), default=1.0)
    has_several_values = len(values) > 1
    is_crowded = has_several_values and len(points) > 2 * len(values)
    for number, point in enumerate(points):
        point["at"] = point["x"]
        if is_crowded and point["x"] in values:
            offset = number * GOLDEN_SHARE % 1 - 0.5  # -0.5 to 0.5, evenly
            # On a logarithmic axis, by a quarter of the smallest distance of two values at most.
            point["at"] *= smallest_ratio ** (0.5 * offset)


def _draw_level(
    name: str,
    rows: Sequence[style.Row],
    summary: Mapping[str, Any],
    tooltip: list[style.Spec],
    width: int,
) -> style.Spec:
    """Return the histogram of a level, above its scatter where there is a hyperparameter."""
    bar_rows = [row for row in rows if row["panel"] == name and "low" in row]
    # The axis shows all bars, and 1x.
    ends = [1.0, *(row[end] for row in bar_rows for end in ("low", "high"))]
    x = style.encode_log_number("low", ends, "speed-up", labelExpr=RATIO_LABEL, grid=False)
    count = style.encode_number("networks", "networks", labelExpr=INTEGER_LABEL, tickMinStep=1)
    bars = {
        "x": x,
        "x2": {"field": "high"},
        "y": count,
        "y2": {"datum": 0},
    }
    level_filter = {"filter": {"field": "panel", "equal": name}}
    quiet_line: style.Spec = {"style": "quiet", "strokeDash": [4, 3]}
    histogram_layers = [
        style.layer("bar", bars, needed_fields=("networks",)),
        style.layer("rule", {"x": {"datum": 1}}, **quiet_line),
    ]
    title = {"text": name, "fontSize": 13, "offset": 8}
    histogram: style.Spec = {"title": title, "width": width, "height": 120}
    histogram |= {"transform": [level_filter], "layer": histogram_layers}
    if summary["x"] is None:  # no hyperparameter to draw the speed-ups over
        return histogram
    y = style.encode_log_number("speedup", ends, "speed-up", labelExpr=RATIO_LABEL)
    color: style.Spec = {}
    if len({row["color"] for row in rows if row.get("color") is not None}) > 1:
        color["color"] = style.encode_categories("color", rows, summary["color"])["color"]
    size = 60 if len(rows) < 500 else 20
    points = {"x": _encode_x(rows, "at", summary["x"]), "y": y, **color, "tooltip": tooltip}
    line = {"x": _encode_x(rows, "x", summary["x"]), "y": {**y, "aggregate": "median"}}
    scatter_layers = [
        style.layer("rule", {"y": {"datum": 1}}, **quiet_line),
        style.layer(
            "point", points, needed_fields=("speedup",), filled=True, opacity=0.7, size=size
        ),
        style.layer("line", line, needed_fields=("speedup",), style="ink", fill=None, opacity=0.8),
    ]
    scatter = {"width": width, "height": 280, "transform": [level_filter], "layer": scatter_layers}
    scales = {"color": "independent", "x": "independent", "y": "independent"}
    return {"vconcat": [histogram, scatter], "resolve": {"scale": scales}, "spacing": 24}


def _encode_x(rows: Sequence[style.Row], field: str, title: str) -> style.Spec:
    """Return the axis of a hyperparameter: logarithmic with its values, or their names."""
    values = {row["x"] for row in rows if row.get("x") is not None}
    if not all(isinstance(value, int | float) and value > 0 for value in values):
        return style.encode_name(field, title=title)
    ends = [*values, *(row["at"] for row in rows if "at" in row)]
    encoding = style.encode_log_number(field, ends, title, grid=False)
    encoding["axis"] |= {"labelExpr": "format(datum.value, ',~r')"}
    if len(values) <= MAX_TICKS:
        encoding["axis"] |= {"values": sorted(values)}
    return encoding
