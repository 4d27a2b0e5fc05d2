"""What of a device lies beyond the devices that the priors were fitted on, in words."""

from collections.abc import Mapping
from functools import lru_cache
from math import sqrt
from typing import Any

from steptime.core.toml_files import DATA, read_toml
from steptime.hardware.device import Device

NEAR = 1.25  # watts within this factor of what was measured count as measured
WIDER = 0.15  # of ln(measured / predicted), for each reason: assumed, as much as kinds differ by
NO_KIND = 9  # reasons that a kind of device counts of which none was measured
_FILE = DATA / "measured.toml"
_ASKED = {  # by kind of device, field: how a person calls it
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


def wider(device: Device) -> float:
    """Return by how much a device beyond those that were measured may miss more, in ln.

    Reasons add as squares; each figure that its file does not say is one.
    """
    if device.kind not in _measured():
        return WIDER * sqrt(NO_KIND)
    lacking = len(_lacking(device))
    return WIDER * sqrt(len(beyond(device)) + max(0, lacking - 1))


def beyond(device: Device) -> tuple[str, ...]:
    """Return in what a device differs from all that were measured, nothing for a calibrated one.

    A GPU of 72 W in 5 nm is beyond, since those that were measured draw 350 W or more.
    """
    if device.calibration.get("intervals"):
        return ()
    known = _measured().get(device.kind)
    if known is None:
        return (f"no {device.kind} was measured",)
    found = [
        str(said)
        for field in ("maker", "architecture", "memory_type")
        if (said := getattr(device, field)) and not _among(said, known[field])
    ]
    found += _power(device, known.get("watts", {}))
    if lacking := _lacking(device):
        found.append(f"not said: {', '.join(lacking)}")
    return tuple(found)


def is_told(name: str, device: Device) -> bool:
    """Whether kernels of a name were measured on devices of this architecture.

    Those of which the file does not say `only` were measured on as many as other kernels.
    """
    if device.calibration.get("intervals"):
        return True
    only = _measured().get(device.kind, {}).get("only", {}).get(name)
    return only is None or device.architecture in only


def _lacking(device: Device) -> list[str]:
    if device.calibration.get("intervals") or device.measured:
        return []
    asked = _ASKED.get(device.kind, {})
    return [word for field, word in asked.items() if getattr(device, field) is None]


def _among(said: str, known: list[str]) -> bool:
    """Whether a word, or its first one (`Zen 4`), is known; what memory is shared with is not."""
    word = said.partition(",")[0]
    return word in known or word.split()[0] in known


def _power(device: Device, watts: Mapping[str, tuple[float, float]]) -> list[str]:
    if device.process_nm is None or not watts:
        return []
    process = f"{device.process_nm:g}"
    if process not in watts:
        return [f"{process} nm"]
    low, high = watts[process]
    if device.peak_w is None or low / NEAR <= device.peak_w <= high * NEAR:
        return []
    return [f"{process} nm at {device.peak_w:g} W"]


@lru_cache(maxsize=1)
def _measured() -> Mapping[str, Any]:
    return read_toml(_FILE)
