"""The page: everything escaped, scripts and styles inline, nothing fetched from anywhere."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from html import escape
from importlib.resources import files
from typing import Any

from steptime import __version__
from steptime.analysis.results import results
from steptime.core.record import Method, Record
from steptime.plots import PLOTS, EmptyPlotError, draw
from steptime.report.headline import numbers, sentences
from steptime.report.table import failures, results_table

Row = dict[str, Any]

POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data: blob:; base-uri 'none'; form-action 'none'"
)
FOLDED = ("samples", "devices")  # drawn, but shown only when asked for


def page(records: Sequence[Record], name: str) -> tuple[str, Row]:
    """Give the HTML of a report on `records` of the folder `name`, and its headline numbers."""
    rows = results(records)
    published = sum(r.origin == "published" and not r.scope for r in records)
    found = numbers(rows, published)
    text = f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="steptime {escape(__version__)}">
<link rel="icon" href="data:,">
<title>steptime: {escape(name)}</title>
<style>{_resource("page.css")}</style>
</head>
<body>
<main>
<header>
<h1>Step times: {escape(name)}</h1>
<p class="quiet">{escape(_where(records))}</p>
{"".join(f'<p class="headline">{escape(sentence)}</p>' for sentence in sentences(found))}
</header>
<section><h2>Results</h2>
{results_table(rows)}
</section>
{failures(rows)}
{_figures(records)}
<section><h2>How these numbers were obtained</h2>
{_resource("notes.html")}
{_sources(records)}
</section>
</main>
<noscript>The plots need JavaScript (it is in this file; nothing is fetched).</noscript>
<script>{_library()}</script>
<script>{_resource("page.js")}</script>
</body>
</html>
"""
    return text, found


def _resource(name: str) -> str:
    return files("steptime.report").joinpath(name).read_text(encoding="utf-8")


@cache
def _library() -> str:
    """Give Vega, Vega-Lite and Vega-Embed (BSD licence) as one script."""
    import vl_convert

    return vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;").replace(
        "</script", "<\\/script"
    )


def _figures(records: Sequence[Record]) -> str:
    drawn, missing = [], []
    for kind in PLOTS:
        try:
            drawn.append(_figure(kind, draw(kind, records)))
        except EmptyPlotError as error:
            missing.append(f"<li>{escape(str(error))}</li>")
    if missing:
        drawn.append(f"<section><h2>Not drawn</h2><ul>{''.join(missing)}</ul></section>")
    return "".join(drawn)


def _figure(kind: str, spec: Row) -> str:
    title = spec.pop("title")
    caption = "<br>".join(escape(line) for line in title["subtitle"])
    drawing = (
        f'<div class="wide plot" id="plot-{kind}" role="img" '
        f'aria-label="{escape(title["text"])}"></div>'
        f'<script type="application/json" id="spec-{kind}">{_json(spec)}</script>'
        f"<figcaption>{caption}</figcaption>"
    )
    heading = f"<h2>{escape(title['text'])}</h2>"
    if kind in FOLDED:
        drawing = f"<details><summary>Show all samples</summary>{drawing}</details>"
    return f"<section>{heading}<figure>{drawing}</figure></section>\n"


def _json(value: object) -> str:
    """Give JSON that may stand inside a script element: `<` would end it."""
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")


def _where(records: Sequence[Record]) -> str:
    times = sorted(record.taken_at[:16].replace("T", " ") for record in records if record.taken_at)
    workloads = [record.workload for record in records]
    said = [
        _distinct(record.platform for record in records),
        _distinct(workload.phase for workload in workloads),
        _distinct(workload.dtype for workload in workloads),
        _distinct(workload.optimizer for workload in workloads),
        [" to ".join(_distinct([times[0], times[-1]])) + " UTC"] if times else [],
    ]
    return " · ".join(", ".join(part) for part in said if part)


def _distinct(values: Any) -> list[str]:
    return [str(value) for value in dict.fromkeys(values) if value]


def _sources(records: Sequence[Record]) -> str:
    """Give the table of methods with all their options, and of what the records say of the host."""
    methods: dict[tuple[str, str], Method] = {}
    for record in records:
        options = json.dumps(dict(record.method.options), sort_keys=True, default=str)
        key = f"{record.origin} {record.method.name} {record.method.version} {options}"
        methods.setdefault((record.origin, key), record.method)
    lines = [
        (f"{origin} with {method.name} {method.version}", _options(method.options))
        for (origin, _), method in methods.items()
    ]
    for field in ("host", "steptime", "framework", "memory_meter"):
        values = _distinct(_text(record.env.get(field, "")) for record in records)
        if values:
            lines.append((field.replace("_", " "), ", ".join(values)))
    body = "".join(
        f'<tr><th scope="row">{escape(name)}</th><td>{escape(value)}</td></tr>'
        for name, value in lines
    )
    region = '<div class="wide" tabindex="0" role="region" aria-label="Sources">'
    return f"{region}<table>{body}</table></div>"


def _options(options: Any) -> str:
    return ", ".join(
        f"{name} = {_text(value)}" for name, value in options.items() if value is not None
    )


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return value if isinstance(value, str) else json.dumps(value, default=str)
