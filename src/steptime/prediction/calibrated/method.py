"""The method `calibrated`: what kernels take on a device as it is, with an interval."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from steptime.core.errors import InputError
from steptime.core.graph import Graph
from steptime.hardware import catalog
from steptime.hardware.architectures import has_trait
from steptime.hardware.device import Device
from steptime.network.ops import OPS
from steptime.network.ops.images import OVER_VOLUMES
from steptime.prediction.calibrated import cpu
from steptime.prediction.calibrated.attention import attention
from steptime.prediction.calibrated.convolution import convolution
from steptime.prediction.calibrated.form import (
    Form,
    has_matrix_units,
    rated_dtype,
)
from steptime.prediction.calibrated.hosts import HOST, host_constants, on_usual_host
from steptime.prediction.calibrated.hull import beyond, is_told, wider
from steptime.prediction.calibrated.interval import bounds, ends_of, known_as
from steptime.prediction.calibrated.power import capped_s, limit_of
from steptime.prediction.calibrated.product import product
from steptime.prediction.calibrated.recurrent import recurrent
from steptime.prediction.calibrated.stream import REDUCING, stream
from steptime.prediction.calibrated.systolic import systolic
from steptime.prediction.kernel import Interval, Kernel, Settings
from steptime.prediction.kernels import Rows
from steptime.prediction.method import (
    CHANNELS_LAST,
    EFFICIENCIES,
    FUSE,
    STACK,
    TF32,
    YES_NO,
    Method,
    choice,
)
from steptime.prediction.price import peak_flop_per_s, seen

GPU: dict[str, Form] = {  # by the name under which constants say how far off a form is
    "product": product,
    "stream": stream,
    "attention": attention,
    "convolution": convolution,
    "recurrent": recurrent,
}
TPU: dict[str, Form] = {"systolic": systolic, "stream": stream}
FORMS = {"cpu": cpu.FORMS, "tpu": TPU}  # by kind of device; of GPUs for what nobody measured
_OF_UNIT = {"matrix": ("product", "systolic"), "vector": ("stream",)}


def price(rows: Rows, device: Device, alone: Any = 0, pause_s: Any = 0.0) -> Interval:
    """Return the seconds of kernels by the form of their kind, with a central 80 % interval.

    `alone` is 1 for those that run again and again, 0 among those of a step; `pause_s` is how long
    the device rests each time, which spares power. The powers join arithmetic and traffic, and both
    and the limit where units made for products run.
    """
    rows = rows._replace(kind=OVER_VOLUMES.get(rows.kind, rows.kind))
    constants, dtype, form = device.constants, rated_dtype(rows, device), form_of(rows, device)
    compute_s, memory_s, gap_s, done = form(rows, device, constants)
    limit = limit_of(device, constants, rows.unit, dtype)
    least_s = capped_s(rows, compute_s, alone, limit, done) - pause_s
    multiplies = rows.unit == "matrix" and device.kind == "gpu" and has_matrix_units(device, dtype)
    power = constants["joint.matrix_power" if multiplies else "joint.power"]
    running_s = (compute_s**power + memory_s**power) ** (1 / power)
    value = np.maximum(running_s, least_s)
    if multiplies:  # over hours, clocks fall before the limit is reached
        joint = constants["joint.power"]
        often_s = (running_s**joint + np.maximum(least_s, 0) ** joint) ** (1 / joint)
        value = alone * value + (1 - alone) * often_s
    value = value + gap_s
    wider = constants["interval.old"] if has_trait(device, "old") else 1.0
    name = name_of(rows, device)
    like = _known_as(name, device, constants)
    apart, in_step = (bounds(like, constants, wider, one) for one in (False, True))
    low, high, shared = (alone * a + (1 - alone) * s for a, s in zip(apart, in_step, strict=True))
    beyond = constants.get("interval.beyond", 0.0) > 0 or like not in (name, "all")
    time = Interval(value, value * low, value * high, beyond, compute_s, memory_s, shared)
    if rows.unit == "vector" or "step.product" not in constants:
        return time
    return time.times(constants["step.attention" if form is attention else "step.product"])


def form_of(kernel: Kernel | Rows, device: Device) -> Form:
    """Return the form that prices a kernel on a device: of the work of its kind, or of its unit."""
    return _named(kernel, device)[1]


def name_of(kernel: Kernel | Rows, device: Device) -> str:
    """Return the name under which constants say how far off a kernel is on a device."""
    name, form = _named(kernel, device)
    return "reduction" if form is stream and kernel.kind in REDUCING else name


def _named(kernel: Kernel | Rows, device: Device) -> tuple[str, Form]:
    forms = FORMS.get(device.kind, GPU)
    work = OPS[kernel.kind].work if kernel.kind in OPS else ""
    return next((name, forms[name]) for name in (work, *_OF_UNIT[kernel.unit]) if name in forms)


def _known_as(name: str, device: Device, constants: Mapping[str, Any]) -> str:
    """Return the name whose interval kernels of a name take; no own one if none was measured."""
    return known_as(name if is_told(name, device) else "", constants)


def calibrated_device(device: Device, dtype: str, settings: Settings) -> Device:
    """Return the device as kernels find it, with the constants of its calibration or the priors."""
    found = {name: one.value for name, one in on_usual_host(device, settings.stack).items()}
    found |= device.calibration.get("constants", {})
    if "alone" not in device.calibration or "stack" in device.calibration:
        found |= ends_of(device.calibration)  # else ops by themselves told them
    if settings.host_name:
        if device.is_cpu:
            raise InputError(f"device '{device.name}' is its own host; leave out --host")
        found = host_constants(settings.host_name, device, settings.stack, found)
    found["interval.beyond"] = wider(device)
    return replace(reached(device, dtype, settings), constants=found)


def reached(device: Device, dtype: str, settings: Settings) -> Device:
    """Return the device as kernels find it, with the peak of its vector units beside TF32's.

    A CPU whose file does not say its cores has as many as its peak takes. Kernels say themselves
    which of them run as TF32.
    """
    if settings.tf32 == "on":
        peak_flop_per_s(device, dtype, tf32=True)  # raises where there is none
        settings = replace(settings, tf32="auto")
    units, vector = dict(device.vector_flop_per_s), device.vector_peak("float32")
    if vector is not None:
        units["float32"] = vector
    cores = device.cores or (cpu.cores_of(device) if device.kind == "cpu" else None)
    return replace(seen(device, dtype, settings), vector_flop_per_s=units, cores=cores)


WAITS = choice("the host waits for the device at the end of each step", "waits", YES_NO, "no")


def notes(graph: Graph, _dtype: str, device: Device, settings: Settings) -> tuple[str, ...]:
    """Return what a reader must know: what lies beyond all measurements, what nobody measured."""
    said = [*notes_of(device), *calibrated_under(device, settings.stack)]
    forms = FORMS.get(device.kind, GPU)
    known = {name: one.value for name, one in catalog.priors(device.kind, settings.stack).items()}
    names = forms.keys() & {OPS[op.kind].work for op in graph.ops}
    untold = {name for name in names if _known_as(name, device, known) not in (name, "all")}
    if untold and not device.calibration.get("intervals"):
        what = f"not measured on {device.name} or its like: {', '.join(sorted(untold))}"
        said.append(f"{what}; the interval is the widest of other kernels")
    if not (device.is_cpu or catalog.stack(settings.stack).host):
        stack = settings.stack
        said.append(f"stack {stack}: the host's time is not known and left out: no [host]")
    return tuple(said)


def notes_of(device: Device) -> list[str]:
    """Return what of a device lies beyond all measurements, in a line or none."""
    words, wider = beyond(device), "the interval is wider"
    line = f"{device.name} lies beyond what was measured: {'; '.join(words)}; {wider}"
    return [line] if words else []


def calibrated_under(device: Device, stack: str) -> list[str]:
    """Return that a device is calibrated with steps of another stack, in a line or none."""
    told = device.calibration.get("stack", stack)
    return [] if told == stack else [f"{device.name} is calibrated with steps of stack {told}"]


METHOD = Method(
    "calibrated",
    "1",
    arrays=True,
    price=price,
    options={
        "fuse": FUSE,
        "tf32": TF32,
        "channels_last": CHANNELS_LAST,
        "stack": STACK,
        "host": HOST,
        "waits": WAITS,
        **EFFICIENCIES,
    },
    sees=calibrated_device,
    notes=notes,
    reads=(
        *(
            "multiprocessors",
            "l2_bytes",
            "l3_bytes",
            "l3_of_core_bytes",
            "process_nm",
            "arrays",
            "array_side",
            "maker",
            "series",
        ),
        *("architecture", "memory_type", "clock_hz", "vector_flop_per_s", "calibration"),
    ),
)
