"""How long a kernel takes in Paleo, and what Paleo makes of a device's figures."""

from dataclasses import replace

import numpy as np

from steptime.hardware.device import GB, GIB, Device
from steptime.paleo.rules import kept
from steptime.prediction import price
from steptime.prediction.kernel import Interval, Settings
from steptime.prediction.kernels import Rows

RATE = "memory_bytes_per_s"


def seen(device: Device, dtype: str, settings: Settings) -> Device:
    """Return the device as kernels find it: a GB/s as 2^30 bytes, and a clock if cycles count."""
    faults = kept(settings).faults
    shown = "float32" if "dtype" in faults else dtype  # its peak, whatever the type
    gigabyte = GIB / GB if "gigabyte" in faults else 1.0
    told = replace(
        device,
        memory_bytes_per_s=device.memory_bytes_per_s * gigabyte,
        clock_hz=device.clock_hz if "cycle" in faults else None,
    )
    found = price.seen(told, shown, settings)
    if "update" not in faults or settings.compute_efficiency == 1:
        return found
    whole = price.seen(told, shown, replace(settings, compute_efficiency=1.0))
    return replace(found, constants={**whole.peak_flop_per_s, RATE: whole.memory_bytes_per_s})


def _of_pass(device: Device, pass_: str) -> Device:
    """Return the device as kernels of a pass find it: updates reach the whole of its rates."""
    if pass_ != "update" or not device.constants:
        return device
    peaks = {name: device.constants[name] for name in device.peak_flop_per_s}
    return replace(device, peak_flop_per_s=peaks, memory_bytes_per_s=device.constants[RATE])


def longer(kernels: Rows, device: Device) -> Interval:
    """Return the longer of arithmetic and traffic, each term of them at least a clock cycle."""
    compute_s, memory_s = _in_cycles(kernels, device)
    value = np.maximum(compute_s, memory_s) + price.launching_s(kernels, device)
    return Interval(value, value, None, False, compute_s, memory_s)


def added(kernels: Rows, device: Device) -> Interval:
    """Return the sum of arithmetic and traffic, each term of them at least a clock cycle."""
    compute_s, memory_s = _in_cycles(kernels, device)
    value = compute_s + memory_s + price.launching_s(kernels, device)
    return Interval(value, value, None, False, compute_s, memory_s)


def _in_cycles(kernels: Rows, device: Device) -> tuple[float, float]:
    """Return the seconds of arithmetic, if there is any, and of the traffic of each tensor."""
    device = _of_pass(device, kernels.pass_)
    compute_s, memory_s = price.at_peak(kernels, device)
    if device.clock_hz is None:
        return compute_s, memory_s
    cycle_s, rate = 1.0 / device.clock_hz, device.memory_bytes_per_s
    tensors = kernels.figures or (kernels.bytes,)
    return (
        np.maximum(cycle_s, compute_s) * (kernels.flop > 0),
        sum(np.maximum(cycle_s, size / rate) for size in tensors),
    )
