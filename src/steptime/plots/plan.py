"""A plan drawn: what its pipeline does when, what each device of it holds, what none beats."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from steptime.core.units import percent, seconds, shown, size
from steptime.plans.memory import PARTS
from steptime.plans.pipeline import Event
from steptime.plans.step import PlanTime
from steptime.plots import style

BUBBLE = "bubble"
COLOURS = {  # of what a device does: told apart on white and on black
    "forward": style.COLOURS[5],
    "backward": style.COLOURS[0],
    "weight": style.COLOURS[2],
    "exchange": style.COLOURS[3],
    "update": style.COLOURS[4],
}
WORDS = {"weight": "weights' gradients", "exchange": "exchange of gradients"}
PALE = ["forward", "update"]  # on which ink is read better than white
MOST_BARS = 1200
FINE = 150  # of a picture's width: thinner parts are drawn as shares of a longer bar's height
WIDTH, TALL = 860, 420
BEGINNING = 1.25  # of the time until the first device was first backward
EDGE = 0.44  # of a row, from its middle
LETTER, LOWEST = 6.5, 14  # pixels: a letter's width, the height of a row with words
LEGEND = {"title": None, "orient": "bottom", "direction": "horizontal"}
NO_EDGE: style.Spec = {"stroke": None, "cornerRadius": 0}


def lines(found: PlanTime) -> list[list[Event]]:
    """Return what each device of the pipeline does, waits as `bubble`, until the last has done.

    Nothing where the pipeline was not simulated.
    """
    flow = found.flow
    if flow is None:
        return []
    end_s = max(end + sum(tail) for end, tail in zip(flow.ends_s, found.tails_s, strict=True))
    held: list[list[Event]] = [[] for _ in range(flow.devices)]
    until = [0.0] * flow.devices
    events = sorted(flow.events, key=lambda one: one.start_s)
    for d, tail in enumerate(found.tails_s):
        at = flow.ends_s[d]
        for kind, taken in zip(("exchange", "update"), tail, strict=True):
            events.append(Event(d, -1, -1, kind, at, at + taken))
            at += taken
        events.append(Event(d, -1, -1, BUBBLE, end_s, end_s))
    for one in events:
        d = one.device
        if one.start_s > until[d] + 1e-6 * end_s:
            held[d].append(Event(d, -1, -1, BUBBLE, until[d], one.start_s))
        if one.end_s > one.start_s:
            held[d].append(one)
        until[d] = one.end_s
    return held


def bars(found: PlanTime, most: int = MOST_BARS) -> list[style.Row]:
    """Return the bars of a pipeline's run; of more than `most` parts the thin ones are joined."""
    held = lines(found)
    if sum(map(len, held)) <= most:
        return _worded([_bar([one]) for line in held for one in line])
    slices = max(6, most // (3 * len(held)))
    return _worded([bar for line in held for bar in _joined(line, slices)])


def beginning(found: PlanTime, most: int = 4 * MOST_BARS) -> list[style.Row]:
    """Return, one by one, the bars until the first device was first backward, and a bit longer.

    None where there are so few that `bars` shows them, at most about `most` else.
    """
    held = [one for line in lines(found) for one in line]
    if len(held) <= MOST_BARS:
        return []
    back = min(one.end_s for one in held if one.device == 0 and one.direction == "backward")
    starts = sorted(one.start_s for one in held)
    until = min(BEGINNING * back, starts[min(most, len(starts) - 1)])
    cut = [one._replace(end_s=min(one.end_s, until)) for one in held if one.start_s < until]
    return _worded([_bar([one]) for one in cut])


def _worded(rows: list[style.Row]) -> list[style.Row]:
    """Return bars with what of the picture's width each has; low rows have no words."""
    whole = max((row["to"] for row in rows), default=0.0)
    low = any(row["device"] * LOWEST > TALL for row in rows)
    for row in rows:
        row["part"] = (row["to"] - row["from"]) / whole
        row["word"] = "" if low else row["word"]
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
        for kind in (*COLOURS, BUBBLE):
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
        for name in ("micro_batch", "stage")
    )
    number = str(first.micro_batch) if len(run) == 1 and batches else ""
    return {
        "device": first.device,
        "kind": WORDS.get(kind, kind),
        "from": first.start_s,
        "to": last.end_s,
        "upper": first.device - EDGE,
        "lower": first.device + EDGE,
        "word": BUBBLE if kind == BUBBLE else number,
        "takes": seconds(sum(one.end_s - one.start_s for one in run)),
        "micro-batch": f"{batches[0]} to {batches[-1]}" if len(batches) > 1 else number,
        "stage": ", ".join(map(str, stages)),
    }


