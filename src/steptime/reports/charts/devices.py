"""Examples per second by number of devices: a panel per network and setting, a colour per type."""

import re
from collections.abc import Iterator, Sequence
from operator import itemgetter
from statistics import median
from typing import Any, NamedTuple

from steptime.analysis.devices_table import PLACE_SETTINGS, device_bars
from steptime.core.units import format_value
from steptime.core.workload import NO_OPTIMIZER
from steptime.records.data import Data
from steptime.records.row import (
    collect_setting_texts,
    describe_value,
    find_distinguishing_settings,
    group_by,
)
from steptime.records.short_names import EXCHANGE, name_networks
from steptime.reports.charts import EmptyPlotError, style

PANEL = 190  # pixels
MAX_NAMES = 60
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
    bars = device_bars(data, MAX_NAMES)
    if not bars:
        raise EmptyPlotError(
            "devices: no record here holds a measured or published speed "
            "(a step whose batch is unknown has none)"
        )
    model_count = bars[0]["models"]  # of all records, the same in each bar
    omitted_models = model_count - len({bar["model"] for bar in bars})
    arranged = _arrange_points(list(_make_bar_points(bars)), omitted_models)
    points = arranged.points
    view: style.Spec = {"layer": _draw_layers(points, arranged.x), "width": style.WIDTH}
    if arranged.has_panels:  # else all networks stand side by side
        points, view = style.facet_panels(points, "panel", view, columns=3, width=PANEL, height=110)
    source = data.source_of("measured", "published")
    caption = [SPEED, _describe_error_bars(bars), *arranged.omission_caption, source]
    return style.finish("Speed by number of devices", caption, points, **view)


def _draw_layers(points: Sequence[style.Row], x: style.Spec) -> list[style.Spec]:
    """Return a line through the medians, and a point with its error bar for each run."""
    colour = style.encode_categories("gpu_type", points, "type of device")["color"]
    position = {"x": x, "color": colour, "xOffset": {"field": "lane"}}
    y = _encode_speed(points)
    middle = {**position, "y": {**y, "field": "middle"}, "detail": [{"field": "staged"}]}
    error = {**position, "y": {**y, "field": "low"}, "y2": {"field": "high"}}
    shape = _encode_input_source(points)
    run = {**position, "y": y, "shape": shape, "tooltip": style.tooltip(TOOLTIP)}
    return [
        style.layer("line", middle, needed_fields=("middle",), opacity=0.6),
        style.layer("rule", error, needed_fields=("low",), strokeWidth=1.4),
        style.layer("point", run, size=45),
    ]


def _encode_speed(points: Sequence[style.Row]) -> style.Spec:
    """Return the logarithmic axis of the speed, which shows all points and error bars."""
    speeds = [point[end] for point in points for end in ("speed", "low", "high")]
    positive_speeds = [speed for speed in speeds if speed and speed > 0]
    return style.encode_log_number("speed", positive_speeds, "speed (examples/s)")


def _encode_input_source(points: Sequence[style.Row]) -> style.Spec:
    """Return a shape for each place that input is read from, with a legend if there are several."""
    texts = {point["staged"] for point in points}
    ordered_texts = [text for text in STAGED.values() if text in texts]
    legend = {"title": "input read from"} if len(ordered_texts) > 1 else None
    return style.encode_name("staged", scale={"domain": ordered_texts}, legend=legend)


def _describe_error_bars(bars: Sequence[style.Row]) -> str:
    """Return the line of the caption that says what error bars are."""
    intervals = {bar["interval"] for bar in bars if bar["low"] is not None}
    errors = "; ".join(text for interval, text in ERRORS.items() if interval in intervals)
    return f"Error bars: {errors or 'none, as no uncertainty is known'}."


class _ArrangedPoints(NamedTuple):
    """The points to draw, their x axis, whether they have panels, and what is left out in words."""

    points: Sequence[style.Row]
    x: style.Spec
    has_panels: bool
    omission_caption: list[str]


def _arrange_points(points: Sequence[style.Row], omitted_models: int) -> _ArrangedPoints:
    """Choose the points to draw and their x axis.

    Each network and setting has a panel. Panels with several numbers or types of devices, or
    several places of the input, come first; if there are none, all networks stand side by side.
    """
    comparing_panels, single_panels = _sort_panels(points)
    panels = [*comparing_panels, *single_panels]
    # Without anything to compare there are no panels: networks are names on one axis.
    has_panels = bool(comparing_panels)
    drawable_panels = panels[: style.MAX_PANELS if has_panels else MAX_NAMES]
    rows = _select_rows(points, drawable_panels)
    if has_panels:
        x = _encode_device_count(points)
    else:
        rows = [row | {"middle": None} for row in rows]  # no line joins networks
        x = style.encode_name("at", axis={"title": None, "labelLimit": 290})
    omitted = len(panels) - len(drawable_panels) + omitted_models
    caption = [f"Not shown: {omitted:,} more; --model chooses."] if omitted else []
    return _ArrangedPoints(rows, x, has_panels, caption)


def _sort_panels(points: Sequence[style.Row]) -> tuple[list[str], list[str]]:
    """Return the panels that compare anything, and those that show a single place.

    A place is what a panel's axis, colours and shapes show: the number and the type of devices,
    and where the input is read from.
    """
    places_by_panel: dict[str, set[tuple[Any, ...]]] = {}
    for point in points:
        place = (point["devices"], point["gpu_type"], point["staged"])
        places_by_panel.setdefault(point["panel"], set()).add(place)
    comparing_panels = [panel for panel, places in places_by_panel.items() if len(places) > 1]
    single_panels = [panel for panel, places in places_by_panel.items() if len(places) == 1]
    return comparing_panels, single_panels


