"""Whole transformers of NeuSight (ASPLOS 2025): PyTorch 2.1, eager, float32, unfused attention."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from steptime.calibration.cases import Case, op_kernels
from steptime.prediction.kernel import Kernel
from validation.fitting.neusight import TWO_INPUTS, vector
from validation.fitting.rows import device_of, rows

TABLE = "measured/neusight/models_measured.csv.gz"
GRAPHS = "models.csv.gz"  # what they are made of, beside them


@dataclass(frozen=True)
class Rival:
    """What other tools predicted of a case, in seconds; None where one gives nothing."""

    neusight_s: float | None
    habitat_s: float | None
    roofline_s: float | None


def models(data: Path, table: str = TABLE) -> Iterator[Case]:
    """Yield the runs that were measured: forward, or forward and backward without optimizer."""
    for case, _ in with_rivals(data, table):
        yield case


def with_rivals(data: Path, table: str = TABLE) -> Iterator[tuple[Case, Rival]]:
    """Yield the runs with what the tools of the paper predicted."""
    path = data / table
    made = graphs(path.with_name(GRAPHS))
    for row in rows(path):
        seconds = {
            name: float(row[name]) / 1e3 for name in row if name.endswith("_ms") and row[name]
        }
        case = Case(
            made[row["graph"]],
            device_of(row["device"]),
            seconds["measured_ms"],
            row["mode"],
            "step",
            row["model"],
        )
        rival = Rival(*(seconds.get(f"{one}_ms") for one in ("neusight", "habitat", "roofline")))
        yield case, rival


def graphs(path: Path) -> Mapping[str, tuple[Kernel, ...]]:
    """Return the kernels of each graph, one as often as it runs."""
    found: dict[str, list[Kernel]] = defaultdict(list)
    for row in rows(path):
        kernel = kernel_of(row["op"], tuple(map(int, row["dims"].split())), row["part"])
        found[row["graph"]] += [kernel] * int(row["count"])
    return {name: tuple(kernels) for name, kernels in found.items()}


def kernel_of(op: str, dims: tuple[int, ...], part: str) -> Kernel:
    """Return the kernel of a row: `mem` moves elements of 4 bytes; products are b, m, n, k.

    The gradient of an op with one input reads a tensor more.
    """
    if op == "mem":
        return Kernel("op", "copy", "forward", "float32", "vector", 0, 4 * dims[0])
    if op in ("bmm", "linear"):
        b, m, n, k = dims
        shapes = ((b, m, k), (b, k, n)) if op == "bmm" else ((b, m, k), (n, k))
        return op_kernels("matmul" if op == "bmm" else "linear", shapes, {}, "float32")[0]
    kernel = vector(op, *dims)
    if part == "backward" and op not in TWO_INPUTS and not op.endswith("u"):
        return kernel._replace(bytes=kernel.bytes * 3 / 2)
    return kernel
