"""The method `calibrated`: the time of kernels on real devices, with an 80 % interval."""

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
    Constants,
    Form,
    TimeParts,
    has_matrix_units,
    rated_dtype,
)
from steptime.prediction.calibrated.hosts import HOST, host_constants, on_usual_host
from steptime.prediction.calibrated.hull import (
    extrapolation_reasons,
    extrapolation_width,
    is_measured,
)
from steptime.prediction.calibrated.interval import (
    Bounds,
    bounds,
    interval_constants,
    interval_name,
)
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
    choice_option,
)
from steptime.prediction.price import derate_device, peak_flop_per_s

GPU: dict[str, Form] = {  # by the name under which constants say how far off a form is
    "product": product,
    "stream": stream,
    "attention": attention,
    "convolution": convolution,
    "recurrent": recurrent,
}
TPU: dict[str, Form] = {"systolic": systolic, "stream": stream}
GROUPED = ("experts", "experts_grad")  # whose products are grouped: one for each expert, at once
FORMS = {"cpu": cpu.FORMS, "tpu": TPU}  # by kind of device; of GPUs for what nobody measured
_FORMS_OF_UNIT = {"matrix": ("product", "systolic"), "vector": ("stream",)}


def price(rows: Rows, device: Device, isolated_share: Any = 0, pause_s: Any = 0.0) -> Interval:
    """Return the time of kernels by the form of their kind, with a central 80 % interval.

    Arithmetic and traffic join in a norm; so does the power limit, where matrix units run.

    Args:
        rows: the kernels.
        device: the device with the constants of its calibration.
        isolated_share: 1 for a kernel that is repeated alone, 0 for one among others in a step.
        pause_s: seconds that the device rests between repetitions, which saves power.
    """
    # Kernels over volumes (`conv3d`) are priced as those over images (`conv2d`).
    rows = rows._replace(kind=OVER_VOLUMES.get(rows.kind, rows.kind))
    form = form_of(rows, device)  # the formula that prices this kind of kernel
    parts = form(rows, device, device.constants)
    value = _join_parts(rows, device, parts, isolated_share, pause_s) + parts.gap_s
    ends = _price_bounds(rows, device, isolated_share)
    time = Interval(
        value,
        low=value * ends.low,
        high=value * ends.high,
        is_extrapolated=_is_extrapolated(rows, device),
        compute_s=parts.compute_s,
        memory_s=parts.memory_s,
        shared=ends.shared,
    )
    step_factor = _step_factor(rows, form, device.constants)
    return time if step_factor == 1 else time.times(step_factor)


def _join_parts(
    rows: Rows, device: Device, parts: TimeParts, isolated_share: Any, pause_s: Any
) -> Any:
    """Return the seconds of arithmetic, traffic and the power limit together, without gaps.

    `isolated_share` and `pause_s` are as in `price`.
    """
    constants = device.constants
    dtype = rated_dtype(rows, device)
    limit = limit_of(device, constants, rows.unit, dtype)
    # The power cap holds for the mean over a repetition and the pause before it, so that the pause
    # counts towards the seconds that the cap demands.
    limit_s = capped_s(rows, parts.compute_s, isolated_share, limit, parts.flop) - pause_s
    is_gpu_matrix = rows.unit == "matrix" and device.kind == "gpu"
    if not is_gpu_matrix or not has_matrix_units(device, dtype):
        running_s = _norm(parts.compute_s, parts.memory_s, constants["joint.power"])
        return np.maximum(running_s, limit_s)
    running_s = _norm(parts.compute_s, parts.memory_s, constants["joint.matrix_power"])
    # In a step, clocks fall before the limit of power is reached.
    isolated_s = np.maximum(running_s, limit_s)
    in_step_s = _norm(running_s, np.maximum(limit_s, 0), constants["joint.power"])
    return isolated_share * isolated_s + (1 - isolated_share) * in_step_s


def _step_factor(rows: Rows, form: Form, constants: Constants) -> float:
    """Return the factor by which a training step prolongs products and attention.

    It is the stack's; for other kernels it is 1.
    """
    if rows.unit == "vector" or "step.product" not in constants:
        return 1.0
    if form is attention:
        return constants["step.attention"]
    grouped_share = constants["step.grouped"] if rows.kind in GROUPED else 1.0
    return constants["step.product"] / grouped_share


def _norm(first_s: Any, second_s: Any, power: float) -> Any:
    """Return the time of two that overlap in part: between their sum (1) and maximum (inf)."""
    return (first_s**power + second_s**power) ** (1 / power)


def _price_bounds(rows: Rows, device: Device, isolated_share: Any) -> Bounds:
    """Return the ends of kernels' interval, as shares; `isolated_share` is as in `price`."""
    constants = device.constants
    factor = constants["interval.old"] if has_trait(device, "old") else 1.0
    name = _interval_name(form_name(rows, device), device, constants)
    single = bounds(name, constants, factor, in_step=False)
    in_step = bounds(name, constants, factor, in_step=True)
    share_in_step = 1 - isolated_share
    return Bounds(
        low=isolated_share * single.low + share_in_step * in_step.low,
        high=isolated_share * single.high + share_in_step * in_step.high,
        shared=isolated_share * single.shared + share_in_step * in_step.shared,
    )


def _is_extrapolated(rows: Rows, device: Device) -> bool:
    """Return whether no kernels of this form, or no devices like this one, were measured."""
    name = form_name(rows, device)
    interval = _interval_name(name, device, device.constants)
    is_unlike_measured = device.constants.get("interval.beyond", 0.0) > 0
    return is_unlike_measured or interval not in (name, "all")


