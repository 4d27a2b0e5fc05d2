"""Single ops of NeuSight (ASPLOS 2025): PyTorch 2.1, float32, one op between two events."""

from collections.abc import Iterator
from pathlib import Path

from fitting.rows import rows
from steptime import catalog
from steptime.calibration.cases import Case, op_kernels


def products(data: Path) -> Iterator[Case]:
    """Yield linear layers and batched products: result [b, m, n], contraction k."""
    for row in rows(data / "measured/neusight/ops_matmul.csv.gz"):
        b, m, n, k = (int(row[name]) for name in "bmnk")
        if row["op"] == "bmm":
            kernels = op_kernels("matmul", ((b, m, k), (b, k, n)), {}, "float32")
        else:
            kernels = op_kernels("linear", ((b, m, k), (n, k)), {}, "float32")
        device = catalog.device(row["device"])
        seconds = float(row["time_ms"]) / 1e3
        yield Case(kernels, device, seconds, row["op"], "isolated")


def convolutions(data: Path) -> Iterator[Case]:
    """Yield square convolutions without bias, 3x3 with stride 1 nearly everywhere."""
    for row in rows(data / "measured/neusight/ops_conv.csv.gz"):
        b, c_in, c_out, kernel, size, stride, pad = (
            int(row[name]) for name in ("b", "c_in", "c_out", "kernel", "size", "stride", "pad")
        )
        how = {"stride": (stride, stride), "padding": (pad,) * 4}
        shapes = ((b, c_in, size, size), (c_out, c_in, kernel, kernel))
        kernels = op_kernels("conv2d", shapes, how, "float32")
        device = catalog.device(row["device"])
        yield Case(kernels, device, float(row["time_ms"]) / 1e3, "conv", "isolated")
