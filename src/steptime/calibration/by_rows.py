"""What measured rows are asked for from Python: one op, a calibrated device, errors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from steptime.core.errors import InputError
from steptime.core.printers import html
from steptime.core.table import Table, columns, facts, frame
from steptime.core.units import interval
from steptime.hardware import catalog
from steptime.hardware.device import Device
from steptime.prediction import DEFAULT, cost_model
from steptime.prediction.kernel import Interval, Kernel
from steptime.prediction.method import Method

if TYPE_CHECKING:
    from steptime.calibration.cases import Unasked
    from steptime.calibration.evaluation import Evaluation

Rows = Iterable[Mapping[str, Any]]


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
        return frame(one._asdict() for one in self.kernels)

    def _repr_html_(self) -> str:
        said = interval("step_s", self.seconds, self.low, self.high)
        title = f"{self.kind}, {self.dtype} on {self.device} ({self.method})"
        return html(facts(title, "one op", [(self.condition, said)]))


@dataclass(frozen=True)
class Calibration:
    """A device with what rows told of it: `device` goes into `predict`, `table` into its file."""

    device: Device
    table: Mapping[str, Any]

    def to_pandas(self) -> Any:
        """Return a DataFrame with the cross-validated error of each kind; needs pandas."""
        return frame({"kind": kind, **row} for kind, row in self.table["errors"].items())

    def _repr_html_(self) -> str:
        rows = [{"kind": kind, **row} for kind, row in self.table["errors"].items()]
        heads = columns("kind", "points", "mape:.1%=MAPE", "bias:+.2f=bias")
        return html(Table(heads, rows, f"{self.device.name}: errors of points left out"))


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


def calibrate(
    device: str | Path | Device,
    rows: str | Path | Rows,
    points: int | None = None,
    mapping: str | Path | None = None,
) -> Calibration:
    """Return a device calibrated with rows that were measured on it, all of them or `points`.

    `rows` are mappings with the keys of a mapping file (`kind`, `shapes`, `seconds`, ...), a
    DataFrame, or a table, the last two also with a mapping file. Rows of other devices are left
    out. Raises `InputError`.
    """
    from steptime.calibration.device import calibrate as calibrated
    from steptime.calibration.mapped import cases

    found = catalog.device(device)
    source = str(rows) if isinstance(rows, str | Path) else ""
    every = cases(rows, mapping, found)
    own = [case for case in every if case.device.name == found.name]
    if every and not own:
        others = ", ".join(sorted({case.device.name for case in every}))
        raise InputError(f"no row of {found.name}; there are those of {others}")
    table = calibrated(found, own, points, source=source)
    return Calibration(replace(found, calibration=table), table)


def evaluate(
    rows: str | Path | Rows,
    method: str | Method | Callable[[Kernel, Device], Interval | float] = DEFAULT,
    calibrate_with: int | None = None,
    by: Sequence[str] = (),
    mapping: str | Path | None = None,
    draws: int = 5,
    strict: bool = False,
) -> Evaluation:
    """Return how far a method is off on rows that were measured, beside others.

    `rows` are what `calibrate` takes, each with a `device`; `method` is a name, or a price of one's
    own, `(kernel, device) -> seconds or Interval`. Rows that cannot be asked are counted in
    `unasked` of the answer, with `strict` the first is an `InputError`. Raises `InputError`.
    """
    from steptime.calibration import evaluation
    from steptime.calibration.mapped import cases

    chosen = cost_model(method) if isinstance(method, str) else method
    name = chosen.name if isinstance(chosen, Method) else getattr(chosen, "__name__", "price")
    unasked: Unasked | None = None if strict else []
    found = cases(rows, mapping, unasked=unasked)
    return evaluation.evaluate(
        found, chosen, name, calibrate_with, by, draws, unasked=unasked or ()
    )
