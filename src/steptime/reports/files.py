"""A chart as a file: PNG, SVG, PDF or one offline HTML page, without a browser."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from steptime.core.errors import escape_controls
from steptime.core.files import check_ending, write_atomically
from steptime.core.json_types import JsonObject
from steptime.reports.svg_text import state_text_lengths

PIXELS_PER_POINT = 2.0

FORMATS: dict[str, Callable[[Any, str], bytes]] = {  # by vl_convert, of a chart's text
    ".png": lambda convert, spec: convert.vegalite_to_png(spec, scale=PIXELS_PER_POINT),
    ".svg": lambda convert, spec: state_text_lengths(convert.vegalite_to_svg(spec)).encode(),
    ".pdf": lambda convert, spec: convert.vegalite_to_pdf(spec),
    ".html": lambda _, spec: _page(spec).encode(),
}


def _page(spec: str) -> str:
    """Return one offline page with a chart, which follows the room and colours of its reader."""
    from steptime.reports.templating import render

    return render("chart.html", spec=json.loads(spec))


def check_path(path: Path) -> None:
    """Raise `InputError` for a path with an unknown ending or in a folder that does not exist."""
    check_ending(path, FORMATS, "picture format")


def save(spec: JsonObject, path: Path) -> None:
    """Write a chart in the format of the ending of `path`; raises as `write_atomically` does."""
    import vl_convert

    check_path(path)
    render = FORMATS[path.suffix.lower()]
    chart_text = json.dumps(_escape_all_controls(spec))
    write_atomically(path, render(vl_convert, chart_text))


def _escape_all_controls(value: Any) -> Any:
    """Return a chart without control characters, at which the writer of pictures fails."""
    if isinstance(value, str):
        return "\n".join(map(escape_controls, value.split("\n")))
    if isinstance(value, dict):
        return {
            _escape_all_controls(key): _escape_all_controls(item) for key, item in value.items()
        }
    return [*map(_escape_all_controls, value)] if isinstance(value, list | tuple) else value
