"""Whole image networks of batch 12 in eager PyTorch (cnn-gpu): those of the package, and exported.

Those that the package does not have are read as graphs of `torch.export`, NETWORK.pt2, from the
folder that `STEPTIME_CNN_GRAPHS` names; without it they are left out.
"""

import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from steptime.build import make_workload, read_model
from steptime.calibration.cases import Case, step_kernels
from steptime.network.families import ZOO
from steptime.prediction.kernel import Kernel
from steptime.prediction.method import stack_option
from validation.fitting.rows import device_of, rows

STACK = "torch-eager-1"  # CUDA 10.2 and 11.1: PyTorch 1.5 to 1.8
BATCH = 12
COPIED_BYTES_PER_S = 3e9  # of images in pageable memory, which each row holds: judged
IMAGE_BYTES = {"float32": 12, "float16": 6}  # of a place, of three channels
PLACES = 224 * 224


def steps(data: Path, table: str = "measured/cnn-gpu/more.csv.gz") -> Iterator[Case]:
    """Yield steps of one GPU without the copy of their images, on a host that awaits each.

    There is no optimizer.
    """
    for row in rows(data / table):
        device, dtype, model = device_of(row["device"]), row["dtype"], _model(row["network"])
        if row["gpus"] != "1" or dtype not in IMAGE_BYTES or not model:
            continue
        if dtype not in device.datasheet.peak_flop_per_s:
            continue
        copied_s = BATCH * PLACES * IMAGE_BYTES[dtype] / COPIED_BYTES_PER_S
        yield Case(
            _kernels(model, dtype, row["mode"]),
            device,
            float(row["median_ms"]) / 1e3 - copied_s,
            f"{row['mode']} {dtype}",
            "call",
            row["network"],
            stack=STACK,
        )


def _model(network: str) -> str:
    """Return what a network of torchvision is read from, "" where it is not known."""
    if network in ZOO:
        return network
    folder = os.environ.get("STEPTIME_CNN_GRAPHS", "")
    path = Path(folder, f"{network}.pt2")
    return str(path) if folder and path.exists() else ""


@cache
def _kernels(text: str, dtype: str, mode: str) -> tuple[Kernel, ...]:
    """Return the kernels of a step without an optimizer.

    What its stack counts with one stays: gradients are zeroed, and added to what is zero.
    """
    work = make_workload(read_model(text), BATCH, dtype, mode)
    return tuple(
        one._replace(launches=2, bytes=one.bytes * 4 / 7) if one.pass_ == "update" else one
        for one in step_kernels(work, stack_option(STACK))
    )
