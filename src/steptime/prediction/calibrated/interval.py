"""Intervals of prices, which hold 80 % of measurements, on measured and unmeasured devices.

Constants of a form, all in ln(measured / predicted):

* `interval.<form>_own`: half-width by which its kernels differ on one device.
* `interval.<form>_shared`: half-width by which an unmeasured device moves all of them together.
* `interval.step`: what the kernels of a step share beyond that.
* `interval.old`: factor of the width on GPUs before Volta.
* `interval.host_own` and `_shared`: the host of a stack; `interval.host_unstated` is the factor of
  its width if nobody named the host.
* `interval.<form>_low` and `_high`: ends of the interval of a calibrated device, from rows that
  were not fitted.
* `interval.beyond`: adds to the shared width on a device unlike all measured ones (`hull.py`).

A form without constants takes those of `all` on a calibrated device, else those of the widest of
`NEIGHBOURS`. Where there are none either, as on a CPU, `all` stands for every form.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import erf, hypot, log, sqrt
from typing import Any, NamedTuple

from steptime.hardware.device_calibration import DeviceCalibration
from steptime.prediction.calibrated.form import Constants
from steptime.prediction.kernel import Interval

LEVEL = 0.8  # of what is measured lies in an interval
E = 2.718281828459045
NEIGHBOURS = ("product", "stream", "reduction", "convolution")  # forms of single kernels


_HALF_WIDTH = 1.2815515655446008  # of a central 80 % of a normal distribution, in deviations
_HALVINGS = 60  # of a bisection, beyond which a float64 has no digits left
_TAIL_DEVIATIONS = 6  # beyond which nearly nothing of a normal distribution lies
_SMALLEST_DEVIATION = 1e-9  # keeps a distribution without width defined


class _Normal(NamedTuple):
    """A normal distribution; the one of `statistics` takes a hundredth of a short command."""

    mean: float
    deviation: float

    def cdf(self, value: float) -> float:
        """Return the share below a value."""
        return 0.5 * (1.0 + erf((value - self.mean) / (self.deviation * sqrt(2.0))))


def mix_intervals(weighted_intervals: Sequence[tuple[float, Interval]]) -> tuple[float, float]:
    """Return the ends of the interval of a mixture of times, each with a weight.

    Each time is normal in ln to either side of its value, as wide as its interval there. The
    result holds 80 % of the mixture, and the first value in any case.
    """
    components = [
        _Component.from_interval(weight, interval) for weight, interval in weighted_intervals
    ]
    (_, first_interval), *_ = weighted_intervals
    # Components are in ln, so are their quantiles: 10 % and 90 %, which hold 80 % between them.
    low = E ** _quantile(components, (1 - LEVEL) / 2)
    high = E ** _quantile(components, (1 + LEVEL) / 2)
    # The first of the times is the predicted value, which its interval always holds.
    return min(first_interval.value, low), max(first_interval.value, high)


class _Component(NamedTuple):
    """A time of a mixture, in ln, with a normal distribution for each side.

    Attributes:
        weight: its weight in the mixture.
        mean: ln of its value.
        lower: the distribution below the value.
        upper: the distribution above it.
    """

    weight: float
    mean: float
    lower: _Normal
    upper: _Normal

    @classmethod
    def from_interval(cls, weight: float, interval: Interval) -> _Component:
        """Return the component of a time with its interval; an unknown end is the value."""
        value = interval.value
        # Distances in ln to the ends; an unknown end is the value itself, at distance 0.
        lower_width = log(value / (interval.low or value))
        upper_width = log((interval.high or value) / value)
        mean = log(value)
        lower = _Normal(mean, max(lower_width / _HALF_WIDTH, _SMALLEST_DEVIATION))
        upper = _Normal(mean, max(upper_width / _HALF_WIDTH, _SMALLEST_DEVIATION))
        return cls(weight, mean, lower, upper)

    def cdf(self, value: float) -> float:
        """Return the share below a value."""
        side = self.upper if value > self.mean else self.lower
        return side.cdf(value)


def _quantile(components: Sequence[_Component], share: float) -> float:
    """Return the value below which a share of a mixture lies, by bisection."""
    total_weight = sum(component.weight for component in components)
    # The bisection starts from ends beyond which nearly nothing of any component lies.
    low = min(
        component.mean - _TAIL_DEVIATIONS * component.lower.deviation for component in components
    )
    high = max(
        component.mean + _TAIL_DEVIATIONS * component.upper.deviation for component in components
    )
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        weighted_shares = (component.weight * component.cdf(middle) for component in components)
        share_below_middle = sum(weighted_shares) / total_weight
        if share_below_middle < share:
            low = middle
        else:
            high = middle
    return low


class Bounds(NamedTuple):
    """The ends of an interval as shares of its value, and the share that kernels have in common."""

    low: Any
    high: Any
    shared: float


def bounds(
    form: str,
    constants: Constants,
    factor: float = 1.0,
    in_step: bool = False,
) -> Bounds:
    """Return the interval of a form's kernels: own 0.3 and shared 0.4 are 1 / 1.65 to 1.65.

    That is exp(0.5), since the two parts add as squares; 0.8 of it is shared.

    Args:
        form: the form, or `host`.
        constants: the constants of the device.
        factor: factor of the width, on devices that the priors know badly.
        in_step: whether kernels run in a step, where they share more than measured alone.
    """
    name = interval_name(form, constants)
    # A calibrated device has its ends from rows of its own that were not fitted, in ln.
    low = constants.get(f"interval.{name}_low")
    if low is not None:
        high = constants[f"interval.{name}_high"]
        return Bounds(E**low, E**high, constants["interval.together"])
    # Half widths in ln of the time, which add as squares.
    # `_own`: by which kernels of a form differ on one device; `_shared`: by which the device moves
    # all of them together.
    kernel_width = factor * constants[f"interval.{name}_own"]
    form_width = constants[f"interval.{name}_shared"]
    step_width = constants.get("interval.step", 0.0) if in_step else 0.0
    extrapolation_width = constants.get("interval.beyond", 0.0)
    shared_square = factor**2 * (form_width**2 + step_width**2) + extrapolation_width**2
    half_width = (kernel_width**2 + shared_square) ** 0.5
    shared_share = shared_square**0.5 / half_width
    return Bounds(E**-half_width, E**half_width, shared_share)


def interval_name(form: str, constants: Constants) -> str:
    """Return the form whose interval a form takes: itself, `all`, or the widest neighbour."""
    if f"interval.{form}_low" in constants or f"interval.{form}_own" in constants:
        return form
    # "all" is the interval over all forms, as constants `interval.all_...`. Without it a form that
    # was never measured takes the widest of the measured ones.
    neighbours = [name for name in NEIGHBOURS if f"interval.{name}_own" in constants]
    if "interval.all_low" in constants or not neighbours:
        return "all"

    def half_width(name: str) -> float:
        return hypot(constants[f"interval.{name}_own"], constants[f"interval.{name}_shared"])

    return max(neighbours, key=lambda name: (half_width(name), name))


def host_bounds(constants: Constants) -> tuple[float, float]:
    """Return the ends of the interval of a host that issues steps, as shares of its seconds.

    The interval of a host that nobody named is `interval.host_unstated` times as wide as that of
    the priors; the interval of a calibrated host is that of its rows.
    """
    low, high, _ = bounds("host", constants, constants.get("interval.host_unstated", 1.0))
    return low, high


def interval_constants(calibration: DeviceCalibration) -> dict[str, float]:
    """Return the intervals of a calibration as constants: `interval.stream_low` and so on."""
    constants = {}
    for form, (low, high) in calibration.intervals.items():
        constants[f"interval.{form}_low"] = low
        constants[f"interval.{form}_high"] = high
    return constants


HOST_TIME_CONSTANTS = ("launch.isolated_s", "host.factor")  # all times of a host scale with them


def scale_host(constants: Constants, end: int) -> dict[str, float]:
    """Return constants with the host at an end of its interval: 0 the fast one, 1 the slow one."""
    factor = bounds("host", constants)[end]
    changed = {name: constants[name] * factor for name in HOST_TIME_CONSTANTS if name in constants}
    return {**constants, **changed}
