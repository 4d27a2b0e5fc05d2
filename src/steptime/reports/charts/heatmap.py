"""A number over two others as colours: panels of cells, those that failed with their cause."""

import math
import re
from collections.abc import Sequence
from typing import Any

from steptime.core.table import Table
from steptime.core.units import counted, format_value, si
from steptime.reports.charts import style

SCHEME, SIGNED = "viridis", "blueorange"  # read by the colour-blind
WIDTH, ROW = 560, 34  # pixels
UNIT = re.compile(r"(.+?)(?:_((?:flop_|bytes_)?per_s|flop_per_byte|s|bytes|j|w))?")
PANEL = {"width": 250, "height": 200}
SIGNS = ("M-1,-1L1,1M-1,1L1,-1", *style.SHAPES)  # of what failed; the first is a cross
LIGHT = 0.6  # share of the colours from which on words in a cell are dark


def chart(table: Table) -> style.Spec:
    """Return the cells of a table of `analysis.heatmap`."""
    said = table.summary
    caption = []
    if said["max_networks"] > 1:
        each = f"the median of up to {said['max_networks']} networks"
        caption = [f"A cell is {each}; pointing at it tells their spread."]
    if len(table.rows) > said["cells"] or any(row["failed"] for row in table.rows):
        caption.append("Signs: no network of the cell succeeded. *: some of it did not.")
    if said["binned"]:
        caption.append(f"Steps of equal ratio: {', '.join(said['binned'])}.")
    names = {key: said[key] for key in ("x", "y", "panel", "value")}
    title = f"{said_of(said['value'])} by {said['x']} and {said['y']}"
    rows = [dict(row) for row in table.rows]
    return grid(title[0].upper() + title[1:], [*caption, table.source], rows, **names)


def grid(
    title: str,
    caption: Sequence[str],
    rows: Sequence[style.Row],
    *,
    x: str,
    y: str,
    value: str,
    panel: str | None = None,
) -> style.Spec:
    """Return cells of rows with `x`, `y`, `value`, and where known `panel`, `status`, `cause`.

    `x`, `y`, `value` and `panel` name what these are; `value` ends with its unit. `networks`,
    `low`, `high` and `failed` stand in tooltips. Colours are logarithmic over more than 2 decades,
    and have their middle at 0 where values lie on both sides of it.
    """
    known = [row["value"] for row in rows if row.get("value") is not None]
    low, high = min(known, default=0.0), max(known, default=1.0)
    wide = low > 0 and high / low > style.WIDE_RATIO
    drawn = [_cell(row, value, low, high, panel, wide) for row in rows]
    axis: dict[str, Any] = {"labelAngle": 0, "grid": False}
    place = {
        "x": style.name("x", sort=_order(rows, "x"), axis={**axis, "title": said_of(x)}),
        "y": style.name("y", sort=_order(rows, "y")[::-1], axis={**axis, "title": said_of(y)}),
    }
    tip = style.tooltip(key for key in drawn[0] if key in ("cell", "shown", "networks", "failed"))
    scale: style.Spec = {"scheme": SCHEME, "type": "log" if wide else "linear"}
    if low < 0 < high:
        scale = {"scheme": SIGNED, "domainMid": 0}
    plain = ".3~s" if "(" in said_of(value) else ".3~g"  # 0.97 of no unit is not 970m
    legend = {"title": said_of(value), "format": "~%" if _share(value) else plain}
    color = {"field": "value", "type": "quantitative", "scale": scale, "legend": legend}
    ink = {"condition": {"test": "datum.light", "value": "black"}, "value": "white"}
    room = {"condition": {"test": "bandwidth('x') >= 40", "value": 1}, "value": 0}
    words = {**place, "text": {"field": "number"}, "color": ink, "opacity": room}
    causes = style.encode_categories("failed_with", drawn)["shape"]
    causes |= {"legend": {"title": "failed"}, "scale": causes["scale"] | {"range": SIGNS}}
    signs = {**place, "shape": causes, "tooltip": tip}
    layers = [
        style.layer("rect", {**place, "color": color, "tooltip": tip}, "value"),
        style.layer("rect", {**place, "tooltip": tip}, "failed_with", style="band"),
        style.layer("point", signs, "failed_with", style="quiet", filled=False, size=45),
        style.layer("text", words, "number", fontSize=11),
    ]
    several = len({row["panel"] for row in drawn}) > 1
    height = max(80, min(ROW * len(place["y"]["sort"]), 620))
    size = PANEL if several else {"width": WIDTH, "height": height}
    view: style.Spec = {"layer": layers, **({} if several else size)}
    kept, panels = style.facet_panels(drawn, "panel", view, 3, **PANEL)
    left_out = len({row["panel"] for row in drawn}) - style.MAX_PANELS
    if left_out > 0:
        caption = [*caption, f"Not shown: {counted(left_out, 'panel')} more."]
    return style.finish(title, [line for line in caption if line], kept, **panels)


def said_of(name: str) -> str:
    """Return a quantity in words, its unit in brackets."""
    if name == "examples_per_s":
        return "speed (examples/s)"
    if name.endswith("flop_per_s"):
        return name.removesuffix("flop_per_s").replace("_", " ") + "speed (FLOP/s)"
    stem, unit = UNIT.fullmatch(name.removesuffix("_fraction").removesuffix("_share")).groups()  # type: ignore[union-attr]
    return stem.replace("_", " ") + (f" ({unit.replace('_', ' ')})" if unit else "")


def _share(name: str) -> bool:
    return name.endswith(("_fraction", "_share", "utilisation"))


def _order(rows: Sequence[style.Row], side: str) -> list[Any]:
    """Return the values of an axis: numbers in their order, then words."""
    numbers = {row[side] for row in rows if isinstance(row[side], int | float)}
    return [*sorted(numbers), *sorted({row[side] for row in rows} - numbers, key=str)]


def _cell(
    row: style.Row, value: str, low: float, high: float, panel: str | None, wide: bool
) -> style.Row:
    number, failed = row.get("value"), row.get("failed") or 0
    found = {key: row[key] for key in ("x", "y")} | {"panel": "", "value": number}
    if panel:
        found["panel"] = f"{panel} {row['panel']}"
    found["cell"] = f"{row['x']}, {row['y']}" + (f", {found['panel']}" if panel else "")
    found["shown"] = "no value" if number is None else format_value(value, number)
    if row.get("low") is not None:
        found["shown"] += (
            f" ({format_value(value, row['low'])} to {format_value(value, row['high'])})"
        )
    found |= {key: str(row[key]) for key in ("networks", "failed") if row.get(key)}
    if number is None:
        words = [row.get("status") or "failed", row.get("cause")]
        found["failed_with"] = ": ".join(dict.fromkeys(str(w) for w in words if w))
        return found
    ends = [math.log(v) if wide else v for v in (low, number, high)]
    share = (ends[1] - ends[0]) / (ends[2] - ends[0]) if high > low else 0.0
    off = number / (low if number < 0 else high or 1.0)
    found["light"] = off < LIGHT if low < 0 < high else share > LIGHT
    text = f"{100 * number:.{2 if abs(number) < 1 else 3}g}%" if _share(value) else ""
    found["number"] = (text or si(number, "", 3).replace(" ", "")) + ("*" if failed else "")
    return found
