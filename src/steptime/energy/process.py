"""From one process node to another: what happens to time and energy of the same chip."""

import re
from collections.abc import Callable
from functools import reduce
from typing import NamedTuple

from steptime.core.errors import InputError, check_choice, shorten, unknown


class Process(NamedTuple):
    """A process node: its nanometres, `hp` or `lp` where there are both, its supply voltage."""

    nm: int
    flavour: str = ""
    voltage_v: float | None = None

    @property
    def label(self) -> str:
        """The process as a user writes it: `45nm-lp@1.0V`."""
        flavour = f"-{self.flavour}" if self.flavour else ""
        return f"{self.nm}nm{flavour}" + (f"@{self.voltage_v}V" if self.voltage_v else "")


class Factors(NamedTuple):
    """By what time and energy are multiplied."""

    time: float
    energy: float


_PROCESS = re.compile(r"(\d{1,4})(?:nm)?(?:-(hp|lp))?(?:@(\d{1,2}(?:\.\d{1,6})?)v?)?")


def read_process(text: str) -> Process:
    """Return the process of `65nm`, `45nm-lp` or `65nm@1.1V`; raises `InputError` for others."""
    found = _PROCESS.fullmatch(text.strip().lower())
    if not found or int(found[1]) < 1 or (found[3] and float(found[3]) <= 0):
        raise InputError(f"process {shorten(text)} is not of the form 65nm, 45nm-lp or 65nm@1.1V")
    return Process(int(found[1]), found[2] or "", float(found[3]) if found[3] else None)


# a3, a2, a1, a0 of delay and b2, b1, b0 of energy, of an inverter with fan-out 4
# Stillmaker and Baas, Integration 58, 2017, with the authors' corrigendum
INVERTERS: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "180": ((0, 97.09, -356.7, 406.5), (0, 24.64, -17.98)),
    "130": ((-76.65, 334.9, -493.4, 275.8), (7.171, -6.709, 2.904)),
    "90": ((-60.34, 262.5, -384.2, 210.9), (4.762, -4.781, 2.092)),
    "65": ((-53.3, 230.4, -333.9, 178.6), (3.755, -4.398, 1.975)),
    "45-hp": ((-501.6, 1567, -1619, 566.1), (1.018, -0.3107, 0.1539)),
    "45-lp": ((-285.7, 1239, -1795, 898.8), (1.103, -0.362, 0.2767)),
    "32-hp": ((-1047, 2982, -2797, 873.5), (0.8367, -0.4341, 0.1701)),
    "32-lp": ((-325.9, 1374, -1922, 913.2), (0.9559, -0.7823, 0.471)),
    "20-hp": ((0, 34.63, -66.37, 41.15), (0.373, -0.1582, 0.04104)),
    "20-lp": ((-160.5, 514.1, -558.6, 217.5), (0.2632, -0.14, 0.06841)),
    "16-hp": ((0, 24.8, -47.52, 28.87), (0.2958, -0.1241, 0.03024)),
    "16-lp": ((-114.6, 366.7, -397.4, 153.6), (0.2139, -0.1187, 0.05639)),
    "14-hp": ((-40.66, 109.2, -100.6, 35.92), (0.2363, -0.09675, 0.02239)),
    "14-lp": ((-85.37, 271.6, -292.2, 111.4), (0.1556, -0.06472, 0.03066)),
    "10-hp": ((-34.95, 93.65, -85.99, 30.4), (0.2068, -0.09311, 0.02375)),
    "10-lp": ((-71.76, 228.6, -246.3, 93.91), (0.1261, -0.0518, 0.02769)),
    "7-hp": ((-28.58, 76.6, -70.26, 24.69), (0.1776, -0.09097, 0.02447)),
    "7-lp": ((-61.79, 196.1, -210.3, 79.55), (0.09365, -0.03409, 0.02043)),
}
USUAL_V = {"65": 1.1, "45-hp": 1.0}  # supply voltages where none is named


def beyond(process: Process) -> str:
    """Return that no figures of such a process are known, "" where there are some."""
    known = [int(name.partition("-")[0]) for name in INVERTERS]
    if min(known) <= process.nm <= max(known):
        return ""
    return f"{process.label} is beyond {max(known)} to {min(known)} nm, whose figures are known"


def _stillmaker_baas(old: Process, new: Process) -> Factors:
    """Take the ratio of two inverters, each at its voltage.

    A chip of the very node that is wanted stays as it is, unless a voltage is named.
    """
    if new.voltage_v is None and (old.nm, old.flavour) == (new.nm, new.flavour):
        return Factors(1.0, 1.0)
    delay, energy = _inverter(new)
    old_delay, old_energy = _inverter(old)
    return Factors(delay / old_delay, energy / old_energy)


def _inverter(process: Process) -> tuple[float, float]:
    """Return delay and energy of an inverter; raises `InputError` where the fit does not reach."""
    bare = str(process.nm)
    both = f"{process.nm}-{process.flavour or 'hp'}"
    node = bare if bare in INVERTERS and not process.flavour else both
    if node not in INVERTERS:
        known = [name.replace("-", "nm-") if "-" in name else f"{name}nm" for name in INVERTERS]
        raise unknown("process of stillmaker-baas", process.label, known)
    volt = process.voltage_v or USUAL_V.get(node)
    if volt is None:
        raise InputError(f"process '{process.label}': stillmaker-baas needs its voltage, @1.0V")
    delay, energy = (
        reduce(lambda value, factor: value * volt + factor, fit, 0.0) for fit in INVERTERS[node]
    )
    square, linear, _ = INVERTERS[node][1]
    slope = 2 * square * volt + linear
    if delay <= 0 or energy <= 0 or slope <= 0:
        raise InputError(f"process '{process.label}': {volt} V is outside of stillmaker-baas' fit")
    return delay, energy


SCALINGS: dict[str, Callable[[Process, Process], Factors]] = {
    # ideal: delay by s, voltage by s, capacitance by s, so energy by s^3
    "dennard": lambda old, new: Factors(new.nm / old.nm, (new.nm / old.nm) ** 3),
    # clock and voltage kept: energy follows capacitance, by s
    "constant-voltage": lambda old, new: Factors(1.0, new.nm / old.nm),
    "stillmaker-baas": _stillmaker_baas,
    "none": lambda old, new: Factors(1.0, 1.0),
}


def factors(scaling: str, old: Process, new: Process) -> Factors:
    """Return by what time and energy grow from a process to another.

    Raises `InputError` for an unknown scaling, and for a process that it does not know.
    """
    check_choice("scaling", scaling, SCALINGS)
    return SCALINGS[scaling](old, new)
