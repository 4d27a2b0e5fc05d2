"""Roofline (Williams, Waterman, Patterson 2009): speed over intensity, below the ceilings."""

import math
from collections.abc import Iterable, Sequence
from operator import itemgetter

from steptime.analysis.ceilings import compute_dtype
from steptime.core.table import Column, Table
from steptime.core.units import first_of, si
from steptime.records.row import grouped
from steptime.reports.charts import style

LESS, MORE = 6.0, 25.0  # of the axis before and beyond the points, as factors: room for names
MOST_JOINED = 60  # whose prediction and measurement a line joins
MOST_LINES = 12
MAX_TITLE_PLATFORMS = 3
MOST_LABELS = 12  # of ceilings in one picture; with more each platform has a panel
Box = tuple[float, float, float, float]
PANEL = {"width": 400, "height": 290}
X, MEASURED, PREDICTED = "intensity", "flop_per_s", "predicted_flop_per_s"
TOOLTIP = (
    Column("name"),
    Column("origin"),
    Column(MEASURED, "speed"),
    Column(PREDICTED, "predicted speed"),
    Column("roof_flop_per_s", "ceiling"),
    Column("roof_fraction", "of ceiling"),
    Column("peak_fraction", "of peak"),
    Column("intensity", "FLOP per byte", form=".4g"),
    Column("platform"),
    Column("dtype"),
)


def chart(table: Table) -> style.Spec:
    """Return the points of a table of `analysis.roofline` under their ceilings.

    Platforms share a picture, each in its colour; where colours tell something else, or the
    ceilings are many, each has a panel.
    """
    said = table.summary
    every: list[style.Row] = [dict(r) for r in table.rows] if said["platforms"] else []
    tops = _tops(said["ceilings"], said["platforms"])
    names = list(dict.fromkeys(row["platform"] for row in (*every, *tops)))
    asked = said.get("color")
    apart = len(names) > 1 and (asked not in (None, "platform") or len(tops) > MOST_LABELS)
    told_apart = ("family", "dtype") if apart else ("platform", "family", "dtype")
    color = asked or next((n for n in told_apart if len({r.get(n) for r in every}) > 1), None)
    size = PANEL if apart else {"width": style.WIDTH, "height": style.HEIGHT}
    rows, caption = _points(every, color, said.get("line"))
    ends = box(tops, [row[X] for row in every], [s for r in every for s in _speeds(r)])
    each = names if apart else [""]
    told = (
        style.encode_categories(f"of_{color}", rows, color.replace("_", " "))
        if color and rows
        else {}
    )
    in_legend = color == "platform" and told and len(names) <= len(style.COLOURS)
    tell = not apart and len(names) > 1 and not in_legend
    lines = [row for one in each for row in roofs(tops, ends, size, one, tell=tell)]
    place = axes(ends)
    shared = style.name("platform", scale={"domain": names}, legend=None)
    if color == "platform" and told:  # or the legends of lines and points would conflict
        shared = {**told["color"], "field": "platform"}
    ink: style.Spec = {} if apart or len(names) == 1 else {"color": shared}
    line, halo, text, other_halo, other_text = roof_layers(place, ink, "child_" if apart else "")
    points = _point_layers(place, told, len(every))
    layers = [line, halo, other_halo, *points, text, other_text]  # no name hides a point
    drawn = [row | {"panel": row["platform"] if apart else ""} for row in [*lines, *rows]]
    height = {} if apart else {"height": size["height"]}
    panels, view = style.facet_panels(drawn, "panel", {"layer": layers, **height}, 2, **size)
    title = _title(names, "Ops" if said.get("ops") else "Networks" if every else "")
    return style.finish(title, [*caption, table.source], panels, **view)


def _title(platforms: Sequence[str], points: str) -> str:
    """Return the title: "Networks under the roofline", or "Roofline of t4" without points.

    The picture itself names platforms only where they are several.
    """
    if points:
        return f"{points} under the roofline"
    noun = "Roofline" if len(platforms) == 1 else "Rooflines"
    return f"{noun} of {first_of(platforms, MAX_TITLE_PLATFORMS)}"


def _speeds(row: style.Row) -> list[float]:
    return [row[name] for name in (MEASURED, PREDICTED) if row[name]]


