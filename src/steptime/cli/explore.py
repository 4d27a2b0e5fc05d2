"""The command `explore`, which `choose --page` is now: one page of several networks."""

from functools import partial
from pathlib import Path

from steptime.cli.choose import REPLICAS, devices_of, write_page
from steptime.core.question import Text, option, optional, question
from steptime.core.table import Answer
from steptime.hardware import catalog
from steptime.hardware.prices import Training, offers
from steptime.prediction import DEFAULT
from steptime.questions import options
from steptime.questions.grid_table import split_models

IMAGENET = Training(1_281_167, 90.0)  # images of its training set (ILSVRC 2012)
MODELS = "resnet50,vgg16,mobilenet_v2,bert_base,gpt2"


@question(long="predicting every network on every device")
def explore(
    out: Path = option("--out -o FILE", "The page, an .html file.", Path("explore.html")),
    models: str = option("MODEL,...", "Networks to choose from.", MODELS),
    devices: Text = optional(
        "NAME,...|all",
        "Devices to choose from (steptime list devices). "
        "Default: accelerators with a short name or a price, and your own.",
    ),
) -> Answer:
    """Write one offline page to choose in."""
    make = partial(options.workload_of, dtype="float32", phase="train", optimizer="adam")
    some = devices_of("all" if devices is None else devices)
    if devices is None:
        usual = {*catalog.aliases().values(), *(offer.device for offer in offers())}
        some = [
            one
            for one in some
            if catalog.is_own(one.name) or (one.kind != "cpu" and one.name in usual)
        ]
    axes = split_models(models), some, None, None, REPLICAS
    return write_page(out, make, axes, (IMAGENET, offers()), (DEFAULT, {}))
