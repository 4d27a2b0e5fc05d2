"""How all charts look, in light and in dark: colours, axes with units, captions, tooltips."""

import json
import math
import random
import re
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from steptime.core.json_types import JsonObject
from steptime.core.tables.table import Column
from steptime.core.toml_files import read_packaged_toml
from steptime.core.units import format_count, format_value

Item = TypeVar("Item")
Row = JsonObject
Spec = JsonObject

SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"
LOOK = read_packaged_toml("look.toml")
COLOURS: Sequence[str] = LOOK["light"]["colours"]
SHAPES: Sequence[str] = LOOK["config"]["range"]["symbol"]
# Purple to amber: seen on white and on black, and in order under colour blindness.
RAMP = {"name": "plasma", "extent": [0.3, 0.87]}
WIDE_RATIO = 100.0  # of the largest to the smallest number, from which a scale is logarithmic
MAX_RAMP_STEPS = 12  # of a ramp, that a legend names one by one
WIDTH, HEIGHT = 660, 400  # of a picture; a page gives its own width
MAX_PANELS = 24
MAX_POINTS = 1500
NO_TITLE = " "  # of a legend; "" would stand for the name of its field
MIN_TICKS = 3  # of an axis, from which a reader can tell its scale
CHARACTER_WIDTH = 7  # pixels of a letter of a panel's name
WRAP = textwrap.TextWrapper(110, break_on_hyphens=False).wrap  # lines of a caption, in letters


def config(*, dark: bool = False) -> Spec:
    """Return the Vega-Lite configuration of all charts."""
    look: Spec = LOOK["dark" if dark else "light"]
    # Texts such as `$ink` in the table stand for the colours of light or dark.
    values = {f"${name}": value for name, value in look.items()} | {"$first": look["colours"][0]}

    def fill_in(table: Spec) -> Spec:
        return {
            name: values.get(value, value) if isinstance(value, str) else value
            for name, value in table.items()
        }

    configuration: Spec = json.loads(json.dumps(LOOK["config"]), object_hook=fill_in)
    view = {"stroke": None, "continuousWidth": WIDTH, "continuousHeight": HEIGHT}
    return configuration | {"view": view}


def finish(title: str, caption: Sequence[str], rows: Sequence[Row], **view: Any) -> Spec:
    """Return the Vega-Lite of a view over rows, with its title, caption and configuration.

    Layers of fields that no row has are left out: Vega complains about them.
    """
    fields: set[str] = set()
    for row in rows:
        fields.update(field for field, value in row.items() if value is not None)
    # A view has layers itself, or in the `spec` of its panels.
    for layered_view in (view, view.get("spec", {})):
        if "layer" in layered_view:
            layered_view["layer"] = [
                part for part in layered_view["layer"] if _list_needed_fields(part) <= fields
            ]
    return {
        "$schema": SCHEMA,
        "title": {"text": title, "subtitle": [line for text in caption for line in WRAP(text)]},
        "data": {
            "values": [{key: round_value(value) for key, value in row.items()} for row in rows]
        },
        "config": config(),
        **view,
    }


def round_value(value: Any) -> Any:
    """Return a number as a picture needs it, so that a page of many charts stays small."""
    return float(f"{value:.6g}") if isinstance(value, float) else value


def _list_needed_fields(part: Spec) -> set[str]:
    """Return the fields that rows of a layer must have."""
    filters = [str(transform.get("filter")) for transform in part.get("transform", ())]
    return {name for text in filters for name in re.findall(r"^isValid\(datum\.(\w+)\)$", text)}


