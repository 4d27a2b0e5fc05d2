"""The time of a step by op (Vega-Lite): an icicle chart of one network, stacked bars of several."""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter

from steptime.analysis.breakdown_cells import NO_OP_NAME
from steptime.core.graph import PASSES
from steptime.core.tables.table import Table
from steptime.core.units import format_percent, format_seconds
from steptime.records.row import group_by
from steptime.reports.charts import style

MAX_COLOURED_KINDS = 7
REMAINDER = "others"
GREY = (NO_OP_NAME, REMAINDER, "")
MIN_SHARE = 0.001  # of the width: thinner parts are drawn together
GAP_SHARE = 0.001  # between neighbours
MIN_LABEL_WIDTH = 44  # pixels of a box that has room for a few letters
NAME_MARGIN = 3  # pixels at each side of the name of a box
Path = tuple[str, ...]  # a pass, layers within layers, an op
AXIS = {"title": "share of the step", "format": "~%", "tickCount": 10}


def chart(table: Table) -> style.Spec:
    """Return the picture of a breakdown: of one network, of each one, or of the mean of many."""
    # Rows of single ops, each with its scope (`block1.conv`), are of one network.
    has_single_ops = bool(table.chart_rows) and "scope" in table.chart_rows[0]
    if has_single_ops:
        return _draw_icicle(table)
    # A table of very many networks has no rows for a chart, but the mean of all.
    rows = [dict(row) for row in table.chart_rows] or _mean_rows(table)
    kinds = [kind for kind in _rank_by_share(rows, "name") if kind != NO_OP_NAME]
    segments = _make_segments(rows, coloured_kinds=kinds[:MAX_COLOURED_KINDS])
    bars = list(dict.fromkeys(segment["bar"] for segment in segments))
    grey = f"{REMAINDER}, and {NO_OP_NAME}" if len(kinds) > MAX_COLOURED_KINDS else NO_OP_NAME
    mean = f"The mean of {table.summary['networks']} networks. " if not table.chart_rows else ""
    return style.finish(
        "Where the time of a step goes",
        [f"{mean}Grey: {grey}.", table.source],
        segments,
        height={"step": 26 if len(bars) < 15 else 17},
        layer=_color_layers("bar", _encode_segment(bars), segments),
    )


def _make_segments(rows: Sequence[style.Row], coloured_kinds: Sequence[str]) -> list[style.Row]:
    """Return the segments of all bars: one a network, for each platform and side if several."""
    varying_names = [name for name in ("platform", "side") if len({row[name] for row in rows}) > 1]
    rows_by_bar = group_by(rows, itemgetter("network", *varying_names))
    return [
        segment
        for names, bar_rows in rows_by_bar.items()
        for segment in _bar_segments(names, bar_rows, coloured_kinds)
    ]


def _encode_segment(bars: Sequence[str]) -> style.Spec:
    """Return the position of a segment in its bar, bars in this order, and its tooltip."""
    return {
        "x": style.encode_number("from") | {"axis": AXIS},
        "x2": {"field": "to"},
        "y": style.encode_name("bar", title=None, sort=bars, axis={"labelLimit": 300}),
        "tooltip": style.tooltip(("bar", "kind", "share")),
    }


def _mean_rows(table: Table) -> list[style.Row]:
    """Return the mean shares of many networks: a row for each kind and known side."""
    return [
        {"network": "mean", "side": side, "share": row[f"{side}_share"], **row}
        for row in table.rows
        for side in ("measured", "predicted")
        if row[f"{side}_share"] is not None
    ]


def _rank_by_share(rows: Sequence[style.Row], field: str) -> list[str]:
    """Return the values of a field, the one with the largest total share first."""
    groups = group_by(rows, itemgetter(field))
    return sorted(groups, key=lambda value: -sum(row["share"] for row in groups[value]))


def _bar_segments(
    names: str | Sequence[str], rows: Sequence[style.Row], coloured: Sequence[str]
) -> Iterator[style.Row]:
    """Yield the segments of a bar: coloured kinds, the remaining kinds, time without an op."""
    bar = names if isinstance(names, str) else ", ".join(names)  # a text if only networks differ
    share_by_kind = {row["name"]: row["share"] for row in rows}
    grey_shares = [
        share
        for kind, share in share_by_kind.items()
        if kind not in coloured and kind != NO_OP_NAME
    ]
    segments = {kind: share_by_kind.get(kind, 0.0) for kind in coloured}
    segments[REMAINDER] = sum(grey_shares)
    segments[NO_OP_NAME] = max(0.0, share_by_kind.get(NO_OP_NAME, 0.0))
    start = 0.0
    for kind, share in segments.items():
        if share > 0:
            yield {
                "bar": bar,
                "kind": kind,
                "from": start,
                "to": start + share,
                "share": format_percent(share),
            }
        start += share


