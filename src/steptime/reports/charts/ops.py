"""Every op of one network under the roofline; a page lets the reader choose the network."""

from collections.abc import Iterator, Sequence
from operator import itemgetter

import polars as pl

from steptime.core.units import first_of, format_value, percent, seconds
from steptime.records.data import Data
from steptime.records.row import grouped, over
from steptime.records.short_names import name_networks
from steptime.reports.charts import EmptyPlotError, style
from steptime.reports.charts.roofline import axes, box, roof_layers, roofs

MOST_NETWORKS = 60  # so that a page of a large sweep stays small
TOOLTIP = ("op", "ops_alike", "predicted_time", "of_the_step", "FLOP", "traffic")


def chart(data: Data) -> style.Spec:
    """Return the ops of the networks, one network shown at a time; raises `EmptyPlotError`.

    A picture without a browser shows the first network. Ops that cost the same are one point.
    """
    ops, network_count = predicted_ops(data)
    if not ops:
        raise EmptyPlotError("ops: no predicted record here is of a single op with FLOP and bytes")
    names = name_networks(ops)
    several = len({row["platform"] for row in ops}) > 1
    made = [
        _op(row) | {"panel": name + (f" on {row['platform']}" if several else "")}
        for row, name in zip(ops, names, strict=True)
    ]
    shown_first = grouped(made, itemgetter("panel"))
    drawn = [point for name, rows in shown_first.items() for point in _points(name, rows)]
    tops = [one for name, rows in shown_first.items() for one in _ceilings(name, rows[0])]
    ends = box(tops, [p["intensity"] for p in drawn], [p["speed"] for p in drawn])
    size = {"height": style.HEIGHT}
    lines = [one for name in shown_first for one in roofs(tops, ends, size, name)]
    corners = [line | {"panel": line["platform"]} for line in lines]
    heads = [{"panel": name, "heading": _heading(name, rows)} for name, rows in shown_first.items()]
    place = axes(ends)
    area: style.Spec = {"scale": {"type": "sqrt", "domain": [0, 1], "range": [16, 1000]}}
    area["legend"] = {"title": "share of the step", "format": "~%", "values": [0.01, 0.1, 0.3]}
    size_ = {"field": "share", "type": "quantitative", **area}
    points = {**place, "size": size_, "tooltip": style.tooltip(TOOLTIP)}
    top = {"x": {"value": 0}, "y": {"value": 0}, "text": {"field": "heading"}}
    over_all = {"align": "left", "baseline": "bottom", "dy": -8, "limit": {"expr": "width"}}
    line, *texts = roof_layers(place, {})
    dots = style.layer("point", points, "share", filled=True, opacity=0.65)
    layers = [line, dots, *texts, style.layer("text", top, "heading", **over_all)]
    caption = ["Area: share of the predicted step. Ops that cost the same are one point."]
    if len(shown_first) < network_count:
        caption.append(f"The first {len(shown_first)} of {network_count} networks.")
    select = {"input": "select", "options": list(shown_first), "name": "Network "}
    return style.finish(
        "Ops of a network under the roofline",
        [*caption, data.source_of("predicted")],
        [*corners, *drawn, *heads],
        params=[{"name": "network", "value": heads[0]["panel"], "bind": select}],
        transform=[{"filter": "datum.panel == network"}],
        layer=layers,
    )


def predicted_ops(data: Data) -> tuple[list[style.Row], int]:
    """Return the predicted ops of the first networks in their order, and the number of networks."""
    is_op = pl.col("scope") != ""
    is_predicted = pl.col("origin") == "predicted"
    has_succeeded = pl.col("status") == "ok"
    is_placed = pl.all_horizontal(
        pl.col("flop") > 0,
        pl.col("traffic_bytes") > 0,
        pl.col("step_s") > 0,
    )
    network = ["workload_key", "platform"]
    records = data.scan()
    ops = records.filter(is_op, is_predicted, has_succeeded)
    ops = ops.drop("samples", "run", "sampled", "others", "estimate")
    placed = ops.filter(is_placed)
    first_ops = placed.group_by(network).agg(first=pl.col("seq").min())
    networks_in_order = first_ops.sort("first").collect()
    first_networks = networks_in_order.head(MOST_NETWORKS).lazy()
    rows = ops.join(first_networks, on=network, how="semi", maintain_order="left")
    return rows.sort("seq").collect().to_dicts(), len(networks_in_order)


def _ceilings(name: str, row: style.Row) -> list[style.Row]:
    """Return the ceilings that the predictions of a network are of."""
    known = {"platform": name, "flop_per_s": None, "bytes_per_s": None, "level": None}
    top = {"flop_per_s": row["peak_flop_per_s"], "unit": "matrix", "dtype": row["dtype"]}
    return [known | top, known | {"bytes_per_s": row["memory_bytes_per_s"], "level": "DRAM"}]


def _op(row: style.Row) -> style.Row:
    intensity = over(row["flop"], row["traffic_bytes"])
    speed = over(row["flop"], row["step_s"]) if intensity else None
    return row | {"op": row["scope"], "intensity": intensity, "speed": speed}


def _points(panel: str, rows: Sequence[style.Row]) -> Iterator[style.Row]:
    total = _total(rows)
    drawn = (row for row in rows if row["speed"])
    alike = grouped(drawn, itemgetter("flop", "traffic_bytes", "step_s"))
    for (flop, traffic, step), group in alike.items():
        share = len(group) * step / total
        yield {
            "panel": panel,
            **{name: group[0][name] for name in ("intensity", "speed")},
            "share": share,
            "op": first_of((row["op"] for row in group), 3),
            "ops_alike": len(group),
            "predicted_time": seconds(step) + (" each" if len(group) > 1 else ""),
            "of_the_step": percent(share),
            "FLOP": format_value("flop", flop),
            "traffic": format_value("bytes", traffic),
        }


def _total(rows: Sequence[style.Row]) -> float:
    return float(sum(row["step_s"] or 0.0 for row in rows))


def _heading(name: str, rows: Sequence[style.Row]) -> str:
    """Return a network's line: with what its ops without FLOP take, which are not drawn."""
    idle = [row for row in rows if not row["flop"]]
    share = over(_total(idle), _total(rows)) or 0.0
    without = f"; {len(idle)} ops without FLOP, not drawn, take {percent(share)} of the step"
    return name + (without if idle else "")
