"""Every op of one network under the roofline; a page lets the reader choose the network."""

from collections.abc import Iterator, Sequence
from itertools import chain
from operator import itemgetter

import polars as pl

from steptime.core.units import first_of, format_percent, format_seconds, format_value
from steptime.records.data import Data
from steptime.records.row import divide, group_by
from steptime.records.short_names import name_networks
from steptime.reports.charts import EmptyPlotError, style
from steptime.reports.charts.roofline_ceilings import (
    AxisEnds,
    axes,
    find_axis_ends,
    roof_layers,
    roofs,
)

MAX_NETWORKS = 60  # so that a page of a large sweep stays small
NETWORK = ("workload_key", "platform")  # columns that tell networks apart
TOOLTIP = ("op", "ops_alike", "predicted_time", "of_the_step", "FLOP", "traffic")


def chart(data: Data) -> style.Spec:
    """Draw the ops of the networks, one network at a time.

    A picture without a browser shows the first network. Ops that cost the same are one point.

    Raises:
        EmptyPlotError: where no record is of a single op.
    """
    ops, network_count = predicted_ops(data)
    if not ops:
        raise EmptyPlotError("ops: no predicted record here is of a single op with FLOP and bytes")
    ops_by_network = group_by(_name_panels(ops), itemgetter("panel"))
    names = list(ops_by_network)
    points = [point for name in names for point in _make_op_points(name, ops_by_network[name])]
    ceilings = [row for name in names for row in _make_ceilings(name, ops_by_network[name][0])]
    headings = [
        {"panel": name, "heading": _describe_network(name, ops_by_network[name])} for name in names
    ]
    axis_ends = find_axis_ends(
        ceilings, [point["intensity"] for point in points], [point["speed"] for point in points]
    )
    roof_rows = [row for name in names for row in _make_roofs(name, ceilings, axis_ends)]
    return style.finish(
        "Ops of a network under the roofline",
        [*_describe_points(len(names), network_count), data.source_of("predicted")],
        [*roof_rows, *points, *headings],
        layer=_layers(axes(axis_ends)),
        **_add_menu(names),
    )


def _describe_points(network_count: int, total_count: int) -> list[str]:
    """Return the caption: what points are, and how many networks of all are on the chart."""
    caption = ["Area: share of the predicted step. Ops that cost the same are one point."]
    if network_count < total_count:
        caption.append(f"The first {network_count} of {total_count} networks.")
    return caption


def _name_panels(ops: Sequence[style.Row]) -> list[style.Row]:
    """Return ops with their places on the roofline, and the name of their network as `panel`."""
    names = name_networks(ops)
    has_platforms = len({op["platform"] for op in ops}) > 1
    return [
        _place_op(op) | {"panel": f"{name} on {op['platform']}" if has_platforms else name}
        for op, name in zip(ops, names, strict=True)
    ]


def _make_roofs(
    name: str, ceilings: Sequence[style.Row], axis_ends: AxisEnds
) -> Iterator[style.Row]:
    """Yield the lines of the ceilings of a network."""
    for roof in roofs(ceilings, axis_ends, {"height": style.HEIGHT}, name):
        yield roof | {"panel": roof["platform"]}


def _add_menu(names: Sequence[str]) -> style.Spec:
    """Return settings of a view that show one network, by a menu that begins with the first."""
    menu = {"input": "select", "options": names, "name": "Network "}
    return {
        "params": [{"name": "network", "value": names[0], "bind": menu}],
        "transform": [{"filter": "datum.panel == network"}],
    }


def _layers(position: style.Spec) -> list[style.Spec]:
    """Return the layers of the roofline, the ops as areas, and the heading of the network."""
    op = {**position, "size": _encode_share(), "tooltip": style.tooltip(TOOLTIP)}
    op_layer = style.layer("point", op, needed_fields=("share",), filled=True, opacity=0.65)
    heading = {"x": {"value": 0}, "y": {"value": 0}, "text": {"field": "heading"}}
    heading_look = {"align": "left", "baseline": "bottom", "dy": -8, "limit": {"expr": "width"}}
    heading_layer = style.layer("text", heading, needed_fields=("heading",), **heading_look)
    roof = roof_layers(position, {})
    names = chain.from_iterable(zip(roof.halos, roof.texts, strict=True))  # a halo behind its text
    return [roof.line, op_layer, *names, heading_layer]


