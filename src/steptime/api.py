"""What most programs need, as functions: predict, predict_op, why, whatif, calibrate, evaluate.

`import steptime` has them all, each imported when it is asked for.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from steptime.core.errors import InputError
from steptime.core.graph import PASSES
from steptime.core.printers import html
from steptime.core.table import Table, columns, facts, picked
from steptime.core.units import interval, seconds, size
from steptime.hardware import catalog
from steptime.hardware.device import Device
from steptime.prediction import DEFAULT, cost_model
from steptime.prediction.kernel import Interval, Kernel
from steptime.prediction.method import Method
from steptime.reports.answered import frame

if TYPE_CHECKING:
    from steptime.calibration.cases import Unasked
    from steptime.calibration.evaluation import Evaluation
    from steptime.core.workload import Workload
    from steptime.questions.whatif import WhatIf
    from steptime.questions.why import Diagnosis

Rows = Iterable[Mapping[str, Any]]


@dataclass(frozen=True)
class OpTime:
    """The times of an op of a network in one step, in seconds; `low` and `high` bound them."""

    name: str
    kind: str
    step_s: float
    forward_s: float
    backward_s: float
    update_s: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class StepTime:
    """How long a step takes: `step_s` seconds, between `low` and `high` (80 %), op by op in `ops`.

    A bound is None where the method has none. `assumed` are what decides the time beside network
    and device: stack, layout, TF32, host. `extrapolates` says that the device lies beyond what
    the method was made from. `notes` are what a reader must know, a line each.
    """

    model: str
    device: str
    batch: int
    dtype: str
    method: str
    step_s: float
    low: float | None
    high: float | None
    forward_s: float
    backward_s: float
    update_s: float
    peak_memory_bytes: int
    fits: bool
    extrapolates: bool
    notes: tuple[str, ...]
    ops: tuple[OpTime, ...] = field(repr=False)
    assumed: Mapping[str, str] = field(default_factory=dict)

    def to_pandas(self) -> Any:
        """Return a DataFrame with a row for each op; needs pandas."""
        return frame(map(asdict, self.ops))

    def _repr_html_(self) -> str:
        title = f"{self.model}, batch {self.batch}, {self.dtype} on {self.device} ({self.method})"
        rows = [
            ("step", _said(self.step_s, self.low, self.high)),
            *((f"  {name}", seconds(getattr(self, f"{name}_s"))) for name in PASSES),
            ("peak memory", size(self.peak_memory_bytes) + ("" if self.fits else ": does not fit")),
            *(("note", note) for note in self.notes),
        ]
        slowest = sorted(self.ops, key=lambda op: -op.step_s)[:_SHOWN]
        ops = Table(columns("name=op", "kind", "step_s=step"), [asdict(op) for op in slowest])
        return html(facts(title, "one step", rows)) + html(ops)


_SHOWN = 10  # ops in a notebook


def _said(value: float, low: float | None, high: float | None) -> str:
    return interval("step_s", value, low, high)


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
        said = _said(self.seconds, self.low, self.high)
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


def predict(
    model: str | Path | Workload,
    device: str | Path | Device,
    batch: int | None = None,
    dtype: str = "float32",
    phase: str = "train",
    optimizer: str = "sgd",
    method: str | Method = DEFAULT,
    options: Mapping[str, object] | None = None,
    tf32: Literal["auto", "on", "off"] = "auto",
    channels_last: bool | None = None,
    host: str | None = None,
) -> StepTime:
    """Return how long a step of a network takes on a device.

    `model` is what the command line takes (`resnet50`, `fc:layers=4`, a file), `batch` its own
    default if None; `options` are those of the method. Products of float32 run as `tf32` or not,
    images lie `channels_last` or not, or both as the stack does it; the `host` that issues kernels
    is "fast", "slow", or that of a calibrated device. Raises `InputError` for what is not known.
    """
    from steptime.prediction.assumed import assumed_of
    from steptime.prediction.step_model import StepModel

    workload = _workload(model, batch, dtype, phase, optimizer)
    given = dict(options or {})
    given |= {} if tf32 == "auto" else {"tf32": tf32}
    given |= {} if channels_last is None else {"channels_last": "yes" if channels_last else "no"}
    given |= {} if host is None else {"host": host}
    asked = StepModel(workload, device, method=method, options=given)
    made = asked.predict()
    times = made.times
    ops = []
    for row in times.rows:
        told = row.told
        ops.append(OpTime(low=told.pop("low_s"), high=told.pop("high_s"), **told))
    return StepTime(
        model=workload.label,
        device=asked.device.name,
        batch=workload.batch_per_replica,
        dtype=workload.dtype,
        method=asked.method.name,
        low=times.low_s,
        high=times.high_s,
        **picked(times, "step_s forward_s backward_s update_s extrapolates"),
        **picked(made, "peak_memory_bytes fits"),
        notes=made.remarks,
        ops=tuple(ops),
        assumed=assumed_of(asked),
    )


def _workload(
    model: str | Path | Workload, batch: int | None, dtype: str, phase: str, optimizer: str
) -> Workload:
    from steptime.build import make_workload, read_model
    from steptime.core.workload import Workload

    if isinstance(model, Workload):
        return model
    return make_workload(read_model(str(model), trusted=True), batch, dtype, phase, optimizer)


def why(
    model: str | Path | Workload,
    device: str | Path | Device,
    batch: int | None = None,
    dtype: str = "float32",
    phase: str = "train",
    optimizer: str = "sgd",
    replicas: int = 1,
    link: str | Path | None = None,
) -> Diagnosis:
    """Return what a step waits for, its most expensive ops, and what would help.

    Replicas need a link. Raises `InputError` for what is not known.
    """
    from steptime.questions.why import why as diagnose

    workload = _workload(model, batch, dtype, phase, optimizer)
    found = catalog.device(device)
    joined = None if link is None else catalog.link(link)
    return diagnose(workload, found, link=joined, replicas=replicas)


def whatif(
    device: str | Path | Device,
    changes: Mapping[str, str | float],
    models: Iterable[str | Path | Workload],
    batch: int | None = None,
    dtype: str | None = None,
) -> WhatIf:
    """Return what changes of a device (`{"peak": "x2", "memory_GB": 32}`) do to networks.

    Without a `dtype` it is float32, or what a device without its peak is fastest in. Raises
    `InputError` for what is not known.
    """
    from steptime.questions.changes import read_changes
    from steptime.questions.networks import dtype_for
    from steptime.questions.whatif import cases, what_if

    found = catalog.device(device)
    kind = dtype_for(found, dtype)
    asked = [_workload(model, batch, kind, "train", "sgd") for model in models]
    read = read_changes(f"{key}={value}" for key, value in changes.items())
    return what_if(cases(asked, found, DEFAULT), [axis[0] for axis in read])


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
    from steptime.calibration.mapping import plain_case

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


def from_module(module: Any, inputs: Any, path: str | Path | None = None) -> str:
    """Return the `.pt2` file that a `torch.nn.Module` is exported to, which is a MODEL.

    `inputs` are what the module is given, tensors or `(shape, type)`: a list, or a mapping by the
    names of `forward`. Their first size is the batch, which is left open where that works. Nothing
    is computed. Without `path` it lies in the user's folder of networks, under the class's name and
    what tells it from others. Raises `InputError`.
    """
    from steptime.build import read_model
    from steptime.core import registry

    room = "steptime.measure.backends.native"
    name, folder = f"{type(module).__name__}.pt2", catalog.user_folder("networks")
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / name if path is None else Path(path)
    specs = registry.load(f"{room}.module:specs_of")(inputs)
    why = registry.load(f"{room}.export:export")(module, specs, target, {})
    if why:
        warnings.warn(f"{name}: its batch is fixed: {why}", stacklevel=2)
    if path is None:
        own = folder / read_model(str(target)).sha256
        own.mkdir(exist_ok=True)
        target = target.replace(own / name)
    return str(target)


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
