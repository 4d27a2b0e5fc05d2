"""How long a kernel takes in Paleo, and what Paleo makes of a device's figures."""

from dataclasses import replace

import numpy as np

from steptime.hardware.device import GB, GIB, Device
from steptime.prediction import price
from steptime.prediction.kernel import Interval, Settings
from steptime.prediction.kernels import Rows


def seen(device: Device, dtype: str, settings: Settings) -> Device:
    """Return the device as kernels find it: a GB/s as 2^30 bytes, and a clock if cycles count."""
    own = "dtype" in settings.faults  # arithmetic at the peak of float32, whatever the type
    gigabyte = GIB / GB if "gigabyte" in settings.faults else 1.0
    told = replace(
        device,
        memory_bytes_per_s=device.memory_bytes_per_s * gigabyte,
        clock_hz=device.clock_hz if "cycle" in settings.faults else None,
    )
    return price.seen(told, "float32" if own else dtype, settings)


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
    compute_s, memory_s = price.at_peak(kernels, device)
    if device.clock_hz is None:
        return compute_s, memory_s
    cycle_s, rate = 1.0 / device.clock_hz, device.memory_bytes_per_s
    tensors = kernels.tensors or (kernels.bytes,)
    return (
        np.maximum(cycle_s, compute_s) * (kernels.flop > 0),
        sum(np.maximum(cycle_s, size / rate) for size in tensors),
    )
