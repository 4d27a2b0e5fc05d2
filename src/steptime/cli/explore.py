"""The command `explore`: one offline page to choose network, device and replicas in."""

from pathlib import Path

from steptime.core.errors import InputError, shorten
from steptime.core.files import check_folder
from steptime.core.progress import note
from steptime.core.question import Text, option, optional, question
from steptime.core.table import Answer
from steptime.hardware import catalog
from steptime.hardware.device import Device
from steptime.hardware.prices import offers
from steptime.network.families import FAMILIES, ZOO
from steptime.questions import grid_table
from steptime.reports.explore import write_explore
from steptime.reports.explore_data import exported


@question(long="predicting every network on every device")
def explore(
    out: Path = option("--out -o FILE", "The page, an .html file.", Path("explore.html")),
    models: Text = optional(
        "MODEL,...",
        "Networks to choose from: names, families with hyperparameters, files. "
        "Default: every named network, and each family at its defaults.",
    ),
    devices: Text = optional(
        "NAME,...|all",
        "Devices to choose from (steptime list devices). "
        "Default: accelerators with a short name or a price, and your own.",
    ),
) -> Answer:
    """Write one offline page to explore training time and cost.

    Times of a step are predicted at listed batches; in the page any batch between, number of
    replicas, link, software and price can be asked.
    """
    if out.suffix.lower() != ".html":
        raise InputError(f"{out}: the page is one .html file, not {shorten(out.suffix)}")
    check_folder(out)
    asked = [*ZOO, *FAMILIES] if models is None else grid_table.split_models(models)
    links = [catalog.link(name) for name in catalog.link_names()]
    document = write_explore(exported(asked, _devices(devices), links, catalog.aliases()), out)
    notes = [
        f"left out: {one['model']} with {one['method']}: {one['reason']}"
        for one in document["left_out"]
    ]
    counts = [f"{len(document[kind])} {kind}" for kind in ("models", "devices", "links")]
    return Answer(document, notes=[*notes, f"{', '.join(counts)}, {document['path']}"])


def _devices(text: str | None) -> dict[str, Device]:
    """Return the devices of a list by name, or by path where they have one.

    Raises `InputError` for what is not a device, and for one that is named twice.
    """
    if text is None or text.strip() == "all":
        usual = {*catalog.aliases().values(), *(offer.device for offer in offers())}
        return {
            one.name: one
            for one in catalog.devices(note)
            if text or catalog.is_own(one.name) or (one.kind != "cpu" and one.name in usual)
        }
    found: dict[str, Device] = {}
    for name in (piece.strip() for piece in text.split(",")):
        device = catalog.device(name)
        if any(device.name == one.name for one in found.values()):
            raise InputError(f"--devices: {shorten(device.name)} is given twice")
        found[name if name.lower().endswith(".toml") else device.name] = device
    return found
