"""Kernels of DeepBench: calls of cuBLAS and cuDNN without a framework, many in a row."""

from collections.abc import Iterator
from pathlib import Path

from steptime.calibration.cases import Case, op_kernels
from steptime.network.ops.sequence import GATES
from validation.fitting.rows import device_of, rows

CELLS = {"vanilla": "rnn", "lstm": "lstm", "gru": "gru"}


def products(data: Path, table: str = "measured/deepbench/gemm.csv.gz") -> Iterator[Case]:
    """Yield float32 matrix products.

    They are columns first: rows of the result here are n. Where both operands lie along the
    contraction, cuBLAS 8 takes larger tiles than later ones do for linear layers.
    """
    for row in rows(data / table):
        if row["precision"] != "float32":
            continue
        m, n, k = (int(row[name]) for name in "mnk")
        kernels = op_kernels("matmul", ((n, k), (k, m)), {}, "float32")
        device = device_of(row["device"])
        yield Case(kernels, device, float(row["time_ms"]) / 1e3, "gemm", "repeated", copies=1)


def convolutions(data: Path, table: str = "measured/deepbench/conv.csv.gz") -> Iterator[Case]:
    """Yield float32 convolutions and their gradients."""
    for row in rows(data / table):
        if row["precision"] != "float32":
            continue
        names = ("b", "c_in", "h", "w", "c_out", "filter_h", "filter_w", "pad_h", "pad_w")
        b, c_in, h, w, c_out, kh, kw, ph, pw = (int(row[name]) for name in names)
        sh, sw = int(row["stride_h"]), int(row["stride_w"])
        how: dict[str, tuple[int, ...]] = {"stride": (sh, sw), "padding": (ph, ph, pw, pw)}
        x, filters = (b, c_in, h, w), (c_out, c_in, kh, kw)
        grad = (b, c_out, (h + 2 * ph - kh) // sh + 1, (w + 2 * pw - kw) // sw + 1)
        device = device_of(row["device"])
        for kind, column, shapes, more in (
            ("conv2d", "forward_ms", (x, filters), {}),
            ("conv_transpose2d", "grad_input_ms", (grad, filters), {"output_size": (h, w)}),
            ("conv2d_grad_weight", "grad_weight_ms", (x, grad), {"kernel": (kh, kw)}),
        ):
            if row[column]:
                kernels = op_kernels(kind, shapes, {**how, **more}, "float32")
                yield Case(kernels, device, float(row[column]) / 1e3, kind, "repeated")


def recurrent(data: Path, table: str = "measured/deepbench/rnn.csv.gz") -> Iterator[Case]:
    """Yield float32 recurrent layers, with inputs as wide as the state, and gradients."""
    for row in rows(data / table):
        if row["precision"] != "float32":
            continue
        kind = CELLS[row["cell"]]
        hidden, batch, steps = (int(row[name]) for name in ("hidden", "b", "steps"))
        gates = GATES[kind] * hidden
        weights = ((gates, hidden), (gates, hidden), (gates,), (gates,))
        layer = ((batch, steps, hidden), *weights)
        device = device_of(row["device"])
        kernels = op_kernels(kind, layer, {}, "float32")
        yield Case(kernels, device, float(row["forward_ms"]) / 1e3, kind, "repeated")
        if row["grad_input_ms"]:
            y = layer[0]
            back = (*layer, y, y, y)
            kernels = op_kernels(f"{kind}_grad", back, {}, "float32")
            seconds = (float(row["grad_input_ms"]) + float(row["grad_weight_ms"])) / 1e3
            yield Case(kernels, device, seconds, f"{kind}_grad", "repeated")