def _color_layers(
    mark: str, encoding: style.Spec, rows: Sequence[style.Row], opacity: float = 0.85
) -> list[style.Spec]:
    """Return a grey layer of the remaining kinds, and a layer of the coloured kinds."""
    kinds = list(dict.fromkeys(row["kind"] for row in rows if row["kind"] not in GREY))
    legend = {"title": None, "orient": "bottom", "columns": 4, "symbolOpacity": opacity}
    colour = style.encode_name("kind", scale={"domain": kinds}, legend=legend)
    no_edge: style.Spec = {"stroke": None, "cornerRadius": 0}
    grey_layer = style.layer(mark, encoding, style="band", **no_edge)
    coloured_encoding = {**encoding, "color": colour}
    coloured_layer = style.layer(mark, coloured_encoding, opacity=opacity, **no_edge)
    is_coloured = {"field": "kind", "oneOf": kinds}  # filters of Vega-Lite
    grey_layer["transform"] = [{"filter": {"not": is_coloured}}]
    coloured_layer["transform"] = [{"filter": is_coloured}]
    return [grey_layer, coloured_layer]


def _draw_icicle(table: Table) -> style.Spec:
    """Return the icicle of one network: boxes of the step, its passes, layers and ops."""
    rows = [dict(row) for row in table.chart_rows]
    boxes, level_count = _stack_sides(rows)
    x_scale = {"domain": [0, 1], "nice": False}
    x = style.encode_number("from") | {"scale": x_scale, "axis": AXIS | {"grid": False}}
    y_scale = {"reverse": True, "nice": False}
    y = style.encode_number("level") | {"scale": y_scale, "axis": None}
    box_encoding = {
        "x": x,
        "x2": {"field": "to"},
        "y": y,
        "y2": {"field": "below"},
        "tooltip": style.tooltip(("op", "kind", "time", "share")),
    }
    box_layers = _color_layers("rect", box_encoding, boxes, opacity=0.6)
    empty_and_grey = f"Empty on the right: {NO_OP_NAME}; grey: layers, and smaller ops."
    return style.finish(
        f"Where the time of a step goes: {rows[0]['network']}",
        [f"Step, pass, layers, op. {empty_and_grey}", table.source],
        boxes,
        height=24 * level_count,
        layer=[*box_layers, _name_layer(x, y, level_count)],
    )


def _name_layer(x: style.Spec, y: style.Spec, level_count: int) -> style.Spec:
    """Return the names of ops and layers, in the boxes that are wide enough for a few letters."""
    width = "(datum.to - datum.from) * width"  # of a box in pixels
    names = style.layer(
        "text",
        {"x": x, "y": y, "text": {"field": "op"}},
        align="left",
        baseline="middle",
        dx=NAME_MARGIN,
        dy={"expr": f"height / {level_count} / 2"},  # to the middle of the box
        limit={"expr": f"max(0, {width} - {2 * NAME_MARGIN})"},
        fontSize=11,
    )
    names["transform"] = [{"filter": f"{width} > {MIN_LABEL_WIDTH}"}]
    return names


def _stack_sides(rows: Sequence[style.Row]) -> tuple[list[style.Row], int]:
    """Return the boxes of the measured step above those of the predicted one, and all levels."""
    coloured = frozenset(_rank_by_share(rows, "op_kind")[:MAX_COLOURED_KINDS])
    path_shares = _sum_path_shares(rows)
    boxes: list[style.Row] = []
    top_level = 0
    for side in ("measured", "predicted"):
        side_rows = [row for row in rows if row["side"] == side]
        if side_rows:
            has_times = any(row["time_s"] for row in side_rows)
            icicle = _Icicle(path_shares, coloured, has_times, top_level)
            boxes += icicle.draw(side, side_rows)
            lowest_level = max(box["below"] for box in boxes)
            top_level = lowest_level + 1  # an empty level between the sides
    level_count = top_level - 1  # without the empty level after the last side
    return boxes, level_count