def pipeline(
    rows: Sequence[style.Row],
    title: str = "What the pipeline does",
    caption: Sequence[str] = (),
    room: str = str(WIDTH),
) -> style.Spec:
    """Return the chart of `bars`, a row a device, grey where it waits; `room` is its width."""
    devices = 1 + max(row["device"] for row in rows)
    x = {**style.number("from", "time in a step (s)", "s"), "scale": {"nice": False}}
    ticks = {"title": "device of the pipeline", "tickMinStep": 1, "format": "d", "grid": False}
    scale = {"reverse": True, "nice": False, "zero": False}
    y = {"field": "upper", "type": "quantitative", "axis": ticks, "scale": scale}
    kinds = {row["kind"] for row in rows}
    known = {WORDS.get(kind, kind): colour for kind, colour in COLOURS.items()}
    here = {kind: colour for kind, colour in known.items() if kind in kinds}
    colour = style.name(
        "kind",
        scale={"domain": list(here), "range": list(here.values())},
        legend=LEGEND,
    )
    tip = style.tooltip(("kind", "takes", "micro-batch", "stage", "device"))
    place = {"x": x, "x2": {"field": "to"}, "y": y, "y2": {"field": "lower"}, "tooltip": tip}
    words = {"x": {**x, "field": "middle"}, "y": {**y, "field": "device"}} | {
        "text": {"field": "word"}
    }
    wide = f"datum.part * {room} > {LETTER} * (1 + length(datum.word))"
    middle = {"calculate": "(datum.from + datum.to) / 2", "as": "middle"}
    light = {"expr": f"indexof({PALE}, datum.kind) < 0 ? 'white' : '#222'"}
    layers = []
    for test, rect, text in (
        ("==", style.layer("rect", place, style="band", **NO_EDGE), {"opacity": 0.75}),
        ("!=", style.layer("rect", place | {"color": colour}, **NO_EDGE), {"color": light}),
    ):
        some = [{"filter": f"datum.kind {test} '{BUBBLE}'"}]
        drawn = style.layer("text", words, fontSize=10, **text)
        told = {**drawn, "transform": [*some, {"filter": wide}, middle]}
        layers += [{**rect, "transform": some}, told]
    height = min(TALL, max(60, 30 * devices))
    return style.finish(title, caption, rows, layer=layers, width=WIDTH, height=height)


def memory_rows(memory: Mapping[str, Any]) -> list[style.Row]:
    """Return the parts of each device's memory, with the room that it has."""
    return [
        {
            "device": stage["stage"],
            "part": part,
            "bytes": stage[f"{part}_bytes"],
            "at": PARTS.index(part),
            "room": memory["device_bytes"],
            "takes": size(stage[f"{part}_bytes"]),
            "of": size(stage["total_bytes"]),
        }
        for stage in memory["by_stage"]
        for part in PARTS
        if stage[f"{part}_bytes"]
    ]


def memory(rows: Sequence[style.Row], caption: Sequence[str] = ()) -> style.Spec:
    """Return the chart of `memory_rows`: parts upon each other, the room as a line."""
    x = style.name("device", axis={"title": "device of the pipeline", "labelAngle": 0})
    held = style.number("bytes", "memory (byte)", "B")
    parts = [part for part in PARTS if part in {row["part"] for row in rows}]
    told = {
        "color": style.name("part", scale={"domain": parts}, legend=LEGEND),
        "order": {"field": "at"},
        "tooltip": style.tooltip(("device", "part", "takes", "of")),
    }
    room = {"y": {**held, "field": "room", "aggregate": "max"}}
    words = {**room, "x": {"value": "width"}, "text": {"value": "room"}}
    layers = [
        style.layer("bar", {"x": x, "y": held, **told}, **NO_EDGE),
        style.layer("rule", room, "room", strokeDash=[6, 4], strokeWidth=1.6, style="ink"),
        style.layer("text", words, "room", align="left", baseline="middle", dx=4),
    ]
    return style.finish(
        "What each device holds", caption, rows, layer=layers, width=WIDTH - 40, height=220
    )