def facet_panels(
    rows: Sequence[Row], field: str, panel: Spec, columns: int, gap: int = 20, **size: Any
) -> tuple[Sequence[Row], Spec]:
    """Return rows and a view: the panel itself for one value of `field`, else a panel a value.

    Args:
        rows: the rows of all panels.
        field: the field whose values are the names of panels; a name has a line for each part
            between `|`. At most `MAX_PANELS` are drawn, the first ones.
        panel: the view of a panel.
        columns: panels side by side.
        gap: pixels between panels.
        **size: size of a panel among several.
    """
    names = list(dict.fromkeys(row[field] for row in rows))[:MAX_PANELS]
    if len(names) == 1:
        return rows, panel
    facet = {"field": field, "type": "nominal", "title": None, "sort": names}
    header = {"labelAnchor": "start", "labelFontWeight": "bold", "labelPadding": 4}
    limit = {"labelLimit": size["width"] + gap - 6}
    panel_rows = [row for row in rows if row[field] in names]
    return panel_rows, {
        "facet": {**facet, "header": header | limit},
        "columns": columns,
        "spec": {**panel, **size},
    }


def sample_items(
    items: Sequence[Item], noun: str, limit: int = MAX_POINTS
) -> tuple[list[Item], list[str]]:
    """Return the first and a sample of more items than `limit`, and the line that says so.

    Every n-th item would follow the order: of four platforms in turns it may leave out two.
    """
    if len(items) <= limit:
        return list(items), []
    # By chance, with a fixed seed: every n-th one may leave out two of four platforms in turns.
    indices = random.Random(0).sample(range(1, len(items)), limit - 1)  # noqa: S311 - no secret
    sample = [items[index] for index in sorted([0, *indices])]
    return sample, describe_sample(len(items), noun, limit)


def describe_sample(number: int, noun: str, limit: int = MAX_POINTS) -> list[str]:
    """Return the line that only `limit` of a number are drawn; none if all are."""
    if number <= limit:
        return []
    return [f"{limit:,} of {format_count(number, noun)} are drawn, chosen by chance."]


def wrap_text(text: str, width: int) -> list[str]:
    """Return the lines of a text in `width` pixels."""
    return textwrap.wrap(text, width // CHARACTER_WIDTH)


def wrap_panel_name(text: str, width: int) -> str:
    """Return the name of a panel of `width` pixels, with `|` between lines (`facet_panels`)."""
    return "|".join(wrap_text(text, width))


def encode_number(field: str, title: str = "", unit: str = "", **axis: Any) -> Spec:
    """Return the encoding of a number from 0; its axis has SI prefixes and the unit: `10 ms`."""
    settings = {"title": title, "labelExpr": si_label(unit), "tickCount": 6, **axis}
    return {"field": field, "type": "quantitative", "scale": {"zero": True}, "axis": settings}


def encode_log_number(
    field: str, values: Iterable[float | None], title: str, unit: str = "", **axis: Any
) -> Spec:
    """Return the encoding of a number on a logarithmic axis that shows all of `values`."""
    numbers = [value for value in values if value]
    low, high = min(numbers), max(numbers)
    scale: Spec = {"type": "log", "nice": False, "padding": 14}
    ticks = log_ticks(low, high)
    if len(ticks) < MIN_TICKS:  # values are so close that a wider axis is needed
        low, high = low / 1.2, high * 1.2
        scale["domain"] = [low, high]
        ticks = log_ticks(low, high)
    return {**encode_number(field, title, unit, values=ticks, **axis), "scale": scale}


def log_ticks(low: float, high: float) -> list[float]:
    """Return round numbers between the ends: powers of ten, with 2 and 5 where those are few.

    Where the ends are near to each other these are too few, and ticks have equal distances.
    """
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for digits in ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 4, 6, 8), (1, 1.2, 1.5, *range(2, 10))):
        # built from text, so that a tick is 0.001 and not 0.0010000000000000002
        ticks = [float(f"{digit}e{exponent}") for exponent in exponents for digit in digits]
        inside = [tick for tick in ticks if low <= tick <= high]
        if len(inside) >= MIN_TICKS:
            return inside
    return linear_ticks(low, high)


