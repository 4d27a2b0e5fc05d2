"""Peak memory of each network: measured, predicted, and the gap between."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt

from steptime.analysis.results import results
from steptime.core.record import Record
from steptime.plots import EmptyPlotError
from steptime.plots.style import (
    COLOURS,
    QUIET,
    Row,
    Spec,
    finish,
    log_axis,
    log_domain,
    log_scale,
    over_rows,
    rounded,
    sources,
    tooltip,
    unit_text,
)

ROW_HEIGHT = 19
MOST_ROWS = 120


def chart(records: Sequence[Record]) -> Spec:
    """Give a row a network with its peaks [byte], logarithmic; raises `EmptyPlotError`."""
    rows = [
        r for r in results(records) if r["measured_memory_bytes"] or r["predicted_memory_bytes"]
    ]
    if not rows:
        raise EmptyPlotError("memory: no record here holds a peak of memory")
    found = len(rows)
    rows = sorted(rows, key=_largest, reverse=True)[:MOST_ROWS] if found > MOST_ROWS else rows
    several = len({row["platform"] for row in rows}) > 1
    points = [point for row in rows for point in _points(row, several=several)]
    domain = log_domain(point["bytes"] for point in points)
    x = alt.X(
        "bytes:Q",
        scale=log_scale(domain),
        axis=log_axis("peak memory of a step (byte)", domain, "B", orient="top"),
    )
    order = list(dict.fromkeys(point["network"] for point in points))
    y = alt.Y("network:N", sort=order, axis=alt.Axis(title=None, labelLimit=420, grid=True))
    kinds = [kind for kind in ("measured", "predicted") if any(p["kind"] == kind for p in points)]
    base = over_rows(points).encode(x=x, y=y)
    joins = base.mark_line(color=QUIET, opacity=0.6).encode(detail="network:N")
    marks = base.mark_point(size=70, opacity=1).encode(
        shape=alt.Shape(
            "kind:N", title=None, scale=alt.Scale(domain=kinds, range=["circle"] * len(kinds))
        ),
        stroke=alt.Stroke(
            "kind:N", title=None, scale=alt.Scale(domain=kinds, range=[COLOURS[0]] * len(kinds))
        ),
        fill=alt.Fill(
            "kind:N",
            title=None,
            scale=alt.Scale(
                domain=kinds,
                range=[COLOURS[0] if kind == "measured" else "white" for kind in kinds],
            ),
        ),
        tooltip=tooltip("network", "measured", "predicted", "measured_/_predicted"),
    )
    layers = alt.layer(joins, marks).properties(width=430, height=alt.Step(ROW_HEIGHT))
    left_out = [f"The {len(rows)} of {found} that need most."] if len(rows) < found else []
    return finish(layers, "Peak memory by network", [*left_out, sources(records)])


def _largest(row: Row) -> float:
    return float(max(row["measured_memory_bytes"] or 0, row["predicted_memory_bytes"] or 0))


def _points(row: Row, *, several: bool) -> list[Row]:
    measured, predicted = row["measured_memory_bytes"], row["predicted_memory_bytes"]
    ratio = f"{measured / predicted:.3g}" if measured and predicted else "unknown"
    common = {
        "network": f"{row['name']} on {row['platform']}" if several else row["name"],
        "measured": unit_text(measured, "B"),
        "predicted": unit_text(predicted, "B"),
        "measured_/_predicted": ratio,
    }
    values = {"measured": measured, "predicted": predicted}
    return [
        {**common, "kind": kind, "bytes": rounded(value)} for kind, value in values.items() if value
    ]
