"""Whole image networks (timm's benchmark): autocast to float16, of which only sums are known."""

from collections.abc import Iterator
from pathlib import Path
from string import digits

from fitting.rows import device_of, rows
from steptime.build import make_workload, read_model
from steptime.calibration.cases import Case
from steptime.calibration.recorded import step_kernels
from steptime.models import family
from steptime.models.family import Family
from steptime.predict.described import described

DTYPE = "float16-mixed"
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
    """Yield steps of networks whose graph is known, as the stack runs it in either layout."""
    for row in rows(data / "measured/timm/networks.csv.gz"):
        name = row["network"].partition(".")[0]
        if name not in GRAPHS:
            continue
        text = GRAPHS[name]
        if "image" in family_of(text).parameters:
            text += f"{',' if ':' in text else ':'}image={row['image']}"
        elif row["image"] not in ("224", "299"):
            continue
        batch = int(float(row["batch"]))
        phase = "train" if row["mode"] == "train" else "infer"
        kernels = tuple(
            one._replace(channels_last=row["layout"] == "nhwc")
            for one in step_kernels(make_workload(read_model(text), batch, DTYPE, phase))
        )
        seconds = float(row["step_ms"]) / 1e3
        kind = f"{row['mode']} {row['layout']}"
        yield Case(kernels, device_of(row["device"]), seconds, kind, "step", name)


def family_of(text: str) -> Family:
    """Return the family of a model text."""
    return family(text.partition(":")[0])


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
