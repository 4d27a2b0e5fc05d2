"""Nodes against one another: a dot with its interval a node, sorted, those beyond noise named."""

import math
from collections.abc import Sequence
from itertools import pairwise

from steptime.analysis.nodes import KINDS
from steptime.core.tables.table import Column, Table
from steptime.reports.charts import style

HEIGHT, PANEL = 300, 130  # pixels
NAME_ROOM_SHARE = 1 / 20  # of the nodes on the axis: room for the name of the last one
VERDICTS = ("like the others", "slow", "fast")  # in the order of the legend
MAX_NAME_LENGTH = 60  # characters of names side by side
MAX_NAME_ROWS = 15  # of names upon each other that the height has room for
TOOLTIP = (
    Column("host", "node"),
    Column("gpu"),
    Column("cells"),
    Column("slower_fraction", "slower"),
    Column("verdict"),
    Column("slow_in", "slow in"),
)


def chart(table: Table) -> style.Spec:
    """Draw how much slower each node is than the others: in all cells, and by what binds them."""
    nodes = [dict(row) for row in table.rows if row["slower_fraction"] is not None]
    nodes.sort(key=lambda node: (node["verdict"] != "slow", -node["slower_fraction"]))
    points = _make_points(nodes)
    _join_names(points)
    panel = {
        "layer": _draw_layers(points, len(nodes)),
        "width": style.WIDTH,
        "height": HEIGHT,
    }
    dots, view = style.facet_panels(
        points, "panel", panel, columns=1, width=style.WIDTH, height=PANEL
    )
    counts = f"{table.summary['nodes']} nodes, {table.summary['cells']} cells"
    caption = [f"{counts}; bars: 95 % of what noise alone does.", table.source]
    return style.finish("Nodes against one another", caption, dots, **view)


def _make_points(nodes: Sequence[style.Row]) -> list[style.Row]:
    """Return a point a node in the panel of all cells, then its points by what binds cells."""
    node_points = [_make_point(node, rank) for rank, node in enumerate(nodes, start=1)]
    kind_points = [
        point | _make_kind_fields(node, kind)
        for kind in KINDS
        for point, node in zip(node_points, nodes, strict=True)
        if node[f"{kind}_fraction"] is not None
    ]
    return node_points + kind_points


def _draw_layers(points: Sequence[style.Row], node_count: int) -> list[style.Spec]:
    """Return the layers of a panel: intervals, dots and names of nodes."""
    position = {"x": _encode_rank(node_count), "y": _encode_slower()}
    points_by_verdict = sorted(points, key=lambda point: VERDICTS.index(point["verdict"]))
    colour_and_shape = style.encode_categories("verdict", points_by_verdict)
    interval = {
        "x": position["x"],
        "y": {**position["y"], "field": "low_fraction"},
        "color": colour_and_shape["color"],
        "y2": {"field": "high_fraction"},
    }
    dot = {**position, **colour_and_shape, "tooltip": style.tooltip(TOOLTIP)}
    name = {**position, "text": {"field": "named"}}
    return [
        style.layer("rule", interval, needed_fields=("low_fraction",)),
        style.layer("point", dot, size=35, filled=True),
        style.layer("text", name, needed_fields=("named",), align="left", dx=7, dy=-3),
    ]


def _encode_rank(node_count: int) -> style.Spec:
    """Return the axis of the nodes' ranks, with room for the name of the last one."""
    name_room = max(1, math.ceil(node_count * NAME_ROOM_SHARE))
    axis = {"title": "nodes, slow ones first", "tickMinStep": 1, "tickCount": 8, "grid": False}
    scale = {"domain": [0, node_count + name_room], "nice": False}
    return style.encode_number("rank") | {"axis": axis, "scale": scale}


def _encode_slower() -> style.Spec:
    """Return the axis of the fraction by which a node is slower, in percent."""
    percent = "format(datum.value, '.1~%')"
    return style.encode_number("slower", "slower than the others", labelExpr=percent)


def _make_point(row: style.Row, rank: int) -> style.Row:
    """Return the point of a node in the panel of all cells, named if it stands out in all."""
    stands_out = row["slow_in"] == "all" or row["verdict"] == "fast"
    point = style.point(row, ("verdict", "low_fraction", "high_fraction"), TOOLTIP)
    return point | {
        "rank": rank,
        "panel": "all cells",
        "slower": row["slower_fraction"],
        "named": row["host"] if stands_out else None,
    }


def _make_kind_fields(row: style.Row, kind: str) -> style.Row:
    """Return the fields of the point of a node in the panel of cells that `kind` binds."""
    kinds_text = row["slow_in"] or ""  # such as "compute, memory"
    return {
        "panel": f"bound by {kind}",
        "slower": row[f"{kind}_fraction"],
        "low_fraction": None,
        "high_fraction": None,
        "named": row["host"] if kind in kinds_text else None,
    }


def _join_names(points: list[style.Row]) -> None:
    """Let the last of several named nodes that lie side by side carry all their names."""
    fractions = [point["slower"] for point in points]
    min_distance = (max(fractions) - min(fractions)) / MAX_NAME_ROWS
    for point, next_point in pairwise(points):
        have_names = point["named"] and next_point["named"]
        share_panel = point["panel"] == next_point["panel"]
        is_close = abs(point["slower"] - next_point["slower"]) < min_distance
        if have_names and share_panel and is_close:
            next_point["named"] = _join_two_names(point["named"], next_point["named"])
            point["named"] = None  # the next one has both names


def _join_two_names(name: str, next_name: str) -> str:
    """Return `node1, node2`, cut after `MAX_NAME_LENGTH` characters."""
    names = f"{name}, {next_name}"
    return names[:MAX_NAME_LENGTH] + "..." if len(names) >= MAX_NAME_LENGTH else names
