"""Speed-ups: how they are spread, and how they go with a hyperparameter; a panel for a level."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from steptime.core.table import Column, Table
from steptime.reports.charts import style

MOST_LEVELS = 4  # of a picture
WHOLE = "datum.value % 1 ? '' : format(datum.value, ',d')"
TIMES = "format(datum.value, datum.value < 1 ? '~g' : ',~r') + 'x'"


def chart(table: Table) -> style.Spec:
    """Return the histogram of speed-ups above their scatter over a hyperparameter, 1x marked.

    Four levels at most stand side by side, with the same axes.
    """
    about = table.summary
    names = [row["level"] for row in about["levels"]]
    rows = [dict(row) for row in table.chart_rows if row["level"] in names[:MOST_LEVELS]]
    told = (
        Column("name", "network"),
        Column("level"),
        Column("speedup", "speed-up"),
        Column("verdict"),
    )
    placed = [row | {"panel": row["level"]} for row in rows]
    points = [style.point(row, "panel speedup x color", told) for row in placed if "speedup" in row]
    step = -(-about["pairs"] // sum("speedup" in row for row in table.chart_rows))
    _spread_out(points)
    drawn = [*points, *(row for row in placed if "low" in row)]
    shown, tip = names[:MOST_LEVELS], style.tooltip(told)
    width = style.WIDTH if len(shown) == 1 else 300
    panels = [_panel(name, drawn, about, tip, width) for name in shown]
    alone = len(panels) == 1 and "title" not in panels[0]  # the picture has a title itself
    view = panels[0] if alone else {"concat": panels, "columns": 2, "spacing": 30}
    caption = [
        f"Above 1x: better than {about['against']} in {about['quantity']}. Line: the median.",
        f"One point in {step} is drawn." if step > 1 else "",
        f"{len(names)} levels, the first {MOST_LEVELS}." if len(names) > MOST_LEVELS else "",
        table.source,
    ]
    return style.finish(f"Speed-ups by {about['by_column']}", caption, drawn, **view)


def _spread_out(points: Sequence[style.Row]) -> None:
    """Place each point `at`, beside its value, so that points do not hide one another."""
    known = sorted({p["x"] for p in points if isinstance(p["x"], int | float) and p["x"] > 0})
    gap = min((b / a for a, b in pairwise(known)), default=1.0)
    for number, point in enumerate(points):
        point["at"] = point["x"]
        if len(points) > 2 * len(known) > 2 and point["x"] in known:
            point["at"] *= gap ** (0.5 * (number * 0.618 % 1 - 0.5))


def _panel(
    name: str,
    rows: Sequence[style.Row],
    about: Mapping[str, Any],
    tooltip: list[style.Spec],
    width: int,
) -> style.Spec:
    """Return the histogram and the scatter of a level, one above the other."""
    mine = [row for row in rows if row["panel"] == name]
    ends = [1.0, *(row[key] for row in mine for key in ("low", "high") if key in row)]
    x = style.log_number("low", ends, "speed-up", labelExpr=TIMES, grid=False)
    count = style.number("networks", "networks", labelExpr=WHOLE, tickMinStep=1)
    bars = {
        "x": x,
        "x2": {"field": "high"},
        "y": count,
        "y2": {"datum": 0},
    }
    only = {"filter": {"field": "panel", "equal": name}}
    marked = {"style": "quiet", "strokeDash": [4, 3]}
    layers = [
        style.layer("bar", bars, "networks"),
        style.layer("rule", {"x": {"datum": 1}}, **marked),
    ]
    title = {"text": name, "fontSize": 13, "offset": 8}
    histogram: style.Spec = {"title": title, "width": width, "height": 120}
    histogram |= {"transform": [only], "layer": layers}
    if about["x"] is None:
        return histogram
    y = style.log_number("speedup", ends, "speed-up", labelExpr=TIMES)
    told: style.Spec = {}
    if len({row["color"] for row in rows if row.get("color") is not None}) > 1:
        told["color"] = style.encode_categories("color", rows, about["color"])["color"]
    size = 60 if len(rows) < 500 else 20
    points = {"x": _across(rows, "at", about["x"]), "y": y, **told, "tooltip": tooltip}
    line = {"x": _across(rows, "x", about["x"]), "y": {**y, "aggregate": "median"}}
    layers = [
        style.layer("rule", {"y": {"datum": 1}}, **marked),
        style.layer("point", points, "speedup", filled=True, opacity=0.7, size=size),
        style.layer("line", line, "speedup", style="ink", fill=None, opacity=0.8),
    ]
    scatter = {"width": width, "height": 280, "transform": [only], "layer": layers}
    apart = {"scale": {"color": "independent", "x": "independent", "y": "independent"}}
    return {"vconcat": [histogram, scatter], "resolve": apart, "spacing": 24}


def _across(rows: Sequence[style.Row], field: str, title: str) -> style.Spec:
    """Return the axis of a hyperparameter: logarithmic with its values, or their names."""
    known = {row["x"] for row in rows if row.get("x") is not None}
    if not all(isinstance(one, int | float) and one > 0 for one in known):
        return style.name(field, title=title)
    ends = [*known, *(row["at"] for row in rows if "at" in row)]
    found = style.log_number(field, ends, title, grid=False)
    found["axis"] |= {"labelExpr": "format(datum.value, ',~r')"}
    found["axis"] |= {"values": sorted(known)} if len(known) <= 16 else {}
    return found