def _select_rows(points: Sequence[style.Row], panels: Sequence[str]) -> list[style.Row]:
    """Return the points of some panels in the order of these, `at` the panel's name in one line."""
    rows = [
        point | {"at": point["panel"].replace("|", ", ")}
        for point in points
        if point["panel"] in panels
    ]
    return sorted(rows, key=lambda row: panels.index(row["panel"]))


def _encode_device_count(points: Sequence[style.Row]) -> style.Spec:
    """Return the axis of the number of devices, with unknown numbers (`?`) last."""
    device_counts = sorted({point["devices"] for point in points if point["devices"] != "?"})
    axis = {"title": "devices", "labelAngle": 0}
    return style.encode_name("devices", sort=[*device_counts, "?"], axis=axis)


def _make_bar_points(bars: Sequence[style.Row]) -> Iterator[style.Row]:
    """Yield one row per run, panel by panel."""
    network_by_model = _name_models(bars)
    has_several_networks = len(set(network_by_model.values())) > 1
    bars_with_settings = sorted(_describe_settings(bars), key=_natural_key)
    # Bars that agree in these are runs of one step.
    run_key = itemgetter("model", "how", "gpu_type", "num_gpu", "staged_from")
    for runs in group_by(bars_with_settings, run_key).values():
        network = network_by_model[runs[0]["model"]]
        settings_lines = style.wrap_panel_name(runs[0]["how"], PANEL)
        panel = f"{network}|{settings_lines}" if has_several_networks else settings_lines
        for point in _make_run_points(runs):
            yield {"panel": panel, "network": network, **point}


def _name_models(bars: Sequence[style.Row]) -> dict[str, str]:
    """Return the short name of each model, by the settings in which the networks differ."""
    # Names are of the networks' own settings; those of the run are in the panel's name.
    network_rows = [{**bar, "settings": bar["params"]} for bar in bars]
    names = name_networks(network_rows, (*EXCHANGE, "batch"))
    return {bar["model"]: name for bar, name in zip(bars, names, strict=True)}


def _make_run_points(runs: Sequence[style.Row]) -> Iterator[style.Row]:
    """Yield the points of the runs of one step; the first has the median as `middle`."""
    median_speed = median(run["speed"] for run in runs)
    for run_number, run in enumerate(runs, start=1):
        device_count = run["num_gpu"]
        staged = STAGED[run["staged_from"]]  # where the input is read from: a disk, memory
        # The first run of a step has the point of the median, through which the line goes.
        carries_median = run_number == 1 and device_count is not None
        yield {
            **{name: run[name] for name in ("how", "gpu_type", "speed", "low", "high")},
            "devices": "?" if device_count is None else device_count,
            "staged": staged,
            "lane": f"{run['gpu_type']} {staged}",  # equal ones lie side by side at a number
            "middle": median_speed if carries_median else None,
            "examples_per_s": format_value("examples_per_s", run["speed"]),
            "run": f"{run_number} of {len(runs)}",
            "source": run["source_file"] or run["method"],
        }


def _natural_key(bar: style.Row) -> str:
    """Return a sort key that puts a batch of 64 before one of 128."""
    text = "{model}|{how}|{gpu_type}|{job_devices}".format(**bar)
    return re.sub("[0-9]+", lambda match: match[0].zfill(12), text)


def _describe_settings(bars: Sequence[style.Row]) -> Iterator[style.Row]:
    """Yield the bars with `how`, the settings that the points of a panel have in common.

    These are the strategy, the working devices, the settings in which bars of one network differ,
    and the batch. The method is among them only if bars of several methods would coincide.
    """
    bars_with_counts = [
        bar | {"replica_text": _describe_replicas(bar), "job_devices": bar["num_gpu"] or 0}
        for bar in bars
    ]
    for network_bars in group_by(bars_with_counts, itemgetter("gpu_type", "model")).values():
        distinguishing = find_distinguishing_settings(
            collect_setting_texts([bar["settings"] for bar in network_bars])
        )
        # The axis, the colour and the shape say the place of a bar.
        names = [name for name in distinguishing if name not in PLACE_SETTINGS]
        cells = group_by(network_bars, itemgetter("strategy", "replica_text", "batch"))
        for cell_bars in cells.values():
            has_single_method = len({bar["method"] for bar in cell_bars}) == 1
            cell_names = [name for name in names if name != "method" or not has_single_method]
            for bar in cell_bars:
                yield bar | {"how": _join_settings(bar, cell_names)}


def _join_settings(bar: style.Row, names: Sequence[str]) -> str:
    """Return the settings of a bar in words: `mirrored, optimizer adam, batch 64 each`."""
    values = {name: bar["settings"].get(name) for name in names}
    words = [
        describe_value(name, value)
        for name, value in values.items()
        if value not in (None, "", NO_OPTIMIZER)
    ]
    batch = f"batch {bar['batch']}{' each' if bar['strategy'] else ''}"
    return ", ".join(filter(None, (bar["strategy"], bar["replica_text"], *words, batch)))


def _describe_replicas(bar: style.Row) -> str:
    """Return the number of working devices if it differs from those of the job, else ""."""
    job_devices = bar["num_gpu"] or 1
    replicas = bar["replicas"]
    if replicas == job_devices:
        return ""
    if replicas > job_devices:
        return f"{replicas} replicas"
    return "one of them works" if replicas == 1 else f"{replicas} of them work"
