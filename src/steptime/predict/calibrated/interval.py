"""Between which seconds a price lies: 80 % of what is measured, on devices seen and never seen.

Constants of a form, all in ln(measured / predicted): `interval.<form>_own` is half of the width
that its kernels differ by on one device, `interval.<form>_shared` half of that by which a device
never seen moves all of them together. A calibrated device has `interval.<form>_low` and `_high`
instead, from what was not fitted. `all` in place of a form stands for those without their own.
`interval.beyond` widens what is shared on a device beyond those that were measured (`hull.py`).
"""

from math import sqrt
from typing import Any, NamedTuple

from steptime.predict.calibrated.form import Constants

LEVEL = 0.8  # of what is measured lies in an interval
E = 2.718281828459045


class Bounds(NamedTuple):
    """The ends of an interval as shares of its value, and how much of it kernels share."""

    low: Any
    high: Any
    shared: float


def bounds(form: str, constants: Constants) -> Bounds:
    """Return the interval of a form's kernels: own 0.3 and shared 0.4 are 1 / 1.65 to 1.65.

    That is exp(0.5), since the two parts add as squares; 0.8 of it is shared.
    """
    at = form if f"interval.{form}_low" in constants else "all"
    low = constants.get(f"interval.{at}_low")
    if low is not None:
        return Bounds(E**low, E ** constants[f"interval.{at}_high"], constants["interval.together"])
    at = form if f"interval.{form}_own" in constants else "all"
    own, shared = constants[f"interval.{at}_own"], constants[f"interval.{at}_shared"]
    shared = sqrt(shared**2 + constants.get("interval.beyond", 0.0) ** 2)
    half = sqrt(own**2 + shared**2)
    return Bounds(E**-half, E**half, shared / half)


OF_HOST = {"launch.isolated_s": "isolated", "host.factor": "host"}  # constant: its interval


def widened(constants: Constants, end: int) -> dict[str, float]:
    """Return constants at an end of the interval of what is no kernel: 0 the least, 1 the most."""
    found = dict(constants)
    for name, form in OF_HOST.items():
        if name in found:
            found[name] *= bounds(form, constants)[end]
    return found
