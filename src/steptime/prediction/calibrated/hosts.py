"""The host that issues a step's kernels: the usual one of a card, or one that a user names."""

from collections.abc import Mapping
from dataclasses import replace
from math import exp

from steptime.core.errors import InputError, shorten, unknown
from steptime.core.toml_files import DATA, packaged
from steptime.hardware import catalog
from steptime.hardware.constants import Constant, constants_from_table
from steptime.hardware.device import Device
from steptime.prediction.calibrated.form import is_geforce
from steptime.prediction.method import Method, Option

NAMES = tuple(sorted(path.stem for path in (DATA / "hosts").glob("*.toml")))
SPEEDS = {"fast": -1, "slow": 1}  # ends of the interval of hosts, 80 % of which lie between
ANY, CALIBRATED = "any", "calibrated"
UNNAMED = {f"any-{name}": name for name in NAMES}  # a host of a kind, nobody says which
_KNOWN = (ANY, CALIBRATED, *SPEEDS, *NAMES, *UNNAMED)
_OWN = ("interval.host_low", "interval.host_high")
_NOT_CALIBRATED = "was not calibrated with steps (steptime calibrate)"


def usual_host(device: Device) -> str:
    """Return the name of the host that a card is taken to have where nobody names one."""
    return "desktop" if is_geforce(device) else "server"


def assumed_host(device: Device) -> str:
    """Return the value of the option that a prediction assumes: `any-server`, `calibrated`."""
    return CALIBRATED if _is_calibrated(device) else f"any-{usual_host(device)}"


def _is_calibrated(device: Device) -> bool:
    return "host.factor" in device.calibration.get("constants", {})


def on_usual_host(device: Device, stack: str = catalog.DEFAULT_STACK) -> Mapping[str, Constant]:
    """Return the constants of a device of its kind under a stack, on its usual host."""
    return _on(usual_host(device), catalog.priors(device.kind, stack))


def _on(name: str, priors: Mapping[str, Constant]) -> Mapping[str, Constant]:
    """Return constants with the `host.factor` of a stack as a host of `data/hosts` has it."""
    if (known := priors.get("host.factor")) is None:
        return priors
    times = constants_from_table(packaged(f"hosts/{name}.toml"), name)["host.factor"].value
    return {**priors, "host.factor": known._replace(value=known.value * times)}


def host_constants(
    name: str, device: Device, stack: str, constants: Mapping[str, float]
) -> dict[str, float]:
    """Return the constants of a device with the host that has this name.

    * `calibrated`: the host that the device itself was calibrated with.
    * A host of `data/hosts` (`server`): its interval is `interval.host_own` and `_shared`.
    * `any-server`: an unnamed host of that kind; `interval.host_unstated` widens the interval.
    * `fast` and `slow`: the usual host of the device at the ends of the interval of unnamed hosts.
    * The name of a device: the host that this device was calibrated with.

    Raises:
        InputError: for another name, and for a device that was not calibrated with steps.
    """
    if name == CALIBRATED:
        if not _is_calibrated(device):
            raise InputError(f"device '{device.name}' {_NOT_CALIBRATED}")
        return dict(constants)
    kind = UNNAMED.get(name, name if name in NAMES else usual_host(device))
    priors = _on(kind, catalog.priors(device.kind, stack))
    found = {key: value for key, value in constants.items() if key not in _OWN}
    found |= {key: one.value for key, one in priors.items() if key.startswith("host.")}
    if name in UNNAMED:
        return found
    wider = found.pop("interval.host_unstated")
    if name in NAMES:
        return found
    if name not in SPEEDS:
        return {**found, **_of_device(name)}
    found["host.factor"] *= exp(SPEEDS[name] * wider * found["interval.host_shared"])
    return {**found, "interval.host_shared": 0.0}


def _of_device(name: str) -> dict[str, float]:
    """Return the constants of the host that a device was calibrated with."""
    try:
        told = catalog.device(name).calibration
    except InputError:
        raise unknown("host", name, _KNOWN, "--host") from None
    found = {key: v for key, v in told.get("constants", {}).items() if key.startswith("host.")}
    if not found:
        known = ", ".join(_KNOWN)
        raise InputError(f"host {shorten(name)}: it {_NOT_CALIBRATED}; else {known}")
    ends = told.get("intervals", {}).get("host")
    return found | (dict(zip(_OWN, ends, strict=True)) if ends else {})


def _read(method: Method, text: str) -> Method:
    if text not in _KNOWN:
        _of_device(text)
    return replace(method, settings=replace(method.settings, host_name="" if text == ANY else text))


HOST = Option(
    f"the host that issues kernels: {', '.join(_KNOWN)}, or a device calibrated on it", ANY, _read
)
