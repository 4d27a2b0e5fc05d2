"""The page of plans: network, GPU, number, length, batch -> the best plan, and why; offline."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from steptime.core.errors import InputError
from steptime.core.progress import tell
from steptime.plans.answer import WORDS, asking, timed
from steptime.plans.request import Request
from steptime.plans.search import searched
from steptime.plots import style, waterfall
from steptime.plots.plan import bars, memory, memory_rows, pipeline

BARS = 240  # of a pipeline, about: a page has hundreds of them
Drawn = dict[str, list[style.Row]]


def write_plans(asked: Sequence[tuple[Request, str]], path: Path) -> dict[str, Any]:
    """Write the page of searches, each with its command line, and return what is in it.

    Raises `InputError` where none of them finds a plan, `StoreError` where the disk takes no file.
    """
    from steptime.plots.files import write_whole
    from steptime.report.templating import rendered

    cells: list[dict[str, Any]] = []
    rows: Drawn = {"why": [], "pipeline": [], "memory": []}
    for done, (request, line) in enumerate(asked):
        tell("searches", done, len(asked))
        cells.append({"at": _place(request), "command": line, **_found(request, rows)})
    good = [cell for cell in cells if "best" in cell]
    if not good:
        raise InputError(f"none of {len(cells)} searches finds a plan: {cells[0]['failed']}")
    speeds = [cell["speed"] for cell in good]
    charts = {
        "why": waterfall.chart([("", 1.0)], "step", "", ()),
        "memory": memory(rows["memory"]),
        **({"pipeline": pipeline(rows["pipeline"], room="width")} if rows["pipeline"] else {}),
        "speed": _speed(speeds),
    }
    for spec in charts.values():
        spec |= {"data": {"values": []}, "config": {}}  # the page has both
    axes = {name: list(dict.fromkeys(cell["at"][name] for cell in cells)) for name in good[0]["at"]}
    data = {"axes": axes, "start": good[0]["at"], "cells": cells, "charts": charts}
    page = rendered("plans.html", data=data, axes=axes, best=good[0]["best"])
    write_whole(path, page.encode())
    return {"path": str(path), "searches": len(cells), "found": len(good), **axes}


def _place(request: Request) -> dict[str, str]:
    """Return where a search stands on the page: a word on each axis."""
    return {
        "model": request.model,
        "device": str(request.site.device),
        "devices": str(request.devices[0]),
        "length": str(request.length or "the model's"),
        "batch": str(request.batch),
    }


def _found(request: Request, rows: Drawn) -> dict[str, Any]:
    """Return what a search found, its charts' rows packed and added to `rows`; or why nothing."""
    try:
        told = searched(request)
    except InputError as error:
        return {"failed": str(error)}
    best, end, changes = told["best"], 0.0, []
    for key, word in WORDS.items():
        if best["parts"][key]:
            end += best["parts"][key]
            changes.append((word, end))
    drawn = {
        "why": waterfall.chart(changes, "step", "", ())["data"]["values"],
        "memory": memory_rows(best["memory"]),
        "pipeline": bars(timed(asking(request, best))[2], BARS),
    }
    for name, some in drawn.items():
        rows[name] += some
    one = {"devices": best["devices"], "device": str(request.site.device)}
    speed = one | {name: best[name] for name in ("step_s", "low", "high")}
    high = pipeline(drawn["pipeline"])["height"] if drawn["pipeline"] else 0
    packed = {name: _packed(some) for name, some in drawn.items()}
    return {**told, "drawn": packed, "pipeline_px": high, "speed": speed}


def _packed(rows: Sequence[style.Row]) -> list[list[Any]]:
    """Return rows as their names, once, and their values."""
    names = list(rows[0]) if rows else []
    return [names, *([style.short(row[name]) for name in names] for row in rows)]


def _speed(rows: Sequence[style.Row]) -> style.Spec:
    """Return the chart of every GPU and number: how long a step takes."""
    whole: style.Spec = {"labelExpr": "format(datum.value, 'd')", "grid": False}
    x = {**style.number("devices", "devices", **whole), "scale": {"type": "log", "base": 2}}
    y = {**style.number("step_s", "time of a step (s)", "s"), "scale": {"type": "log"}}
    y["axis"]["values"] = [float(f"{digit}e{power}") for power in range(-4, 6) for digit in (1, 2, 5)]
    told = {**style.told_by("device", rows), "tooltip": style.tooltip(("device", "devices"))}
    between = {"x": x, "y": {**y, "field": "low"}, "y2": {"field": "high"}, "color": told["color"]}
    layers = [
        style.layer("rule", between, opacity=0.5),
        style.layer("line", {"x": x, "y": y, "color": told["color"]}),
        style.layer("point", {"x": x, "y": y, **told}, filled=True),
    ]
    return style.finish("Every GPU and number", (), rows, layer=layers)