def _encode_share() -> style.Spec:
    """Return the area of an op by its share of the step, from 16 to 1000 square pixels."""
    return {
        "field": "share",
        "type": "quantitative",
        "scale": {"type": "sqrt", "domain": [0, 1], "range": [16, 1000]},
        "legend": {"title": "share of the step", "format": "~%", "values": [0.01, 0.1, 0.3]},
    }


def predicted_ops(data: Data) -> tuple[list[style.Row], int]:
    """Return the predicted ops of the first networks in their order, and the number of networks."""
    is_op = pl.col("scope") != ""
    is_predicted = pl.col("origin") == "predicted"
    has_succeeded = pl.col("status") == "ok"
    ops = data.scan().filter(is_op, is_predicted, has_succeeded)
    ops = ops.drop("samples", "run", "sampled", "others", "estimate")  # nested, and not drawn
    networks_in_order = _list_networks(ops)
    first_networks = networks_in_order.head(MAX_NETWORKS).lazy()
    # All ops of these networks, those without FLOP too: they are a share of the step.
    rows = ops.join(first_networks, on=NETWORK, how="semi", maintain_order="left")
    return rows.sort("seq").collect().to_dicts(), len(networks_in_order)


def _list_networks(ops: pl.LazyFrame) -> pl.DataFrame:
    """Return the networks with an op that has a place on the roofline, by their first such op."""
    has_place = pl.all_horizontal(
        pl.col("flop") > 0, pl.col("traffic_bytes") > 0, pl.col("step_s") > 0
    )
    first_ops = ops.filter(has_place).group_by(NETWORK).agg(first=pl.col("seq").min())
    return first_ops.sort("first").collect()


def _make_ceilings(name: str, row: style.Row) -> list[style.Row]:
    """Return the ceilings that the predictions of a network are of."""
    # Each network has ceilings of its own, so its name stands in place of the platform's.
    ceiling = {"platform": name, "flop_per_s": None, "bytes_per_s": None, "level": None}
    peak = {"flop_per_s": row["peak_flop_per_s"], "unit": "matrix", "dtype": row["dtype"]}
    bandwidth = {"bytes_per_s": row["memory_bytes_per_s"], "level": "DRAM"}
    return [ceiling | peak, ceiling | bandwidth]


def _place_op(row: style.Row) -> style.Row:
    """Return an op with its place on the roofline: FLOP a byte, and FLOP a second."""
    intensity = divide(row["flop"], row["traffic_bytes"])
    speed = divide(row["flop"], row["step_s"]) if intensity else None
    return row | {"op": row["scope"], "intensity": intensity, "speed": speed}


def _make_op_points(panel: str, rows: Sequence[style.Row]) -> Iterator[style.Row]:
    """Yield a point for each cost: the ops of a network that do and move as much, in one."""
    network_s = _total_s(rows)
    placed_ops = (row for row in rows if row["speed"])
    ops_by_cost = group_by(placed_ops, itemgetter("flop", "traffic_bytes", "step_s"))
    for (flop, traffic, step_s), ops in ops_by_cost.items():
        share = len(ops) * step_s / network_s
        suffix = " each" if len(ops) > 1 else ""
        yield {
            "panel": panel,
            "intensity": ops[0]["intensity"],
            "speed": ops[0]["speed"],
            "share": share,
            "op": first_of((row["op"] for row in ops), 3),
            "ops_alike": len(ops),
            "predicted_time": f"{format_seconds(step_s)}{suffix}",
            "of_the_step": format_percent(share),
            "FLOP": format_value("flop", flop),
            "traffic": format_value("bytes", traffic),
        }


def _total_s(rows: Sequence[style.Row]) -> float:
    return float(sum(row["step_s"] or 0.0 for row in rows))


def _describe_network(name: str, rows: Sequence[style.Row]) -> str:
    """Return the heading of a network: its name, and the share of ops that have no FLOP."""
    ops_without_flop = [row for row in rows if not row["flop"]]
    if not ops_without_flop:
        return name
    share = divide(_total_s(ops_without_flop), _total_s(rows)) or 0.0
    count_text = f"{len(ops_without_flop)} ops without FLOP, not drawn"
    return f"{name}; {count_text}, take {format_percent(share)} of the step"
