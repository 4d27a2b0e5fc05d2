"""The command `explore`: one offline page to choose network, device and workers in."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from steptime.cli import grid, options, output
from steptime.core.errors import InputError, shorten

if TYPE_CHECKING:
    from steptime.core.hardware import Device


def explore(
    out: Annotated[
        Path, typer.Option("-o", "--out", metavar="FILE", help="The page, an .html file.")
    ] = Path("explore.html"),
    models: Annotated[
        str | None,
        typer.Option(
            "--models",
            metavar="MODEL,...",
            help="Networks to choose from: names, families with hyperparameters, files. "
            "Default: every named network, and each family at its defaults.",
        ),
    ] = None,
    devices: Annotated[
        str | None,
        typer.Option(
            "--devices",
            metavar="NAME,...",
            help="Devices to choose from (steptime list devices). Default: all.",
        ),
    ] = None,
    json: options.Json = False,
) -> None:
    """Write one offline page to explore training time and cost.

    The model runs in the page: any batch, number of workers, software and price can be asked.
    """
    from steptime import catalog
    from steptime.models import FAMILIES, ZOO
    from steptime.plots.files import check_folder
    from steptime.report.explore import write_explore
    from steptime.report.explore_data import exported

    if out.suffix.lower() != ".html":
        raise InputError(f"{out}: the page is one .html file, not {shorten(out.suffix)}")
    check_folder(out)
    document = write_explore(
        exported(
            [*ZOO, *FAMILIES] if models is None else grid.split_models(models),
            {one.name: one for one in catalog.devices(output.note)}
            if devices is None
            else _devices(devices),
            [catalog.link(name) for name in catalog.link_names()],
            catalog.aliases(),
        ),
        out,
    )
    if json:
        output.emit_json(document)
        return
    for one in document["left_out"]:
        output.note(f"left out: {one['model']} with {one['method']}: {one['reason']}")
    counts = [f"{len(document[kind])} {kind}" for kind in ("models", "devices", "links")]
    output.note(f"{', '.join(counts)}, {document['path']}")


def _devices(text: str) -> dict[str, Device]:
    """Give the devices of a list by name, or by path where they have one.

    Raises `InputError` for what is no device, and for one that is named twice.
    """
    from steptime import catalog

    found: dict[str, Device] = {}
    for name in (piece.strip() for piece in text.split(",")):
        device = catalog.device(name)
        if any(device.name == one.name for one in found.values()):
            raise InputError(f"--devices: {shorten(device.name)} is given twice")
        found[name if name.lower().endswith(".toml") else device.name] = device
    return found
