"""The energy of a predicted step: by `calibrated`, that of a GPU's kernels (`calibrated/power.py`).

Else it is that of a line between the power that a device draws idle and at most:

    energy = idle_w * step_s + (peak_w - idle_w) * utilisation * step_s

Fan, Weber and Barroso (ISCA 2007) found servers to follow such a line. Utilisation is taken as the
share of the step in which arithmetic runs, so moving bytes alone draws no more than idling: an
estimate that is low for steps that wait for memory. `max_j` is the peak power for the whole
step, of the predicted time: where the step takes longer, so is this too low.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from steptime.hardware.device import Device
from steptime.prediction.calibrated.power import kernels_j, step_joules
from steptime.prediction.kernels import Kernels
from steptime.prediction.schedule import Timeline

KWH_J = 3.6e6


@dataclass(frozen=True)
class StepEnergy:
    """The energy of one step of one device, in joules, None where its power is not known.

    `note` says which figures of the device are missing, or are to be checked; else it is empty.
    80 % of steps lie between `low_j` and `high_j` where the method knows.
    """

    utilisation: float | None
    energy_j: float | None
    max_j: float | None
    note: str
    low_j: float | None = None
    high_j: float | None = None


def utilisation(times: Timeline) -> float | None:
    """Return the share of a step in which arithmetic runs, 0 to 1; None for a step of no time.

    Arithmetic is that of the forward and the backward pass. The update moves bytes and waits for
    them, so it counts as none.
    """
    if not times.step_s:
        return None
    busy_s = sum(row.forward.compute_s + row.backward.compute_s for row in times.rows)
    return min(1.0, busy_s / times.step_s)


def step_energy(times: Timeline, device: Device, kernels: Kernels | None = None) -> StepEnergy:
    """Return the energy of a step on a device: 2 s, half used, at 100 W idle and 300 W are 400 J.

    A device with constants of `calibrated` has the energy of its kernels. A device that claims to
    draw more idle than at most has no energy, and the note says so.

    Args:
        times: the times of the step.
        device: the device (`StepModel.effective_device`).
        kernels: the kernels of the step; None for a step without any.
    """
    idle_w = device.datasheet.idle_w
    peak_w = device.datasheet.peak_w
    # A datasheet that claims more watts idle than at most is not believed.
    has_sound_power = idle_w is None or idle_w <= (peak_w or 0)
    if "power.flop_j" in device.constants and has_sound_power:
        energy = _calibrated_energy(times, device, kernels)
        if energy is not None:
            return energy
    share = utilisation(times)
    max_j = _max_joules(times, device)
    if idle_w is None or peak_w is None:
        watts_by_key = {"idle_W": idle_w, "tdp_W": peak_w}
        missing_keys = [key for key, watts in watts_by_key.items() if watts is None]
        note = f"{device.name}: {' and '.join(missing_keys)} unknown"
        return StepEnergy(share, energy_j=None, max_j=max_j, note=note)
    if idle_w > peak_w:
        note = f"{device.name}: idle_W is above tdp_W"
        return StepEnergy(share, energy_j=None, max_j=None, note=note)
    # Without constants: between idle and the limit in proportion to the use of the device.
    mean_w = idle_w + (peak_w - idle_w) * (share or 0.0)
    note = _unverified_note(device, ("idle_W", "tdp_W"))
    return StepEnergy(share, energy_j=mean_w * times.step_s, max_j=max_j, note=note)


def _calibrated_energy(
    times: Timeline, device: Device, kernels: Kernels | None
) -> StepEnergy | None:
    """Return the energy of a step by that of its kernels; None if the power limit is unknown."""
    step_s = times.step_s
    value_low_high_s = (step_s, times.low_s or step_s, times.high_s or step_s)
    full_clock_j = kernels_j(kernels, device) if kernels else 0.0
    joules = step_joules(full_clock_j, value_low_high_s, device)
    if joules is None:
        return None
    note = _unverified_note(device, ("tdp_W",))
    max_j = _max_joules(times, device)
    return StepEnergy(
        utilisation(times),
        energy_j=joules.value,
        max_j=max_j,
        note=note,
        low_j=joules.low,
        high_j=joules.high,
    )


def _max_joules(times: Timeline, device: Device) -> float | None:
    """Return the energy at peak power for the whole step; None if that power is unknown."""
    return None if device.datasheet.peak_w is None else device.datasheet.peak_w * times.step_s


def _unverified_note(device: Device, keys: Sequence[str]) -> str:
    """Return a note on figures of a device that are to be checked: `k80: idle_W unverified`."""
    unverified = [key for key in keys if key in device.datasheet.unverified]
    return f"{device.name}: {' and '.join(unverified)} unverified" if unverified else ""
