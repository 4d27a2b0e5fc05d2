"""Examples a second by number of devices: a panel a network and setting, a colour a type."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from steptime.analysis.devices_table import TOLD_BY_PLACE, device_bars
from steptime.analysis.row import said, short_names, telling_of
from steptime.core.record import Record
from steptime.core.workload import NO_OPTIMIZER, Plan, Workload
from steptime.plots import Data, EmptyPlotError
from steptime.plots.style import (
    MOST_PANELS,
    WIDTH,
    Row,
    Spec,
    finish,
    having,
    lines_of,
    log_number,
    name,
    rounded,
    sources,
    told_by,
    tooltip,
    unit_text,
    wrapped,
)

PANEL = 190  # pixels
MOST_NAMES = 60
STAGED = {"$LOCAL": "local", "$SCRATCH": "shared", None: "no file, or not said"}
SPEED = (
    "Speed: examples of all devices that worked over the time of a step; a line is the median of "
    "the runs, a point is one run. All panels have the same axes."
)
ERRORS = {
    "95 %": "the 95 % interval of a measurement",
    "1 sigma": "one sigma of a published mean, as published",
}
TOOLTIP = ("network", "how", "gpu_type", "devices", "staged", "examples_per_s", "run", "source")


def chart(data: Data) -> Spec:
    """Return the speed by number of devices, its runs and errors; raises `EmptyPlotError`."""
    bars = device_bars(data.records)
    if not bars:
        raise EmptyPlotError("devices: no record here holds a measured or published speed")
    every = list(_points(bars, [r for r in data.records if not r.scope]))
    points, x, left_out = _arranged(every)
    colour = told_by("gpu_type", points, "type of device")["color"]
    used = [text for text in STAGED.values() if any(p["staged"] == text for p in points)]
    told = {"color": colour, "xOffset": {"field": "lane"}}
    place = {"x": x, **told}
    ends = [p[end] for p in points for end in ("speed", "low", "high")]
    y = log_number("speed", [end for end in ends if end and end > 0], "speed (examples/s)")
    staged = name("staged", scale={"domain": used}, legend=None)
    if len(used) > 1:
        staged["legend"] = {"title": "input read from"}
    layers = [
        {
            "transform": having("middle"),
            "mark": {"type": "line", "opacity": 0.6},
            "encoding": {
                **place,
                "y": {**y, "field": "middle"},
                "detail": [{"field": "staged"}],
            },
        },
        {
            "transform": having("low"),
            "mark": {"type": "rule", "strokeWidth": 1.4},
            "encoding": {**place, "y": {**y, "field": "low"}, "y2": {"field": "high"}},
        },
        {
            "mark": {"type": "point", "size": 45},
            "encoding": {**place, "y": y, "shape": staged, "tooltip": tooltip(*TOOLTIP)},
        },
    ]
    view: Spec = {"layer": layers, "width": WIDTH}
    if x["field"] == "devices":
        points, view = wrapped(points, "panel", view, 3, width=PANEL, height=110)
    seen = {bar["interval"] for bar in bars if bar["low"] is not None}
    errors = "; ".join(text for kind, text in ERRORS.items() if kind in seen)
    caption = [
        SPEED,
        f"Error bars: {errors or 'none, as no uncertainty is known'}.",
        sources([r for r in data.records if r.origin != "predicted"]),
    ]
    caption[2:2] = left_out
    return finish("Speed by number of devices", caption, points, **view)


def _arranged(points: Sequence[Row]) -> tuple[Sequence[Row], Spec, list[str]]:
    """Return the points to draw, what is across, and what is left out, in words.

    A panel for each network and setting, first those with several numbers or types of devices or
    places of input; where none has that, all networks side by side.
    """
    seen: dict[str, set[tuple[Any, ...]]] = {}
    for point in points:
        place = (point["devices"], point["gpu_type"], point["staged"])
        seen.setdefault(point["panel"], set()).add(place)
    panels = sorted(seen, key=lambda panel: len(seen[panel]) == 1)
    compared = len(seen[panels[0]]) > 1
    shown = panels[: MOST_PANELS if compared else MOST_NAMES]
    rows = [p | {"at": p["panel"].replace("|", ", ")} for p in points if p["panel"] in shown]
    rows.sort(key=lambda row: shown.index(row["panel"]))
    left_out = f"Not shown: {len(panels) - len(shown)} more; --model chooses."
    numbers = sorted({p["devices"] for p in points if p["devices"] != "?"})
    x = name("devices", sort=[*numbers, "?"], axis={"title": "devices", "labelAngle": 0})
    if not compared:
        rows = [row | {"middle": None} for row in rows]  # no line joins networks
        x = name("at", axis={"title": None, "labelLimit": 200})
    return rows, x, [left_out] if len(shown) < len(panels) else []


def _points(bars: Sequence[Row], records: Sequence[Record]) -> Iterator[Row]:
    """Return one row a run, panel by panel."""
    networks = [_network(record) for record in records]
    names = short_names(networks, batch=False)
    by_label = {one.label: names[one.key] for one in networks}
    several = len({by_label[bar["model"]] for bar in bars}) > 1
    cells: dict[tuple[Any, ...], list[Row]] = {}
    bars = [{**bar, "how": _how(bar)} for bar in _told_apart(bars)]
    for bar in sorted(bars, key=lambda b: (b["model"], b["how"], b["gpu_type"], b["num_gpu"] or 0)):
        label = by_label[bar["model"]]
        how = lines_of(bar["how"], PANEL)
        panel = f"{label}|{how}" if several else how
        staged = STAGED[bar["staged_from"]]
        key = (panel, label, bar["how"], bar["gpu_type"], bar["num_gpu"], staged)
        cells.setdefault(key, []).append(bar)
    for (panel, network, how, gpu_type, devices, staged), runs in cells.items():
        middle = median(one["speed"] for one in runs)
        for index, run in enumerate(runs, start=1):
            yield {
                "panel": panel,
                "network": network,
                "how": how,
                "gpu_type": gpu_type,
                "devices": "?" if devices is None else devices,
                "staged": staged,
                "lane": f"{gpu_type} {staged}",
                "speed": rounded(run["speed"]),
                "middle": rounded(middle) if index == 1 and devices is not None else None,
                "low": rounded(run["low"]),
                "high": rounded(run["high"]),
                "examples_per_s": unit_text(run["speed"], "/s"),
                "run": f"{index} of {len(runs)}",
                "source": run["source_file"] or run["method"],
            }


def _network(record: Record) -> Workload:
    """Return a workload that differs from others by its network alone."""
    return replace(record.workload, dtype="", phase="", optimizer="", plan=Plan())


def _told_apart(bars: Sequence[Row]) -> list[Row]:
    """Return the bars with `told`: those settings that tell bars of one network apart."""
    rows: dict[tuple[str, str], list[Row]] = {}
    for bar in bars:
        rows.setdefault((bar["gpu_type"], bar["model"]), []).append(bar)
    return [
        {**bar, "told": ", ".join(_words(bar["settings"], telling, several))}
        for held in rows.values()
        for telling in [telling_of([bar["settings"] for bar in held])]
        for bar in held
        for several in [len({one["method"] for one in held if _place(one) == _place(bar)}) > 1]
    ]


def _place(bar: Row) -> tuple[Any, ...]:
    return bar["strategy"], _working(bar), bar["batch"]


def _words(settings: Row, telling: Sequence[str], several: bool) -> list[str]:
    """Return the settings that tell in words, the method where bars of `several` lie together."""
    return [
        said(name, settings[name])
        for name in telling
        if name not in TOLD_BY_PLACE
        and (several or name != "method")
        and settings.get(name) not in (None, "", NO_OPTIMIZER)
    ]


def _how(bar: Row) -> str:
    """Return what the points of a panel have in common: strategy, devices that work, batch."""
    batch = f"batch {bar['batch']}{' each' if bar['strategy'] else ''}"
    return ", ".join(filter(None, (bar["strategy"], _working(bar), bar["told"], batch)))


def _working(bar: Row) -> str:
    """Return how many devices work, where these are not all that the job had."""
    had, replicas = bar["num_gpu"] or 1, bar["replicas"]
    if replicas == had:
        return ""
    if replicas > had:
        return f"{replicas} replicas"
    return "one of them works" if replicas == 1 else f"{replicas} of them work"
