"""Properties of a device that lie outside those of the devices that the priors were fitted on."""

from collections.abc import Iterable, Mapping
from math import sqrt

from steptime.core.toml_files import read_packaged_toml
from steptime.hardware.architectures import family_of, find_family
from steptime.hardware.datasheet import Datasheet
from steptime.hardware.device import Device

POWER_MARGIN = 1.25  # watts within this factor of measured ones count as measured
WIDTH_OF_REASON = 0.15  # in ln(measured / predicted); assumed: as much as kinds of kernels differ
REASONS_OF_UNMEASURED_KIND = 9  # of a device of a kind (GPU, TPU) of which none was measured
FILE = "measured.toml"  # the properties of all measured devices, by kind of device
_FIELD_LABELS = {  # by kind of device, by field: its name for a person
    "gpu": {
        "maker": "maker",
        "architecture": "architecture",
        "memory_type": "kind of memory",
        "process_nm": "process",
        "multiprocessors": "multiprocessors",
        "l2_bytes": "L2 cache",
        "peak_w": "power",
    },
    "cpu": {"maker": "maker", "cores": "cores"},
}


def extrapolation_width(device: Device) -> float:
    """Return the width that extrapolation to a device adds to an interval, in ln.

    Reasons add as squares; each figure that the device file does not say is a reason.
    """
    if device.kind not in read_packaged_toml(FILE):
        return WIDTH_OF_REASON * sqrt(REASONS_OF_UNMEASURED_KIND)
    # Each figure that the file leaves out is a reason; the list of reasons has all of them as one.
    unstated_count = len(_unstated_figures(device))
    further_figures = max(0, unstated_count - 1)
    reason_count = len(extrapolation_reasons(device)) + further_figures
    return WIDTH_OF_REASON * sqrt(reason_count)


def extrapolation_reasons(device: Device) -> tuple[str, ...]:
    """Return the properties of a device that no measured device has; none if it is calibrated.

    A GPU of 72 W in 5 nm is outside, since all that were measured draw 350 W or more.
    """
    # A calibrated device was measured itself.
    if device.calibration.intervals:
        return ()
    measured = read_packaged_toml(FILE).get(device.kind)
    if measured is None:
        return (f"no {device.kind} was measured",)
    reasons = []
    datasheet = device.datasheet
    if datasheet.maker and datasheet.maker not in measured["maker"]:
        reasons.append(datasheet.maker)
    if datasheet.architecture and not _is_architecture_in(device, measured["architecture"]):
        reasons.append(datasheet.architecture)
    if datasheet.memory_type and _plain_memory_type(datasheet) not in measured["memory_type"]:
        reasons.append(datasheet.memory_type)
    reasons += _power_reasons(device, measured.get("watts", {}))
    if unstated := _unstated_figures(device):
        reasons.append(f"not said: {', '.join(unstated)}")
    return tuple(reasons)


def is_measured(form: str, device: Device) -> bool:
    """Return whether kernels of a form were measured on devices of this architecture.

    The file lists the architectures of forms that were measured on some alone (`only`).
    """
    if device.calibration.intervals:
        return True
    measured = read_packaged_toml(FILE).get(device.kind, {})
    # The architectures on which this form alone was measured; without an entry, all of the kind.
    architectures = measured.get("only", {}).get(form)
    return architectures is None or _is_architecture_in(device, architectures)


def _unstated_figures(device: Device) -> list[str]:
    """Return the figures that the file of a device, never measured or calibrated, leaves out."""
    if device.calibration.intervals or device.measured:
        return []
    labels = _FIELD_LABELS.get(device.kind, {})
    return [label for field, label in labels.items() if getattr(device.datasheet, field) is None]


def _is_architecture_in(device: Device, architectures: Iterable[str]) -> bool:
    """Return whether one of some architectures is of the family of a device's architecture."""
    family = family_of(device)
    return family != "" and family in map(find_family, architectures)


def _plain_memory_type(datasheet: Datasheet) -> str:
    """Return the type of a memory without a remark behind a comma, such as who shares it."""
    return (datasheet.memory_type or "").partition(",")[0]


def _power_reasons(device: Device, measured_watts: Mapping[str, tuple[float, float]]) -> list[str]:
    """Return a line if no device of this process drew as many watts: `5 nm at 72 W`."""
    # Nothing to compare; an unknown process is a reason of its own (`_unstated_figures`).
    if device.datasheet.process_nm is None or not measured_watts:
        return []
    process = f"{device.datasheet.process_nm:g}"
    if process not in measured_watts:
        return [f"{process} nm"]
    peak_w = device.datasheet.peak_w
    if peak_w is None:
        return []
    low_w, high_w = measured_watts[process]
    is_near_measured = low_w / POWER_MARGIN <= peak_w <= high_w * POWER_MARGIN
    return [] if is_near_measured else [f"{process} nm at {peak_w:g} W"]
