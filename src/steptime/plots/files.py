"""A chart as a file: PNG, SVG, PDF or one offline HTML page, without a browser."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from steptime.core.errors import unknown
from steptime.core.files import check_folder, write_whole

PIXELS_PER_POINT = 2.0


FORMATS: dict[str, Callable[[Any, str], bytes]] = {  # by vl_convert, of a chart's text
    ".png": lambda convert, spec: convert.vegalite_to_png(spec, scale=PIXELS_PER_POINT),
    ".svg": lambda convert, spec: convert.vegalite_to_svg(spec).encode(),
    ".pdf": lambda convert, spec: convert.vegalite_to_pdf(spec),
    ".html": lambda convert, spec: convert.vegalite_to_html(spec, bundle=True).encode(),
}


def check_path(path: Path) -> None:
    """Raise `InputError` for a path with an unknown ending or in a folder that does not exist."""
    if path.suffix.lower() not in FORMATS:
        raise unknown("picture format", path.suffix or path.name, FORMATS, str(path))
    check_folder(path)


def save(spec: dict[str, Any], path: Path) -> None:
    """Write a chart in the format of the ending of `path`; raises as `write_whole` does."""
    import vl_convert

    check_path(path)
    write_whole(path, FORMATS[path.suffix.lower()](vl_convert, json.dumps(spec)))
