"""Cases: what was timed, as kernels, under which condition, and the seconds that it took."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from steptime.core.dtypes import precision
from steptime.core.graph import Attr, Graph, Op, TensorSpec
from steptime.core.hardware import Device
from steptime.ops import output_names, outputs_of
from steptime.predict.kernel import Kernel, Settings
from steptime.predict.lower import lower

Condition = Literal["isolated", "repeated", "step"]
SETTINGS = Settings()


@dataclass(frozen=True)
class Case:
    """A time that was measured.

    `condition` says what the time holds: `isolated`, one op between two events; `repeated`, a
    kernel many times in a row; `step`, one step of many in a row, behind a host. `kind` and
    `family` group cases in tables; `family` is also what must not stand on both sides of a split.
    """

    kernels: tuple[Kernel, ...]
    device: Device
    seconds: float
    kind: str
    condition: Condition
    family: str = ""


def op_kernels(
    kind: str,
    shapes: tuple[tuple[int, ...], ...],
    attrs: Mapping[str, Attr],
    dtype: str,
    settings: Settings = SETTINGS,
) -> tuple[Kernel, ...]:
    """Return the kernels of one op on inputs of these shapes; raises `ShapeError` for misfits."""
    stored = precision(dtype).compute
    specs = tuple(TensorSpec(shape, stored) for shape in shapes)
    names = tuple(f"x{i}" for i in range(len(specs)))
    made = outputs_of(kind, specs, tuple(sorted(attrs.items())))
    op = Op("op", kind, names, output_names("op", len(made)), attrs)
    tensors = dict(zip((*names, *op.outputs), (*specs, *made), strict=True))
    graph = Graph("op", tensors, (op,), names, (), op.outputs)
    return lower(graph, dtype, settings).kernels
