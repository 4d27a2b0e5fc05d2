"""The command `explore`, which `choose --page` is now: one page of several networks."""

from pathlib import Path
from typing import Any

from steptime.cli.choose import choose, devices_of
from steptime.core.question import Text, option, optional, question
from steptime.core.table import Answer
from steptime.hardware import catalog
from steptime.hardware.prices import offers

IMAGENET: Any = {"examples": 1_281_167, "epochs": 90.0, "optimizer": "adam"}  # of ILSVRC 2012
MODELS = "resnet50,vgg16,mobilenet_v2,bert_base,gpt2"


@question(long="predicting every network on every device")
def explore(
    out: Path = option("--out -o FILE", "The page, an .html file.", Path("explore.html")),
    models: str = option("MODEL,...", "Networks to choose from.", MODELS),
    device: Text = optional(
        "NAME,...|all",
        "Devices to choose from (steptime list devices). "
        "Default: accelerators with a short name or a price, and your own.",
    ),
) -> Answer:
    """Write one offline page to choose in."""
    if device is None:
        usual = {*catalog.aliases().values(), *(offer.device for offer in offers())}
        some = (
            one.name
            for one in devices_of("all")
            if catalog.is_own(one.name) or (one.kind != "cpu" and one.name in usual)
        )
        device = ",".join(some)
    return choose(models, device, page=out, **IMAGENET)
