"""The method `calibrated`: what kernels take on a device as it is, with an interval."""

from dataclasses import replace
from math import exp

from steptime import catalog
from steptime.core.hardware import Device
from steptime.predict.calibrated import cpu
from steptime.predict.calibrated.form import Form
from steptime.predict.calibrated.product import product
from steptime.predict.calibrated.stream import stream
from steptime.predict.kernel import Interval, Kernel, Larger, Settings
from steptime.predict.method import STACK, TF32, Method
from steptime.predict.price import seen

GPU: dict[str, Form] = {"matrix": product, "vector": stream}  # by kind of op, else by its unit
FORMS = {"cpu": cpu.FORMS}  # by kind of device; those of GPUs for kinds that nobody measured


def price(kernel: Kernel, device: Device, larger: Larger = max) -> Interval:
    """Return the seconds of a kernel by the form of its kind, with a central 80 % interval."""
    constants = device.constants
    forms = FORMS.get(device.kind, GPU)
    form = forms.get(kernel.kind) or forms[kernel.unit]
    compute_s, memory_s, gap_s = form(kernel, device, constants, larger)
    power = constants["joint.power"]
    value = (compute_s**power + memory_s**power) ** (1 / power) + gap_s
    factor = exp(1.2816 * constants["interval.spread"])
    return Interval(value, value / factor, value * factor, False, compute_s, memory_s)


def calibrated_device(device: Device, dtype: str, settings: Settings) -> Device:
    """Return the device as kernels find it, with the constants of its calibration or the priors."""
    found = {name: one.value for name, one in catalog.priors(device.kind).items()}
    found |= device.calibration.get("constants", {})
    return replace(seen(device, dtype, settings), constants=found)


METHOD = Method(
    "calibrated",
    "1",
    price=price,
    options={"tf32": TF32, "stack": STACK},
    sees=calibrated_device,
    reads=(
        *("multiprocessors", "l2_bytes", "process_nm", "maker", "architecture", "memory_type"),
        *("vector_flop_per_s", "calibration"),
    ),
)
