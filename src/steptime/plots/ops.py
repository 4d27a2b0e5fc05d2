"""Every op of one network under the roofline; a page lets the reader choose the network."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from steptime.analysis.results import over
from steptime.analysis.row import headline, short_names
from steptime.core.record import Record
from steptime.plots import Data, EmptyPlotError
from steptime.plots.roofline import at, axes, roof_layers, roof_rows
from steptime.plots.style import (
    Row,
    Spec,
    finish,
    having,
    rounded,
    sources,
    time_text,
    tooltip,
    unit_text,
)

WIDE = {"expr": "width"}
MOST_NETWORKS = 60  # so that a page of a large sweep stays small
TOOLTIP = ("op", "ops_alike", "predicted_time", "of_the_step", "FLOP", "traffic")


def chart(data: Data) -> Spec:
    """Return the ops of the networks, one network shown at a time; raises `EmptyPlotError`.

    A picture without a browser shows the first network. Ops that cost the same are one point.
    """
    ops = [r for r in data.records if r.scope and r.origin == "predicted" and r.status == "ok"]
    names = short_names(record.workload for record in ops)
    several = len({record.platform for record in ops}) > 1
    networks: dict[str, list[Row]] = {}
    for record in ops:
        name = names[record.workload.key] + (f" on {record.platform}" if several else "")
        networks.setdefault(name, []).append(_op(record))
    full = [name for name, rows in networks.items() if any(row["speed"] for row in rows)]
    if not full:
        raise EmptyPlotError("ops: no predicted record here is of a single op with FLOP and bytes")
    shown = {name: networks[name] for name in full[:MOST_NETWORKS]}
    drawn = [point for name, rows in shown.items() for point in _points(name, rows)]
    roofs = {name: rows[0] for name, rows in shown.items()}
    corners = roof_rows(roofs, [p["x"] for p in drawn], [p["speed"] for p in drawn])
    heads = [{"panel": name, "heading": _heading(name, rows)} for name, rows in shown.items()]
    place = axes([*corners, *drawn])
    size = {
        "field": "share",
        "type": "quantitative",
        "scale": {"type": "sqrt", "domain": [0, 1], "range": [16, 1000]},
        "legend": {"title": "share of the step", "format": "~%", "values": [0.01, 0.1, 0.3]},
    }
    points = {
        "transform": having("share"),
        "mark": {"type": "point", "filled": True, "opacity": 0.65},
        "encoding": {**at(place, "speed"), "size": size, "tooltip": tooltip(*TOOLTIP)},
    }
    top = {"x": {"value": 0}, "y": {"value": 0}, "text": {"field": "heading"}}
    heading = {
        "transform": having("heading"),
        "mark": {"type": "text", "align": "left", "baseline": "bottom", "dy": -22, "limit": WIDE},
        "encoding": top,
    }
    caption = ["Area: share of the predicted step. Ops that cost the same are one point."]
    if len(shown) < len(full):
        caption.append(f"The first {len(shown)} of {len(full)} networks.")
    chosen = {
        "name": "network",
        "value": full[0],
        "bind": {"input": "select", "options": list(shown), "name": "Network "},
    }
    return finish(
        "Ops of a network under the roofline",
        [*caption, sources(ops)],
        [*corners, *drawn, *heads],
        params=[chosen],
        transform=[{"filter": "datum.panel == network"}],
        layer=[*roof_layers(place, 20), points, heading],
    )


def _op(record: Record) -> Row:
    costs = {
        name: headline(record.quantities[name]) if name in record.quantities else None
        for name in ("step_s", "flop", "traffic_bytes")
    }
    intensity = over(costs["flop"], costs["traffic_bytes"])
    return {
        **costs,
        "op": record.scope,
        "intensity": intensity,
        "speed": over(costs["flop"], costs["step_s"]) if intensity else None,
        "peak_flop_per_s": record.method.options.get("peak_flop_per_s"),
        "memory_bytes_per_s": record.method.options.get("memory_bytes_per_s"),
    }


def _points(panel: str, rows: Sequence[Row]) -> Iterator[Row]:
    total = _total(rows)
    alike: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        if row["speed"]:
            alike.setdefault((row["flop"], row["traffic_bytes"], row["step_s"]), []).append(row)
    for (flop, traffic, step), group in alike.items():
        ops = [row["op"] for row in group]
        yield {
            "panel": panel,
            "x": rounded(group[0]["intensity"]),
            "speed": rounded(group[0]["speed"]),
            "share": rounded(len(group) * step / total),
            "op": ", ".join(ops[:3]) + (f" and {len(ops) - 3} more" if len(ops) > 3 else ""),
            "ops_alike": len(group),
            "predicted_time": f"{time_text(step)} each" if len(group) > 1 else time_text(step),
            "of_the_step": f"{len(group) * step / total:.1%}",
            "FLOP": unit_text(flop, "FLOP"),
            "traffic": unit_text(traffic, "B"),
        }


def _total(rows: Sequence[Row]) -> float:
    return float(sum(row["step_s"] or 0.0 for row in rows))


def _heading(name: str, rows: Sequence[Row]) -> str:
    """Return a network's line: with what its ops without FLOP take, which are not drawn."""
    idle = [row for row in rows if not row["flop"]]
    share = _total(idle) / _total(rows)
    without = f"; {len(idle)} ops without FLOP, not drawn, take {share:.1%} of the step"
    return name + (without if idle else "")