def linear_ticks(low: float, high: float) -> list[float]:
    """Return multiples of a round step between the ends, at least `MIN_TICKS` if they differ."""
    if low == high:
        return [low]
    magnitude = math.floor(math.log10(high - low))
    # The largest round step that gives enough ticks.
    for exponent in (magnitude, magnitude - 1):
        for digit in (5, 2, 1):
            step = float(f"{digit}e{exponent}")
            numbers = range(math.ceil(low / step), math.floor(high / step) + 1)
            if len(numbers) >= MIN_TICKS:
                return [float(f"{number * digit}e{exponent}") for number in numbers]
    return [low, high]


def encode_name(field: str, **settings: Any) -> Spec:
    """Return the encoding of a name."""
    return {"field": field, "type": "nominal", **settings}


def encode_categories(field: str, rows: Iterable[Row], title: str = "", **legend: Any) -> Spec:
    """Return colour and shape of a field: each value has a pair of its own, in rows' order.

    Numbers have a colour of the ramp each, in their order; many of them share its length. The
    legend's title is the field's name, unless `title` is another (`NO_TITLE`: the legend has none).
    """
    values = list(dict.fromkeys(row[field] for row in rows if row.get(field) is not None))
    if values and all(isinstance(value, int | float) for value in values):
        return {"color": _encode_ramp(field, values, title, legend)}
    settings = {"title": title or field, "symbolLimit": len(values), **legend}
    encoding = encode_name(
        field, legend=settings if len(values) > 1 else None, scale={"domain": values}
    )
    return {"color": encoding, "shape": encoding}


def _encode_ramp(field: str, values: Sequence[float], title: str, legend: Spec) -> Spec:
    """Return the colours of numbers: a few have an entry each in the legend."""
    scale: Spec = {"domain": sorted(values)}
    form: Spec = {}
    kind = "ordinal"
    if len(values) > MAX_RAMP_STEPS:
        is_wide = min(values) > 0 and max(values) / min(values) > WIDE_RATIO
        scale = {"type": "log" if is_wide else "linear"}
        form = {"format": "~s"}
        kind = "quantitative"
    settings = {"title": title or field, **form, **legend} if len(values) > 1 else None
    return {
        "field": field,
        "type": kind,
        "scale": {**scale, "scheme": RAMP},
        "legend": settings,
    }


def layer(
    mark: str, encoding: Spec, *, needed_fields: Sequence[str] = (), **mark_settings: Any
) -> Spec:
    """Return a layer of marks, only of the rows with a value in each of `needed_fields`."""
    part: Spec = {"mark": {"type": mark, **mark_settings}, "encoding": encoding}
    if needed_fields:
        part["transform"] = [{"filter": f"isValid(datum.{field})"} for field in needed_fields]
    return part


def si_label(unit: str) -> str:
    """Return the Vega expression of a number with an SI prefix and a unit."""
    spaced = "replace(format(datum.value, '~s'), regexp('([^0-9.]?)$'), '\u00a0$1')"
    plain = "format(datum.value, datum.value < 1 ? '~g' : '~s')"  # 0.1 of nothing is not 100 m
    return f"{spaced} + '{unit}'" if unit else plain


def texts(row: Row, columns: Sequence[Column]) -> Row:
    """Return the texts of tooltips: the values of a row under the columns' labels, with units."""
    return {column.label: format_value(column.key, row[column.key]) for column in columns}


def point(row: Row, fields: Iterable[str], columns: Sequence[Column]) -> Row:
    """Return some fields of a row as a mark has them, and the texts of its tooltip."""
    return {field: row[field] for field in fields} | texts(row, columns)


def point_columns(fields: Iterable[str], columns: Sequence[Column]) -> list[str]:
    """Return the columns of rows of which `point` makes marks."""
    return [*fields, *(column.key for column in columns)]


def tooltip(columns: Iterable[str | Column]) -> list[Spec]:
    """Return tooltips of text fields under their own names, `_` shown as a space."""
    fields = [column.label if isinstance(column, Column) else column for column in columns]
    return [encode_name(field, title=field.replace("_", " ")) for field in fields]
