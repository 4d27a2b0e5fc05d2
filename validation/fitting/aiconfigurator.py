"""Matrix products of serving (AIConfigurator, NVIDIA), repeated, next to no launch."""

from collections.abc import Iterator
from pathlib import Path

from steptime.calibration.cases import Case, op_kernels
from steptime.prediction.kernel import Kernel
from validation.fitting.rows import device_of, rows

TABLE = "measured/aiconfigurator/gemm.csv.gz"
THIN = 8  # rows of a product that only reads its weights
LARGE = 1.5e8  # bytes: more than any cache


def products(data: Path, table: str = TABLE) -> Iterator[Case]:
    """Yield linear layers in bfloat16."""
    for row in rows(data / table):
        m, n, k = (int(row[name]) for name in "mnk")
        device = device_of(row["device"])
        if row["dtype"] != "bfloat16":
            continue
        kernels = op_kernels("linear", ((m, k), (n, k)), {}, "bfloat16")
        yield Case(kernels, device, float(row["time_ms"]) / 1e3, "linear", "repeated")


def weights(data: Path) -> Iterator[Case]:
    """Yield products of a few rows with large matrices on GDDR: streams of the weights.

    HBM is faster than these kernels ask for it.
    """
    for row in rows(data / TABLE):
        m, n, k = (int(row[name]) for name in "mnk")
        moved = 2.0 * (m * n + m * k + n * k)
        if row["dtype"] != "bfloat16" or m > THIN or moved < LARGE:
            continue
        kernel = Kernel("op", "linear", "forward", "bfloat16", "vector", 0, moved)
        device = device_of(row["device"])
        if "HBM" in (device.datasheet.memory_type or ""):
            continue
        yield Case((kernel,), device, float(row["time_ms"]) / 1e3, "weights", "repeated")
