"""The page of plans: the best plan for each network, device, number, length and batch; offline."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from steptime.core.errors import InputError
from steptime.core.json_types import JsonObject
from steptime.core.progress import report_progress
from steptime.planning.request import Request
from steptime.planning.step import PlanTime
from steptime.reports.charts import style, waterfall
from steptime.reports.charts.plan import bars, memory, memory_rows, pipeline

BARS = 240  # of a pipeline, about: a page has hundreds of them
AXES = ("model", "device", "device_count", "length", "global_batch", "dtype")
# From 0.1 ms to 500 ks: one list of ticks for the steps of every search.
STEP_TICKS_S = [float(f"{digit}e{exponent}") for exponent in range(-4, 6) for digit in (1, 2, 5)]
Document = Mapping[str, Any]  # JSON values, for the page's code
ChartRows = Mapping[str, list[style.Row]]


class SearchResult(NamedTuple):
    """The result of a search for the page.

    Args:
        document: the answer as JSON values, its best plan under `best`.
        step: the step of the best plan.
        parts: the parts of the step in words, with their seconds.
    """

    document: Document
    step: PlanTime
    parts: Sequence[tuple[str, float]]


class PlanPage(NamedTuple):
    """The content of a page in numbers.

    Args:
        search_count: its searches.
        plan_count: those that have a plan.
        axes: the choices by axis.
    """

    search_count: int
    plan_count: int
    axes: Mapping[str, Sequence[str]]


def write_plans(
    requests: Sequence[Request],
    search: Callable[[Request], SearchResult],
    words: Sequence[str],
    path: Path,
) -> PlanPage:
    """Write the page of searches.

    Args:
        requests: the searches.
        search: returns the result of a request; raises `InputError` where there is no plan.
        words: options of all searches, as a user types them.
        path: the file.

    Raises:
        InputError: where no search finds a plan.
        OutsideError: where the disk is full.
    """
    from steptime.core.files import write_atomically
    from steptime.reports.templating import render

    rows: ChartRows = {"why": [], "pipeline": [], "memory": []}
    cells = _search_cells(requests, search, rows)
    plan_cells = [cell for cell in cells if "best" in cell]  # of searches that find a plan
    if not plan_cells:
        raise InputError(f"none of {len(cells)} searches finds a plan: {cells[0]['failed']}")
    axes = {name: list(dict.fromkeys(cell["at"][name] for cell in cells)) for name in AXES}
    charts = _empty_charts(rows, axes["device"])
    start = plan_cells[0]  # the page opens there
    data = {"axes": axes, "start": start["at"], "cells": cells, "charts": charts, "words": words}
    write_atomically(path, render("plans.html", data=data, best=start["best"]))
    return PlanPage(len(cells), len(plan_cells), axes)


def _search_cells(
    requests: Sequence[Request], search: Callable[[Request], SearchResult], rows: ChartRows
) -> list[JsonObject]:
    """Return a cell of the page for each search, and add the rows of all charts to `rows`."""
    cells = []
    for index, request in enumerate(requests):
        report_progress("searches", index, len(requests))
        cells.append({**_describe_choices(request), **_search_cell(request, search, rows)})
    return cells


def _describe_choices(request: Request) -> JsonObject:
    """Return the choices of a search by axis, and the options of its links."""
    site = request.site
    values = (
        request.model,
        site.device,
        request.device_counts[0],  # a search of the page is of one number of devices
        request.length or "",
        request.global_batch,
        request.dtype or "",
    )
    links = (("--inside", site.inside), ("--link", site.link))
    return {
        "at": dict(zip(AXES, map(str, values), strict=True)),
        "where": [word for option, link in links if link for word in (option, link)],
    }


def _empty_charts(rows: ChartRows, devices: Sequence[str]) -> dict[str, style.Spec]:
    """Return the charts of the page without their rows, which the page has by search."""
    charts = {
        "why": waterfall.chart([("", 1.0)], end="step", title="", caption=()),  # of any bar
        "memory": memory(rows["memory"]),
        "speed": _draw_step_times([{"device": name} for name in devices]),
    }
    if rows["pipeline"]:
        charts["pipeline"] = pipeline(rows["pipeline"], width_expression="width")
    for spec in charts.values():  # the page puts in the rows of the search that is looked at
        spec["data"] = {"values": []}
    return charts


def _search_cell(
    request: Request, search: Callable[[Request], SearchResult], rows: ChartRows
) -> JsonObject:
    """Return the result of a search for the page and add its charts' rows to `rows`."""
    try:
        result = search(request)
    except InputError as error:
        return {"failed": str(error)}
    chart_rows = _make_chart_rows(result)
    # The charts of the page have their scales from the rows of all searches.
    for name, values in chart_rows.items():
        rows[name].extend(values)
    height = pipeline(chart_rows["pipeline"])["height"] if chart_rows["pipeline"] else 0
    packed = {name: _pack_rows(values) for name, values in chart_rows.items()}
    return {**result.document, "drawn": packed, "pipeline_px": height}


def _make_chart_rows(result: SearchResult) -> ChartRows:
    """Return the rows of the charts of a search; the page has each chart itself once."""
    waterfall_chart = waterfall.chart(_sum_parts(result.parts), end="step", title="", caption=())
    return {
        "why": waterfall_chart["data"]["values"],
        "memory": memory_rows(result.document["best"]["memory"]),
        "pipeline": bars(result.step, BARS),
    }


def _sum_parts(parts: Sequence[tuple[str, float]]) -> list[tuple[str, float]]:
    """Return the second at which each part of a step ends; a part of no time needs no bar."""
    elapsed_s = 0.0
    part_ends = []
    for words, part_s in parts:
        if part_s:
            elapsed_s += part_s
            part_ends.append((words, elapsed_s))
    return part_ends


def _pack_rows(rows: Sequence[style.Row]) -> list[list[Any]]:
    """Return rows as their names, once, and their values."""
    names = list(rows[0]) if rows else []
    return [names, *([style.round_value(row[name]) for name in names] for row in rows)]


def _draw_step_times(rows: Sequence[style.Row]) -> style.Spec:
    """Return the chart of how long a step takes on every device and number of them."""
    integers: style.Spec = {"labelExpr": "format(datum.value, 'd')", "grid": False}
    x = style.encode_number("device_count", "devices", **integers)
    x["scale"] = {"type": "log", "base": 2}
    y = style.encode_number("step_s", "time of a step (s)", "s", values=STEP_TICKS_S)
    y["scale"] = {"type": "log"}
    device = style.encode_categories("device", rows)
    line = {"x": x, "y": y, "color": device["color"]}
    interval = {**line, "y": {**y, "field": "low_s"}, "y2": {"field": "high_s"}}
    dot = {"x": x, "y": y, **device, "tooltip": style.tooltip(("device", "device_count"))}
    layers = [
        style.layer("rule", interval, strokeWidth=2),
        style.layer("line", line),
        style.layer("point", dot, filled=True),
    ]
    return style.finish("Every device and number", (), rows, layer=layers)
