"""Between which seconds a price lies: 80 % of what is measured, on devices seen and never seen.

Constants of a form, all in ln(measured / predicted): `interval.<form>_own` is half of the width
that its kernels differ by on one device, `interval.<form>_shared` half of that by which a device
never seen moves all of them together; `interval.step` is what the kernels of a step share beyond
it, and `interval.old` how many times as far off kernels are on GPUs before Volta. The host of a
stack is off by `interval.host_own` and `_shared`, and `interval.host_unstated` times as far where
nobody named it. A calibrated device has `interval.<form>_low` and `_high` instead of forms that its
rows told, from what was not fitted. Forms without their own take those of `all` on a calibrated
device, and of the widest of `NEIGHBOURS` on others; where there are no such either, as on a CPU,
`all` stands for every form. `interval.beyond` widens what is shared on a device beyond those that
were measured (`hull.py`).
"""

from collections.abc import Mapping, Sequence
from math import erf, hypot, log, sqrt
from typing import Any, NamedTuple

from steptime.prediction.calibrated.form import Constants
from steptime.prediction.kernel import Interval

LEVEL = 0.8  # of what is measured lies in an interval
E = 2.718281828459045
NEIGHBOURS = ("product", "stream", "reduction", "convolution")  # forms of single kernels


_TEN = 1.2815515655446008  # half of an interval of 80 %, in standard deviations
_HALVINGS = 60


class _Normal(NamedTuple):
    """A normal distribution; the one of `statistics` takes a hundredth of a short command."""

    mean: float
    deviation: float

    def cdf(self, value: float) -> float:
        """Return the share below a value."""
        return 0.5 * (1.0 + erf((value - self.mean) / (self.deviation * sqrt(2.0))))


def mixed(parts: Sequence[tuple[float, Interval]]) -> tuple[float, float]:
    """Return the interval of a time that is one of several, each with a weight.

    Each is normal in ln to either side of its value, as wide as the interval there; of all 80 % lie
    within. The interval holds the first one's value.
    """
    mixture = []
    for weight, (value, low, high, *_) in parts:
        widths = (log(value / (low or value)), log((high or value) / value))
        normals = [_Normal(log(value), max(width / _TEN, 1e-9)) for width in widths]
        mixture.append((weight, log(value), normals))
    total_weight, first = sum(weight for weight, *_ in mixture), parts[0][1].value

    def below(at: float) -> float:
        shares = (weight * normals[at > middle].cdf(at) for weight, middle, normals in mixture)
        return sum(shares) / total_weight

    ends = []
    for share in ((1 - LEVEL) / 2, (1 + LEVEL) / 2):
        low = min(middle - 6 * normals[0].deviation for _, middle, normals in mixture)
        high = max(middle + 6 * normals[1].deviation for _, middle, normals in mixture)
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            low, high = (middle, high) if below(middle) < share else (low, middle)
        ends.append(E**low)
    return min(first, ends[0]), max(first, ends[1])


class Bounds(NamedTuple):
    """The ends of an interval as shares of its value, and how much of it kernels share."""

    low: Any
    high: Any
    shared: float


def bounds(
    form: str, constants: Constants, wider: float = 1.0, in_step: bool = False, unseen: float = 0.0
) -> Bounds:
    """Return the interval of a form's kernels: own 0.3 and shared 0.4 are 1 / 1.65 to 1.65.

    That is exp(0.5), since the two parts add as squares; 0.8 of it is shared. A device never seen
    is `wider` times as far off; kernels `in_step` share more than one that is measured by itself.
    Whole steps of many devices share what is `unseen`, too.
    """
    at = known_as(form, constants)
    low = constants.get(f"interval.{at}_low")
    if low is not None:
        return Bounds(E**low, E ** constants[f"interval.{at}_high"], constants["interval.together"])
    own, shared = wider * constants[f"interval.{at}_own"], constants[f"interval.{at}_shared"]
    step = constants.get("interval.step", 0.0) if in_step else 0.0
    beyond2 = constants.get("interval.beyond", 0.0) ** 2 + unseen**2
    shared2 = wider**2 * (shared**2 + step**2) + beyond2
    half = (own**2 + shared2) ** 0.5
    return Bounds(E**-half, E**half, shared2**0.5 / half)


def known_as(form: str, constants: Constants) -> str:
    """Return whose interval a form takes: its own, `all` if it stands for each, the widest."""
    if f"interval.{form}_low" in constants or f"interval.{form}_own" in constants:
        return form
    told = [one for one in NEIGHBOURS if f"interval.{one}_own" in constants]
    if "interval.all_low" in constants or not told:
        return "all"
    halves = [
        hypot(constants[f"interval.{one}_own"], constants[f"interval.{one}_shared"]) for one in told
    ]
    return max(zip(halves, told, strict=True))[1]


def of_host(constants: Constants) -> tuple[float, float]:
    """Return the ends of the interval of a host that issues steps, as shares of its seconds.

    One that nobody named is `interval.host_unstated` times as far off as those of the priors; one
    that was measured is as far off as its rows say.
    """
    low, high, _ = bounds("host", constants, constants.get("interval.host_unstated", 1.0))
    return low, high


def ends_of(calibration: Mapping[str, Any]) -> dict[str, float]:
    """Return what a calibration says of intervals, as constants."""
    return {
        f"interval.{form}_{end}": value
        for form, pair in calibration.get("intervals", {}).items()
        for end, value in zip(("low", "high"), pair, strict=True)
    }


OF_HOST = ("launch.isolated_s", "host.factor")  # constants that all times of the host go with


def widened(constants: Constants, end: int) -> dict[str, float]:
    """Return constants at an end of the interval of what is no kernel: 0 the least, 1 the most."""
    factor = bounds("host", constants)[end]
    return {
        **constants,
        **{name: constants[name] * factor for name in OF_HOST if name in constants},
    }
