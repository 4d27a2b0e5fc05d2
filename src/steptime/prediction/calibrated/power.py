"""The power cap: what a device may draw bounds how fast it works for long."""

from math import exp, log2, prod
from typing import Any, NamedTuple

import numpy as np

from steptime.hardware.architectures import family_of
from steptime.hardware.device import Device
from steptime.prediction.calibrated.form import CLOCK_HZ, Constants, has_matrix_units, rated_dtype
from steptime.prediction.kernels import Floats, Kernels, Rows

QUANTILE_80 = 1.2816  # of a normal distribution, whose central 80 % lie within
NODE_NM = 16  # of the process in which energies are stated
UNKNOWN_NM = 7  # of a device whose file does not say
TINY_J = 1e-30  # of a kernel that neither computes nor moves anything


def dynamic_j(kernels: Rows, flop: Any, device: Device, constants: Constants) -> Any:
    """Return the joules that a kernel takes at full clocks beyond those of a device that waits.

    They are `power.flop_j` for a FLOP of vector units at 16 nm, `power.unthrottled` times as much
    as at the limit, `power.tensor_j` of matrix units, less at smaller nodes by `power.node`, and
    `power.byte_j` for a byte.
    """
    dtype = rated_dtype(kernels, device)
    multiplies = kernels.unit == "matrix" and has_matrix_units(device, dtype)
    each = _flop_j(device, constants, multiplies, dtype)
    each *= 1.0 if multiplies else constants["power.unthrottled"]
    return flop * each + kernels.bytes * constants["power.byte_j"]


def _flop_j(device: Device, constants: Constants, multiplies: bool, dtype: str) -> float:
    """Return the joules of a FLOP of vector units at any clock, or of matrix units at full clocks.

    T4 and L4 at half of their clocks take what cards for games take at all of theirs for a FLOP of
    vector units: they take the same. Those of matrix units fall with the clock (`capped_s`).
    """
    node = _node(device, constants)
    if not multiplies:
        return constants["power.flop_j"] * node
    family = family_of(device).lower()
    each: float = (matrix_clock_hz(device, dtype) / CLOCK_HZ) ** constants["power.clock"]
    each *= prod(constants[f"power.{of}"] for of in (family, dtype) if f"power.{of}" in constants)
    return constants["power.tensor_j"] * each * node


def matrix_clock_hz(device: Device, dtype: str) -> float:
    """Return the clock at which matrix units reach their peaks.

    It may lie below the boost clock: 1,830 of 1,980 MHz on H100 SXM. A multiprocessor does
    multiply-adds of a power of two in a clock, so the peak says the clock: 989.4 TFLOP/s of 132
    multiprocessors with 2,048 each are 1,830 MHz. The boost clock alone decides nothing. It is the
    clock of float16 where the device has it, since other peaks may be what software reaches.
    """
    boost_hz = device.clock_hz or CLOCK_HZ
    if not device.clock_hz or not device.multiprocessors:
        return boost_hz
    flop_per_clock = 2 * device.multiprocessors
    peak = device.peak_flop_per_s.get("float16", device.peak_flop_per_s[dtype])
    lanes = 2.0 ** round(log2(peak / flop_per_clock / boost_hz))
    return float(peak / flop_per_clock / lanes)


def _node(device: Device, constants: Constants) -> float:
    """Return what a FLOP takes at a device's process, of what it takes at `NODE_NM`.

    Some processes are as dense as another one than their names say (`power.nm_12` and others).
    """
    size: float = device.process_nm or UNKNOWN_NM
    name = f"power.nm_{size:g}"
    if name in constants:
        size = constants[name]
    return float((size / NODE_NM) ** constants["power.node"])


class Limit(NamedTuple):
    """What bounds kernels of a type: peak, joules of a FLOP and of a byte, and watts for them.

    The joules of a FLOP are those at full clocks; at a share of them they are that share to the
    power of `clock` of it. The watts are those of a kernel that runs again and again, and of one
    among others.
    """

    peak_flop_per_s: float
    flop_j: float
    byte_j: float
    alone_w: float
    mixed_w: float
    clock: float = 0.0


