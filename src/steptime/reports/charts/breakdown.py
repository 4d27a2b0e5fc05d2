"""Where the time of a step goes: one network as a flame-like picture, several as stacked bars."""

import re
from collections import defaultdict
from collections.abc import Sequence
from operator import itemgetter

from steptime.analysis.breakdown_cells import NO_OP_NAME
from steptime.core.graph import PASSES
from steptime.core.table import Table
from steptime.core.units import percent, seconds
from steptime.records.row import grouped
from steptime.reports.charts import style

MOST_KINDS = 7  # with colours of their own
OTHERS = "others"
GREY = (NO_OP_NAME, OTHERS, "")
THINNEST = 0.001  # of the width, that is drawn
GAP = 0.001
AXIS = {"title": "share of the step", "format": "~%", "tickCount": 10}


def chart(table: Table) -> style.Spec:
    """Return the picture of a breakdown: of one network, of each one, or of the mean of many."""
    if table.chart_rows and "scope" in table.chart_rows[0]:
        return _icicle(table)
    rows = [dict(row) for row in table.chart_rows] or [
        {"network": "mean", "side": side, "share": row[f"{side}_share"], **row}
        for row in table.rows
        for side in ("measured", "predicted")
        if row[f"{side}_share"] is not None
    ]
    tell = [name for name in ("platform", "side") if len({row[name] for row in rows}) > 1]
    totals = grouped(rows, itemgetter("name"))
    ranked = sorted(totals, key=lambda name: -sum(row["share"] for row in totals[name]))
    own = [name for name in ranked if name != NO_OP_NAME][:MOST_KINDS]
    drawn = []
    for names, held in grouped(rows, itemgetter("network", *tell)).items():
        at, bar = 0.0, ", ".join([names] if isinstance(names, str) else names)
        shares = {row["name"]: row["share"] for row in held}
        told = {name: shares.pop(name, 0.0) for name in own}
        idle = max(0.0, shares.pop(NO_OP_NAME, 0.0))
        for name, share in (told | {OTHERS: sum(shares.values()), NO_OP_NAME: idle}).items():
            if share > 0:
                place = {"bar": bar, "kind": name, "from": at, "to": at + share}
                drawn.append(place | {"share": percent(share)})
            at += share
    bars = list(dict.fromkeys(row["bar"] for row in drawn))
    place = {
        "x": style.number("from") | {"axis": AXIS},
        "x2": {"field": "to"},
        "y": style.name("bar", title=None, sort=bars, axis={"labelLimit": 300}),
        "tooltip": style.tooltip(("bar", "kind", "share")),
    }
    grey = f"{OTHERS}, and {NO_OP_NAME}" if len(ranked) > 1 + len(own) else NO_OP_NAME
    mean = f"The mean of {table.summary['networks']} networks. " if not table.chart_rows else ""
    return style.finish(
        "Where the time of a step goes",
        [f"{mean}Grey: {grey}.", table.source],
        drawn,
        height={"step": 26 if len(bars) < 15 else 17},
        layer=_coloured("bar", place, drawn),
    )


def _coloured(
    mark: str, place: style.Spec, drawn: Sequence[style.Row], opacity: float = 0.85
) -> list[style.Spec]:
    """Return a layer of the kinds with colours of their own, and grey ones of the others."""
    kinds = list(dict.fromkeys(row["kind"] for row in drawn if row["kind"] not in GREY))
    legend = {"title": None, "orient": "bottom", "columns": 4, "symbolOpacity": opacity}
    colour = style.name("kind", scale={"domain": kinds}, legend=legend)
    plain = {"stroke": None, "cornerRadius": 0}
    known = {"field": "kind", "oneOf": kinds}
    grey = style.layer(mark, place, style="band", **plain)
    told = style.layer(mark, {**place, "color": colour}, opacity=opacity, **plain)
    return [
        grey | {"transform": [{"filter": {"not": known}}]},
        told | {"transform": [{"filter": known}]},
    ]