def _points(
    every: Sequence[style.Row], color: str | None, line: str | None
) -> tuple[list[style.Row], list[str]]:
    """Return the points as they are drawn, some of many, and what the caption says of them."""
    lines = _lines(every, line) if line else {}
    some, thinned = style.sample_items(every, "point")  # the fastest comes first
    kept = [*some, *(row for row in every if thinned and id(row) in lines)]
    numbers = {name: f"of_{name}" for name in (color, line) if name}
    rows = []
    for row in kept:
        more = {to: row[name] for name, to in numbers.items()} | lines.get(id(row), {})
        more |= {"edge": row[MEASURED]} if row[X] is None else {}
        rows.append(style.point(row, f"platform {X} {MEASURED} {PREDICTED}", TOOLTIP) | more)
    filled, hollow = (any(row[side] for row in every) for side in (MEASURED, PREDICTED))
    signs = "Filled: measured or published. Hollow: predicted."
    caption = []
    if hollow:
        caption.append(signs if filled else "Hollow: predicted; nothing is measured here.")
    if without := sum(row[X] is None for row in every):
        caption.append(f"At the left edge: {without:,} whose FLOP per byte are not known.")
    caption += thinned
    if line:
        number = len({on["line"] for on in lines.values()})
        caption.append(f"A line follows {line}, all else equal: the {number} longest lines.")
    return rows, caption


def _lines(every: Sequence[style.Row], line: str) -> dict[int, style.Row]:
    """Return the `line` of each point that is on one, by its `id`, and what its `end` says."""
    numbers = {"name", "model", line, "bound", *(one.key for one in TOOLTIP)}
    numbers -= {"platform", "dtype", "origin"}
    numbers |= {name for row in every[:1] for name in row if name.endswith(("_per_s", "_fraction"))}
    known = [row for row in every if row[X] and _speeds(row) and row.get(line) is not None]
    along = grouped(known, lambda r: tuple(v for n, v in r.items() if n not in numbers))
    found: dict[int, style.Row] = {}
    longest = sorted(along.values(), key=lambda one: -len({row[line] for row in one}))
    for at, one in enumerate(one for one in longest[:MOST_LINES] if len(one) > 1):
        one.sort(key=lambda row: row[line])
        for row in one:
            end = f"{line} {row[line]}" if at == 0 and row in (one[0], one[-1]) else None
            found[id(row)] = {"line": at, "end": end}
    return found


def _tops(ceilings: Sequence[style.Row], groups: Sequence[style.Row]) -> list[style.Row]:
    """Return the ceilings that are drawn: where there are points, those of their dtypes.

    Where a point is above its ceiling, the highest of its platform, too.
    """
    used = {(one["platform"], compute_dtype(one["dtype"])) for one in groups}
    used |= {(one["platform"], one["highest_peak_dtype"]) for one in groups if one["above_peak"]}
    seen = {platform for platform, _ in used}
    return [
        dict(one)
        for one in ceilings
        if one["platform"] not in seen or one["level"] or (one["platform"], one["dtype"]) in used
    ]


def box(
    tops: Sequence[style.Row], intensities: Iterable[float | None], speeds: Sequence[float]
) -> Box:
    """Return the ends of both axes, which show all points and every ridge."""
    peaks = [row["flop_per_s"] for row in tops if row["flop_per_s"]]
    rates = [row["bytes_per_s"] for row in tops if row["bytes_per_s"]]
    across = [x for x in intensities if x] + [peak / rate for peak in peaks for rate in rates]
    left, right = min(across, default=1.0) / LESS, max(across, default=1.0) * MORE
    up = [*speeds, *peaks, *(left * rate for rate in rates)]
    return left, right, min(up) / 3, max(up) * 3


def roofs(
    tops: Sequence[style.Row], ends: Box, size: style.Spec, platform: str = "", tell: bool = False
) -> list[style.Row]:
    """Return the ceilings of a panel as lines from corner to corner, and their names.

    All, or those of one platform; names `tell` it where asked. Names keep apart: one that would lie
    upon its neighbour moves away from the lines.
    """
    left, right, low, high = ends
    mine = [row for row in tops if not platform or row["platform"] == platform]
    rows: list[style.Row] = []

    def most(where: str, key: str) -> float:
        return max((r[key] or 0 for r in mine if r["platform"] == where), default=0)

    for (where, rate), level in grouped(mine, itemgetter("platform", "bytes_per_s")).items():
        if rate:
            best = most(where, "flop_per_s")
            end = best / rate if best else right
            text = f"{where + ' ' if tell else ''}{level[0]['level']} {si(rate, 'B/s', 3)}"
            line = {"from": left, "roof": left * rate, "to": end, "top": end * rate}
            dash = level[0]["level"] != "DRAM"
            rows.append({"platform": where, **line, "side": text, "dash": dash})
    for (where, peak), same in grouped(mine, itemgetter("platform", "flop_per_s")).items():
        if peak:
            units = {unit: ", ".join(r["dtype"] for r in of)
                     for unit, of in grouped(same, itemgetter("unit")).items()}  # fmt: skip
            words = [f"{', '.join(unit for unit in units if units[unit] == types)} {types}"
                     for types in dict.fromkeys(units.values())]  # fmt: skip
            text = f"{where + ' ' if tell else ''}{'; '.join(words)} {si(peak, 'FLOP/s', 3)}"
            fast = most(where, "bytes_per_s")
            line = {"from": max(left, peak / fast) if fast else left, "roof": peak}
            line |= {"to": right, "top": peak}
            rows.append({"platform": where, **line, "peak": text, "dash": "matrix" not in units})
    for kind, sign, pixels in (("peak", 1, 15), ("side", -1, 24)):
        gap = pixels / size["height"] * math.log10(high / low)
        last = -math.inf
        for row in sorted((r for r in rows if kind in r), key=lambda r: sign * r["roof"]):
            last = max(sign * math.log10(row["roof"]), last + gap)
            row["at"] = 10 ** (sign * last)
    return rows


