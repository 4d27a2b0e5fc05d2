"""The command that gets real data sets."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from steptime.cli import options, output
from steptime.core.errors import unknown

SOURCES = {"mnist": "steptime.measure.data.mnist"}
"""A module with `installed()`, where the source lies, and `write(source, out)`."""


def data(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The data set: mnist.")],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder to write it into.")],
    source: Annotated[
        Path | None,
        typer.Option("--from", metavar="DIR", help="Where the source lies, if not installed."),
    ] = None,
    json: options.Json = False,
) -> None:
    """Write a real data set as files that `run --input dataset` takes."""
    if name not in SOURCES:
        raise unknown("data set", name, SOURCES)
    module: Any = import_module(SOURCES[name])
    written = module.write(source or module.installed(), out)
    document = {"name": name, "out": str(out), **written}
    if json:
        output.emit_json(document)
        return
    images = document["images"]
    output.note(
        f"{name}: {images['train']:,} training and {images['test']:,} test images in {out}, "
        "each file as published (sha256)"
    )
