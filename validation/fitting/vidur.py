"""Ops of one layer of large language models (vidur, Microsoft), float16, repeated."""

from collections.abc import Iterator
from pathlib import Path

from steptime.calibration.cases import Case, op_kernels
from validation.fitting.rows import device_of, plain_rows

LEAST = 1024  # tokens: its profiler sees whole microseconds


def sums(data: Path) -> Iterator[Case]:
    """Yield the residual sums: two tensors of tokens by hidden read, one written."""
    for row in plain_rows(data / "llm/layer_ops_dev.csv"):
        shape = int(row["tokens"]), int(row["hidden"])
        if shape[0] < LEAST:
            continue
        kernels = op_kernels("add", (shape, shape), {}, "float16")
        seconds = float(row["add_ms"]) / 1e3
        device = device_of("a100-sxm4-80gb")
        yield Case(kernels, device, seconds, "sum", "repeated")
