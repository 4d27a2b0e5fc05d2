"""Nodes against one another: a dot with its interval a node, sorted, those beyond noise named."""

import math
from itertools import pairwise

from steptime.analysis.nodes import KINDS
from steptime.core.tables.table import Column, Table
from steptime.reports.charts import style

HEIGHT, PANEL = 300, 130  # pixels
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
    rows = [dict(row) for row in table.rows if row["slower_fraction"] is not None]
    rows.sort(key=lambda row: (row["verdict"] != "slow", -row["slower_fraction"]))
    kinds = [kind for kind in KINDS if any(row[f"{kind}_fraction"] is not None for row in rows)]
    node_points = [_make_point(row, rank) for rank, row in enumerate(rows, start=1)]
    points = list(node_points)
    for kind in kinds:
        for point, row in zip(node_points, rows, strict=True):
            if row[f"{kind}_fraction"] is not None:
                points.append(point | _make_kind_fields(row, kind))
    _join_names(points)
    axis = {
        "title": "nodes, slow ones first",
        "tickMinStep": 1,
        "tickCount": 8,
        "grid": False,
    }
    name_room = max(1, math.ceil(len(rows) / 20))  # of the last node
    scale = {"domain": [0, len(rows) + name_room], "nice": False}
    x = style.encode_number("rank") | {"axis": axis, "scale": scale}
    y = style.encode_number(
        "slower", "slower than the others", labelExpr="format(datum.value, '.1~%')"
    )
    verdicts = ["like the others", "slow", "fast"]
    points_by_verdict = sorted(points, key=lambda point: verdicts.index(point["verdict"]))
    colour_and_shape = style.encode_categories("verdict", points_by_verdict)
    interval = {
        "x": x,
        "y": {**y, "field": "low_fraction"},
        "color": colour_and_shape["color"],
        "y2": {"field": "high_fraction"},
    }
    dot = {"x": x, "y": y, **colour_and_shape, "tooltip": style.tooltip(TOOLTIP)}
    name = {"x": x, "y": y, "text": {"field": "named"}}
    layers = [
        style.layer("rule", interval, needed_fields=("low_fraction",)),
        style.layer("point", dot, size=35, filled=True),
        style.layer("text", name, needed_fields=("named",), align="left", dx=7, dy=-3),
    ]
    panel = {"layer": layers, "width": style.WIDTH, "height": HEIGHT}
    dots, view = style.facet_panels(
        points, "panel", panel, columns=1, width=style.WIDTH, height=PANEL
    )
    counts = f"{table.summary['nodes']} nodes, {table.summary['cells']} cells"
    caption = [f"{counts}; bars: 95 % of what noise alone does.", table.source]
    return style.finish("Nodes against one another", caption, dots, **view)


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
        if not have_names or not share_panel:  # nothing to join
            continue
        is_close = abs(point["slower"] - next_point["slower"]) < min_distance
        if is_close:
            names = f"{point['named']}, {next_point['named']}"
            is_long = len(names) >= MAX_NAME_LENGTH
            next_point["named"] = names[:MAX_NAME_LENGTH] + "..." if is_long else names
            point["named"] = None  # the next one has both names