def capped_s(
    kernels: Rows, compute_s: Any, alone: Any, limit: Limit | None, flop: Any = None
) -> Any:
    """Return the least seconds in which a GPU may spend a kernel's energy, 0 if not known.

    At 100 W, of which it draws 20 waiting, 8 J take 0.1 s. Where the kernel would take them in less
    at full clocks, these fall, and the voltage with them: at half of its clocks, and a `clock` of
    1, FLOP of matrix units take half of the joules. Vector units that are not `alone` have
    `power.mixed` as many watts: the kernels around them save for them. `flop` is the arithmetic
    done where it is not what is counted. What takes `compute_s` at the peak is no more than the
    peak allows: Winograd's is less than counted.
    """
    if limit is None:
        return 0.0
    peak, flop_j, byte_j, alone_w, mixed_w, clock = limit
    executed = np.minimum(kernels.flop if flop is None else flop, compute_s * peak)
    budget_w = alone * alone_w + (1 - alone) * mixed_w
    of_flop, of_bytes = executed * flop_j, kernels.bytes * byte_j
    allowed = compute_s * budget_w / np.maximum(of_flop + of_bytes, TINY_J)
    return (of_flop * np.minimum(allowed, 1.0) ** (clock / (1 + clock)) + of_bytes) / budget_w


def limit_of(device: Device, constants: Constants, unit: str, dtype: str) -> Limit | None:
    """Return what bounds kernels of a type on a GPU; None where its limit is not known."""
    if device.peak_w is None or device.kind != "gpu":
        return None
    multiplies = unit == "matrix" and has_matrix_units(device, dtype)
    budget_w = device.peak_w * (1 - waiting_share(device, constants))
    mixed = 1.0 if multiplies else constants["power.mixed"]
    flop_j = _flop_j(device, constants, multiplies, dtype)
    peak = device.peak_flop_per_s[dtype]
    watts = budget_w, budget_w * mixed
    clock = constants["power.clock"] if multiplies else 0.0
    return Limit(peak, flop_j, constants["power.byte_j"], *watts, clock)


def waiting_share(device: Device, constants: Constants) -> float:
    """Return what a device draws at its working clocks while it waits for work, of its limit.

    It is `idle_W` where the file says it. Else it is more with GDDR, whose clock does not rest:
    V100 and A40 in the traces of Zeus (NSDI 2023) draw 37 of 250 and 85 of 300 W.
    """
    if device.idle_w is not None and device.peak_w is not None:
        return min(1.0, device.idle_w / device.peak_w)
    stacked = "HBM" in (device.memory_type or "")
    return constants["power.waiting_hbm" if stacked else "power.waiting_gddr"]


def running_w(device: Device) -> float:
    """Return the watts that running kernels draw beyond waiting, whatever they compute and move.

    Clocks and schedulers of all multiprocessors run. It is 0 where no limit is known.
    """
    return (device.peak_w or 0.0) * device.constants.get("power.running", 0.0)


def joules_of(kernels: Kernels, device: Device) -> Floats:
    """Return the joules of each kernel that differs beyond those of a device that waits.

    They are 0 where not known.
    """
    found: Floats = np.zeros(len(kernels.distinct))
    for rows, places in kernels.groups if "power.flop_j" in device.constants else ():
        found[places] = dynamic_j(rows, rows.flop, device, device.constants)
    return found


def spent_j(kernels: Kernels, device: Device) -> float:
    """Return the joules of all kernels beyond those of a device that waits, 0 where not known."""
    return float(joules_of(kernels, device) @ kernels.often)


def drawn_of(
    dynamic: float, step: tuple[float, float, float], device: Device
) -> tuple[float, float, float] | None:
    """Return the joules of a step and between which they lie, None where no limit is known.

    `step` are its seconds and their bounds. The device draws what it draws waiting all the time,
    and the `dynamic` joules of its kernels at full clocks, but in the mean no more than its limit:
    20 W, 8 J and a limit of 100 W are 28 J in 1 s, 10 J in 0.1 s.
    """
    known = draws(device)
    if known is None:
        return None
    (waiting_w, most_w), (value, low, high) = known, step
    off = exp(QUANTILE_80 * device.constants["power.error"])

    def within(seconds: float, factor: float) -> float:
        return min(waiting_w * seconds + dynamic * factor, most_w * seconds)

    return within(value, 1.0), within(low, 1 / off), within(high, off)


def draws(device: Device) -> tuple[float, float] | None:
    """Return a GPU's watts of waiting, and its limit; None where that is not known."""
    if device.peak_w is None or device.kind != "gpu" or "power.flop_j" not in device.constants:
        return None
    return device.peak_w * waiting_share(device, device.constants), device.peak_w
