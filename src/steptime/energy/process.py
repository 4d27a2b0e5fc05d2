"""From one process node to another: what happens to time and energy of the same chip."""

import re
from collections.abc import Callable, Sequence
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
    """Factors on the time and the energy of a chip."""

    time: float
    energy: float


_PROCESS = re.compile(
    r"(?P<nm>\d{1,4})(?:nm)?(?:-(?P<flavour>hp|lp))?(?:@(?P<voltage_v>\d{1,2}(?:\.\d{1,6})?)v?)?"
)


def read_process(text: str) -> Process:
    """Parse `65nm`, `45nm-lp` or `65nm@1.1V`; raises `InputError` for other texts."""
    fault = f"process {shorten(text)} is not of the form 65nm, 45nm-lp or 65nm@1.1V"
    match = _PROCESS.fullmatch(text.strip().lower())
    if not match:
        raise InputError(fault)
    nm = int(match["nm"])
    voltage_v = float(match["voltage_v"]) if match["voltage_v"] else None
    if nm < 1 or voltage_v == 0:
        raise InputError(fault)
    return Process(nm, match["flavour"] or "", voltage_v)


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


def describe_range(process: Process) -> str:
    """Return a remark if no published figures reach to a process, else "".

    Example: `5nm is beyond 180 to 7 nm, whose figures are known`.
    """
    nodes_nm = [int(name.partition("-")[0]) for name in INVERTERS]  # `45` of `45-hp`
    low_nm, high_nm = min(nodes_nm), max(nodes_nm)
    if low_nm <= process.nm <= high_nm:
        return ""
    return f"{process.label} is beyond {high_nm} to {low_nm} nm, whose figures are known"


def _stillmaker_baas(old: Process, new: Process) -> Factors:
    """Return the ratios of delay and energy of two inverters, each at its voltage.

    A chip that is of the new node already keeps its figures, unless a voltage is named.
    """
    has_equal_nodes = (old.nm, old.flavour) == (new.nm, new.flavour)
    if has_equal_nodes and new.voltage_v is None:  # nor is another voltage asked for
        return Factors(1.0, 1.0)
    delay, energy = _inverter_delay_and_energy(new)
    old_delay, old_energy = _inverter_delay_and_energy(old)
    return Factors(delay / old_delay, energy / old_energy)


def _inverter_delay_and_energy(process: Process) -> tuple[float, float]:
    """Return delay and energy of an inverter; raises `InputError` outside of the published fit."""
    node = str(process.nm)
    # Nodes of 45 nm and below have two flavours, `45-hp` and `45-lp`; high performance is usual.
    has_flavours = node not in INVERTERS
    if has_flavours or process.flavour:
        node = f"{process.nm}-{process.flavour or 'hp'}"
    if node not in INVERTERS:
        labels = [name.replace("-", "nm-") if "-" in name else f"{name}nm" for name in INVERTERS]
        raise unknown("process of stillmaker-baas", process.label, labels)
    voltage_v = process.voltage_v or USUAL_V.get(node)
    if voltage_v is None:
        raise InputError(f"process '{process.label}': stillmaker-baas needs its voltage, @1.0V")
    delay_fit, energy_fit = INVERTERS[node]
    delay = _evaluate_polynomial(delay_fit, voltage_v)
    energy = _evaluate_polynomial(energy_fit, voltage_v)
    square, linear, _ = energy_fit
    energy_slope = 2 * square * voltage_v + linear  # energy must rise with the voltage
    if delay <= 0 or energy <= 0 or energy_slope <= 0:
        raise InputError(
            f"process '{process.label}': {voltage_v} V is outside of stillmaker-baas' fit"
        )
    return delay, energy


def _evaluate_polynomial(coefficients: Sequence[float], x: float) -> float:
    """Return the value of a polynomial whose highest coefficient comes first (Horner)."""
    return reduce(lambda value, coefficient: value * x + coefficient, coefficients, 0.0)


SCALINGS: dict[str, Callable[[Process, Process], Factors]] = {
    # ideal: delay by s, voltage by s, capacitance by s, so energy by s^3
    "dennard": lambda old, new: Factors(new.nm / old.nm, (new.nm / old.nm) ** 3),
    # clock and voltage kept: energy follows capacitance, by s
    "constant-voltage": lambda old, new: Factors(1.0, new.nm / old.nm),
    "stillmaker-baas": _stillmaker_baas,
    "none": lambda old, new: Factors(1.0, 1.0),
}


def scale_factors(scaling: str, old: Process, new: Process) -> Factors:
    """Return the factors on time and energy from one process to another.

    Raises:
        InputError: if the scaling is unknown or has no figures of a process.
    """
    check_choice("scaling", scaling, SCALINGS)
    return SCALINGS[scaling](old, new)
