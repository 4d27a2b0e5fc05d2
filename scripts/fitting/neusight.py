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
