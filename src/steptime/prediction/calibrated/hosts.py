"""The host that issues a step's kernels where a user names one: a fast or slow one, or her own."""

from collections.abc import Mapping
from dataclasses import replace
from math import exp

from steptime.core.errors import InputError, shorten, unknown
from steptime.hardware import catalog
from steptime.hardware.constants import Constant
from steptime.prediction.method import Method, Option

SPEEDS = {"fast": -1, "slow": 1}  # ends of the interval of hosts, 80 % of which lie between
ANY = "any"
_OWN = ("interval.host_low", "interval.host_high")


def host_constants(
    name: str, constants: Mapping[str, float], priors: Mapping[str, Constant]
) -> dict[str, float]:
    """Return constants in which the host is the one of a name, in place of a calibrated one.

    A `fast` host takes exp(-`interval.host_shared`) of the seconds of any, a `slow` one as many
    times longer; its interval is what hosts differ by from op to op, `interval.host_own`. The name
    of a device takes the host that it was calibrated with. Raises `InputError` for other names.
    """
    found = {key: value for key, value in constants.items() if key not in _OWN}
    found |= {key: one.value for key, one in priors.items() if key.startswith("host.")}
    found["interval.host_unstated"] = 1.0
    if name not in SPEEDS:
        return {**found, **_of_device(name)}
    found["host.factor"] *= exp(SPEEDS[name] * found["interval.host_shared"])
    return {**found, "interval.host_shared": 0.0}


def _of_device(name: str) -> dict[str, float]:
    """Return the constants of the host that a device was calibrated with."""
    known = (ANY, *SPEEDS)
    try:
        told = catalog.device(name).calibration
    except InputError:
        raise unknown("host", name, known, "--host") from None
    found = {key: v for key, v in told.get("constants", {}).items() if key.startswith("host.")}
    if not found:
        why = "it was not calibrated with steps (steptime calibrate)"
        raise InputError(f"host {shorten(name)}: {why}; else {', '.join(known)}")
    ends = told.get("intervals", {}).get("host")
    return found | (dict(zip(_OWN, ends, strict=True)) if ends else {})


def _read(method: Method, text: str) -> Method:
    if text not in (ANY, *SPEEDS):
        _of_device(text)
    return replace(method, settings=replace(method.settings, host_name="" if text == ANY else text))


HOST = Option(
    "the host that issues kernels: any, fast, slow, or a device calibrated on it", ANY, _read
)
