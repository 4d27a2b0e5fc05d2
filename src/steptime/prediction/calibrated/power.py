"""The power cap: what a device may draw bounds how fast it works for long."""

from math import exp, log2, prod
from typing import Any, NamedTuple

import numpy as np

from steptime.hardware.architectures import format_constant_suffixes, has_trait
from steptime.hardware.device import Device
from steptime.prediction.calibrated.form import CLOCK_HZ, Constants, has_matrix_units, rated_dtype
from steptime.prediction.kernels import Kernels, Rows
from steptime.prediction.prices import Floats

QUANTILE_80 = 1.2816  # of a normal distribution, whose central 80 % lie within
PROCESS_NM = 16  # of the process in which energies are stated
UNKNOWN_NM = 7  # of a device whose file does not say
TINY_J = 1e-30  # of a kernel that neither computes nor moves anything


def dynamic_j(kernels: Rows, flop: Any, device: Device, constants: Constants) -> Any:
    """Return the energy of kernels at full clocks, beyond that of a waiting device.

    A FLOP of vector units takes `power.flop_j` at 16 nm and `power.unthrottled` times as much as
    at the power limit; one of matrix units takes `power.tensor_j`. Both take less at smaller
    process nodes (`power.node`). A byte takes `power.byte_j`.
    """
    dtype = rated_dtype(kernels, device)
    on_matrix_units = kernels.unit == "matrix" and has_matrix_units(device, dtype)
    flop_j = _flop_j(device, constants, on_matrix_units, dtype)
    # The constant of vector units is stated at the power limit; at full clocks they need more.
    flop_j *= 1.0 if on_matrix_units else constants["power.unthrottled"]
    return flop * flop_j + kernels.bytes * constants["power.byte_j"]


def _flop_j(device: Device, constants: Constants, on_matrix_units: bool, dtype: str) -> float:
    """Return the energy of a FLOP: of vector units at any clock, of matrix units at full clocks.

    T4 and L4 at half of their clocks take for a FLOP of vector units what cards for games take at
    full clocks. The energy of matrix units falls with the clock (`capped_s`).
    """
    process_factor = _process_factor(device, constants)
    if not on_matrix_units:
        return constants["power.flop_j"] * process_factor
    # The energy of matrix units grows with their clock; that of vector units is stated at any.
    clock_ratio = matrix_clock_hz(device, dtype) / CLOCK_HZ
    factor: float = clock_ratio ** constants["power.clock"]
    # Fitted factors, where an architecture or a data type takes another energy (`power.hopper`).
    architecture, _maker = format_constant_suffixes(device)
    correction_names = (f"power.{architecture}", f"power.{dtype}")
    factor *= prod(constants[name] for name in correction_names if name in constants)
    return constants["power.tensor_j"] * factor * process_factor


def matrix_clock_hz(device: Device, dtype: str) -> float:
    """Return the clock at which matrix units reach their peaks.

    It may lie below the boost clock: 1,830 of 1,980 MHz on H100 SXM. A multiprocessor does
    multiply-adds of a power of two in a clock, so the peak says the clock: 989.4 TFLOP/s of 132
    multiprocessors with 2,048 each are 1,830 MHz. The boost clock alone decides nothing. It is the
    clock of float16 where the device has it, since other peaks may be what software reaches.
    """
    boost_hz = device.datasheet.clock_hz
    multiprocessors = device.datasheet.multiprocessors
    if not boost_hz or not multiprocessors:
        return boost_hz or CLOCK_HZ
    peak = device.datasheet.peak_flop_per_s.get("float16", device.datasheet.peak_flop_per_s[dtype])
    # Of one multiprocessor. A multiply-add counts 2 FLOP.
    multiply_adds_per_s = peak / (2 * multiprocessors)
    # In a clock they are a power of two: the nearest one to what the boost clock would give.
    multiply_adds_per_clock = 2.0 ** round(log2(multiply_adds_per_s / boost_hz))
    return float(multiply_adds_per_s / multiply_adds_per_clock)


