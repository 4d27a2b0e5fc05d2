"""Training steps of fully connected networks (pytorch-paradnn): PyTorch, float32, Adam."""

import random
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from steptime.build import build_step, make_workload, read_model
from steptime.calibration.cases import Case
from steptime.prediction.kernel import Kernel, Settings
from steptime.prediction.lower import lower
from validation.fitting.rows import device_of, rows

DEVICES = {"Tesla T4": "t4", "NVIDIA A100 80GB PCIe": "a100-pcie-80gb"}
DTYPES = {"f32": "float32", "f16": "float16"}
STEPS = 100  # that a duration is of
STACK = "torch-eager-1"  # whose Adam went from weight to weight


def steps(
    data: Path, tables: str = "pytorch-paradnn/fc_*.csv.gz", most: int = 400
) -> Iterator[Case]:
    """Yield steps of networks with one layer more than the file says: the input's own.

    At most `most` rows of each file, drawn by a seed: building a network of 128 layers takes time.
    """
    for path in sorted(data.glob(tables)):
        found = list(rows(path))
        random.Random(0).shuffle(found)  # noqa: S311  # a draw of rows keeps no secret
        for row in found[:most]:
            sizes = tuple(
                int(row[name])
                for name in ("layers", "nodes", "input_size", "output_size", "batch_size")
            )
            yield Case(
                kernels_of(*sizes, DTYPES[row["input_type"]]),
                device_of(DEVICES[row["device"]]),
                float(row["duration"]) / STEPS,
                "fc",
                "step",
                "x".join(map(str, sizes)),
                stack=STACK,
            )


@lru_cache(maxsize=4096)
def kernels_of(
    layers: int, nodes: int, inputs: int, outputs: int, batch: int, dtype: str = "float32"
) -> tuple[Kernel, ...]:
    """Return the kernels of a training step with Adam."""
    text = f"fc:layers={layers + 1},nodes={nodes},inputs={inputs},outputs={outputs}"
    work = make_workload(read_model(text), batch, dtype, optimizer="adam")
    return lower(build_step(work), work.dtype, Settings(stack=STACK)).kernels
