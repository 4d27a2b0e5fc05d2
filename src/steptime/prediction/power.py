"""The energy of a predicted step: by `calibrated`, that of a GPU's kernels (`calibrated/power.py`).

Else it is that of a line between the power that a device draws idle and at most:

    energy = idle_w * step_s + (peak_w - idle_w) * utilisation * step_s

Fan, Weber and Barroso (ISCA 2007) found servers to follow such a line. Utilisation is taken as the
share of the step in which arithmetic runs, so moving bytes alone draws no more than idling: an
estimate that is low for steps that wait for memory. `max_j` is the peak power for the whole
step, of the predicted time: where the step takes longer, so is this too low.
"""

from dataclasses import dataclass

from steptime.hardware.device import Device
from steptime.prediction.calibrated.power import drawn_of, spent_j
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

    Where the device has constants of `calibrated` (`StepModel.seen`), it is that of its `kernels`.
    A device that is said to draw more idle than at most has no energy, and the note says so.
    """
    share, idle_w, peak_w = utilisation(times), device.idle_w, device.peak_w
    max_j = None if peak_w is None else peak_w * times.step_s
    if "power.flop_j" in device.constants and (idle_w or 0) <= (peak_w or 0):
        whole = times.step_s
        bounds = whole, times.low_s or whole, times.high_s or whole
        drawn = drawn_of(spent_j(kernels, device) if kernels else 0.0, bounds, device)
        if drawn is not None:
            doubt = f"{device.name}: tdp_W unverified" if "tdp_W" in device.unverified else ""
            return StepEnergy(share, drawn[0], max_j, doubt, drawn[1], drawn[2])
    if idle_w is None or peak_w is None:
        missing = [key for key, watts in (("idle_W", idle_w), ("tdp_W", peak_w)) if watts is None]
        return StepEnergy(share, None, max_j, f"{device.name}: {' and '.join(missing)} unknown")
    if idle_w > peak_w:
        return StepEnergy(share, None, None, f"{device.name}: idle_W is above tdp_W")
    energy_j = (idle_w + (peak_w - idle_w) * (share or 0.0)) * times.step_s
    doubted = [key for key in ("idle_W", "tdp_W") if key in device.unverified]
    note = f"{device.name}: {' and '.join(doubted)} unverified" if doubted else ""
    return StepEnergy(share, energy_j, max_j, note)