def _process_factor(device: Device, constants: Constants) -> float:
    """Return the energy of a FLOP in a device's process, relative to that in `PROCESS_NM`.

    Some processes are denser or less dense than their names say (`power.nm_12` and others).
    """
    effective_nm: float = device.datasheet.process_nm or UNKNOWN_NM
    process_constant = f"power.nm_{effective_nm:g}"
    if process_constant in constants:
        effective_nm = constants[process_constant]
    return float((effective_nm / PROCESS_NM) ** constants["power.node"])


class Limit(NamedTuple):
    """The power limit of a device for kernels of one type.

    Attributes:
        peak_flop_per_s: peak of the type.
        flop_j: joules of a FLOP at full clocks.
        byte_j: joules of a byte.
        isolated_limit_w: watts for a kernel that is repeated alone.
        in_step_limit_w: watts for a kernel among others in a step.
        clock_exponent: a FLOP at a share c of the full clocks takes c to this power of `flop_j`.
    """

    peak_flop_per_s: float
    flop_j: float
    byte_j: float
    isolated_limit_w: float
    in_step_limit_w: float
    clock_exponent: float = 0.0


def capped_s(
    kernels: Rows, compute_s: Any, isolated_share: Any, limit: Limit | None, flop: Any = None
) -> Any:
    """Return the least seconds in which a GPU may spend a kernel's energy; 0 if unknown.

    At 100 W, of which it draws 20 waiting, 8 J take 0.1 s. If a kernel would take less at full
    clocks, these fall, and the voltage with them: at half of the clocks, with a `clock_exponent` of
    1, FLOP of matrix units take half of the joules. Vector units in a step have more watts than
    alone: the kernels around them save for them.

    Args:
        kernels: the kernels.
        compute_s: seconds of their arithmetic; no more FLOP count than the peak allows in them, as
            Winograd executes fewer than are counted.
        isolated_share: 1 for kernels that are repeated alone, 0 in a step.
        limit: the limit; None if unknown.
        flop: executed FLOP; None for the counted ones.
    """
    if limit is None:
        return 0.0
    max_flop = compute_s * limit.peak_flop_per_s
    executed_flop = np.minimum(kernels.flop if flop is None else flop, max_flop)
    isolated_w = isolated_share * limit.isolated_limit_w
    in_step_w = (1 - isolated_share) * limit.in_step_limit_w
    budget_w = isolated_w + in_step_w
    flop_j = executed_flop * limit.flop_j
    bytes_j = kernels.bytes * limit.byte_j
    # Budget over what full clocks would draw. Below 1 the clocks fall, until power is this share.
    allowed_j = compute_s * budget_w
    power_share = allowed_j / np.maximum(flop_j + bytes_j, TINY_J)
    # A FLOP takes clock^clock_exponent, and power is clock times that, so that FLOP energy is
    # power^exponent. Memory has a clock of its own: bytes cost the same.
    exponent = limit.clock_exponent / (1 + limit.clock_exponent)
    flop_energy_share = np.minimum(power_share, 1.0) ** exponent
    return (flop_j * flop_energy_share + bytes_j) / budget_w


def limit_of(device: Device, constants: Constants, unit: str, dtype: str) -> Limit | None:
    """Return the power limit of a GPU for kernels of a type; None if it is unknown."""
    if device.datasheet.peak_w is None or device.kind != "gpu":
        return None
    on_matrix_units = unit == "matrix" and has_matrix_units(device, dtype)
    # Energies of kernels come on top of the waiting power: it is subtracted from the limit.
    budget_w = device.datasheet.peak_w * (1 - waiting_share(device, constants))
    # The cap holds for the mean of a step. Kernels of vector units draw above it, by a fitted
    # factor, since the kernels around them draw below it.
    in_step_factor = 1.0 if on_matrix_units else constants["power.mixed"]
    return Limit(
        peak_flop_per_s=device.datasheet.peak_flop_per_s[dtype],
        flop_j=_flop_j(device, constants, on_matrix_units, dtype),
        byte_j=constants["power.byte_j"],
        isolated_limit_w=budget_w,
        in_step_limit_w=budget_w * in_step_factor,
        # How the energy of a FLOP falls with the clock; that of vector units is the same at any.
        clock_exponent=constants["power.clock"] if on_matrix_units else 0.0,
    )


