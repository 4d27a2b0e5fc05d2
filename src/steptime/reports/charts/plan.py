"""A plan drawn: what its pipeline does when, what each device of it holds."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from steptime.core.units import percent, seconds, size
from steptime.planning.memory import Memory
from steptime.planning.pipeline import BACKWARD, FORWARD, WEIGHT, Event
from steptime.planning.step import PlanTime
from steptime.planning.trace import BUBBLE, EXCHANGE, UPDATE, lines
from steptime.reports.charts import style

WEIGHTS = "weights' gradients"
KINDS = (FORWARD, BACKWARD, WEIGHTS, EXCHANGE, UPDATE)  # of what a device does
COLOURS = {kind: style.COLOURS[at] for kind, at in zip(KINDS, (5, 0, 2, 3, 4), strict=True)}
COLOURS[BUBBLE] = "rgba(136, 136, 136, 0.25)"  # seen on white and on black
PALE = [FORWARD, UPDATE]  # on which ink is read better than white
MOST_BARS = 1200
FINE = 150  # of a picture's width: thinner parts are drawn as shares of a longer bar's height
WIDTH, TALL = 860, 420
EDGE = 0.44  # of a row, from its middle
LETTER, LOWEST = 6.5, 14  # pixels: a letter's width, the height of a row with words
LEGEND = {"title": None, "orient": "bottom", "direction": "horizontal"}
NO_EDGE: style.Spec = {"stroke": None, "cornerRadius": 0}


def bars(found: PlanTime, most: int = MOST_BARS) -> list[style.Row]:
    """Return the bars of a pipeline's run; of more than `most` parts the thin ones are joined."""
    held = lines(found)
    if sum(map(len, held)) <= most:
        return _worded([_bar([one]) for line in held for one in line])
    slices = max(6, most // (3 * len(held)))
    return _worded([bar for line in held for bar in _joined(line, slices)])


def _worded(rows: list[style.Row]) -> list[style.Row]:
    """Return bars with what of the picture's width each has; low rows have no words."""
    whole = max((row["to"] for row in rows), default=0.0)
    low = any(row["device"] * LOWEST > TALL for row in rows)
    for row in rows:
        row |= {"part": (row["to"] - row["from"]) / whole, "word": "" if low else row["word"]}
    return rows


def _joined(line: Sequence[Event], slices: int) -> Iterator[style.Row]:
    """Yield runs of one kind, and what is thinner between them as shares of one bar's height."""
    end_s = line[-1].end_s
    runs = [list(run) for _, run in groupby(line, key=lambda one: one.direction)]

    def place(run: Sequence[Event]) -> int:
        """Return the slice of a thin run, -1 for one that has a bar of its own."""
        first, last = run[0], run[-1]
        outer = first.direction == BUBBLE and (first is line[0] or last is line[-1])
        thick = last.end_s - first.start_s >= end_s / FINE
        return -1 if outer or thick else int(slices * first.start_s / end_s)

    for at, some in groupby(runs, key=place):
        together = list(some)
        if at < 0 or len(together) == 1:
            yield from map(_bar, together)
            continue
        whole = [one for run in together for one in run]
        start, end, upper = whole[0].start_s, whole[-1].end_s, whole[0].device - EDGE
        for kind in (FORWARD, BACKWARD, WEIGHT, EXCHANGE, UPDATE, BUBBLE):
            alike = [one for one in whole if one.direction == kind]
            if alike:
                share = sum(one.end_s - one.start_s for one in alike) / (end - start)
                lower = upper + 2 * EDGE * share
                place_ = {"from": start, "to": end, "upper": upper, "lower": lower, "word": ""}
                yield _bar(alike) | place_
                upper = lower


def _bar(run: Sequence[Event]) -> style.Row:
    first, last = run[0], run[-1]
    kind = first.direction
    batches, stages = (
        sorted({value for one in run if (value := getattr(one, name)) >= 0})
        for name in ("microbatch", "stage")
    )
    number = str(first.microbatch) if len(run) == 1 and batches else ""
    return {
        "device": first.device,
        "kind": WEIGHTS if kind == WEIGHT else kind,
        "from": first.start_s,
        "to": last.end_s,
        "upper": first.device - EDGE,
        "lower": first.device + EDGE,
        "word": number,
        "takes": seconds(sum(one.end_s - one.start_s for one in run)),
        "microbatch": f"{batches[0]} to {batches[-1]}" if len(batches) > 1 else number,
        "stage": ", ".join(map(str, stages)),
    }


def pipeline(
    rows: Sequence[style.Row],
    title: str = "What the pipeline does",
    caption: Sequence[str] = (),
    room: str = str(WIDTH),
) -> style.Spec:
    """Return the chart of `bars`, a row a device, grey where it waits; `room` is their width."""
    devices = 1 + max(row["device"] for row in rows)
    x = {**style.number("from", "time in a step (s)", "s"), "scale": {"nice": False}}
    ticks = {"title": "device of the pipeline", "tickMinStep": 1, "format": "d", "grid": False}
    scale = {"reverse": True, "nice": False, "zero": False}
    y = {"field": "upper", "type": "quantitative", "axis": ticks, "scale": scale}
    kinds = {row["kind"] for row in rows}
    here = {kind: colour for kind, colour in COLOURS.items() if kind in kinds}
    of_kinds = {"domain": list(here), "range": list(here.values())}
    tip = style.tooltip(("kind", "takes", "microbatch", "stage", "device"))
    rects = {
        "x": x, "x2": {"field": "to"}, "y": y, "y2": {"field": "lower"}, "tooltip": tip,
        "color": style.name("kind", scale=of_kinds, legend=LEGEND),
    }  # fmt: skip
    words = {
        "x": {**x, "field": "middle"},
        "y": {**y, "field": "device"},
        "text": {"field": "fits"},
    }
    wide = f"datum.part * {room} > {LETTER} * (1 + length(datum.word)) ? datum.word : ''"
    light = {"expr": f"indexof({PALE}, datum.kind) < 0 ? 'white' : '#222'"}
    made = {"middle": "(datum.from + datum.to) / 2", "fits": wide}
    numbers = style.layer("text", words, fontSize=10, color=light)
    numbers["transform"] = [{"calculate": how, "as": name} for name, how in made.items()]
    layers = [style.layer("rect", rects, **NO_EDGE), numbers]
    height = min(TALL, max(60, 30 * devices))
    return style.finish(title, caption, rows, layer=layers, width=WIDTH, height=height)


def memory_rows(memory: Mapping[str, Any]) -> list[style.Row]:
    """Return the parts of each device's memory, with the room that it has."""
    return [
        {
            "device": stage["stage"],
            "part": part,
            "bytes": stage[f"{part}_bytes"],
            "at": Memory._fields.index(part),
            "room": memory["usable_bytes"],
            "takes": size(stage[f"{part}_bytes"]),
            "of": size(stage["needed_bytes"]),
        }
        for stage in memory["by_stage"]
        for part in Memory._fields
        if stage.get(f"{part}_bytes")
    ]


def memory(rows: Sequence[style.Row]) -> style.Spec:
    """Return the chart of `memory_rows`: parts upon each other, the room as a line."""
    x = style.name("device", axis={"title": "device of the pipeline", "labelAngle": 0})
    held = style.number("bytes", "memory (byte)", "B")
    here = {"values": [part for part in Memory._fields if part in {row["part"] for row in rows}]}
    colour = style.name("part", scale={"domain": Memory._fields}, legend=LEGEND | here)
    tip = style.tooltip(("device", "part", "takes", "of"))
    told = {"color": colour, "order": {"field": "at"}, "tooltip": tip}
    room = {"y": {**held, "field": "room", "aggregate": "max"}}
    words = {**room, "x": {"value": "width"}, "text": {"value": "room"}}
    layers = [
        style.layer("bar", {"x": x, "y": held, **told}, **NO_EDGE),
        style.layer("rule", room, "room", strokeDash=[6, 4], strokeWidth=1.6, style="ink"),
        style.layer("text", words, "room", align="left", baseline="middle", dx=4),
    ]
    return style.finish("What each device holds", (), rows, layer=layers, width=WIDTH, height=220)


def picture(told: Mapping[str, Any], found: PlanTime, split: str) -> style.Spec:
    """Return the picture of a plan's answer `told`: its pipeline, and what its devices hold."""
    drawn, charts = bars(found), []
    if drawn:
        said = [f"Grey: {BUBBLE}, {percent(told['bubble_share'])} of the devices' time."]
        whole = any(row["word"] for row in drawn)
        thin = "What is too thin is drawn as shares of a bar's height."
        said += ["A number is that of a microbatch." if whole else thin]
        charts.append(pipeline(drawn, caption=said[not told["bubble_share"] :]))
    charts.append(memory(memory_rows(told["memory"])))
    for chart in charts:
        about = {name: chart.pop(name) for name in ("$schema", "config")}
    said = ["; ".join(told["headline"]), f"{split} ({told['method']}, {told['stack']})"]
    title = f"{told['model']} on {told['device_count']} {told['device']}"
    return about | {
        "vconcat": charts, "spacing": 34,
        "title": {"text": title, "subtitle": said, "fontSize": 18},
        "resolve": {"scale": {"color": "independent", "x": "independent"}},
    }  # fmt: skip