def axes(ends: Box) -> style.Spec:
    """Return the encodings of intensity and speed between these ends."""
    left, right, low, high = ends
    x = style.log_number(X, (left, right), "intensity (FLOP per byte)")
    y = style.log_number("speed", (low, high), "speed (FLOP/s)", "FLOP/s")
    x["scale"] = {"type": "log", "nice": False, "domain": [left, right]}
    y["scale"] = {"type": "log", "nice": False, "domain": [low, high]}
    return {"x": x, "y": y}


def at(place: style.Spec, x: str, y: str) -> style.Spec:
    """Return the encodings of a place of these fields."""
    return {"x": {**place["x"], "field": x}, "y": {**place["y"], "field": y}}


def roof_layers(place: style.Spec, ink: style.Spec, panel: str = "") -> list[style.Spec]:
    """Return the layers of the ceilings and of their names, in the colours of `ink` if any.

    A name lies along its line, upon a peak and below a slope; `panel` stands before the signals of
    a panel's size.
    """
    (left, right), (low, high) = (place[one]["scale"]["domain"] for one in "xy")
    slope = f"{panel}height / {panel}width * {math.log(right / left) / math.log(high / low)}"
    below: style.Spec = {"align": "left", "baseline": "top", "dx": 9, "dy": 5}
    below["angle"] = {"expr": f"-180 / PI * atan({slope})"}
    dash = {"condition": {"test": "datum.dash", "value": [5, 4]}, "value": [1, 0]}
    line = {**at(place, "from", "roof"), "x2": {"field": "to"}, "y2": {"field": "top"}, **ink}
    mark: style.Spec = {"strokeWidth": 1.6} | ({} if ink else {"style": "ink"})
    layers = [style.layer("rule", {**line, "strokeDash": dash}, "roof", **mark)]
    for kind, x, more in (
        ("peak", "to", {"align": "right", "baseline": "bottom", "dx": -4, "dy": -5}),
        ("side", "from", below),
    ):
        text = {**at(place, x, "at"), "text": {"field": kind}}
        layers.append(style.layer("text", text, kind, style="halo", **more))
        layers.append(style.layer("text", text | ink, kind, **more))
    return layers


def _point_layers(place: style.Spec, told: style.Spec, number: int) -> list[style.Spec]:
    tip = style.tooltip(TOOLTIP)
    gap = {**at(place, X, MEASURED), "y2": {"field": PREDICTED}}
    along = {**at(place, X, MEASURED), "detail": {"field": "line"}, "order": {"field": X}}
    edge = {"x": {"value": 5}, "y": {**place["y"], "field": "edge"}, **told, "tooltip": tip}
    few = number <= MOST_JOINED
    joined = [style.layer("rule", gap, MEASURED, PREDICTED, X, style="quiet", opacity=0.45)]
    ends = {**at(place, X, MEASURED), "text": {"field": "end"}}
    edge.pop("shape", None)
    layers = [
        *(joined if few else []),
        style.layer("line", along, "line", MEASURED, style="quiet", fill=None, strokeWidth=1.2),
        style.layer("tick", edge, "edge", thickness=1.5, orient="horizontal", size=10),
    ]
    for side, full in ((PREDICTED, False), (MEASURED, True)):
        dots = {**at(place, X, side), **told, "tooltip": tip}
        look = {"size": 65 if few else 25, "opacity": 0.9 if few else 0.7 if full else 0.3}
        layers.append(style.layer("point", dots, side, X, filled=full, **look))
    more = {"align": "center", "dy": -12, "fontWeight": "bold"}
    return [*layers, style.layer("text", ends, "end", MEASURED, **more)]
