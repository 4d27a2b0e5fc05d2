"""The power cap: what a device may draw bounds how fast it works for long."""

from math import exp
from typing import Any, NamedTuple

import numpy as np

from steptime.hardware.device import Device
from steptime.prediction.calibrated.form import Constants, has_matrix_units, ruled_as
from steptime.prediction.kernels import Floats, Kernels, Rows

QUANTILE_80 = 1.2816  # of a normal distribution, whose central 80 % lie within
NODE_NM = 16  # of the process in which energies are stated
AS_LARGE_AS = {12: 14, 8: 10}  # between node names and density: judged on V100 and T4, A40
FRUGAL = {"Blackwell": 0.65}  # best product of ml-engineering at the limit: B200 beside H100
# of 16 bit: best products of ml-engineering at the limit, H100 794 and 1402; half as much again
NARROW = {"float8": 0.55, "float4": 0.3}
UNKNOWN_NM = 7  # of a device whose file does not say


def dynamic_j(kernels: Rows, flop: Any, device: Device, constants: Constants) -> Any:
    """Return the joules that a kernel takes beyond those of a device that waits.

    They are `power.flop_j` for a FLOP of vector units at 16 nm, `power.tensor_j` of matrix units,
    less at smaller nodes by `power.node`, and `power.byte_j` for a byte.
    """
    dtype = ruled_as(kernels, device)
    multiplies = kernels.unit == "matrix" and has_matrix_units(device, dtype)
    each = _flop_j(device, constants, multiplies, dtype)
    return flop * each + kernels.bytes * constants["power.byte_j"]


def _flop_j(device: Device, constants: Constants, multiplies: bool, dtype: str) -> float:
    """Return the joules of a FLOP, of units made for products or of others."""
    said = device.process_nm or UNKNOWN_NM
    node: float = (AS_LARGE_AS.get(int(said), said) / NODE_NM) ** constants["power.node"]
    if not multiplies:
        return constants["power.flop_j"] * node
    frugal = FRUGAL.get((device.architecture or "").partition(" ")[0], 1.0)
    each = constants["power.tensor_j"] * frugal * NARROW.get(dtype, 1.0)
    each *= 1.0 if "HBM" in (device.memory_type or "") else constants["power.graphics"]
    return each * node


class Limit(NamedTuple):
    """What bounds kernels of a type: peak, joules of a FLOP and of a byte, and watts for them.

    The watts are those of a kernel that runs again and again, and of one among others.
    """

    peak_flop_per_s: float
    flop_j: float
    byte_j: float
    alone_w: float
    mixed_w: float


def capped_s(
    kernels: Rows,
    compute_s: Any,
    alone: Any,
    limit: Limit | None,
    flop: Any = None,
) -> Any:
    """Return the least seconds in which a GPU may spend a kernel's energy, 0 if not known.

    At 100 W, of which it draws 20 waiting, 8 J take 0.1 s. Vector units that are not `alone` have
    `power.mixed` as many watts: the kernels around them save for them. `flop` is the arithmetic
    done where it is not what is counted. What takes `compute_s` at the peak is no more than the
    peak allows: Winograd's is less than counted.
    """
    if limit is None:
        return 0.0
    peak, flop_j, byte_j, alone_w, mixed_w = limit
    executed = np.minimum(kernels.flop if flop is None else flop, compute_s * peak)
    budget_w = alone * alone_w + (1 - alone) * mixed_w
    return (executed * flop_j + kernels.bytes * byte_j) / budget_w


def limit_of(device: Device, constants: Constants, unit: str, dtype: str) -> Limit | None:
    """Return what bounds kernels of a type on a GPU; None where its limit is not known."""
    if device.peak_w is None or device.kind != "gpu":
        return None
    multiplies = unit == "matrix" and has_matrix_units(device, dtype)
    budget_w = device.peak_w * (1 - waiting_share(device, constants))
    mixed = 1.0 if multiplies else constants["power.mixed"]
    flop_j = _flop_j(device, constants, multiplies, dtype)
    peak = device.peak_flop_per_s[dtype]
    return Limit(peak, flop_j, constants["power.byte_j"], budget_w, budget_w * mixed)


def waiting_share(device: Device, constants: Constants) -> float:
    """Return what a device draws at its working clocks while it waits for work, of its limit.

    It is `idle_W` where the file says it. Else it is more with GDDR, whose clock does not rest:
    V100 and A40 in the traces of Zeus (NSDI 2023) draw 37 of 250 and 85 of 300 W.
    """
    if device.idle_w is not None and device.peak_w is not None:
        return min(1.0, device.idle_w / device.peak_w)
    stacked = "HBM" in (device.memory_type or "")
    return constants["power.waiting_hbm" if stacked else "power.waiting_gddr"]


def joules_of(kernels: Kernels, device: Device) -> Floats:
    """Return the joules of each kernel that differs beyond those of a device that waits.

    They are 0 where not known.
    """
    found: Floats = np.zeros(len(kernels.distinct))
    for rows, places in kernels.groups if "power.flop_j" in device.constants else ():
        found[places] = dynamic_j(rows, rows.flop, device, device.constants)
    return found


def spent_j(kernels: Kernels, device: Device, often: Floats | None = None) -> Any:
    """Return the joules of all kernels beyond those of a device that waits, 0 where not known.

    Each row of `often` says how often they come, if that is not as often as there are.
    """
    found: Any = 0.0
    for rows, places in kernels.groups if "power.flop_j" in device.constants else ():
        joules = dynamic_j(rows, rows.flop, device, device.constants)
        found = found + (kernels.often if often is None else often)[..., places] @ joules
    return found


def drawn_of(
    dynamic: float, step: tuple[float, float, float], device: Device
) -> tuple[float, float, float] | None:
    """Return the joules of a step and between which they lie, None where no limit is known.

    `step` are its seconds and their bounds. The device draws what it draws waiting all the time,
    and the `dynamic` joules of its kernels, `power.unthrottled` times as much at full clocks as
    under its limit, which the mean does not exceed: 20 W, 8 J and a limit of 100 W are 28 J in 1 s,
    10 J in 0.1 s.
    """
    known = draws(device)
    if known is None:
        return None
    (waiting_w, more, most_w), (value, low, high) = known, step
    off = exp(QUANTILE_80 * device.constants["power.error"])

    def within(seconds: float, factor: float) -> float:
        return min(waiting_w * seconds + dynamic * more * factor, most_w * seconds)

    return within(value, 1.0), within(low, 1 / off), within(high, off)


def draws(device: Device) -> tuple[float, float, float] | None:
    """Return a GPU's watts of waiting, what joules of kernels count at full clocks, and its limit.

    None where no limit is known.
    """
    if device.peak_w is None or device.kind != "gpu" or "power.flop_j" not in device.constants:
        return None
    waiting_w = device.peak_w * waiting_share(device, device.constants)
    return waiting_w, device.constants["power.unthrottled"], device.peak_w
