"""How all charts look, in light and in dark: colours, axes with units, captions, tooltips."""

import json
import math
import random
import re
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from steptime.core.table import Column
from steptime.core.toml_files import packaged
from steptime.core.units import counted, shown

Item = TypeVar("Item")
Row = dict[str, Any]
Spec = dict[str, Any]

SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"
LOOK = packaged("look.toml")
COLOURS: Sequence[str] = LOOK["light"]["colours"]
SHAPES: Sequence[str] = LOOK["config"]["range"]["symbol"]
# purple to amber: seen on white and on black, and in order under colour blindness
RAMP = {"name": "plasma", "extent": [0.3, 0.87]}
WIDE = 100.0  # times the least of the numbers is the greatest: their scale is logarithmic
MOST_STEPS = 12  # of a ramp, that a legend names one by one
WIDTH, HEIGHT = 660, 400  # of a picture; a page gives its own width
MOST_PANELS = 24
MOST_DRAWN = 1500  # points
MIN_TICKS = 3  # of an axis, from which a reader can tell its scale
WRAP = textwrap.TextWrapper(110, break_on_hyphens=False).wrap  # lines of a caption, in letters


def config(*, dark: bool = False) -> Spec:
    """Return the Vega-Lite configuration of every chart."""
    ours: Spec = LOOK["dark" if dark else "light"]
    told = {f"${name}": one for name, one in ours.items()} | {"$first": ours["colours"][0]}

    def filled(table: Spec) -> Spec:
        return {n: told.get(v, v) if isinstance(v, str) else v for n, v in table.items()}

    found: Spec = json.loads(json.dumps(LOOK["config"]), object_hook=filled)
    return found | {"view": {"stroke": None, "continuousWidth": WIDTH, "continuousHeight": HEIGHT}}


def finish(title: str, caption: Sequence[str], rows: Sequence[Row], **view: Any) -> Spec:
    """Return the Vega-Lite of a view over rows, with its title, caption and configuration.

    Layers of fields that no row has are left out: Vega complains about them.
    """
    known = {field for row in rows for field, value in row.items() if value is not None}
    for layers in (view, view.get("spec", {})):
        if "layer" in layers:
            layers["layer"] = [one for one in layers["layer"] if _fields(one) <= known]
    return {
        "$schema": SCHEMA,
        "title": {"text": title, "subtitle": [line for one in caption for line in WRAP(one)]},
        "data": {"values": [{key: short(one) for key, one in row.items()} for row in rows]},
        "config": config(),
        **view,
    }


def short(value: Any) -> Any:
    """Return a number as a picture needs it, so that a page of many charts stays small."""
    return float(f"{value:.6g}") if isinstance(value, float) else value


def _fields(layer: Spec) -> set[str]:
    """Return the fields that rows of a layer must have."""
    filters = [str(one.get("filter")) for one in layer.get("transform", ())]
    return {name for one in filters for name in re.findall(r"^isValid\(datum\.(\w+)\)$", one)}


def wrapped(
    rows: Sequence[Row], field: str, panel: Spec, columns: int, gap: int = 20, **size: Any
) -> tuple[Sequence[Row], Spec]:
    """Return rows and a view: the panel itself for one value of `field`, else a panel a value.

    At most `MOST_PANELS`, the first ones; `size` is of a panel among several, `gap` [pixel] what
    lies between them. A name has a line for each part between `|`.
    """
    names = list(dict.fromkeys(row[field] for row in rows))[:MOST_PANELS]
    if len(names) == 1:
        return rows, panel
    facet = {"field": field, "type": "nominal", "title": None, "sort": names}
    header = {"labelAnchor": "start", "labelFontWeight": "bold", "labelPadding": 4}
    limit = {"labelLimit": size["width"] + gap - 6}
    kept = [row for row in rows if row[field] in names]
    return kept, {
        "facet": {**facet, "header": header | limit},
        "columns": columns,
        "spec": {**panel, **size},
    }


def thinned(
    items: Sequence[Item], what: str, most: int = MOST_DRAWN
) -> tuple[list[Item], list[str]]:
    """Return the first and a sample of more items than `most`, and the line that says so.

    Every n-th would follow the order: of four platforms in turns it may leave out two.
    """
    if len(items) <= most:
        return list(items), []
    drawn = random.Random(0).sample(range(1, len(items)), most - 1)  # noqa: S311 - no secret
    return [items[at] for at in sorted([0, *drawn])], left_out(len(items), what, most)


def left_out(number: int, what: str, most: int = MOST_DRAWN) -> list[str]:
    """Return the line that says that only `most` of a number are drawn."""
    return [f"{most:,} of {counted(number, what)} are drawn, chosen by chance."][: number > most]


