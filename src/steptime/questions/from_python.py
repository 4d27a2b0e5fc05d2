"""What Python asks with values where a command has texts: one step, and changed hardware."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from steptime.core.graph import PASSES
from steptime.core.printers import html
from steptime.core.table import Table, columns, facts, frame, picked
from steptime.core.units import interval, seconds, size
from steptime.hardware import catalog
from steptime.hardware.device import Device
from steptime.prediction import DEFAULT
from steptime.prediction.method import Method

if TYPE_CHECKING:
    from steptime.core.workload import Workload
    from steptime.questions.whatif import WhatIf


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
