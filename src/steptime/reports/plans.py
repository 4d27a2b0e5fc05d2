"""The page of plans: network, GPU, number, length, batch -> the best plan, and why; offline."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from steptime.core.errors import InputError
from steptime.core.progress import tell
from steptime.planning.answer import WORDS, asking, timed
from steptime.planning.best import searched
from steptime.planning.request import Request
from steptime.reports.charts import style, waterfall
from steptime.reports.charts.plan import bars, memory, memory_rows, pipeline

BARS = 240  # of a pipeline, about: a page has hundreds of them
AXES = ("model", "device", "device_count", "length", "global_batch")


def write_plans(asked: Sequence[Request], words: Sequence[str], path: Path) -> dict[str, Any]:
    """Write the page of searches and return what is in it; `words` are options of all of them.

    Raises `InputError` where none of them finds a plan, `OutsideError` where the disk is full.
    """
    from steptime.core.files import write_whole
    from steptime.reports.templating import rendered

    cells: list[dict[str, Any]] = []
    rows: dict[str, list[style.Row]] = {"why": [], "pipeline": [], "memory": []}
    for done, request in enumerate(asked):
        tell("searches", done, len(asked))
        site, length = request.site, request.length or ""
        words_ = (
            request.model,
            site.device,
            request.device_counts[0],
            length,
            request.global_batch,
        )
        at = dict(zip(AXES, map(str, words_), strict=True))
        links = (("--inside", site.inside), ("--link", site.link))
        where = [word for pair in links if pair[1] for word in pair]
        cells.append({"at": at, "where": where, **_found(request, rows)})
    good = [cell for cell in cells if "best" in cell]
    if not good:
        raise InputError(f"none of {len(cells)} searches finds a plan: {cells[0]['failed']}")
    axes = {name: list(dict.fromkeys(cell["at"][name] for cell in cells)) for name in AXES}
    charts = {
        "why": waterfall.chart([("", 1.0)], "step", "", ()),
        "memory": memory(rows["memory"]),
        **({"pipeline": pipeline(rows["pipeline"], room="width")} if rows["pipeline"] else {}),
        "speed": _speed([{"device": name} for name in axes["device"]]),
    }
    for spec in charts.values():
        spec["data"] = {"values": []}  # the page has them
    data = {"axes": axes, "start": good[0]["at"], "cells": cells, "charts": charts, "words": words}
    write_whole(path, rendered("plans.html", data=data, best=good[0]["best"]))
    return {"path": str(path), "searches": len(cells), "found": len(good), **axes}


def _found(request: Request, rows: dict[str, list[style.Row]]) -> dict[str, Any]:
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
        "pipeline": bars(timed(asking(request, best))[1], BARS),
    }
    for name, some in drawn.items():
        rows[name] += some
    high = pipeline(drawn["pipeline"])["height"] if drawn["pipeline"] else 0
    packed = {name: _packed(some) for name, some in drawn.items()}
    return {**told, "drawn": packed, "pipeline_px": high}


def _packed(rows: Sequence[style.Row]) -> list[list[Any]]:
    """Return rows as their names, once, and their values."""
    names = list(rows[0]) if rows else []
    return [names, *([style.short(row[name]) for name in names] for row in rows)]


def _speed(rows: Sequence[style.Row]) -> style.Spec:
    """Return the chart of how long a step takes on every device and number of them."""
    whole: style.Spec = {"labelExpr": "format(datum.value, 'd')", "grid": False}
    x = {**style.number("device_count", "devices", **whole), "scale": {"type": "log", "base": 2}}
    y = {**style.number("step_s", "time of a step (s)", "s"), "scale": {"type": "log"}}
    y["axis"]["values"] = [float(f"{digit}e{at}") for at in range(-4, 6) for digit in (1, 2, 5)]
    told = {**style.told_by("device", rows), "tooltip": style.tooltip(("device", "device_count"))}
    between = {
        "x": x,
        "y": {**y, "field": "low_s"},
        "y2": {"field": "high_s"},
        "color": told["color"],
    }
    layers = [
        style.layer("rule", between, strokeWidth=2),
        style.layer("line", {"x": x, "y": y, "color": told["color"]}),
        style.layer("point", {"x": x, "y": y, **told}, filled=True),
    ]
    return style.finish("Every device and number", (), rows, layer=layers)
