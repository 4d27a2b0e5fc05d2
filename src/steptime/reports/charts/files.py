"""A chart as a file: PNG, SVG, PDF or one offline HTML page, without a browser."""

import json
from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Any

from steptime.core.errors import one_line
from steptime.core.files import check_ending, write_whole

PIXELS_PER_POINT = 2.0
POLICY = (  # of every page: nothing is fetched, and no text becomes code
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data: blob:; base-uri 'none'; form-action 'none'"
)
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>steptime: {title}</title>
<style>svg.marks {{ max-width: 100%; height: auto }}</style>
</head>
<body>
<main>
<h1 style="position: absolute; clip-path: inset(50%)">{title}</h1>
<div id="chart"></div>
</main>
<script>{library}</script>
<script>
vegaEmbed("#chart", {spec}, {{
  ast: true, renderer: "svg",
  actions: {{export: true, source: false, compiled: false, editor: false}},
}});
</script>
</body>
</html>
"""

FORMATS: dict[str, Callable[[Any, str], bytes]] = {  # by vl_convert, of a chart's text
    ".png": lambda convert, spec: convert.vegalite_to_png(spec, scale=PIXELS_PER_POINT),
    ".svg": lambda convert, spec: convert.vegalite_to_svg(spec).encode(),
    ".pdf": lambda convert, spec: convert.vegalite_to_pdf(spec),
    ".html": lambda convert, spec: _page(convert, spec).encode(),
}


def _page(convert: Any, spec: str) -> str:
    """Return one offline page with a chart, no text of which can end its script."""
    library = convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    told = spec.replace("<", "\\u003c")
    title = escape(" ".join(json.loads(spec)["title"]["text"].split()))
    return _PAGE.format(policy=POLICY, title=title, library=library, spec=told)


def check_path(path: Path) -> None:
    """Raise `InputError` for a path with an unknown ending or in a folder that does not exist."""
    check_ending(path, FORMATS, "picture format")


def save(spec: dict[str, Any], path: Path) -> None:
    """Write a chart in the format of the ending of `path`; raises as `write_whole` does."""
    import vl_convert

    check_path(path)
    write_whole(path, FORMATS[path.suffix.lower()](vl_convert, json.dumps(_shown(spec))))


def _shown(value: Any) -> Any:
    """Return a chart without control characters: the one that writes pictures dies of them."""
    if isinstance(value, str):
        return "\n".join(map(one_line, value.split("\n")))
    if isinstance(value, dict):
        return {_shown(key): _shown(item) for key, item in value.items()}
    return [*map(_shown, value)] if isinstance(value, list | tuple) else value
