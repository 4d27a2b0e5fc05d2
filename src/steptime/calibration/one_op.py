"""One op, as programs ask for it: how long it takes on a device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from steptime.core.printers import html
from steptime.core.table import make_facts_table, make_frame
from steptime.core.units import interval
from steptime.hardware import catalog
from steptime.hardware.device import Device
from steptime.prediction import DEFAULT, cost_model
from steptime.prediction.kernel import Kernel
from steptime.prediction.method import Method


@dataclass(frozen=True)
class KernelTime:
    """How long one op takes: `seconds`, between `low` and `high` (80 %), None without a bound."""

    kind: str
    device: str
    dtype: str
    condition: str
    method: str
    seconds: float
    low: float | None
    high: float | None
    kernels: tuple[Kernel, ...] = field(repr=False)

    def to_pandas(self) -> Any:
        """Return a DataFrame with a row for each kernel; needs pandas."""
        return make_frame(one._asdict() for one in self.kernels)

    def _repr_html_(self) -> str:
        said = interval("step_s", self.seconds, self.low, self.high)
        title = f"{self.kind}, {self.dtype} on {self.device} ({self.method})"
        return html(make_facts_table(title, "one op", [(self.condition, said)]))


def predict_op(
    kind: str,
    shapes: Sequence[Sequence[int]],
    dtype: str,
    device: str | Path | Device,
    attrs: Mapping[str, Any] | None = None,
    condition: Literal["isolated", "repeated"] = "repeated",
    pass_: Literal["forward", "backward", "both"] = "forward",  # noqa: S107  # of a step
    method: str | Method = DEFAULT,
    tf32: Literal["auto", "on", "off"] = "auto",
) -> KernelTime:
    """Return how long one op takes on a device, on inputs of these shapes.

    `kind` is one of the op table or what people call it (`matmul`, `bmm`, `conv2d`, `softmax`).
    Weights of norms may be left out: they follow from the first input.
    `repeated` is the time of a kernel among many, `isolated` what two events around one call show.
    Products of float32 run as `tf32` or not, or as the stack does it (of convolutions alone).
    Raises `InputError` for an unknown kind, and shapes that it cannot take.
    """
    from steptime.calibration.cases import called
    from steptime.calibration.evaluate import score
    from steptime.calibration.mapped import plain_case

    found = catalog.device(device)
    name = called(kind)
    row = {
        "kind": name,
        "shapes": [list(shape) for shape in shapes],
        "attrs": dict(attrs or {}),
        "dtype": dtype,
        "condition": condition,
        "pass": pass_,
        "tf32": tf32,
        "seconds": 1.0,  # none was measured
    }
    case = plain_case(row, f"op {kind}", found)
    chosen = method if isinstance(method, Method) else cost_model(method)
    chosen.sees(found, dtype, chosen.settings)  # raises where no peak is known
    (one,) = score([case], chosen)
    times = one.value, one.low, one.high
    return KernelTime(name, found.name, dtype, condition, chosen.name, *times, case.kernels)
