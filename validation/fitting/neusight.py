"""NeuSight (ASPLOS 2025): PyTorch 2.1, float32; single ops between two events, and whole models."""

from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from steptime.calibration.cases import Case, conditions, op_kernels
from steptime.hardware.device import Device
from steptime.prediction.kernel import Kernel
from validation.fitting.rows import device_of, drawn


def products(data: Path, table: str = "measured/neusight/ops_matmul.csv.gz") -> Iterator[Case]:
    """Yield linear layers and batched products: result [b, m, n], contraction k."""
    for row in drawn(data / table):
        b, m, n, k = (int(row[name]) for name in "bmnk")
        if row["op"] == "bmm":
            kernels = op_kernels("matmul", ((b, m, k), (b, k, n)), {}, "float32")
        else:
            kernels = op_kernels("linear", ((b, m, k), (n, k)), {}, "float32")
        device = device_of(row["device"])
        seconds = float(row["time_ms"]) / 1e3
        yield Case(kernels, device, seconds, row["op"], "isolated")


TWO_INPUTS = ("add", "mul", "div", "pow")
WITH_SCALAR = dict.fromkeys((f"{name}u" for name in TWO_INPUTS), "relu")  # called as long
ROWS = {"softmax": "softmax", "ln": "layer_norm"}


VECTORS = tuple(f"measured/neusight/{name}.csv.gz" for name in ("ops_vector", "more_vector"))


ON_AMD = 0.63  # of the seconds in which the other machines call an op of vectors, by its own rows


def vectors(data: Path, table: str = "") -> Iterator[Case]:
    """Yield elementwise ops, softmax and layer norm over [b, h], of one table or of all."""
    tables = (table,) if table else VECTORS
    for row in chain.from_iterable(drawn(data / one, 120) for one in tables):
        b, h = int(row["b"]), int(row["h"])
        kernel = vector(row["op"], b, h)
        group = (
            kernel.kind if row["op"] in ROWS else "binary" if row["op"] in TWO_INPUTS else "unary"
        )
        device, seconds = device_of(row["device"]), float(row["time_ms"]) / 1e3
        yield Case((kernel,), device, seconds, group, "isolated", timing=_timing(device, kernel))


def _timing(device: Device, kernel: Kernel) -> dict[str, float]:
    """Return how the machine of a device timed an op, {} as the others did."""
    if device.datasheet.maker != "AMD":
        return {}
    usual = conditions().get(f"isolated.{kernel.kind}")
    return {kernel.kind: ON_AMD * (1.0 if usual is None else usual.value)}


def vector(op: str, b: int, h: int) -> Kernel:
    """Return the kernel of an op on b rows of h elements, by NeuSight's name of it."""
    size = b * h
    if op in ROWS:
        shapes = ((b, h), (h,), (h,)) if op == "ln" else ((b, h),)
        return op_kernels(ROWS[op], shapes, {}, "float32")[0]
    tensors = 3 if op in TWO_INPUTS else 2
    kind = WITH_SCALAR.get(op, op)
    return Kernel("op", kind, "forward", "float32", "vector", size, 4 * tensors * size)


FIRST = 400  # convolutions of a run, of 3,000: their host is not yet slowed down


def convolutions(
    data: Path, table: str = "measured/neusight/ops_conv.csv.gz", first: bool = False
) -> Iterator[Case]:
    """Yield square convolutions without bias or TF32, 3x3 with stride 1 nearly everywhere.

    Their host takes longer with each shape that the run has seen: on every device the shortest
    take 0.1 ms at its start, and 0.35 (V100) to 0.85 ms (P4, P100) at its end. No network has
    thousands of shapes, so that only the `first` ones tell how long a host takes.
    """
    path = data / table
    for row in drawn(path, FIRST, shuffled=False) if first else drawn(path):
        b, c_in, c_out, kernel, size, stride, pad = (
            int(row[name]) for name in ("b", "c_in", "c_out", "kernel", "size", "stride", "pad")
        )
        how = {"stride": (stride, stride), "padding": (pad,) * 4}
        shapes = ((b, c_in, size, size), (c_out, c_in, kernel, kernel))
        every = op_kernels("conv2d", shapes, how, "float32")
        kernels = tuple([one._replace(tf32=False) for one in every])  # as it was measured
        device = device_of(row["device"])
        yield Case(kernels, device, float(row["time_ms"]) / 1e3, "conv", "isolated")