def lines_of(text: str, width: int) -> str:
    """Return the name of a panel of `width` pixels in lines, as `wrapped` takes it."""
    return "|".join(textwrap.wrap(text, width // 7))


def number(field: str, title: str = "", unit: str = "", **axis: Any) -> Spec:
    """Return the encoding of a number from 0; its axis has SI prefixes and the unit: `10 ms`."""
    found = {"title": title, "labelExpr": si_label(unit), "tickCount": 6, **axis}
    return {"field": field, "type": "quantitative", "scale": {"zero": True}, "axis": found}


def log_number(
    field: str, values: Iterable[float | None], title: str, unit: str = "", **axis: Any
) -> Spec:
    """Return the encoding of a number on a logarithmic axis that shows all of `values`."""
    numbers = [value for value in values if value]
    low, high = min(numbers), max(numbers)
    scale: Spec = {"type": "log", "nice": False, "padding": 14}
    ticks = log_ticks(low, high)
    if len(ticks) < MIN_TICKS:
        low, high = low / 1.2, high * 1.2
        scale["domain"] = [low, high]
        ticks = log_ticks(low, high)
    return {**number(field, title, unit, values=ticks, **axis), "scale": scale}


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
    for exponent in (magnitude, magnitude - 1):
        for digit in (5, 2, 1):
            step = float(f"{digit}e{exponent}")
            numbers = range(math.ceil(low / step), math.floor(high / step) + 1)
            if len(numbers) >= MIN_TICKS:
                return [float(f"{number * digit}e{exponent}") for number in numbers]
    return [low, high]


def name(field: str, **more: Any) -> Spec:
    """Return the encoding of a name."""
    return {"field": field, "type": "nominal", **more}


def told_by(field: str, rows: Iterable[Row], title: str = "", **more: Any) -> Spec:
    """Return colour and shape of a field: every value has a pair of its own, in rows' order.

    Numbers have a colour of the ramp each, in their order; many of them share its length.
    """
    names = list(dict.fromkeys(row[field] for row in rows if row.get(field) is not None))
    if names and all(isinstance(value, int | float) for value in names):
        wide = min(names) > 0 and max(names) / min(names) > WIDE
        few = len(names) <= MOST_STEPS
        scale: Spec = {"domain": sorted(names)} if few else {"type": "log" if wide else "linear"}
        kind, form = ("ordinal", {}) if few else ("quantitative", {"format": "~s"})
        ramp = {"field": field, "type": kind, "scale": scale | {"scheme": RAMP}}
        legend = {"title": title or field, **form, **more} if len(names) > 1 else None
        return {"color": {**ramp, "legend": legend}}
    legend = {"title": title or field, "symbolLimit": len(names), **more}
    one = name(field, legend=legend if len(names) > 1 else None, scale={"domain": names})
    return {"color": one, "shape": one}


def layer(mark: str, encoding: Spec, *having: str, **more: Any) -> Spec:
    """Return a layer of marks, of the rows only that have a value in each field of `having`."""
    valid = [{"filter": f"isValid(datum.{field})"} for field in having]
    made: Spec = {"mark": {"type": mark, **more}, "encoding": encoding}
    return made | ({"transform": valid} if valid else {})


def si_label(unit: str) -> str:
    """Return the Vega expression of a number with an SI prefix and a unit."""
    spaced = "replace(format(datum.value, '~s'), regexp('([^0-9.]?)$'), '\u00a0$1')"
    plain = "format(datum.value, datum.value < 1 ? '~g' : '~s')"  # 0.1 of nothing is not 100 m
    return f"{spaced} + '{unit}'" if unit else plain


def texts(row: Row, told: Sequence[Column]) -> Row:
    """Return what tooltips say of a row: its values under the columns' headings, with units."""
    return {one.label: shown(one.key, row[one.key]) for one in told}


def point(row: Row, fields: str, told: Sequence[Column]) -> Row:
    """Return some fields of a row as a mark has them, and what its tooltip says."""
    return {field: row[field] for field in fields.split()} | texts(row, told)


def needed(fields: str, told: Sequence[Column]) -> list[str]:
    """Return the columns of rows of which `point` makes marks."""
    return [*fields.split(), *(one.key for one in told)]


def tooltip(told: Iterable[str | Column]) -> list[Spec]:
    """Return tooltips of text fields under their own names, `_` shown as a space."""
    fields = (one.label if isinstance(one, Column) else one for one in told)
    return [name(field, title=field.replace("_", " ")) for field in fields]