def form_of(kernel: Kernel | Rows, device: Device) -> Form:
    """Return the form that prices a kernel on a device: of the work of its kind, or of its unit."""
    return _find_form(kernel, device)[1]


def form_name(kernel: Kernel | Rows, device: Device) -> str:
    """Return the name of a kernel's form in the constants of intervals: `stream`, `reduction`."""
    name, form = _find_form(kernel, device)
    return "reduction" if form is stream and kernel.kind in REDUCING else name


def _find_form(kernel: Kernel | Rows, device: Device) -> tuple[str, Form]:
    """Return the name and the form of a kernel on a device."""
    forms = FORMS.get(device.kind, GPU)
    work = OPS[kernel.kind].work if kernel.kind in OPS else ""
    names = (work, *_FORMS_OF_UNIT[kernel.unit])
    return next((name, forms[name]) for name in names if name in forms)


def _interval_name(form: str, device: Device, constants: Mapping[str, Any]) -> str:
    """Return the form whose interval kernels take; not their own if it was not measured."""
    return interval_name(form if is_measured(form, device) else "", constants)


def calibrated_device(device: Device, dtype: str, settings: Settings) -> Device:
    """Return a device at the rates that kernels reach, with the constants of their prices.

    They are those of its calibration, else the priors.

    Raises:
        InputError: if a CPU is given another host, or if the device has no peak of the type.
    """
    calibration = device.calibration
    priors = on_usual_host(device, settings.stack)
    constants = {name: constant.value for name, constant in priors.items()}
    constants |= calibration.constants
    # A calibration by single ops has no intervals of steps.
    if not calibration.is_of_single_ops:
        constants |= interval_constants(calibration)
    if settings.host_name:
        if device.is_cpu:
            raise InputError(f"device '{device.name}' is its own host; leave out --host")
        constants = host_constants(settings.host_name, device, settings.stack, constants)
    # Wider for each property that no measured device has.
    constants["interval.beyond"] = extrapolation_width(device)
    return replace(effective_device(device, dtype, settings), constants=constants)


def effective_device(device: Device, dtype: str, settings: Settings) -> Device:
    """Return a device at the rates that kernels reach, with the peak of its vector units.

    A CPU whose file does not say its cores has as many as its peak implies. Kernels say themselves
    whether they run as TF32.
    """
    if settings.tf32 == "on":
        peak_flop_per_s(device, dtype, tf32=True)  # raises where there is none
    # Kernels say themselves whether they run as TF32: the peak of float32 is left as it is.
    peak_settings = replace(settings, tf32="auto") if settings.tf32 == "on" else settings
    vector_flop_per_s = dict(device.datasheet.vector_flop_per_s)
    vector_peak = device.datasheet.vector_peak("float32")
    if vector_peak is not None:
        vector_flop_per_s["float32"] = vector_peak
    cores = device.datasheet.cores
    if cores is None and device.kind == "cpu":
        cores = cpu.cores_of(device)
    derated_device = derate_device(device, dtype, peak_settings)
    return derated_device.with_figures(vector_flop_per_s=vector_flop_per_s, cores=cores)


WAITS = choice_option(
    "the host waits for the device at the end of each step", "waits", YES_NO, "no"
)


def list_notes(graph: Graph, _dtype: str, device: Device, settings: Settings) -> tuple[str, ...]:
    """Return remarks about what was not measured: the device, its stack, its host, its kernels."""
    notes = [*device_notes(device), *stack_notes(device, settings.stack)]
    unmeasured = _list_unmeasured_forms(graph, device, settings.stack)
    if unmeasured and not device.calibration.intervals:
        text = f"not measured on {device.name} or its like: {', '.join(unmeasured)}"
        notes.append(f"{text}; the interval is the widest of other kernels")
    if not (device.is_cpu or catalog.stack(settings.stack).host):
        stack = settings.stack
        notes.append(f"stack {stack}: the host's time is not known and left out: no [host]")
    return tuple(notes)


def _list_unmeasured_forms(graph: Graph, device: Device, stack: str) -> list[str]:
    """Return the forms of a graph's ops that borrow the interval of another form."""
    priors = catalog.priors(device.kind, stack)
    constants = {name: constant.value for name, constant in priors.items()}
    forms = FORMS.get(device.kind, GPU)
    used_forms = forms.keys() & {OPS[op.kind].work for op in graph.ops}
    # "all" is the interval of forms that have none of their own.
    return sorted(
        name for name in used_forms if _interval_name(name, device, constants) not in (name, "all")
    )


def device_notes(device: Device) -> list[str]:
    """Return a line about the properties of a device that no measured device has, or none."""
    reasons = "; ".join(extrapolation_reasons(device))
    if not reasons:
        return []
    return [f"{device.name} lies beyond what was measured: {reasons}; the interval is wider"]


def stack_notes(device: Device, stack: str) -> list[str]:
    """Return a line if a device is calibrated with steps of another stack, or none."""
    calibrated_stack = device.calibration.stack or stack
    if calibrated_stack == stack:
        return []
    return [f"{device.name} is calibrated with steps of stack {calibrated_stack}"]


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
    derate=calibrated_device,
    notes=list_notes,
    reads=(
        "multiprocessors",
        "l2_bytes",
        "l3_bytes",
        "l3_of_core_bytes",
        "process_nm",
        "arrays",
        "array_side",
        "maker",
        "series",
        "architecture",
        "memory_type",
        "clock_hz",
        "vector_flop_per_s",
        "calibration",
    ),
)
