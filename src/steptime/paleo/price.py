"""Prices of kernels in Paleo, and the figures of a device as Paleo reads them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from operator import add
from typing import Any

import numpy as np

from steptime.hardware.datasheet import GB, GIB
from steptime.hardware.device import Device
from steptime.paleo.rules import settings_of
from steptime.prediction import price
from steptime.prediction.kernel import Interval, Settings
from steptime.prediction.kernels import Rows


@dataclass(frozen=True)
class PaleoDevice(Device):
    """A device whose updates run at full rates, whatever share other passes reach.

    These rates have fields of their own, because a device with `constants` would be priced by its
    software stack and not by Paleo.
    """

    update_peak_flop_per_s: Mapping[str, float] = field(default_factory=dict)
    update_bytes_per_s: float = 0.0


def apply_figures(device: Device, dtype: str, settings: Settings) -> Device:
    """Return the device as Paleo reads it: a GB/s is 2^30 bytes, and the clock counts if asked."""
    faults = settings_of(settings).faults
    peak_dtype = "float32" if "dtype" in faults else dtype
    gigabyte = GIB / GB if "gigabyte" in faults else 1.0
    clock_hz = device.datasheet.clock_hz if "cycle" in faults else None
    bytes_per_s = device.datasheet.memory_bytes_per_s * gigabyte
    published = device.with_figures(memory_bytes_per_s=bytes_per_s, clock_hz=clock_hz)
    efficient = price.derate_device(published, peak_dtype, settings)
    if "update" not in faults or settings.compute_efficiency == 1:
        return efficient
    # Paleo's update ignores the efficiency: for it the device has the full peaks, too.
    full = price.derate_device(published, peak_dtype, replace(settings, compute_efficiency=1.0))
    return PaleoDevice(
        **{item.name: getattr(efficient, item.name) for item in fields(Device)},
        update_peak_flop_per_s=full.datasheet.peak_flop_per_s,
        update_bytes_per_s=full.datasheet.memory_bytes_per_s,
    )


def _device_of_pass(device: Device, pass_: str) -> Device:
    """Return the device with the rates of a pass: updates run at full rates."""
    if pass_ != "update" or not isinstance(device, PaleoDevice):
        return device
    peaks = {name: device.update_peak_flop_per_s[name] for name in device.datasheet.peak_flop_per_s}
    return device.with_figures(peak_flop_per_s=peaks, memory_bytes_per_s=device.update_bytes_per_s)


def price_sequential(
    kernels: Rows, device: Device, join: Callable[[Any, Any], Any] = add
) -> Interval:
    """Return the time of arithmetic plus the traffic of each tensor.

    Each term takes at least a clock cycle if the clock is known; no arithmetic takes no time.
    `join` combines the two terms (default: their sum).
    """
    pass_device = _device_of_pass(device, kernels.pass_)
    compute_s, memory_s = price.peak_times(kernels, pass_device)
    if pass_device.datasheet.clock_hz is not None:
        cycle_s = 1.0 / pass_device.datasheet.clock_hz
        has_arithmetic = kernels.flop > 0
        # arithmetic takes at least a cycle if there is any, and so does each tensor that is moved
        compute_s = np.maximum(cycle_s, compute_s) * has_arithmetic
        # `figures` are the bytes of each tensor of the layer, if Paleo counts them one by one.
        tensor_sizes_bytes = kernels.figures or (kernels.bytes,)
        memory_s = sum(
            np.maximum(cycle_s, size_bytes / pass_device.datasheet.memory_bytes_per_s)
            for size_bytes in tensor_sizes_bytes
        )
    value = join(compute_s, memory_s) + price.launching_s(kernels, pass_device)
    # A time at peak rates is its own lower bound; no upper one is known.
    return Interval(value, low=value, high=None, compute_s=compute_s, memory_s=memory_s)


price_overlapped = partial(price_sequential, join=np.maximum)