def _icicle(table: Table) -> style.Spec:
    rows = [dict(row) for row in table.chart_rows]
    kinds = grouped(rows, itemgetter("op_kind"))
    ranked = sorted(kinds, key=lambda kind: -sum(row["share"] for row in kinds[kind]))
    own = set(ranked[:MOST_KINDS])
    weight: dict[tuple[str, ...], float] = defaultdict(float)
    for row in rows:
        parts = _parts(row)
        for i in range(len(parts)):
            weight[parts[: i + 1]] += row["share"]
    drawn: list[style.Row] = []
    top = 0
    for side in ("measured", "predicted"):
        held = [row for row in rows if row["side"] == side]
        if held:
            drawn += _flame(held, side, top, weight, own)
            top = 1 + max(row["below"] for row in drawn)
    across = {"scale": {"domain": [0, 1], "nice": False}, "axis": AXIS | {"grid": False}}
    down = {"scale": {"reverse": True, "nice": False}, "axis": None}
    place = {
        "x": style.number("from") | across,
        "x2": {"field": "to"},
        "y": style.number("level") | down,
        "y2": {"field": "below"},
    }
    told = {**place, "tooltip": style.tooltip(("op", "kind", "time", "share"))}
    middle = {"expr": f"height / {top - 1} / 2"}
    words = {"x": place["x"], "y": place["y"], "text": {"field": "op"}}
    wide = {"expr": "max(0, (datum.to - datum.from) * width - 6)"}
    texts = style.layer(
        "text", words, align="left", baseline="middle", dx=3, dy=middle, limit=wide, fontSize=11
    )
    texts["transform"] = [{"filter": "(datum.to - datum.from) * width > 44"}]
    levels = "Step, pass, layers, op."
    return style.finish(
        f"Where the time of a step goes: {rows[0]['network']}",
        [
            f"{levels} Empty on the right: {NO_OP_NAME}; grey: layers, and smaller ops.",
            table.source,
        ],
        drawn,
        height=24 * (top - 1),
        layer=[*_coloured("rect", told, drawn, 0.6), texts],
    )


def _parts(row: style.Row) -> tuple[str, ...]:
    return (row["pass"] or PASSES[0], *re.split(r"[/.]", row["scope"]))


def _flame(
    rows: Sequence[style.Row],
    side: str,
    top: int,
    weight: dict[tuple[str, ...], float],
    own: set[str],
) -> list[style.Row]:
    """Return the rectangles of a side, the widest first in both."""
    known = [row["time_s"] for row in rows if row["time_s"]]
    drawn: list[style.Row] = [_box(f"{side} step", "", 0.0, 1.0, top, None)]

    def put(held: Sequence[style.Row], depth: int, level: int, start: float) -> None:
        """Draw what lies below the first `depth` parts of paths, on a level, from a place on."""
        inner = grouped(held, lambda row: _parts(row)[: depth + 1])
        order = sorted(
            inner, key=lambda path: (depth == 0 and PASSES.index(path[0]), -weight[path])
        )
        thin = 0.0
        for path in order:
            rows, end = inner[path], depth + 1
            ways = [_parts(row) for row in rows]
            # what holds one thing alone joins it
            while depth and min(map(len, ways)) > end and len({way[end] for way in ways}) == 1:
                end += 1
            share = sum(row["share"] for row in rows)
            if share < THINNEST:
                thin += share
                continue
            deeper = [row for row, way in zip(rows, ways, strict=True) if len(way) > end]
            kind = "" if deeper else rows[0]["op_kind"]
            time = sum(row["time_s"] for row in rows) if known else None
            told = kind if kind in own or not kind else OTHERS
            name = "/".join(ways[0][depth:end])
            drawn.append(_box(name, told, start, start + share, top + level, time))
            if deeper:
                put(deeper, end, level + 1, start)
            start += share
        if thin >= THINNEST:
            drawn.append(_box("smaller ones", OTHERS, start, start + thin, top + level, None))

    put(rows, 0, 1, 0.0)
    return drawn


def _box(
    name: str, kind: str, start: float, end: float, level: int, time_s: float | None
) -> style.Row:
    """Return a rectangle, with a gap to the next one where it is wide enough."""
    told = {"share": percent(end - start), "time": None if time_s is None else seconds(time_s)}
    place = {"from": start, "to": end - min(GAP, (end - start) / 4), "level": level}
    return {"op": name, "kind": kind, **place, "below": level + 1, **told}
