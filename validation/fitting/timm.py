"""Whole image networks (timm's benchmark), whose graphs were exported: autocast to float16."""

import os
import sys
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from steptime.build import make_workload, read_model
from steptime.calibration.cases import Case, step_kernels
from steptime.core.errors import InputError
from steptime.prediction.kernel import Kernel
from steptime.prediction.method import stack_option
from validation.fitting.rows import device_of, rows

DTYPE, OLD = "float16-mixed", "torch-eager-1"
Row = dict[str, str]


def op_by_op(data: Path) -> Iterator[Case]:
    """Yield steps of networks whose graph is known, once in either layout, by the latest PyTorch.

    They are those that `export_timm` wrote into `STEPTIME_TIMM_GRAPHS`; without, none.
    """
    graphs, latest = os.environ.get("STEPTIME_TIMM_GRAPHS", ""), dict[tuple[str, ...], Row]()
    for row in rows(data / "measured/timm/networks.csv.gz"):
        key = row["network"].partition(".")[0], row["image"], row["mode"], row["layout"]
        if key not in latest or row["torch"] > latest[key]["torch"]:
            latest[key] = row
    for (name, image, mode, layout), row in sorted(latest.items(), key=lambda one: one[0]):
        path = Path(graphs, f"{name}-{image}.pt2")
        if not (graphs and path.exists()):
            continue
        phase = "train" if mode == "train" else "infer"
        batch, stack = int(float(row["batch"])), "torch-eager" if row["torch"] > "2" else OLD
        try:
            kernels = _kernels(str(path), batch, phase, stack)
        except InputError as error:  # what an exported graph holds is not all known
            print(error, file=sys.stderr)
            continue
        kernels = tuple(one._replace(channels_last=layout == "nhwc") for one in kernels)
        seconds = float(row["step_ms"]) / 1e3
        yield Case(kernels, device_of(row["device"]), seconds, f"{mode} {layout}", "step", name)


@lru_cache(maxsize=1)
def _kernels(text: str, batch: int, phase: str, stack: str) -> tuple[Kernel, ...]:
    """Return the kernels of a step; layouts follow one another in the table."""
    return step_kernels(make_workload(read_model(text), batch, DTYPE, phase), stack_option(stack))
