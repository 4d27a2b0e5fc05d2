"""Pages from templates: one offline file each, everything escaped, nothing fetched."""

import gzip
import json
import zlib
from base64 import b64decode, b64encode
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from steptime import __version__
from steptime.core.errors import InputError, OutsideError
from steptime.core.files import cache_folder, write_atomically
from steptime.reports.charts.style import config

TEMPLATES = Path(__file__).parent / "templates"
POLICY = (  # of every page: nothing is fetched, and no text becomes code
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data: blob:; base-uri 'none'; form-action 'none'"
)


def render(template: str, **values: object) -> str:
    """Return the HTML of a template over values, all of them escaped."""
    return _environment().get_template(template).render(values)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":")}  # without blanks
    environment.globals |= {
        "policy": POLICY,
        "version": __version__,
        "config": {"light": config(), "dark": config(dark=True)},
        "library": _library,
        # a style or a script of ours, which a template inserts as it is
        "resource": lambda name: (TEMPLATES / name).read_text(encoding="utf-8"),
        "packed": lambda document: gzip_as_base64(
            json.dumps(document, separators=(",", ":")).encode()
        ),
    }
    return environment


@cache
def _library() -> str:
    """Return Vega, Vega-Lite and Vega-Embed (BSD licence) as a packed script, cached in a file."""
    import vl_convert

    cached_file = cache_folder() / f"vega-{version('vl-convert-python')}.gz.txt"
    with suppress(OSError, ValueError, EOFError, zlib.error):
        text = cached_file.read_text(encoding="ascii")
        gzip.decompress(b64decode(text))  # raises for a file that is not whole
        return text
    text = gzip_as_base64(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;").encode())
    with suppress(InputError, OutsideError):
        write_atomically(cached_file, text, makes_folder=True)
    return text


def gzip_as_base64(content: bytes) -> str:
    """Return bytes as base64 of gzip, which the page unpacks: a third to a half of them."""
    return b64encode(gzip.compress(content, mtime=0)).decode()
