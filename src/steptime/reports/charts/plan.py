"""Pictures of a plan: the timeline of its pipeline, and the memory of its devices."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, groupby
from typing import Any

from steptime.core.units import format_bytes, format_percent, format_seconds
from steptime.planning.memory import Memory
from steptime.planning.pipelines.pipeline import BACKWARD, FORWARD, WEIGHT, PipelineEvent
from steptime.planning.step import PlanTime
from steptime.planning.trace import BUBBLE, EXCHANGE, UPDATE, device_tracks
from steptime.reports.charts import style

WEIGHTS = "weights' gradients"
KINDS = (FORWARD, BACKWARD, WEIGHTS, EXCHANGE, UPDATE)  # of work of a device
COLOURS = {kind: style.COLOURS[index] for kind, index in zip(KINDS, (5, 0, 2, 3, 4), strict=True)}
COLOURS[BUBBLE] = "rgba(136, 136, 136, 0.25)"  # visible on white and on black
PALE = [FORWARD, UPDATE]  # colours on which dark words read better than white ones
MAX_BARS = 1200
BARS_OF_SLICE = 3  # of a device, about: merged ones, and thick ones beside them
MIN_SLICES = 6  # of the width, for any number of devices
THIN_SHARE = 1 / 150  # of the width: thinner bars become shares of a longer bar's height
WIDTH, MAX_HEIGHT = 860, 420
HALF_BAR = 0.44  # of a row's height
SINGLE_BAR = -1  # in place of the number of a slice
LETTER_WIDTH, MIN_WORD_HEIGHT = 6.5, 14  # pixels
LEGEND = {"title": None, "orient": "bottom", "direction": "horizontal"}
NO_EDGE: style.Spec = {"stroke": None, "cornerRadius": 0}


def bars(plan_time: PlanTime, max_bars: int = MAX_BARS) -> list[style.Row]:
    """Return the bars of a pipeline's timeline; thin ones are merged if there are too many."""
    events_by_device = device_tracks(plan_time)
    event_count = sum(map(len, events_by_device))
    if event_count <= max_bars:
        return _add_widths([_make_bar([event]) for events in events_by_device for event in events])
    # Too many bars: the width is cut into slices, in which thin bars of a device are merged.
    bars_of_slice = BARS_OF_SLICE * len(events_by_device)
    slice_count = max(MIN_SLICES, max_bars // bars_of_slice)
    merged_bars = [
        bar for events in events_by_device for bar in _merge_thin_bars(events, slice_count)
    ]
    return _add_widths(merged_bars)


def _add_widths(rows: list[style.Row]) -> list[style.Row]:
    """Add the share of the picture's width to each bar; remove the words of low rows."""
    step_s = max((row["to"] for row in rows), default=0.0)
    # With many devices a row is lower than a word is high.
    are_rows_low = any(row["device"] * MIN_WORD_HEIGHT > MAX_HEIGHT for row in rows)
    for row in rows:
        row["part"] = (row["to"] - row["from"]) / step_s
        if are_rows_low:
            row["word"] = ""
    return rows


def _merge_thin_bars(events: Sequence[PipelineEvent], slice_count: int) -> Iterator[style.Row]:
    """Yield the bars of a device; thin ones of a slice become shares of one bar's height."""
    # A run: events of one kind one behind the other (`groupby` joins neighbours alone).
    runs = [list(run) for _, run in groupby(events, key=lambda event: event.direction)]
    find_slice = partial(_find_slice, events=events, slice_count=slice_count)
    # Thin runs side by side in one slice become one bar, of which each kind has its share.
    for slice_number, group in groupby(runs, key=find_slice):
        slice_runs = list(group)
        if slice_number == SINGLE_BAR or len(slice_runs) == 1:
            yield from map(_make_bar, slice_runs)
        else:
            yield from _stack_kinds(list(chain.from_iterable(slice_runs)))


def _find_slice(
    run: Sequence[PipelineEvent], events: Sequence[PipelineEvent], slice_count: int
) -> int:
    """Return the slice of a thin run of a device's events, `SINGLE_BAR` for one with its own bar.

    Thick runs have a bar of their own, and so has waiting before the first and after the last
    work, which shows the ramp-up and the drain of the pipeline.
    """
    device_end_s = events[-1].end_s
    first, last = run[0], run[-1]
    is_outermost = first is events[0] or last is events[-1]
    waits_outside_work = is_outermost and first.direction == BUBBLE
    is_thick = last.end_s - first.start_s >= device_end_s * THIN_SHARE
    if waits_outside_work or is_thick:
        return SINGLE_BAR
    return int(slice_count * first.start_s / device_end_s)


def _stack_kinds(events: Sequence[PipelineEvent]) -> Iterator[style.Row]:
    """Yield one bar per kind of work, upon each other: heights are shares of the time."""
    start_s = events[0].start_s
    end_s = events[-1].end_s
    upper = events[0].device - HALF_BAR
    for kind in (FORWARD, BACKWARD, WEIGHT, EXCHANGE, UPDATE, BUBBLE):
        kind_events = [event for event in events if event.direction == kind]
        if not kind_events:
            continue
        kind_s = sum(event.end_s - event.start_s for event in kind_events)
        time_share = kind_s / (end_s - start_s)
        lower = upper + 2 * HALF_BAR * time_share  # all shares together fill a bar
        edges = {"from": start_s, "to": end_s, "upper": upper, "lower": lower}
        yield _make_bar(kind_events) | edges | {"word": ""}
        upper = lower


def _make_bar(run: Sequence[PipelineEvent]) -> style.Row:
    """Return the bar of consecutive events of one kind on a device."""
    first, last = run[0], run[-1]
    # A number below 0 is no microbatch or stage: of a bubble, or of the update.
    microbatches = sorted({event.microbatch for event in run if event.microbatch >= 0})
    stages = sorted({event.stage for event in run if event.stage >= 0})
    work_s = sum(event.end_s - event.start_s for event in run)
    return {
        "device": first.device,
        # The word of the legend: a direction says it, but for that of the weights' gradients.
        "kind": WEIGHTS if first.direction == WEIGHT else first.direction,
        "from": first.start_s,
        "to": last.end_s,
        "upper": first.device - HALF_BAR,
        "lower": first.device + HALF_BAR,
        "word": str(microbatches[0]) if len(run) == 1 and microbatches else "",
        "takes": format_seconds(work_s),
        "microbatch": _describe_microbatches(microbatches, len(run)),
        "stage": ", ".join(map(str, stages)),
    }


def _describe_microbatches(microbatches: Sequence[int], event_count: int) -> str:
    """Return the microbatches of a bar: `3`, `2 to 5`; "" for several events of one."""
    if len(microbatches) > 1:
        return f"{microbatches[0]} to {microbatches[-1]}"
    return str(microbatches[0]) if microbatches and event_count == 1 else ""


def pipeline(
    rows: Sequence[style.Row],
    title: str = "Schedule of the pipeline",
    caption: Sequence[str] = (),
    width_expression: str = str(WIDTH),
) -> style.Spec:
    """Return the chart of `bars`: a row per device, grey while it waits.

    Args:
        rows: the bars.
        title: the title.
        caption: the lines below it.
        width_expression: pixels of the chart in Vega's language: a number, or its signal `width`.
    """
    device_count = 1 + max(row["device"] for row in rows)
    x = {**style.encode_number("from", "time in a step (s)", "s"), "scale": {"nice": False}}
    y = _encode_device()
    bar = {
        "x": x,
        "x2": {"field": "to"},
        "y": y,
        "y2": {"field": "lower"},
        "tooltip": style.tooltip(("kind", "takes", "microbatch", "stage", "device")),
        "color": _encode_kind(rows),
    }
    layers = [style.layer("rect", bar, **NO_EDGE), _word_layer(x, y, width_expression)]
    height = min(MAX_HEIGHT, max(60, 30 * device_count))
    return style.finish(title, caption, rows, layer=layers, width=WIDTH, height=height)


def _encode_device() -> style.Spec:
    """Return the axis of devices, the first one on top."""
    title = "device of the pipeline"
    axis = {"title": title, "tickMinStep": 1, "format": "d", "grid": False}
    scale = {"reverse": True, "nice": False, "zero": False}
    return {"field": "upper", "type": "quantitative", "axis": axis, "scale": scale}


def _encode_kind(rows: Sequence[style.Row]) -> style.Spec:
    """Return the colours of the kinds of work that bars have."""
    kinds = {row["kind"] for row in rows}
    colours = {kind: colour for kind, colour in COLOURS.items() if kind in kinds}
    scale = {"domain": list(colours), "range": list(colours.values())}
    return style.encode_name("kind", scale=scale, legend=LEGEND)


def _word_layer(x: style.Spec, y: style.Spec, width_expression: str) -> style.Spec:
    """Return the number of the microbatch in the middle of each bar that is wide enough for it."""
    encoding = {
        "x": {**x, "field": "middle"},
        "y": {**y, "field": "device"},
        "text": {"field": "fits"},
    }
    needed_width = f"{LETTER_WIDTH} * (1 + length(datum.word))"
    fitting_word = f"datum.part * {width_expression} > {needed_width} ? datum.word : ''"
    colour = {"expr": f"indexof({PALE}, datum.kind) < 0 ? 'white' : '#222'"}
    words = style.layer("text", encoding, fontSize=10, color=colour)
    words["transform"] = [
        {"calculate": "(datum.from + datum.to) / 2", "as": "middle"},
        {"calculate": fitting_word, "as": "fits"},
    ]
    return words


def memory_rows(memory: Mapping[str, Any]) -> list[style.Row]:
    """Return the parts of each device's memory with its usable memory (`room`)."""
    rows = []
    for stage in memory["by_stage"]:
        for index, part in enumerate(Memory._fields):
            part_bytes = stage.get(f"{part}_bytes")
            if part_bytes:
                row = {
                    "device": stage["stage"],
                    "part": part,
                    "bytes": part_bytes,
                    "at": index,  # the order of the stack
                    "room": memory["usable_bytes"],
                    "takes": format_bytes(part_bytes),
                    "of": format_bytes(stage["needed_bytes"]),
                }
                rows.append(row)
    return rows


def memory(rows: Sequence[style.Row]) -> style.Spec:
    """Return the chart of `memory_rows`: stacked parts, the usable memory as a line."""
    size_axis = style.encode_number("bytes", "memory (byte)", "B")
    bar = {
        "x": style.encode_name("device", axis={"title": "device of the pipeline", "labelAngle": 0}),
        "y": size_axis,
        "color": _encode_part(rows),
        "order": {"field": "at"},
        "tooltip": style.tooltip(("device", "part", "takes", "of")),
    }
    line = {"y": {**size_axis, "field": "room", "aggregate": "max"}}
    line_look: style.Spec = {"strokeDash": [6, 4], "strokeWidth": 1.6, "style": "ink"}
    label = {**line, "x": {"value": "width"}, "text": {"value": "room"}}
    label_look: style.Spec = {"align": "left", "baseline": "middle", "dx": 4}
    layers = [
        style.layer("bar", bar, **NO_EDGE),
        style.layer("rule", line, needed_fields=("room",), **line_look),
        style.layer("text", label, needed_fields=("room",), **label_look),
    ]
    return style.finish("Memory of each device", (), rows, layer=layers, width=WIDTH, height=220)


def _encode_part(rows: Sequence[style.Row]) -> style.Spec:
    """Return the colours of the parts of memory; the legend names those that any device has."""
    used_parts = {row["part"] for row in rows}
    legend = {**LEGEND, "values": [part for part in Memory._fields if part in used_parts]}
    return style.encode_name("part", scale={"domain": Memory._fields}, legend=legend)


def picture(answer: Mapping[str, Any], plan_time: PlanTime, split: str) -> style.Spec:
    """Return the picture of a plan's answer: its pipeline, and the memory of its devices."""
    charts = []
    pipeline_bars = bars(plan_time)
    if pipeline_bars:
        caption = _pipeline_caption(pipeline_bars, answer["bubble_share"])
        charts.append(pipeline(pipeline_bars, caption=caption))
    charts.append(memory(memory_rows(answer["memory"])))
    sentences = [*answer["headline"], f"{split} ({answer['method']}, {answer['stack']})"]
    subtitle = [line for sentence in sentences for line in style.wrap_text(sentence, WIDTH)]
    title = f"{answer['model']} on {answer['device_count']} {answer['device']}"
    return _stack_charts(charts) | {
        "spacing": 34,
        "title": {"text": title, "subtitle": subtitle, "fontSize": 18},
        "resolve": {"scale": {"color": "independent", "x": "independent"}},
    }


def _stack_charts(charts: Sequence[style.Spec]) -> style.Spec:
    """Return one chart of several upon each other; only the outer one has a schema and a config."""
    shared_names = ("$schema", "config")
    shared = {name: charts[0][name] for name in shared_names}
    views = [
        {name: value for name, value in chart.items() if name not in shared_names}
        for chart in charts
    ]
    return {**shared, "vconcat": views}


def _pipeline_caption(rows: Sequence[style.Row], bubble_share: float) -> list[str]:
    """Return the caption of a pipeline's chart: the bubble, and the meaning of numbers."""
    caption = []
    if bubble_share:
        caption.append(f"Grey: {BUBBLE}, {format_percent(bubble_share)} of the devices' time.")
    caption.append(
        "Numbers are those of microbatches."
        if any(row["word"] for row in rows)
        else "Bars that are too thin are drawn as shares of a bar's height."
    )
    return caption
