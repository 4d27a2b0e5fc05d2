"""How all plots look: colours, axes with units, captions, and the words of a tooltip."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import altair as alt

from steptime.core.record import Record
from steptime.core.units import seconds, si

Row = dict[str, Any]
Spec = dict[str, Any]

# Okabe and Ito 2008, "Color Universal Design": told apart under every common colour blindness.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F6000", "#000000")
SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "stroke", "arrow")
INK, QUIET, FAINT = "#222222", "#5F5F5F", "#DDDDDD"
FONT = "system-ui, 'Segoe UI', Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif"
WIDTH = 660


def over_rows(rows: Sequence[Row]) -> Any:
    """Give a chart over rows, to be encoded; Altair's own types stop here."""
    return alt.Chart(alt.InlineData(values=list(rows)))


def finish(chart: Any, title: str, caption: Sequence[str], *, legend_offset: int = 18) -> Spec:
    """Give the Vega-Lite of a chart with its title, caption (method, sources) and the style."""
    text = alt.TitleParams(title, subtitle=list(caption), anchor="start", frame="bounds", offset=14)
    styled = chart.properties(title=text, padding=12).configure(
        font=FONT,
        background="white",
        view=alt.ViewConfig(stroke=None),
        title=alt.TitleConfig(
            fontSize=16, color=INK, subtitleFontSize=12, subtitleColor=QUIET, subtitlePadding=6
        ),
        axis=alt.AxisConfig(
            labelFontSize=12,
            titleFontSize=12.5,
            titleFontWeight="normal",
            labelColor=INK,
            titleColor=INK,
            gridColor="#EBEBEB",
            domainColor=QUIET,
            tickColor=QUIET,
            titlePadding=8,
        ),
        legend=alt.LegendConfig(
            labelFontSize=12,
            titleFontSize=12,
            labelColor=INK,
            symbolSize=90,
            labelLimit=320,
            offset=legend_offset,
        ),
        header=alt.HeaderConfig(labelFontSize=12, labelColor=INK, labelLimit=400),
    )
    spec: Spec = styled.to_dict()
    return spec


def family_colour(families: Iterable[str], title: str | None = "family") -> alt.Color:
    """Give the encoding of a family as a colour, the same in every plot of the same records."""
    names = list(dict.fromkeys(families))
    return alt.Color(
        "family:N", title=title, scale=alt.Scale(domain=names, range=_cycle(COLOURS, names))
    )


def family_shape(families: Iterable[str], title: str | None = "family") -> alt.Shape:
    """Give the encoding of a family as a shape, for whoever does not see the colours."""
    names = list(dict.fromkeys(families))
    return alt.Shape(
        "family:N", title=title, scale=alt.Scale(domain=names, range=_cycle(SHAPES, names))
    )


def _cycle(table: Sequence[str], names: Sequence[str]) -> list[str]:
    return [table[index % len(table)] for index in range(len(names))]


def log_domain(values: Iterable[float], margin: float = 1.35) -> tuple[float, float]:
    """Give the ends of a logarithmic axis that holds `values` with some air around."""
    known = [value for value in values if value > 0]
    return min(known) / margin, max(known) * margin


def log_ticks(low: float, high: float) -> list[float]:
    """Give round numbers between the ends: powers of ten, with 2 and 5 where those are few."""
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for digits in ((1,), (1, 3), (1, 2, 5), (1, 2, 3, 4, 6, 8), tuple(range(1, 10))):
        # built from text, so that a tick is 0.001 and not 0.0010000000000000002
        ticks = [float(f"{digit}e{exponent}") for exponent in exponents for digit in digits]
        inside = [tick for tick in ticks if low <= tick <= high]
        if len(inside) >= 3:
            return inside
    return inside


def log_scale(domain: tuple[float, float]) -> alt.Scale:
    """Give a logarithmic scale with exactly these ends."""
    return alt.Scale(type="log", domain=list(domain), nice=False)


def log_axis(title: str, domain: tuple[float, float], unit: str = "", **more: Any) -> alt.Axis:
    """Give an axis of round numbers, each with its SI prefix and unit: `10 ms`."""
    return alt.Axis(title=title, values=log_ticks(*domain), labelExpr=si_label(unit), **more)


def si_label(unit: str) -> str:
    """Give the Vega expression of a number with an SI prefix and a unit."""
    spaced = "replace(format(datum.value, '~s'), regexp('([^0-9.]?)$'), '\u00a0$1')"
    plain = "format(datum.value, datum.value < 1 ? '~g' : '~s')"  # 0.1 of nothing is not 100 m
    return f"{spaced} + '{unit}'" if unit else plain


def rounded(value: float | None) -> float | None:
    """Give a number as a picture needs it, so that a page of many plots stays small."""
    return None if value is None else float(f"{value:.6g}")


def time_text(value: float | None, low: float | None = None, high: float | None = None) -> str:
    """Give a time [s] as people read it, with its interval where known."""
    if value is None:
        return "unknown"
    span = f" ({seconds(low)} to {seconds(high)})" if low is not None and high is not None else ""
    return seconds(value) + span


def unit_text(value: float | None, unit: str) -> str:
    """Give a number with prefix and unit, or `unknown`."""
    return "unknown" if value is None else si(value, unit)


def percent_text(value: float | None) -> str:
    """Give a share in percent with at least two digits: `47%`, `0.44%`."""
    if value is None:
        return "unknown"
    return f"{value:.0%}" if value >= 0.1 else f"{100 * value:.2g}%"


def tooltip(*fields: str) -> list[alt.Tooltip]:
    """Give tooltips of text fields under their own names, `_` shown as a space."""
    return [alt.Tooltip(f"{name}:N", title=name.replace("_", " ")) for name in fields]


def sources(records: Sequence[Record]) -> str:
    """Give the method and source line of a caption: how measured, how predicted, where, when."""
    parts = [_said(records, "measured"), _said(records, "predicted"), _said(records, "published")]
    where = sorted({record.platform for record in records if record.platform})
    shown = ", ".join(where[:3]) + (f" and {len(where) - 3} more" if len(where) > 3 else "")
    days = sorted({record.taken_at[:10] for record in records if record.taken_at})
    when = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}" if days else ""
    return " · ".join(part for part in (*parts, shown, when) if part)


def _said(records: Sequence[Record], origin: str) -> str:
    methods = {f"{r.method.name} {r.method.version}" for r in records if r.origin == origin}
    return f"{origin} with {', '.join(sorted(methods))}" if methods else ""


def spread(positions: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Give positions in the same order, `gap` apart, near where they were, from `low` to `high`.

    Neighbours that are too close share the room around their mean, pooled as adjacent violators
    are (Ayer et al. 1955): `spread([10, 11], 4, 0, 99)` is `[8.5, 12.5]`. More than there is room
    for run over `high`.
    """
    order = sorted(range(len(positions)), key=lambda index: positions[index])
    blocks: list[tuple[float, int]] = []  # (where the first one of the block goes, how many)
    for index in order:
        start, count = min(max(positions[index], low), high), 1
        while blocks and blocks[-1][0] + blocks[-1][1] * gap > start:
            before, many = blocks.pop()
            # the mean of what each member would like as the start of the joint block
            start = (before * many + (start - many * gap) * count) / (many + count)
            count += many
            start = max(low, min(start, high - (count - 1) * gap))
        blocks.append((start, count))
    placed = [start + step * gap for start, count in blocks for step in range(count)]
    result = [0.0] * len(positions)
    for index, place in zip(order, placed, strict=True):
        result[index] = place
    return result
