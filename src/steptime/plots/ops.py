"""Every op of one network under the roofline; a page lets the reader choose the network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt

from steptime.analysis.results import over
from steptime.analysis.row import headline, short_names
from steptime.core.record import Record
from steptime.plots import EmptyPlotError
from steptime.plots.roofline import Canvas, roof_of
from steptime.plots.style import (
    COLOURS,
    Row,
    Spec,
    finish,
    over_rows,
    rounded,
    sources,
    time_text,
    tooltip,
    unit_text,
)

MOST_NETWORKS = 60  # so that a page of a large sweep stays small


def chart(records: Sequence[Record]) -> Spec:
    """Give the ops of the networks, one network shown at a time; raises `EmptyPlotError`.

    A picture without a browser shows the first network. Ops that cost the same are one point.
    """
    ops = [r for r in records if r.scope and r.origin == "predicted" and r.status == "ok"]
    names = short_names(record.workload for record in ops)
    platforms = list(dict.fromkeys(record.platform for record in ops))
    rows = [_op(record, names, platforms) for record in ops]
    drawn = _points([row for row in rows if row["intensity"] and row["speed"]], rows)
    if not drawn:
        raise EmptyPlotError("ops: no predicted record here is of a single op with FLOP and bytes")
    every = list(dict.fromkeys(point["network"] for point in drawn))
    networks = every[:MOST_NETWORKS]
    drawn = [point for point in drawn if point["network"] in networks]
    chosen = alt.param(
        name="network",
        value=networks[0],
        bind=alt.binding_select(options=networks, name="Network "),
    )
    canvas = Canvas(
        [point["intensity"] for point in drawn],
        [point["speed"] for point in drawn],
        list(dict.fromkeys(roof_of(row) for row in rows)),
        rise=22,
    )
    points = (
        over_rows(drawn)
        .mark_point(filled=True, opacity=0.65, color=COLOURS[0])
        .encode(
            x=canvas.x("intensity"),
            y=canvas.y("speed"),
            size=alt.Size(
                "share:Q",
                title="share of the step",
                scale=alt.Scale(type="sqrt", domain=[0, 1], range=[16, 1000]),
                legend=alt.Legend(format="~%", values=[0.01, 0.1, 0.3]),
            ),
            tooltip=tooltip("op", "ops_alike", "predicted_time", "of_the_step", "FLOP", "traffic"),
        )
        .transform_filter("datum.network == network")
    )
    heading = (
        over_rows(_headings(networks, rows))
        .mark_text(align="left", baseline="bottom", fontSize=12.5, dy=-6)
        .encode(x=alt.value(0), y=alt.value(0), text="text:N")
        .transform_filter("datum.network == network")
    )
    caption = ["Area: share of the predicted step. Ops that cost the same are one point."]
    if len(networks) < len(every):
        caption.append(f"The first {len(networks)} of {len(every)} networks.")
    return finish(
        canvas.layer(points, heading).add_params(chosen),
        "Ops of a network under the roofline",
        [*caption, sources(ops)],
    )


def _op(record: Record, names: dict[str, str], platforms: Sequence[str]) -> Row:
    costs = {
        name: headline(record.quantities[name]) if name in record.quantities else None
        for name in ("step_s", "flop", "traffic_bytes")
    }
    name = names[record.workload.key]
    return {
        **costs,
        "network": f"{name} on {record.platform}" if len(platforms) > 1 else name,
        "op": record.scope,
        "intensity": over(costs["flop"], costs["traffic_bytes"]),
        "speed": over(costs["flop"], costs["step_s"]),
        "platform": record.platform,
        "dtype": record.workload.dtype,
        "peak_flop_per_s": record.method.options.get("peak_flop_per_s"),
        "memory_bytes_per_s": record.method.options.get("memory_bytes_per_s"),
    }


def _points(drawn: Sequence[Row], rows: Sequence[Row]) -> list[Row]:
    total = _total(rows)
    alike: dict[tuple[Any, ...], list[Row]] = {}
    for row in drawn:
        cost = (row["network"], row["flop"], row["traffic_bytes"], row["step_s"])
        alike.setdefault(cost, []).append(row)
    return [
        {
            "network": network,
            "intensity": rounded(group[0]["intensity"]),
            "speed": rounded(group[0]["speed"]),
            "share": rounded(len(group) * step / total[network]),
            "op": _named([row["op"] for row in group]),
            "ops_alike": len(group),
            "predicted_time": f"{time_text(step)} each" if len(group) > 1 else time_text(step),
            "of_the_step": f"{len(group) * step / total[network]:.1%}",
            "FLOP": unit_text(flop, "FLOP"),
            "traffic": unit_text(traffic, "B"),
        }
        for (network, flop, traffic, step), group in alike.items()
    ]


def _named(ops: Sequence[str]) -> str:
    return ", ".join(ops[:3]) + (f" and {len(ops) - 3} more" if len(ops) > 3 else "")


def _total(rows: Sequence[Row]) -> dict[str, float]:
    total: dict[str, float] = {}
    for row in rows:
        total[row["network"]] = total.get(row["network"], 0.0) + (row["step_s"] or 0.0)
    return total


def _headings(networks: Sequence[str], rows: Sequence[Row]) -> list[Row]:
    """Give each network's line: with what its ops without FLOP take, which are not drawn."""
    total = _total(rows)
    headings = []
    for network in networks:
        idle = [row for row in rows if row["network"] == network and not row["flop"]]
        share = sum(row["step_s"] or 0.0 for row in idle) / total[network]
        without = f"; {len(idle)} ops without FLOP, not drawn, take {share:.1%} of the step"
        headings.append({"network": network, "text": network + (without if idle else "")})
    return headings
