"""The page to explore: networks, devices and links, and what more devices bring; offline."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from steptime.reports.charts.style import Spec, layer, name, number, si_label, told_by
from steptime.reports.explore_data import OFFERED

Table = dict[str, Any]

PARTS = ("forward", "backward", "update", "exchange")


def explore_page(model: Mapping[str, Any]) -> str:
    """Return the HTML of the page on what `explore_data.exported` returns."""
    from steptime.reports.templating import packed, rendered

    groups: dict[str, list[tuple[str, str]]] = {}
    for one in model["devices"]:
        groups.setdefault(one["group"], []).append((one["name"], one["name"]))
    start = dict(OFFERED["start"])  # the first name where the usual one is not there
    for field, kind in (("network", "models"), ("device", "devices"), ("link", "links")):
        names = [one["name"] for one in model[kind]]
        start[field] = start[field] if start[field] in names else names[0]
    return rendered(
        "explore.html",
        data={**model, "start": start, "charts": charts(), "times": None},
        times=packed(model["times"]),
        choices=_choices(model),
        groups=groups.items(),
    )


def _choices(model: Mapping[str, Any]) -> dict[str, list[tuple[str, str]]]:
    """Return what can be chosen in each field: values, each with its words."""
    links = [(one["name"], f"{one['name']} ({one['bytes_per_s'] / 1e9:.4g} GB/s)")
             for one in model["links"]]  # fmt: skip
    software = [
        (one, "none: the peaks are reached" if one == "none" else f"{one} {compute} / {link}")
        for one, (compute, link) in model["software"].items()
    ]
    exchanges = next(iter(model["methods"].values()))["exchanges"]
    return {
        "network": [(one["name"], one["name"]) for one in model["models"]],
        "link": links,
        "inside": [("", "the same"), *links],
        "software": [*software, ("own", "own numbers")],
        "collective": [("usual", "the method's own"), *_named(exchanges)],
        "dtype": _named(model["dtypes"]),
        "optimizer": _named(model["optimizers"]),
        "method": _named(model["methods"]),
        "replicas": _named(model["replicas"]),
        **{name: _named(sorted(values)) for name, values in model["layout"].items()},
    }


def _named(values: Iterable[Any]) -> list[tuple[str, str]]:
    return [(str(value), str(value)) for value in values]


def write_explore(model: Mapping[str, Any], path: Path) -> Table:
    """Write the page to `path`, whole or not at all, and return what is in it, by name.

    Raises `InputError` for no place for a file, `OutsideError` where the disk does not take it.
    """
    from steptime.core.files import check_folder, write_whole

    check_folder(path)
    write_whole(path, explore_page(model))
    names = {kind: [one["name"] for one in model[kind]] for kind in ("models", "devices", "links")}
    return {"path": str(path), **names, "left_out": model["left_out"]}


def charts() -> dict[str, Spec]:
    """Return the Vega-Lite of the page's charts over the rows that it has, by their places."""
    whole: Spec = {"labelExpr": "format(datum.value, 'd')", "grid": False}
    x = {**number("replicas", "replicas", **whole), "scale": {"type": "log", "base": 2}}
    bars_x = name("replicas", sort=None, axis={"title": "replicas", "labelAngle": 0})
    speed = {**number("speedup", "speed-up"), "scale": {"type": "log", "base": 2}}
    speed["axis"]["labelExpr"] = "format(datum.value, '~g') + '\u00d7'"
    hours = {**number("hours", "hours of training"), "scale": {"type": "log", "nice": False}}
    hours["axis"]["grid"] = False
    cost = number("cost", "cost of training ($)")
    cost["axis"]["labelExpr"] = f"'$' + {si_label('')}"
    parts = told_by("part", [{"part": part} for part in PARTS], " ", orient="top", columns=2)
    dashed = {"style": "quiet", "fill": None, "strokeDash": [4, 4]}
    ideal = layer("line", {"x": x, "y": {**speed, "field": "replicas"}}, **dashed)
    seconds = number("seconds", "step (s)", "s")
    stacked = {"x": bars_x, "y": seconds, "color": parts["color"], "order": {"field": "index"}}
    fold = {"transform": [{"fold": PARTS, "as": ["part", "seconds"]}]}
    return {
        "speedup": _chart(ideal, *_line(x, speed)),
        "parts": _chart({**fold, "mark": "bar", "encoding": stacked}),
        "hours": _chart(*_line(x, hours)),
        "cost": _chart({"mark": "bar", "encoding": {"x": bars_x, "y": cost}}),
    }


def _line(x: Spec, y: Spec) -> list[Spec]:
    place = {"x": x, "y": y}
    return [{"mark": "line", "encoding": place}, {"mark": "point", "encoding": place}]


def _chart(*layers: Spec) -> Spec:
    return {"data": {"name": "rows", "values": []}, "height": 230, "layer": list(layers)}
