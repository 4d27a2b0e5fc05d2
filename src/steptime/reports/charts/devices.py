"""Examples a second by number of devices: a panel a network and setting, a colour a type."""

import re
from collections.abc import Iterator, Sequence
from operator import itemgetter
from statistics import median
from typing import Any

from steptime.analysis.devices_table import PLACE_SETTINGS, device_bars
from steptime.core.units import format_value
from steptime.core.workload import NO_OPTIMIZER
from steptime.records.data import Data
from steptime.records.row import columns_of, describe_value, grouped, telling_of
from steptime.records.short_names import EXCHANGE, name_networks
from steptime.reports.charts import EmptyPlotError, style

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


def chart(data: Data) -> style.Spec:
    """Return the speed by number of devices, its runs and errors; raises `EmptyPlotError`."""
    bars = device_bars(data, MOST_NAMES)
    if not bars:
        raise EmptyPlotError(
            "devices: no record here holds a measured or published speed "
            "(a step whose batch is unknown has none)"
        )
    untold = bars[0]["models"] - len({bar["model"] for bar in bars})
    points, x, left_out = _arranged(list(_points(bars)), untold)
    colour = style.encode_categories("gpu_type", points, "type of device")["color"]
    used = [text for text in STAGED.values() if any(p["staged"] == text for p in points)]
    place = {"x": x, "color": colour, "xOffset": {"field": "lane"}}
    ends = [p[end] for p in points for end in ("speed", "low", "high")]
    y = style.log_number("speed", [end for end in ends if end and end > 0], "speed (examples/s)")
    legend = {"title": "input read from"} if len(used) > 1 else None
    staged = style.name("staged", scale={"domain": used}, legend=legend)
    middle = {**place, "y": {**y, "field": "middle"}, "detail": [{"field": "staged"}]}
    error = {**place, "y": {**y, "field": "low"}, "y2": {"field": "high"}}
    run = {**place, "y": y, "shape": staged, "tooltip": style.tooltip(TOOLTIP)}
    layers = [
        style.layer("line", middle, "middle", opacity=0.6),
        style.layer("rule", error, "low", strokeWidth=1.4),
        style.layer("point", run, size=45),
    ]
    view: style.Spec = {"layer": layers, "width": style.WIDTH}
    if x["field"] == "devices":
        points, view = style.facet_panels(points, "panel", view, 3, width=PANEL, height=110)
    seen = {bar["interval"] for bar in bars if bar["low"] is not None}
    errors = "; ".join(text for kind, text in ERRORS.items() if kind in seen)
    said = f"Error bars: {errors or 'none, as no uncertainty is known'}."
    caption = [SPEED, said, *left_out, data.source_of("measured", "published")]
    return style.finish("Speed by number of devices", caption, points, **view)


def _arranged(
    points: Sequence[style.Row], untold: int
) -> tuple[Sequence[style.Row], style.Spec, list[str]]:
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
    kept = panels[: style.MAX_PANELS if compared else MOST_NAMES]
    rows = [p | {"at": p["panel"].replace("|", ", ")} for p in points if p["panel"] in kept]
    rows.sort(key=lambda row: kept.index(row["panel"]))
    more = len(panels) - len(kept) + untold
    numbers = sorted({p["devices"] for p in points if p["devices"] != "?"})
    x = style.name("devices", sort=[*numbers, "?"], axis={"title": "devices", "labelAngle": 0})
    if not compared:
        rows = [row | {"middle": None} for row in rows]  # no line joins networks
        x = style.name("at", axis={"title": None, "labelLimit": 290})
    return rows, x, [f"Not shown: {more:,} more; --model chooses."] if more else []


def _points(bars: Sequence[style.Row]) -> Iterator[style.Row]:
    """Return one row a run, panel by panel."""
    # networks that differ by what they are alone
    names = name_networks(
        [{**bar, "settings": bar["params"]} for bar in bars], (*EXCHANGE, "batch")
    )
    by_label = {bar["model"]: name for bar, name in zip(bars, names, strict=True)}
    several = len({by_label[bar["model"]] for bar in bars}) > 1
    words = "{model}|{how}|{gpu_type}|{had}"
    told = sorted(
        _told_apart(bars),  # a batch of 64 before one of 128
        key=lambda bar: re.sub("[0-9]+", lambda found: found[0].zfill(12), words.format(**bar)),
    )
    cells = grouped(told, itemgetter("model", "how", "gpu_type", "num_gpu", "staged_from"))
    for (model, how, _, devices, staged_from), runs in cells.items():
        network, staged = by_label[model], STAGED[staged_from]
        lines = style.break_lines(how, PANEL)
        middle = median(one["speed"] for one in runs)
        for index, run in enumerate(runs, start=1):
            yield {
                **{name: run[name] for name in ("how", "gpu_type", "speed", "low", "high")},
                "panel": f"{network}|{lines}" if several else lines,
                "network": network,
                "devices": "?" if devices is None else devices,
                "staged": staged,
                "lane": f"{run['gpu_type']} {staged}",
                "middle": middle if index == 1 and devices is not None else None,
                "examples_per_s": format_value("examples_per_s", run["speed"]),
                "run": f"{index} of {len(runs)}",
                "source": run["source_file"] or run["method"],
            }


def _told_apart(bars: Sequence[style.Row]) -> Iterator[style.Row]:
    """Return the bars with `how`, what the points of a panel have in common.

    Strategy, devices that work, the settings that tell bars of one network apart, batch. The method
    is told only where bars of several methods would lie together.
    """
    placed = [bar | {"working": _working(bar), "had": bar["num_gpu"] or 0} for bar in bars]
    for held in grouped(placed, itemgetter("gpu_type", "model")).values():
        telling = telling_of(columns_of([one["settings"] for one in held]))
        for together in grouped(held, itemgetter("strategy", "working", "batch")).values():
            alone = len({one["method"] for one in together}) == 1
            untold = {*PLACE_SETTINGS, *(["method"] if alone else [])}
            for bar in together:
                known = [
                    (name, bar["settings"].get(name)) for name in telling if name not in untold
                ]
                words = (
                    describe_value(*one) for one in known if one[1] not in (None, "", NO_OPTIMIZER)
                )
                batch = f"batch {bar['batch']}{' each' if bar['strategy'] else ''}"
                how = (bar["strategy"], bar["working"], *words, batch)
                yield bar | {"how": ", ".join(filter(None, how))}


def _working(bar: style.Row) -> str:
    """Return how many devices work, where these are not all that the job had."""
    had, replicas = bar["num_gpu"] or 1, bar["replicas"]
    if replicas >= had:
        return f"{replicas} replicas" if replicas > had else ""
    return "one of them works" if replicas == 1 else f"{replicas} of them work"
