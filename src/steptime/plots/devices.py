"""Examples a second by number of devices: a row of bars for each type of device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import Any

import altair as alt

from steptime.analysis.devices_table import TOLD_BY_PLACE, device_bars
from steptime.analysis.row import said, short_names, telling_of
from steptime.core.record import Record
from steptime.core.workload import NO_OPTIMIZER, Plan, Workload
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
LABEL_CHARACTER = 6.4  # pixels
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
    grid = alt.vconcat(*lines, spacing=26).resolve_scale(color="shared")
    seen = {bar["interval"] for bar in bars if bar["low"] is not None}
    errors = "; ".join(text for kind, text in ERRORS.items() if kind in seen)
    caption = [
        SPEED,
        f"Error bars: {errors or 'none, as no uncertainty is known'}.",
        sources([r for r in records if r.origin != "predicted"]),
    ]
    if len(rows) > MOST_ROWS:
        caption.insert(2, f"{len(rows) - MOST_ROWS} more rows are not shown; --model chooses.")
    return finish(grid, "Speed by number of devices", caption)


def _points(bars: Sequence[Row], records: Sequence[Record]) -> list[Row]:
    """Give one row a run, sorted as bars stand; the first run of a bar also bears its height."""
    networks = [_network(record) for record in records]
    names = short_names(networks, batch=False)
    by_label = {one.label: names[one.key] for one in networks}
    several = len(set(by_label.values())) > 1
    bars = sorted(
        _told_apart(bars),
        key=lambda b: (
            b["gpu_type"],
            b["model"],
            b["strategy"] or "",
            b["batch"],
            b["told"],
            b["num_gpu"] or 0,
        ),
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
            "devices": "?" if devices is None else devices,
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


def _network(record: Record) -> Workload:
    """Give a workload that differs from others by its network alone."""
    return replace(record.workload, dtype="", phase="", optimizer="", plan=Plan())


def _told_apart(bars: Sequence[Row]) -> list[Row]:
    """Give the bars with `told`: those settings that tell bars of one row of the picture apart."""
    rows: dict[tuple[str, str], list[Row]] = {}
    for bar in bars:
        rows.setdefault((bar["gpu_type"], bar["model"]), []).append(bar)
    return [
        {**bar, "told": ", ".join(_words(bar["settings"], telling))}
        for held in rows.values()
        for telling in [telling_of([bar["settings"] for bar in held])]
        for bar in held
    ]


def _words(settings: Row, telling: Sequence[str]) -> list[str]:
    return [
        said(name, settings[name])
        for name in telling
        if name not in TOLD_BY_PLACE and settings.get(name) not in (None, "", NO_OPTIMIZER)
    ]


def _group(bar: Row) -> str:
    """Give what the bars of a group have in common, in one line or two: how, and the batch."""
    how = ", ".join(filter(None, (bar["strategy"], _working(bar), bar["told"])))
    batch = f"batch {bar['batch']}{' each' if bar['strategy'] else ''}"
    return f"{how}\n{batch}" if how else batch


def _working(bar: Row) -> str:
    """Give how many devices work, where these are not all that the job had."""
    had, replicas = bar["num_gpu"] or 1, bar["replicas"]
    if replicas == had:
        return ""
    if replicas > had:
        return f"{replicas} replicas"
    return "one of them works" if replicas == 1 else f"{replicas} of them work"


def _lines(name: str, points: Sequence[Row], used: Sequence[str]) -> list[Any]:
    """Give the groups of a type of device side by side, in as many charts as they need."""
    top = max(point["high"] or point["speed"] for point in points) * 1.04
    lines = _placed(points)
    return [
        _line(name if index == 0 else f"{name}, continued", line, used, top)
        for index, line in enumerate(lines)
    ]


def _placed(points: Sequence[Row]) -> list[list[Row]]:
    """Give the points with the place `x` [pixel] of their bar, `at` of their number, line by line.

    The bars of one number of devices stand together, and so do the numbers of a group, which begins
    at `begin`.
    """
    lines: list[list[Row]] = [[]]
    begin = 0.0
    for group in dict.fromkeys(point["group"] for point in points):
        held = [point for point in points if point["group"] == group]
        x, placed = begin + BAR / 2, []
        for number in dict.fromkeys(point["devices"] for point in held):
            mine = [point for point in held if point["devices"] == number]
            staged = [name for name in STAGED if any(point["staged"] == name for point in mine)]
            at = x + (len(staged) - 1) * BAR / 2
            placed += [
                {**point, "x": x + staged.index(point["staged"]) * BAR, "at": at, "begin": begin}
                for point in mine
            ]
            x += len(staged) * BAR + GAP / 2
        words = max(map(len, group.split("\n"))) * LABEL_CHARACTER
        width = max(x - begin - BAR / 2, words) + GAP
        if lines[-1] and begin + width > ROW_ROOM:
            lines.append([])
            placed = [
                {**point, "begin": 0.0} | {k: point[k] - begin for k in ("x", "at")}
                for point in placed
            ]
            begin = 0.0
        lines[-1] += placed
        begin += width
    return lines


def _line(title: str, points: Sequence[Row], used: Sequence[str], top: float) -> Any:
    width = max(
        max(point["begin"] + max(map(len, point["group"].split("\n"))) * LABEL_CHARACTER,
            point["x"] + BAR)
        for point in points
    )  # fmt: skip
    x = alt.X(
        "x:Q",
        scale=alt.Scale(domain=[0, width], nice=False, padding=0),
        axis=alt.Axis(
            title="devices", labels=False, ticks=False, grid=False,
            titlePadding=24, titleAnchor="start",
        ),
    )  # fmt: skip
    axis = alt.Axis(title="speed (examples/s)", labelExpr=si_label(""), tickCount=4, domain=False)
    scale = alt.Scale(domain=[0, top], nice=False)
    colour = alt.Color(
        "staged:N",
        scale=alt.Scale(domain=list(used), range=[COLOURS[STAGED.index(name)] for name in used]),
        legend=alt.Legend(title="input read from", orient="top"),
    )
    base = over_rows(points).encode(x=x)
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
    numbers = sorted({(point["at"], str(point["devices"])) for point in points})
    heads = {(point["begin"], point["group"]) for point in points}
    upper = sorted((at, text.partition("\n")[0]) for at, text in heads if "\n" in text)
    lower = sorted((at, text.rpartition("\n")[2]) for at, text in heads)
    texts = [
        _texts(numbers, x, HEIGHT + 18, align="center", color=INK),
        _texts(upper, x, -20, align="left", color=QUIET),
        _texts(lower, x, -6, align="left", color=QUIET),
    ]
    head = alt.TitleParams(title, anchor="start", frame="group", fontSize=13, color=INK, offset=6)
    return alt.layer(bars, whiskers, runs, *filter(None, texts)).properties(
        width=width, height=HEIGHT, title=head
    )


def _texts(places: Sequence[tuple[float, str]], x: alt.X, y: float, **style: Any) -> Any:
    """Give texts at their `x`, all `y` pixels below the top; None for no texts."""
    if not places:
        return None
    return (
        over_rows([{"x": at, "text": text} for at, text in places])
        .mark_text(fontSize=11.5, baseline="bottom", **style)
        .encode(x=x, y=alt.value(y), text="text:N")
    )