def front_rows(rows: Sequence[Mapping[str, Any]]) -> list[style.Row]:
    """Return the plans that a search shows, as `front` draws them."""
    split = ("tensor", "context", "pipeline", "virtual", "data", "expert", "zero", "recompute")
    return [
        {name: row[name] for name in ("devices", "step_s", "low", "high", "total_bytes")}
        | {
            "cost": row["cost_per_step"],
            "step": seconds(row["step_s"]),
            "memory": size(row["total_bytes"]),
            "cost of a step": shown("cost", row["cost_per_step"]),
            "split": ", ".join(f"{name} {row[name]}" for name in split if row[name] not in (0, 1)),
            "best": None if at else row["step_s"],
        }
        for at, row in enumerate(rows)
    ]


def front(
    rows: Sequence[style.Row], currency: str = "", caption: Sequence[str] = (), wide: int = WIDTH
) -> style.Spec:
    """Return the chart of `front_rows`: time against memory, and where prices are known cost."""
    tip = style.tooltip(("step", "devices", "memory", "cost of a step", "split"))
    ends = [row[name] for row in rows for name in ("low", "high")]
    x = style.log_number("step_s", ends, "time of a step (s)", "s")
    told = {**style.told_by("devices", rows), "tooltip": tip}
    priced = any(row["cost"] is not None for row in rows)
    sides = [style.number("total_bytes", "memory of the fullest device (byte)", "B")]
    sides += [style.number("cost", f"cost of a step ({currency})")] if priced else []
    panels = []
    for y in sides:
        y["scale"] = {"zero": False, "padding": 12}
        field = y["field"]
        between = {"x": {**x, "field": "low"}, "x2": {"field": "high"}, "y": y}
        layers = [
            style.layer("rule", between, field, style="quiet", opacity=0.35),
            style.layer("point", {"x": x, "y": y, **told}, field, filled=True),
            style.layer("point", {"x": {**x, "field": "best"}, "y": y}, "best", style="ink",
                        fill=None, size=190),
        ]  # fmt: skip
        size_ = {"width": wide // len(sides) - 70 * (len(sides) - 1), "height": 260}
        panels.append({"layer": layers, **size_})
    return style.finish("Plans that none beats", caption, rows, hconcat=panels)


def picture(
    told: Mapping[str, Any], found: PlanTime, split: str, rows: Sequence[Mapping[str, Any]] = ()
) -> style.Spec:
    """Return all of a plan in one picture: unbeaten plans (`rows`), the pipeline, the memory.

    `told` is its answer, `found` the run, `split` how it is split in words.
    """
    charts: list[style.Spec] = []
    if rows:
        said = ["Across: where 80 % of steps are. Ringed: the fastest, which is shown below."]
        currency = told["cost"]["currency"] if told["cost"] else ""
        charts.append(front(front_rows(rows), currency, said))
    drawn, first = bars(found), beginning(found)
    if drawn:
        share = f", {percent(told['bubble'])} of the devices' time" if told["bubble"] else ""
        how = "What is too thin is drawn as shares of a bar's height."
        how = how if first else "A number is that of a micro-batch."
        charts.append(pipeline(drawn, caption=[f"Grey: {BUBBLE}{share}. {how}"]))
        charts += [pipeline(first, "The beginning of it")] if first else []
    charts.append(memory(memory_rows(told["memory"])))
    for chart in charts:
        del chart["config"], chart["$schema"]
    step = " to ".join(seconds(told[end]) for end in ("low", "high"))
    about = [split, f"Step {seconds(told['step_s'])}, {step} ({told['method']}, {told['stack']})"]
    title = f"{told['model']} on {told['devices']:,} {told['device']}"
    return {
        "$schema": style.SCHEMA,
        "config": style.config(),
        "title": {"text": title, "subtitle": about, "fontSize": 18},
        "vconcat": charts,
        "spacing": 34,
        "resolve": {"scale": {"color": "independent", "x": "independent"}},
    }
