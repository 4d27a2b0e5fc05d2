"""The page to explore: networks, devices, links and the model of their scaling, offline."""

from __future__ import annotations

import json
from collections.abc import Mapping
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from steptime import __version__

Table = dict[str, Any]

POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data:; base-uri 'none'; form-action 'none'"
)
START = {  # what the page opens with, where it has it; the training is that of Paleo's live demo
    "network": "resnet50",
    "device": "v100-sxm2-16gb",
    "link": "infiniband-edr",
    "dtype": "float32",
    "method": "analytic",
    "software": "none",
    "ppp_comp": "1",
    "ppp_comm": "1",
    "latency": "",
    "batch": "64",
    "scaling": "weak",
    "workers": "1,2,4,...,128",
    "collective": "usual",
    "inside": "",
    "servers": "1",
    "samples": "1281167",  # images of ImageNet's training set (ILSVRC 2012)
    "epochs": "90",
    "price": "0.90",
}


def explore_page(model: Mapping[str, Any]) -> str:
    """Give the HTML of the page on what `predict.export.exported` gives."""
    data = {**model, "version": __version__, "start": _start(model)}
    scripts = ("explore_model.js", "explore_charts.js", "explore_shown.js", "explore.js")
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="steptime {escape(__version__)}">
<link rel="icon" href="data:,">
<title>steptime: how long would training take?</title>
<style>{_resource("page.css")}{_resource("explore.css")}</style>
</head>
<body>
{_resource("explore.html")}
<script type="application/json" id="data">{_json(data)}</script>
<script type="application/json" id="result"></script>
{"".join(f"<script>{_resource(name)}</script>" for name in scripts)}
</body>
</html>
"""


def write_explore(model: Mapping[str, Any], path: Path) -> Table:
    """Write the page to `path`, whole or not at all, and give what is in it, by name.

    Raises `InputError` for no place for a file, `StoreError` where the disk does not take it.
    """
    from steptime.plots.files import check_folder, write_whole

    check_folder(path)
    write_whole(path, explore_page(model).encode())
    names = {kind: [one["name"] for one in model[kind]] for kind in ("models", "devices", "links")}
    return {"path": str(path), **names, "left_out": model["left_out"]}


def _start(model: Mapping[str, Any]) -> dict[str, str]:
    """Give the first choice, the first name where the usual one is not there."""
    start = {**START, "per_node": str(model["group"])}
    for field, kind in (("network", "models"), ("device", "devices"), ("link", "links")):
        names = [one["name"] for one in model[kind]]
        if start[field] not in names:
            start[field] = names[0]
    return start


def _resource(name: str) -> str:
    return files("steptime.report").joinpath("templates", name).read_text(encoding="utf-8")


def _json(value: object) -> str:
    """Give JSON that may stand inside a script element: `<` would end it."""
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")
