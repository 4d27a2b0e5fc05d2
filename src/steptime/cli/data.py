"""The command `data`: real data sets as files."""

from pathlib import Path
from typing import Annotated

from steptime.core import registry
from steptime.core.question import File, argument, option, optional, question
from steptime.core.table import Answer

SOURCES = {"mnist": "steptime.measure.data.mnist"}
"""A module with `installed()`, where the source lies, and `write(source, out)`."""


@question()
def data(
    name: Annotated[str, argument("NAME", "The data set: mnist.")],
    out: Path = option("DIR", "Folder to write it into."),
    source: File = optional("--from DIR", "Where the source lies, if not installed."),
) -> Answer:
    """Write a real data set as files for `run --input dataset`."""
    module = registry.resolve(SOURCES, "data_sources", "data set", name)
    written = module.write(source or module.installed(), out)
    images = written["images"]
    said = (
        f"{name}: {images['train']:,} training and {images['test']:,} test images in {out}, "
        "each file as published (sha256)"
    )
    return Answer({"name": name, "out": str(out), **written}, notes=[said])
