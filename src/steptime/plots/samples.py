"""The samples of each network in the order in which they were taken, disturbed ones marked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

import altair as alt

from steptime.analysis.results import good
from steptime.analysis.row import runs_of, short_names
from steptime.core.record import Record
from steptime.plots import EmptyPlotError
from steptime.plots.style import (
    COLOURS,
    QUIET,
    Row,
    Spec,
    finish,
    over_rows,
    rounded,
    si_label,
    sources,
    time_text,
    tooltip,
)

PANEL_WIDTH, PANEL_HEIGHT = 230, 68
AXIS_ROOM, TITLE_ROOM = 78, 50
COLUMNS = 3
MOST_PANELS = 24
KINDS = ("quiet", "disturbed")


def chart(records: Sequence[Record]) -> Spec:
    """Give a panel a network: time of a sample [s] over its number; raises `EmptyPlotError`."""
    taken = [r for r in good(records) if r.origin == "measured" and not r.scope]
    names = short_names(record.workload for record in taken)
    panels: dict[str, list[Row]] = {}
    several = len({record.platform for record in taken}) > 1
    for record in taken:
        name = names[record.workload.key] + (f" on {record.platform}" if several else "")
        points = panels.setdefault(name, [])
        points += _points(record, len(points))
    full = {name: points for name, points in panels.items() if points}
    if not full:
        raise EmptyPlotError("samples: no record here holds samples of a step")
    widest = sorted(full, key=lambda name: -_scatter(full[name]))[:MOST_PANELS]
    grid = alt.concat(
        *(_panel(name, full[name]) for name in full if name in widest),
        columns=COLUMNS,
        bounds="flush",
        spacing={"column": AXIS_ROOM, "row": TITLE_ROOM},
    )
    left_out = f" The {len(widest)} of {len(full)} networks that scatter most."
    caption = [
        "Up: mean time of a step in one sample, from 0. Across: number of the sample. Line: median."
        + (left_out if len(widest) < len(full) else ""),
        "Disturbed: other work took the processor during the sample.",
        sources(taken),
    ]
    return finish(grid, "Samples in the order taken", caption)


def _scatter(points: Sequence[Row]) -> float:
    times = [point["seconds"] for point in points]
    return float(max(times) / min(times))


def _points(record: Record, start: int) -> Iterator[Row]:
    quantity = record.quantities["step_s"]
    marked = quantity.columns.get("disturbed") or (False,) * len(quantity.samples)
    columns = zip(quantity.samples, runs_of(quantity), marked, strict=True)
    for index, (sample, run, disturbed) in enumerate(columns, start=start + 1):
        yield {
            "sample": index,
            "seconds": rounded(sample),
            "run": run,
            "kind": KINDS[bool(disturbed)],
            "time": time_text(sample),
        }


def _panel(name: str, points: Sequence[Row]) -> Any:
    top = max(point["seconds"] for point in points) * 1.08
    y = alt.Y(
        "seconds:Q",
        scale=alt.Scale(domain=[0, top], nice=False),
        axis=alt.Axis(title="step (s)", tickCount=3, labelExpr=si_label("s")),
    )
    x = alt.X(
        "sample:Q",
        scale=alt.Scale(domain=[0, len(points) + 1], nice=False),
        axis=alt.Axis(title=None, tickCount=4, format="d", grid=False),
    )
    marks = (
        over_rows(points)
        .mark_point(size=22, opacity=0.9)
        .encode(
            x=x,
            y=y,
            color=alt.Color(
                "kind:N", title=None, scale=alt.Scale(domain=KINDS, range=[COLOURS[0], COLOURS[1]])
            ),
            shape=alt.Shape(
                "kind:N", title=None, scale=alt.Scale(domain=KINDS, range=["circle", "cross"])
            ),
            tooltip=tooltip("sample", "time", "run", "kind"),
        )
    )
    middle = median(point["seconds"] for point in points)
    rule = over_rows([{"seconds": middle}]).mark_rule(color=QUIET, strokeWidth=1).encode(y=y)
    title = alt.TitleParams(
        name,
        anchor="start",
        frame="group",
        fontSize=11.5,
        fontWeight="normal",
        limit=PANEL_WIDTH + AXIS_ROOM - 12,
        offset=4,
    )
    return alt.layer(rule, marks).properties(width=PANEL_WIDTH, height=PANEL_HEIGHT, title=title)