def _sum_path_shares(rows: Sequence[style.Row]) -> dict[Path, float]:
    """Return the share of each pass, layer and op; an op counts for every layer it lies in."""
    path_shares: dict[Path, float] = defaultdict(float)
    for row in rows:
        path = _scope_path(row)
        for depth in range(1, len(path) + 1):
            path_shares[path[:depth]] += row["share"]
    return path_shares


def _scope_path(row: style.Row) -> Path:
    return (row["pass"] or PASSES[0], *re.split(r"[/.]", row["scope"]))


@dataclass(frozen=True)
class _Icicle:
    """The boxes of one side of an icicle chart: the step, its passes, their layers, their ops.

    Attributes:
        path_shares: share of the step of each path, over both sides: wide boxes come first.
        coloured: kinds of ops with a colour.
        has_times: whether rows have seconds.
        top: the level of the step's box.
    """

    path_shares: Mapping[Path, float]
    coloured: frozenset[str]
    has_times: bool
    top: int

    def draw(self, side: str, rows: Sequence[style.Row]) -> Iterator[style.Row]:
        """Yield all boxes."""
        yield _box(f"{side} step", kind="", start=0.0, end=1.0, level=self.top, time_s=None)
        yield from self._draw_below(rows, depth=0, level=1, start=0.0)

    def _draw_below(
        self, rows: Sequence[style.Row], depth: int, level: int, start: float
    ) -> Iterator[style.Row]:
        """Yield the boxes of the parts below the first `depth` parts of paths, from `start` on."""
        rows_by_path = group_by(rows, lambda row: _scope_path(row)[: depth + 1])
        thin_share = 0.0  # of all parts that are too thin for a box of their own
        for path in sorted(rows_by_path, key=lambda path: self._sort_key(path, depth)):
            part_rows = rows_by_path[path]
            share = sum(row["share"] for row in part_rows)
            if share < MIN_SHARE:
                thin_share += share
                continue
            yield from self._draw_part(part_rows, depth, level, start, end=start + share)
            start += share
        if thin_share >= MIN_SHARE:
            end = start + thin_share
            yield _box("smaller ones", REMAINDER, start, end, level=self.top + level, time_s=None)

    def _draw_part(
        self, rows: Sequence[style.Row], depth: int, level: int, start: float, end: float
    ) -> Iterator[style.Row]:
        """Yield the box of one pass, layer or op, from `start` to `end`, and those below it."""
        # A layer that holds one layer alone shares its box: `block/attention`.
        part_depth = _shared_depth(rows, depth)
        name = "/".join(_scope_path(rows[0])[depth:part_depth])
        inner_rows = [row for row in rows if len(_scope_path(row)) > part_depth]
        kind = "" if inner_rows else self._colour_kind(rows[0]["op_kind"])
        time_s = sum(row["time_s"] for row in rows) if self.has_times else None
        yield _box(name, kind, start, end, self.top + level, time_s)
        if inner_rows:
            yield from self._draw_below(inner_rows, part_depth, level + 1, start)

    def _sort_key(self, path: Path, depth: int) -> tuple[int, float]:
        """Return the order of a path: passes in their order, all else by share."""
        return (PASSES.index(path[0]) if depth == 0 else 0, -self.path_shares[path])

    def _colour_kind(self, kind: str) -> str:
        return kind if kind in self.coloured or not kind else REMAINDER


def _shared_depth(rows: Sequence[style.Row], depth: int) -> int:
    """Return the depth up to which all paths agree: a part that holds one part alone joins it."""
    shared_depth = depth + 1
    is_pass = depth == 0
    if is_pass:  # a pass always has a box of its own
        return shared_depth
    paths = [_scope_path(row) for row in rows]
    shortest_length = min(map(len, paths))
    while shared_depth < shortest_length:
        names = {path[shared_depth] for path in paths}
        if len(names) > 1:
            break
        shared_depth += 1
    return shared_depth


def _box(
    name: str, kind: str, start: float, end: float, level: int, time_s: float | None
) -> style.Row:
    """Return a rectangle, with a gap to the next one if it is wide enough."""
    return {
        "op": name,
        "kind": kind,
        "from": start,
        "to": end - min(GAP_SHARE, (end - start) / 4),  # a gap, which leaves thin boxes visible
        "level": level,
        "below": level + 1,
        "share": format_percent(end - start),
        "time": None if time_s is None else format_seconds(time_s),
    }
