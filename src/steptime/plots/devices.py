"""Examples a second by number of devices: a row of bars for each type of device."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

import altair as alt

from steptime.analysis.devices_table import device_bars
from steptime.analysis.tables import short_names
from steptime.core.record import Record
from steptime.plots import EmptyPlotError
from steptime.plots.style import (
    COLOURS,
    INK,
    QUIET,
    Row,
    Spec,
    finish,
    over_rows,
    rounded,
    si_label,
    sources,
    tooltip,
    unit_text,
)

BAR, GAP, HEIGHT = 26, 14, 150
LEAST_WIDTH, LABEL_CHARACTER = 60, 6.4
ROW_ROOM = 900  # pixels that the groups of a row may take
MOST_ROWS = 12
ANYWHERE = "synthetic or not said"
STAGED = ("$LOCAL", "$SCRATCH", ANYWHERE)
SPEED = (
    "Speed: examples of all devices that worked over the time of a step. A bar is the median of "
    "the runs, a point is one run. Each row has its own axis."
)
ERRORS = {
    "95 %": "the 95 % interval of a measurement",
    "1 sigma": "one sigma of a published mean, as published",
}


def chart(records: Sequence[Record]) -> Spec:
    """Give bars of speed by number of devices, staging, strategy and batch.

    Raises `EmptyPlotError`.
    """
    bars = device_bars(records)
    if not bars:
        raise EmptyPlotError("devices: no record here holds a measured or published speed")
    points = _points(bars, [r for r in records if not r.scope])
    rows: dict[str, list[Row]] = {}
    for point in points:
        rows.setdefault(point["row"], []).append(point)
    used = [name for name in STAGED if any(point["staged"] == name for point in points)]
    lines = [
        line for name, held in list(rows.items())[:MOST_ROWS] for line in _lines(name, held, used)
    ]
    grid = alt.vconcat(*lines, spacing=26).resolve_scale(color="shared", xOffset="independent")
    seen = {bar["interval"] for bar in bars}
    errors = "; ".join(text for kind, text in ERRORS.items() if kind in seen)
    caption = [
        SPEED,
        f"Error bars: {errors}.",
        sources([r for r in records if r.origin != "predicted"]),
    ]
    if len(rows) > MOST_ROWS:
        caption.insert(2, f"{len(rows) - MOST_ROWS} more rows are not shown; --model chooses.")
    return finish(grid, "Speed by number of devices", caption)


def _points(bars: Sequence[Row], records: Sequence[Record]) -> list[Row]:
    """Give one row a run, sorted as bars stand; the first run of a bar also bears its height."""
    names = short_names((r.workload for r in records), batch=False)
    by_label = {r.workload.label: names[r.workload.key] for r in records}
    several = len(set(by_label.values())) > 1
    bars = sorted(
        bars,
        key=lambda b: (b["gpu_type"], b["model"], b["strategy"] or "", b["batch"], b["num_gpu"]),
    )
    cells: dict[tuple[Any, ...], list[Row]] = {}
    for bar in bars:
        staged = bar["staged_from"] or ANYWHERE
        row = f"{bar['gpu_type']}, {by_label[bar['model']]}" if several else bar["gpu_type"]
        cells.setdefault((row, _group(bar), bar["num_gpu"], staged), []).append(bar)
    return [
        {
            "row": row,
            "group": group,
            "devices": devices,
            "staged": staged,
            "speed": rounded(run["speed"]),
            "low": rounded(run["low"]),
            "high": rounded(run["high"]),
            "bar": rounded(median(one["speed"] for one in runs)) if index == 0 else None,
            "network": by_label[run["model"]],
            "examples_per_s": unit_text(run["speed"], "/s"),
            "run": f"{index + 1} of {len(runs)}",
            "source": run["source_file"] or run["method"],
        }
        for (row, group, devices, staged), runs in cells.items()
        for index, run in enumerate(runs)
    ]


def _group(bar: Row) -> str:
    """Give what the bars of a group have in common, in one line or two: how, and the batch."""
    idle = bar["num_gpu"] > bar["replicas"]
    how = bar["strategy"] or ("one of them works" if idle else "")
    batch = f"batch {bar['batch']}{' each' if bar['replicas'] > 1 else ''}"
    return f"{how}\n{batch}" if how else batch


def _lines(name: str, points: Sequence[Row], used: Sequence[str]) -> list[Any]:
    """Give the groups of a type of device, in as many lines as they need."""
    groups: dict[str, list[Row]] = {}
    for point in points:
        groups.setdefault(point["group"], []).append(point)
    top = max(point["high"] or point["speed"] for point in points) * 1.04
    lines: list[list[Any]] = [[]]
    room: float = ROW_ROOM
    for group, held in groups.items():
        width = _width(group, held)
        if lines[-1] and width > room:
            lines.append([])
            room = ROW_ROOM
        room -= width + GAP
        lines[-1].append(_panel(group, held, used, width, top, first=not lines[-1]))
    return [
        alt.hconcat(*line, spacing=GAP, bounds="flush")
        .resolve_scale(xOffset="independent")
        .properties(
            title=alt.TitleParams(
                name if index == 0 else f"{name}, continued",
                anchor="start", frame="group", fontSize=13, color=INK, offset=6,
            )
        )
        for index, line in enumerate(lines)
    ]  # fmt: skip


def _width(group: str, points: Sequence[Row]) -> float:
    many = len({point["devices"] for point in points}) * len({point["staged"] for point in points})
    return max(LEAST_WIDTH, many * BAR + GAP, max(map(len, group.split("\n"))) * LABEL_CHARACTER)


def _panel(
    group: str,
    points: Sequence[Row],
    used: Sequence[str],
    width: float,
    top: float,
    *,
    first: bool,
) -> Any:
    staged = [name for name in used if any(point["staged"] == name for point in points)]
    x = alt.X(
        "devices:O",
        axis=alt.Axis(title="devices" if first else None, labelAngle=0, ticks=False),
        scale=alt.Scale(paddingInner=0.2, paddingOuter=0.15),
    )
    axis = (
        alt.Axis(title="speed (examples/s)", labelExpr=si_label(""), tickCount=4, domain=False)
        if first
        else alt.Axis(title=None, labels=False, ticks=False, tickCount=4, domain=False)
    )
    scale = alt.Scale(domain=[0, top], nice=False)
    offset = alt.XOffset("staged:N", scale=alt.Scale(domain=list(staged), paddingInner=0.08))
    colour = alt.Color(
        "staged:N",
        scale=alt.Scale(domain=list(used), range=[COLOURS[STAGED.index(name)] for name in used]),
        legend=alt.Legend(title="input read from", orient="top"),
    )
    base = over_rows(points).encode(x=x, xOffset=offset)
    bars = base.mark_bar(opacity=0.55, size=BAR - 4).encode(
        y=alt.Y("bar:Q", axis=axis, scale=scale), color=colour
    )
    whiskers = base.mark_rule(color=INK, strokeWidth=1.6).encode(
        y=alt.Y("low:Q", axis=axis, scale=scale), y2="high:Q"
    )
    runs = base.mark_point(filled=True, size=26, color=INK, opacity=0.85).encode(
        y=alt.Y("speed:Q", axis=axis, scale=scale),
        tooltip=tooltip("network", "devices", "staged", "examples_per_s", "run", "source"),
    )
    name = (
        over_rows([{"group": group}])
        .mark_text(align="left", baseline="line-bottom", fontSize=11.5, color=QUIET, lineBreak="\n")
        .encode(x=alt.value(0), y=alt.value(-6 - 14 * group.count("\n")), text="group:N")
    )
    return alt.layer(bars, whiskers, runs, name).properties(width=width, height=HEIGHT)
