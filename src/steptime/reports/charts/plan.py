"""Pictures of a plan: the timeline of its pipeline, and the memory of its devices."""

from collections.abc import Iterator, Mapping, Sequence
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
    end_s = events[-1].end_s
    # A run: events of one kind one behind the other (`groupby` joins neighbours alone).
    runs = [list(run) for _, run in groupby(events, key=lambda event: event.direction)]

    def find_slice(run: Sequence[PipelineEvent]) -> int:
        """Return the slice of a thin run, `SINGLE_BAR` for a run with a bar of its own."""
        first = run[0]
        last = run[-1]
        is_outermost = first is events[0] or last is events[-1]
        waits_outside_work = is_outermost and first.direction == BUBBLE  # ramp-up and drain
        is_thick = last.end_s - first.start_s >= end_s * THIN_SHARE
        if waits_outside_work or is_thick:
            return SINGLE_BAR
        return int(slice_count * first.start_s / end_s)

    # Thin runs side by side in one slice become one bar, of which each kind has its share.
    for slice_number, group in groupby(runs, key=find_slice):
        slice_runs = list(group)
        if slice_number == SINGLE_BAR or len(slice_runs) == 1:
            yield from map(_make_bar, slice_runs)
        else:
            yield from _stack_kinds(list(chain.from_iterable(slice_runs)))


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
    first = run[0]
    last = run[-1]
    # A number below 0 is no microbatch or stage: of a bubble, or of the update.
    microbatches = sorted({event.microbatch for event in run if event.microbatch >= 0})
    stages = sorted({event.stage for event in run if event.stage >= 0})
    is_single = len(run) == 1 and bool(microbatches)
    number = str(first.microbatch) if is_single else ""
    microbatch_text = number
    if len(microbatches) > 1:
        microbatch_text = f"{microbatches[0]} to {microbatches[-1]}"
    return {
        "device": first.device,
        # The word of the legend: a direction says it, but for that of the weights' gradients.
        "kind": WEIGHTS if first.direction == WEIGHT else first.direction,
        "from": first.start_s,
        "to": last.end_s,
        "upper": first.device - HALF_BAR,
        "lower": first.device + HALF_BAR,
        "word": number,
        "takes": format_seconds(sum(event.end_s - event.start_s for event in run)),
        "microbatch": microbatch_text,
        "stage": ", ".join(map(str, stages)),
    }


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
    device_axis = {
        "title": "device of the pipeline",
        "tickMinStep": 1,
        "format": "d",
        "grid": False,
    }
    device_scale = {"reverse": True, "nice": False, "zero": False}
    y = {"field": "upper", "type": "quantitative", "axis": device_axis, "scale": device_scale}
    kinds = {row["kind"] for row in rows}
    colours = {kind: colour for kind, colour in COLOURS.items() if kind in kinds}
    kind_scale = {"domain": list(colours), "range": list(colours.values())}
    bar_encoding = {
        "x": x,
        "x2": {"field": "to"},
        "y": y,
        "y2": {"field": "lower"},
        "tooltip": style.tooltip(("kind", "takes", "microbatch", "stage", "device")),
        "color": style.encode_name("kind", scale=kind_scale, legend=LEGEND),
    }
    # The number of the microbatch, in the middle of each bar that is wide enough for it.
    word_encoding = {
        "x": {**x, "field": "middle"},
        "y": {**y, "field": "device"},
        "text": {"field": "fits"},
    }
    needed_width = f"{LETTER_WIDTH} * (1 + length(datum.word))"
    fitting_word = f"datum.part * {width_expression} > {needed_width} ? datum.word : ''"
    formulas = {"middle": "(datum.from + datum.to) / 2", "fits": fitting_word}  # new fields
    word_colour = {"expr": f"indexof({PALE}, datum.kind) < 0 ? 'white' : '#222'"}
    words = style.layer("text", word_encoding, fontSize=10, color=word_colour)
    words["transform"] = [{"calculate": formula, "as": name} for name, formula in formulas.items()]
    layers = [style.layer("rect", bar_encoding, **NO_EDGE), words]
    height = min(MAX_HEIGHT, max(60, 30 * device_count))
    return style.finish(title, caption, rows, layer=layers, width=WIDTH, height=height)


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
    x = style.encode_name("device", axis={"title": "device of the pipeline", "labelAngle": 0})
    size_axis = style.encode_number("bytes", "memory (byte)", "B")
    used_parts = {row["part"] for row in rows}
    legend = {**LEGEND, "values": [part for part in Memory._fields if part in used_parts]}
    colour = style.encode_name("part", scale={"domain": Memory._fields}, legend=legend)
    tip = style.tooltip(("device", "part", "takes", "of"))
    encoding = {"color": colour, "order": {"field": "at"}, "tooltip": tip}
    usable_line = {"y": {**size_axis, "field": "room", "aggregate": "max"}}
    line_label = {**usable_line, "x": {"value": "width"}, "text": {"value": "room"}}
    layers = [
        style.layer("bar", {"x": x, "y": size_axis, **encoding}, **NO_EDGE),
        style.layer(
            "rule",
            usable_line,
            needed_fields=("room",),
            strokeDash=[6, 4],
            strokeWidth=1.6,
            style="ink",
        ),
        style.layer(
            "text", line_label, needed_fields=("room",), align="left", baseline="middle", dx=4
        ),
    ]
    return style.finish("Memory of each device", (), rows, layer=layers, width=WIDTH, height=220)


def picture(answer: Mapping[str, Any], plan_time: PlanTime, split: str) -> style.Spec:
    """Return the picture of a plan's answer: its pipeline, and the memory of its devices."""
    charts = []
    pipeline_bars = bars(plan_time)
    if pipeline_bars:
        caption = _pipeline_caption(pipeline_bars, answer["bubble_share"])
        charts.append(pipeline(pipeline_bars, caption=caption))
    charts.append(memory(memory_rows(answer["memory"])))
    # Every chart has the same schema and config. In a combined chart only the outer one has them.
    shared_names = ("$schema", "config")
    shared = {name: charts[0][name] for name in shared_names}
    views = [
        {name: value for name, value in chart.items() if name not in shared_names}
        for chart in charts
    ]
    sentences = [*answer["headline"], f"{split} ({answer['method']}, {answer['stack']})"]
    subtitle = [line for sentence in sentences for line in style.wrap_text(sentence, WIDTH)]
    title = f"{answer['model']} on {answer['device_count']} {answer['device']}"
    return {
        **shared,
        "vconcat": views,
        "spacing": 34,
        "title": {"text": title, "subtitle": subtitle, "fontSize": 18},
        "resolve": {"scale": {"color": "independent", "x": "independent"}},
    }


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
