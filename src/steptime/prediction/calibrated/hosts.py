"""The host that issues a step's kernels: the usual one of a card, or one that a user names."""

from collections.abc import Mapping
from math import exp

from steptime.core.errors import InputError, shorten, unknown
from steptime.core.toml_files import DATA, read_packaged_toml
from steptime.hardware import catalog
from steptime.hardware.architectures import has_trait
from steptime.hardware.constants import Constant, constants_from_table
from steptime.hardware.device import Device
from steptime.prediction.method import Method, Option

HOST_NAMES = tuple(sorted(path.stem for path in (DATA / "hosts").glob("*.toml")))
SIGN_OF_SPEED = {"fast": -1, "slow": 1}  # ends of the interval of hosts, 80 % of which lie between
ANY, CALIBRATED = "any", "calibrated"
# Options of a host of a kind, where nobody says which one: `any-server` for `server`.
KIND_OF_ANY_HOST = {f"any-{name}": name for name in HOST_NAMES}
_CHOICES = (ANY, CALIBRATED, *SIGN_OF_SPEED, *HOST_NAMES, *KIND_OF_ANY_HOST)
_INTERVAL_CONSTANTS = ("interval.host_low", "interval.host_high")
_NOT_CALIBRATED = "was not calibrated with steps (steptime calibrate)"


def usual_host(device: Device) -> str:
    """Return the name of the host that a card is taken to have where nobody names one."""
    return "desktop" if has_trait(device, "game_card") else "server"


def assumed_host(device: Device) -> str:
    """Return the value of the option that a prediction assumes: `any-server`, `calibrated`."""
    return CALIBRATED if _is_calibrated(device) else f"any-{usual_host(device)}"


def _is_calibrated(device: Device) -> bool:
    """Return whether a device was calibrated with steps, which fit its host."""
    return "host.factor" in device.calibration.constants


def on_usual_host(device: Device, stack: str = catalog.DEFAULT_STACK) -> Mapping[str, Constant]:
    """Return the constants of a device of its kind under a stack, on its usual host."""
    return _scale_host(catalog.priors(device.kind, stack), usual_host(device))


def _scale_host(priors: Mapping[str, Constant], host_name: str) -> Mapping[str, Constant]:
    """Return constants with the `host.factor` of a stack times that of a host of `data/hosts`."""
    stack_factor = priors.get("host.factor")
    if stack_factor is None:  # the stack states nothing of hosts
        return priors
    table = read_packaged_toml(f"hosts/{host_name}.toml")
    host_factor = constants_from_table(table, host_name)["host.factor"].value
    factor = stack_factor._replace(value=stack_factor.value * host_factor)
    return {**priors, "host.factor": factor}


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
    is_kind_alone = name in KIND_OF_ANY_HOST  # `any-server`: a server, nobody says which one
    if is_kind_alone:
        host_name = KIND_OF_ANY_HOST[name]
    elif name in HOST_NAMES:
        host_name = name
    else:
        host_name = usual_host(device)
    new_constants = _replace_host(constants, device, stack, host_name)
    if is_kind_alone:
        return new_constants  # with `interval.host_unstated`, which widens its interval
    # From here on somebody names the host, so that its interval is not widened.
    unstated_factor = new_constants.pop("interval.host_unstated")
    if name in HOST_NAMES:
        return new_constants
    if name in SIGN_OF_SPEED:
        # The host lies at an end of the widened interval, so that no interval is left.
        interval_width = unstated_factor * new_constants["interval.host_shared"]  # in ln
        new_constants["host.factor"] *= exp(SIGN_OF_SPEED[name] * interval_width)
        return {**new_constants, "interval.host_shared": 0.0}
    # The name of a device, whose host was calibrated.
    return {**new_constants, **_calibrated_host_constants(name)}


def _replace_host(
    constants: Mapping[str, float], device: Device, stack: str, host_name: str
) -> dict[str, float]:
    """Return constants with those of a host of `data/hosts` in place of the calibrated host's."""
    # Ends of the interval of a calibrated host do not belong to another one.
    new_constants = {
        key: value for key, value in constants.items() if key not in _INTERVAL_CONSTANTS
    }
    for key, constant in _scale_host(catalog.priors(device.kind, stack), host_name).items():
        if key.startswith("host."):
            new_constants[key] = constant.value
    return new_constants


def _calibrated_host_constants(device_name: str) -> dict[str, float]:
    """Return the constants of the host that a device was calibrated with.

    Raises:
        InputError: if there is no such device, or it was not calibrated with steps.
    """
    try:
        calibration = catalog.device(device_name).calibration
    except InputError:
        raise unknown("host", device_name, _CHOICES, "--host") from None
    values = {key: value for key, value in calibration.constants.items() if key.startswith("host.")}
    if not values:
        choices = ", ".join(_CHOICES)
        raise InputError(f"host {shorten(device_name)}: it {_NOT_CALIBRATED}; else {choices}")
    # The ends from its own rows, in ln.
    interval = calibration.intervals.get("host")
    if interval:
        values |= dict(zip(_INTERVAL_CONSTANTS, interval, strict=True))
    return values


def _set_host(method: Method, text: str) -> Method:
    """Return a method with the host of an option's text."""
    if text not in _CHOICES:
        _calibrated_host_constants(text)  # raises for an unknown one
    return method.with_settings(host_name="" if text == ANY else text)


HOST = Option(
    f"the host that issues kernels: {', '.join(_CHOICES)}, or a device calibrated on it",
    ANY,
    _set_host,
)
