"""Whole image networks of batch 12 in eager PyTorch (cnn-gpu), whose graphs were exported."""

import os
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from steptime.build import make_workload, read_model
from steptime.calibration.cases import Case
from steptime.calibration.recorded import step_kernels
from steptime.core.errors import InputError
from steptime.prediction.kernel import Kernel
from steptime.prediction.method import stack_option
from validation.fitting.rows import device_of, rows

STACK = "torch-eager-1"  # CUDA 10.2 and 11.1: PyTorch 1.5 to 1.8
BATCH = 12
COPIED_BYTES_PER_S = 3e9  # of images in pageable memory, which each row holds: judged
IMAGE_BYTES = {"float32": 12, "float16": 6}  # of a place, of three channels
PLACES = 224 * 224


def steps(data: Path) -> Iterator[Case]:
    """Yield steps of one GPU without the copy of their images, on a host that awaits each.

    There is no optimizer. The graphs are those that `export_networks` wrote into the folder
    `STEPTIME_CNN_GRAPHS`; without, none.
    """
    folder = os.environ.get("STEPTIME_CNN_GRAPHS", "")
    for row in rows(data / "measured/cnn-gpu/more.csv.gz"):
        path = Path(folder, f"{row['network']}.pt2")
        device, dtype = device_of(row["device"]), row["dtype"]
        if row["gpus"] != "1" or dtype not in IMAGE_BYTES or not (folder and path.exists()):
            continue
        if dtype not in device.peak_flop_per_s:
            continue
        try:
            kernels = _kernels(str(path), dtype, row["mode"])
        except InputError as error:
            print(path.name, error, file=sys.stderr)
            continue
        copied_s = BATCH * PLACES * IMAGE_BYTES[dtype] / COPIED_BYTES_PER_S
        yield Case(
            kernels,
            device,
            float(row["median_ms"]) / 1e3 - copied_s,
            f"{row['mode']} {dtype}",
            "call",
            row["network"],
            stack=STACK,
        )


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
