"""A number over two others as colours: panels of cells, those that failed with their cause."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from steptime.core.tables.table import Table
from steptime.core.units import format_count, format_si, format_value
from steptime.reports.charts import style

SCHEME, SIGNED = "viridis", "blueorange"  # read by the colour-blind
WIDTH, ROW = 560, 34  # pixels
QUANTITY_TEXTS = {  # of quantities whose names alone do not say what they are
    "examples_per_s": "speed (examples/s)",
    "measured_s": "measured step (s)",
    "predicted_s": "predicted step (s)",
    "peak_fraction": "utilisation",
}
UNIT = re.compile(r"(.+?)(?:_((?:flop_|bytes_)?per_s|flop_per_byte|s|bytes|j|w))?")
PANEL = {"width": 250, "height": 200}
SIGNS = ("M-1,-1L1,1M-1,1L1,-1", *style.SHAPES)  # of what failed; the first is a cross
LIGHT = 0.6  # share of the colours from which on words in a cell are dark


@dataclass(frozen=True)
class _ColorScale:
    """The colours of values from `low` to `high`."""

    low: float
    high: float

    @property
    def is_logarithmic(self) -> bool:
        """Whether colours are logarithmic: over more than 2 decades."""
        return self.low > 0 and self.high / self.low > style.WIDE_RATIO

    @property
    def is_signed(self) -> bool:
        """Whether values lie on both sides of zero."""
        return self.low < 0 < self.high

    def is_light(self, number: float) -> bool:
        """Return whether the colour of a number is so light that words on it are dark."""
        if self.is_signed:  # the middle is light, both ends are dark
            end = self.low if number < 0 else self.high
            return number / end < LIGHT  # 0 in the middle, 1 at the end
        has_single_value = self.high <= self.low
        if has_single_value:  # without a range no colour is light
            return False
        if self.is_logarithmic:
            return math.log(number / self.low) / math.log(self.high / self.low) > LIGHT
        return (number - self.low) / (self.high - self.low) > LIGHT


def chart(table: Table) -> style.Spec:
    """Return the cells of a table of `analysis.heatmap`."""
    summary = table.summary
    title = f"{describe_quantity(summary['value'])} by {summary['x']} and {summary['y']}"
    rows = [dict(row) for row in table.rows]
    return grid(
        title[0].upper() + title[1:],
        [*_describe_cells(table), table.source],
        rows,
        x=summary["x"],
        y=summary["y"],
        panel=summary["panel"],
        value=summary["value"],
    )


def _describe_cells(table: Table) -> list[str]:
    """Return the caption: of how many networks a cell is, of failures, and of bins."""
    summary = table.summary
    caption = []
    if summary["max_networks"] > 1:
        networks = f"{summary['max_networks']} networks"
        caption.append(
            f"A cell is the median of up to {networks}; pointing at it tells their spread."
        )
    has_failed_cells = len(table.rows) > summary["cells"]
    if has_failed_cells or any(row["failed"] for row in table.rows):
        caption.append("Signs: no network of the cell succeeded. *: some of it did not.")
    if summary["binned"]:
        caption.append(f"Steps of equal ratio: {', '.join(summary['binned'])}.")
    return caption


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
    numbers = [row["value"] for row in rows if row.get("value") is not None]
    colors = _ColorScale(min(numbers, default=0.0), max(numbers, default=1.0))
    cells = [_make_cell_row(row, value, colors, panel) for row in rows]
    view: style.Spec = {"layer": _cell_layers(cells, colors, (x, y, value))}
    panel_count = len({cell["panel"] for cell in cells})
    if panel_count == 1:
        row_count = len({cell["y"] for cell in cells})
        view |= {"width": WIDTH, "height": max(80, min(ROW * row_count, 620))}
    panel_cells, panels = style.facet_panels(cells, "panel", view, columns=3, **PANEL)
    left_out = panel_count - style.MAX_PANELS
    if left_out > 0:
        caption = [*caption, f"Not shown: {format_count(left_out, 'panel')} more."]
    return style.finish(title, [line for line in caption if line], panel_cells, **panels)


def _cell_layers(
    cells: Sequence[style.Row], colors: _ColorScale, quantities: tuple[str, str, str]
) -> list[style.Spec]:
    """Return the layers of coloured cells, of failed ones with their signs, and of numbers.

    Args:
        cells: the cells.
        colors: the colours of values.
        quantities: the names of the axes x and y, and of the value.
    """
    x, y, value = quantities
    position = _encode_position(cells, x, y)
    tooltip_keys = ("cell", "shown", "networks", "failed")
    tooltip = style.tooltip(key for key in cells[0] if key in tooltip_keys)
    cell = {**position, "tooltip": tooltip}
    colored_cell = {**cell, "color": _encode_value(value, colors)}
    sign = {**cell, "shape": _encode_cause(cells)}
    sign_look: style.Spec = {"style": "quiet", "filled": False, "size": 45}
    number = {**position, **_encode_cell_number()}
    return [
        style.layer("rect", colored_cell, needed_fields=("value",)),
        style.layer("rect", cell, needed_fields=("failed_with",), style="band"),
        style.layer("point", sign, needed_fields=("failed_with",), **sign_look),
        style.layer("text", number, needed_fields=("number",), fontSize=11),
    ]


def _encode_position(cells: Sequence[style.Row], x: str, y: str) -> style.Spec:
    """Return the axes of cells, each named by its quantity; the smallest `y` is the lowest row."""
    axis: style.Spec = {"labelAngle": 0, "grid": False}
    x_axis = {**axis, "title": describe_quantity(x)}
    y_axis = {**axis, "title": describe_quantity(y)}
    return {
        "x": style.encode_name("x", sort=_order_values(cells, "x"), axis=x_axis),
        "y": style.encode_name("y", sort=_order_values(cells, "y")[::-1], axis=y_axis),
    }


def _encode_cause(cells: Sequence[style.Row]) -> style.Spec:
    """Return the signs of the causes of failures; that of the first cause is a cross."""
    shape: style.Spec = style.encode_categories("failed_with", cells)["shape"]
    return shape | {"legend": {"title": "failed"}, "scale": shape["scale"] | {"range": SIGNS}}


def _encode_cell_number() -> style.Spec:
    """Return the number in a cell: dark on light colours, invisible where cells are narrow."""
    return {
        "text": {"field": "number"},
        "color": {"condition": {"test": "datum.light", "value": "black"}, "value": "white"},
        "opacity": {"condition": {"test": "bandwidth('x') >= 40", "value": 1}, "value": 0},
    }


def _encode_value(value: str, colors: _ColorScale) -> style.Spec:
    """Return the colour of the values of a quantity, with its legend."""
    scale: style.Spec = {"scheme": SCHEME, "type": "log" if colors.is_logarithmic else "linear"}
    if colors.is_signed:
        scale = {"scheme": SIGNED, "domainMid": 0}
    title = describe_quantity(value)
    has_unit = "(" in title
    number_format = ".3~s" if has_unit else ".3~g"  # 0.97 of no unit is not 970m
    legend = {"title": title, "format": "~%" if _is_share(value) else number_format}
    return {"field": "value", "type": "quantitative", "scale": scale, "legend": legend}


def describe_quantity(name: str) -> str:
    """Return a quantity in words with its unit in brackets: `speed (examples/s)`."""
    if name in QUANTITY_TEXTS:
        return QUANTITY_TEXTS[name]
    if name.endswith("flop_per_s"):
        return name.removesuffix("flop_per_s").replace("_", " ") + "speed (FLOP/s)"
    match = UNIT.fullmatch(name.removesuffix("_fraction").removesuffix("_share"))
    if match is None:
        return name.replace("_", " ")
    stem, unit = match.groups()
    return stem.replace("_", " ") + (f" ({unit.replace('_', ' ')})" if unit else "")


def _is_share(name: str) -> bool:
    return name.endswith(("_fraction", "_share", "utilisation"))


def _order_values(rows: Sequence[style.Row], side: str) -> list[Any]:
    """Return the values of an axis: numbers in their order, then words."""
    numbers = {row[side] for row in rows if isinstance(row[side], int | float)}
    return [*sorted(numbers), *sorted({row[side] for row in rows} - numbers, key=str)]


def _make_cell_row(row: style.Row, value: str, colors: _ColorScale, panel: str | None) -> style.Row:
    """Return a cell: its place, its tooltip, and its number or the cause of its failure."""
    number = row.get("value")
    panel_label = f"{panel} {row['panel']}" if panel else ""
    place = f"{row['x']}, {row['y']}"
    cell = {
        "x": row["x"],
        "y": row["y"],
        "panel": panel_label,
        "value": number,
        "cell": f"{place}, {panel_label}" if panel_label else place,
        "shown": _describe_value(row, value),
    }
    cell |= {key: str(row[key]) for key in ("networks", "failed") if row.get(key)}
    if number is None:
        return cell | {"failed_with": _describe_failure(row)}
    mark = "*" if row.get("failed") else ""
    text = _shorten_number(number, value) + mark
    return cell | {"light": colors.is_light(number), "number": text}


def _describe_failure(row: style.Row) -> str:
    """Return the status and the cause of a failed cell: `oom: killed`."""
    reasons = [row.get("status") or "failed", row.get("cause")]
    return ": ".join(dict.fromkeys(str(reason) for reason in reasons if reason))


def _describe_value(row: style.Row, value: str) -> str:
    """Return the value of a cell with its spread: `12.3 ms (10 ms to 20 ms)`."""
    if row.get("value") is None:
        return "no value"
    text = format_value(value, row["value"])
    if row.get("low") is None:
        return text
    return f"{text} ({format_value(value, row['low'])} to {format_value(value, row['high'])})"


def _shorten_number(number: float, value: str) -> str:
    """Return a number that fits into a cell: `45%`, `1.2k`."""
    if _is_share(value):
        digits = 2 if abs(number) < 1 else 3  # `45%`, `120%`
        return f"{100 * number:.{digits}g}%"
    return format_si(number, "", 3).replace(" ", "")
