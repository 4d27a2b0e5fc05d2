"""Examples a second by batch: a panel a family, a line a network."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import altair as alt

from steptime.analysis.results import results
from steptime.analysis.row import short_names
from steptime.core.record import Record
from steptime.plots import EmptyPlotError
from steptime.plots.style import (
    COLOURS,
    INK,
    Row,
    Spec,
    finish,
    log_axis,
    log_domain,
    log_scale,
    over_rows,
    rounded,
    sources,
    spread,
    time_text,
    tooltip,
    unit_text,
)

PANEL_WIDTH, LEAST_HEIGHT = 220, 190
LABEL_ROOM, LABEL_HEIGHT = 240, 14
AXIS_ROOM, TITLE_ROOM = 66, 84
COLUMNS = 2
MOST_LABELS = 26


def chart(records: Sequence[Record]) -> Spec:
    """Give measured examples a second over batch, both logarithmic; raises `EmptyPlotError`."""
    ok = [r for r in records if not r.scope]
    rows = [row for row in results(ok) if row["examples_per_s"]]
    if not rows:
        raise EmptyPlotError("throughput: no record here holds a measured time of a step")
    names = short_names((record.workload for record in ok), batch=False)
    several = len({row["platform"] for row in rows}) > 1
    points = [_point(row, names[row["workload_key"]], several=several) for row in rows]
    families = list(dict.fromkeys(point["family"] for point in points))
    grouped = [[point for point in points if point["family"] == family] for family in families]
    most = max(len({point["series"] for point in group}) for group in grouped)
    height = max(LEAST_HEIGHT, min(most, MOST_LABELS) * LABEL_HEIGHT)
    panels = [
        _panel(family, group, height) for family, group in zip(families, grouped, strict=True)
    ]
    grid = alt.concat(
        *panels,
        columns=COLUMNS,
        bounds="flush",
        spacing={"column": LABEL_ROOM + AXIS_ROOM, "row": TITLE_ROOM},
    ).resolve_scale(color="independent")
    caption = [
        "Speed: batch over mean time of a step. Logarithmic axes, a speed axis a family.",
        sources(records),
    ]
    return finish(grid, "Throughput by batch", caption)


def _point(row: Row, name: str, *, several: bool) -> Row:
    series = name.removeprefix(row["family"]).strip() or row["family"]
    return {
        "family": row["family"],
        "series": f"{series}, {row['platform']}" if several else series,
        "batch": row["batch"],
        "speed": rounded(row["examples_per_s"]),
        "network": row["name"],
        "examples_per_s": unit_text(row["examples_per_s"], "/s"),
        "measured_step": time_text(
            row["measured_s"], row["measured_low_s"], row["measured_high_s"]
        ),
        "platform": row["platform"],
    }


def _panel(family: str, points: Sequence[Row], height: int) -> Any:
    batches = sorted({point["batch"] for point in points})
    domain = log_domain((point["speed"] for point in points), 1.5)
    wide = (batches[0] / 1.25, batches[-1] * 1.25)
    x = alt.X(
        "batch:Q",
        scale=log_scale(wide),
        axis=alt.Axis(title="batch (examples)", values=batches, format="d", grid=False),
    )
    y = alt.Y(
        "speed:Q",
        scale=log_scale(domain),
        axis=log_axis("speed (examples/s)", domain),
    )
    order = list(dict.fromkeys(point["series"] for point in points))
    colour = alt.Color(
        "series:N",
        legend=None,
        scale=alt.Scale(domain=order, range=[COLOURS[i % len(COLOURS)] for i in range(len(order))]),
    )
    base = over_rows(points).encode(x=x, y=y, color=colour)
    lines = base.mark_line(strokeWidth=1.8)
    marks = base.mark_point(filled=True, size=45, opacity=1).encode(
        tooltip=tooltip("network", "batch", "examples_per_s", "measured_step", "platform")
    )
    labels = _labels(points, order, domain, height) if len(order) <= MOST_LABELS else []
    texts = (
        over_rows(labels)
        .mark_text(align="left", fontSize=11.5, limit=LABEL_ROOM - 16)
        .encode(
            x=alt.value(PANEL_WIDTH + 8),
            y=alt.Y("y:Q", scale=alt.Scale(domain=[0, height], reverse=True), axis=None),
            text="series:N",
            color=colour,
        )
    )
    title = alt.TitleParams(
        _heading(family, order), anchor="start", frame="group", fontSize=13, color=INK, offset=8
    )
    return (
        alt.layer(alt.layer(lines, marks), texts)
        .resolve_scale(y="independent")
        .properties(width=PANEL_WIDTH, height=height, title=title)
    )


def _heading(family: str, order: Sequence[str]) -> str:
    return family if len(order) <= MOST_LABELS else f"{family}, {len(order)} networks"


def _labels(
    points: Sequence[Row], order: Sequence[str], domain: tuple[float, float], height: int
) -> list[Row]:
    """Give each line's name at the height [pixel] of its last point, apart from the others."""
    ends = {point["series"]: point for point in sorted(points, key=lambda p: p["batch"])}
    low, high = map(math.log, domain)
    wanted = [height * (high - math.log(ends[name]["speed"])) / (high - low) for name in order]
    placed = spread(wanted, LABEL_HEIGHT, 0, height)
    return [{"series": name, "y": y} for name, y in zip(order, placed, strict=True)]
