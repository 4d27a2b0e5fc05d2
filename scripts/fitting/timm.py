"""Whole image networks (timm's benchmark): autocast to float16, of which only sums are known."""

import os
import sys
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from string import digits

from fitting.rows import device_of, rows
from steptime.build import make_workload, read_model
from steptime.calibration.cases import Case
from steptime.calibration.recorded import step_kernels
from steptime.core.errors import InputError
from steptime.models import family
from steptime.predict.described import described
from steptime.predict.kernel import Kernel

DTYPE, OLD = "float16-mixed", "torch-eager-1"
Row = dict[str, str]
TRANSFORMERS = (  # attention and linear layers alone, by the first word of their names
    *("beit", "beitv", "cait", "convit", "crossvit", "deit", "eva", "flexivit", "hiera", "mixer"),
    *("naflexvit", "pit", "samvit", "tnt", "twins", "vit", "vitamin", "volo"),
)

_RESIDUAL = "cnn:block=residual,filters=64,blocks="
_BOTTLENECK = "cnn:block=bottleneck,filters=64,blocks="
GRAPHS = {  # networks that we know op by op; others of these names are the same ones again
    "resnet18": "resnet18",
    "resnet34": f"{_RESIDUAL}3-4-6-3",
    "resnet50": "resnet50",
    "resnet101": f"{_BOTTLENECK}3-4-23-3",
    "tv_resnet152": f"{_BOTTLENECK}3-8-36-3",
    "tf_inception_v3": "inception_v3",
    "tv_densenet121": "densenet121",
    "mobilenetv1_100": "mobilenet_v1",
}


def op_by_op(data: Path) -> Iterator[Case]:
    """Yield steps of networks whose graph is known, once in either layout, by the latest PyTorch.

    They are those that `scripts/export-timm` wrote into `STEPTIME_TIMM_GRAPHS`, else `GRAPHS`.
    """
    graphs, latest = os.environ.get("STEPTIME_TIMM_GRAPHS", ""), dict[tuple[str, ...], Row]()
    for row in rows(data / "measured/timm/networks.csv.gz"):
        key = row["network"].partition(".")[0], row["image"], row["mode"], row["layout"]
        if key not in latest or row["torch"] > latest[key]["torch"]:
            latest[key] = row
    for (name, image, mode, layout), row in sorted(latest.items(), key=lambda one: one[0]):
        path = Path(graphs, f"{name}-{image}.pt2")
        text = (str(path) if path.exists() else "") if graphs else _named(name, image)
        if not text:
            continue
        phase = "train" if mode == "train" else "infer"
        batch, stack = int(float(row["batch"])), "torch-eager" if row["torch"] > "2" else OLD
        try:
            kernels = _kernels(text, batch, phase, stack)
        except InputError as error:  # what an exported graph holds is not all known
            print(error, file=sys.stderr)
            continue
        kernels = tuple(one._replace(channels_last=layout == "nhwc") for one in kernels)
        seconds = float(row["step_ms"]) / 1e3
        yield Case(kernels, device_of(row["device"]), seconds, f"{mode} {layout}", "step", name)


@lru_cache(maxsize=1)
def _kernels(text: str, batch: int, phase: str, stack: str) -> tuple[Kernel, ...]:
    """Return the kernels of a step; layouts follow one another in the table."""
    return step_kernels(make_workload(read_model(text), batch, DTYPE, phase), stack)


def _named(name: str, image: str) -> str:
    """Return the model text of a network that we know by name, "" for others."""
    text = GRAPHS.get(name, "")
    if text and "image" in family(text.partition(":")[0]).parameters:
        return f"{text}{',' if ':' in text else ':'}image={image}"
    return text if image in ("224", "299") else ""


def networks(data: Path) -> Iterator[Case]:
    """Yield steps of networks whose multiply-adds and activations were counted."""
    for row in rows(data / "measured/timm/networks.csv.gz"):
        sizes = [float(row[name] or 0) for name in ("gmac", "mact", "params_M", "batch", "step_ms")]
        macs, activations, parameters, batch, milliseconds = sizes
        if not all(sizes):
            continue
        name = row["network"].partition(".")[0]
        attention = "plain" if row["torch"].startswith("1.") else "fused"
        kernels = described(
            macs * 1e9,
            activations * 1e6,
            parameters * 1e6,
            int(batch),
            DTYPE,
            "train" if row["mode"] == "train" else "infer",
            attention=attention if name.partition("_")[0].rstrip(digits) in TRANSFORMERS else "",
            channels_last=row["layout"] == "nhwc",
            compiled=row["compiled"] == "1",
        )
        device = device_of(row["device"])
        kind = f"{row['mode']} {row['layout']}"
        yield Case(kernels, device, milliseconds / 1e3, kind, "step", name)