def waiting_share(device: Device, constants: Constants) -> float:
    """Return the draw of a device that waits at its working clocks, as a share of its limit.

    It is `idle_W` where the file says it. Else it is larger with GDDR, whose clock does not rest:
    V100 and A40 in the traces of Zeus (NSDI 2023) draw 37 of 250 and 85 of 300 W.
    """
    if device.datasheet.idle_w is not None and device.datasheet.peak_w is not None:
        return min(1.0, device.datasheet.idle_w / device.datasheet.peak_w)
    is_stacked = has_trait(device, "stacked_memory")
    return constants["power.waiting_hbm" if is_stacked else "power.waiting_gddr"]


def running_w(device: Device) -> float:
    """Return the watts that running kernels draw beyond waiting, whatever they compute and move.

    Clocks and schedulers of all multiprocessors run. It is 0 where no limit is known.
    """
    return (device.datasheet.peak_w or 0.0) * device.constants.get("power.running", 0.0)


def _has_energy_constants(device: Device) -> bool:
    """Return whether the method is calibrated, on a kind of device whose priors have energies."""
    return "power.flop_j" in device.constants


def kernel_energies(kernels: Kernels, device: Device) -> Floats:
    """Return the joules of each distinct kernel beyond those of a waiting device; 0 if unknown."""
    joules: Floats = np.zeros(len(kernels.distinct))
    if not _has_energy_constants(device):
        return joules
    for rows, distinct_indices in kernels.groups:
        joules[distinct_indices] = dynamic_j(rows, rows.flop, device, device.constants)
    return joules


def kernels_j(kernels: Kernels, device: Device) -> float:
    """Return the joules of all kernels beyond those of a waiting device; 0 if unknown."""
    return float(kernel_energies(kernels, device) @ kernels.counts)


class StepJoules(NamedTuple):
    """The energy of a step with its 80 % interval, in joules."""

    value: float
    low: float
    high: float


def step_joules(
    full_clock_j: float, step_bounds_s: tuple[float, float, float], device: Device
) -> StepJoules | None:
    """Return the energy of a step; None if the power limit of the device is unknown.

    The device draws its waiting power all the time, and the energy of its kernels, but in the mean
    no more than its limit: 20 W, 8 J and a limit of 100 W are 28 J in 1 s, 10 J in 0.1 s.

    Args:
        full_clock_j: joules of the kernels at full clocks.
        step_bounds_s: seconds of the step, and the ends of their interval.
        device: the device with the constants of its calibration.
    """
    draw = power_draw(device)
    if draw is None:
        return None
    value_s, low_s, high_s = step_bounds_s
    error_factor = exp(QUANTILE_80 * device.constants["power.error"])

    # Waiting power all the time and the energy of the kernels, but no more than the limit allows.
    def joules_within(seconds: float, factor: float) -> float:
        return min(draw.waiting_w * seconds + full_clock_j * factor, draw.limit_w * seconds)

    return StepJoules(
        joules_within(value_s, factor=1.0),
        joules_within(low_s, factor=1 / error_factor),
        joules_within(high_s, factor=error_factor),
    )


class PowerDraw(NamedTuple):
    """The power of a GPU that waits for work, and its limit, in watts."""

    waiting_w: float
    limit_w: float


def power_draw(device: Device) -> PowerDraw | None:
    """Return the power of a GPU; None if its limit or its calibration is unknown."""
    limit_w = device.datasheet.peak_w
    if limit_w is None or device.kind != "gpu" or not _has_energy_constants(device):
        return None
    return PowerDraw(limit_w * waiting_share(device, device.constants), limit_w)
