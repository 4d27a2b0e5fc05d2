"""80 % intervals by kind of work, from residuals of measurement campaigns that fitted no constant.

`data/intervals.toml` has, by kind of work, how far measurements lie below and above predictions,
in ln. It is written by `python -m validation.intervals`; the unit there is the campaign (a
repository and who measured), never a row. The residuals are those of measured devices under named
software: on other devices they are larger by a factor. Where nobody names the software the interval
is that of the assumed one, and a remark says how much wider that of any software is.

Of kernels and of steps of one device the file says how many times as far as
`calibrated/interval.py` has it, which knows forms of kernels apart, and steps that wait for their
host. Of collectives it says how many times as far as their spread (`collective_spread`), which
knows links apart, and starts from bytes.
"""

from functools import cache
from math import exp
from typing import Any, Final, NamedTuple, TypedDict

from steptime.core.toml_files import read_packaged_toml
from steptime.hardware import catalog
from steptime.hardware.device import Device
from steptime.prediction.kernel import Interval

KERNELS: Final = "kernels"
LOW_KERNELS: Final = "kernels in 8 and 4 bit"
DEVICE_STEPS: Final = "device steps"
TRAININGS: Final = "trainings"
MIXTURE_TRAININGS: Final = "mixture trainings"
FINE_TUNINGS: Final = "fine-tunings"
SERVINGS: Final = "servings"
MIXTURE_SERVINGS: Final = "mixture servings"
FIRST_TOKENS: Final = "TTFT"  # of requests that queue; a static batch's prefill is a serving
COLLECTIVES: Final = "collectives"
MEMORY: Final = "memory"
POWER: Final = "power"
KINDS: Final = (
    KERNELS,
    LOW_KERNELS,
    DEVICE_STEPS,
    TRAININGS,
    MIXTURE_TRAININGS,
    FINE_TUNINGS,
    SERVINGS,
    MIXTURE_SERVINGS,
    FIRST_TOKENS,
    COLLECTIVES,
    MEMORY,
    POWER,
)
MIXTURES: Final = {MIXTURE_TRAININGS: TRAININGS, MIXTURE_SERVINGS: SERVINGS}  # and dense networks
KERNEL_KINDS: Final = (KERNELS, LOW_KERNELS)
SCALED: Final = (*KERNEL_KINDS, DEVICE_STEPS, COLLECTIVES)  # widths in units of a half-width
UNSCALED: Final = (*SCALED, MEMORY)  # a device plays no part, or is in the half-width
TINY: Final = 1e-30  # keeps the ratio of an end to a value of 0 defined
TOO_CLOSE: Final = "too close to call"
FILE: Final = "intervals.toml"


class Ends(NamedTuple):
    """How far an interval reaches from a prediction.

    Attributes:
        below: ln(predicted / lower end), or how many times the present half-width.
        above: ln(upper end / predicted), or how many times the present half-width.
    """

    below: float
    above: float

    def scale(self, factor: float) -> "Ends":
        """Return ends that reach so many times as far."""
        return Ends(factor * self.below, factor * self.above)

    def bounds_around(self, value: float) -> tuple[float, float]:
        """Return the ends of the interval of a value."""
        return value * exp(-self.below), value * exp(self.above)

    def interval_around(self, value: float) -> Interval:
        """Return a value with its interval."""
        return Interval(value, *self.bounds_around(value))


def find_ends(kind: str, device: Device) -> Ends:
    """Return the distance to the ends of an 80 % interval of a kind of work.

    Args:
        kind: the kind of work, one of the constants of this module.
        device: the device; one that nobody measured has a wider interval.
    """
    # How far measurements lie below and above predictions, in ln, on measured devices.
    row = read_packaged_toml(FILE)["kinds"][kind]
    scale = 1.0 if kind in UNSCALED else device_scale(device)
    return Ends(scale * row["below"], scale * row["above"])


def describe_assumed_software(stack_name: str) -> str:
    """Return the remark on a fine-tuning whose stack nobody named.

    The stack of a whole training on one device is nearly always the usual one; that of a
    fine-tuning is one of many.
    """
    factor = float(read_packaged_toml(FILE)["scales"]["assumed_software"])
    return (
        f"fine-tunings run under many stacks, and the interval is that of {stack_name}: name yours "
        f"by --stack; under any of them the interval is {factor:.1f} times as wide"
    )


def find_typical_ends(kind: str, device: Device) -> Ends:
    """Return the distance to the ends of an interval of work whose own half-width is not known.

    It is taken to have the median half-width of the measured rows of its kind.

    Args:
        kind: one of `SCALED`.
        device: the device.
    """
    # The ends are stated in half-widths of the work's own interval; this is the median of these.
    return find_ends(kind, device).scale(read_packaged_toml(FILE)["kinds"][kind]["half_width"])


def device_scale(device: Device) -> float:
    """Return the factor of the width of intervals: 1 for a measured device, larger for others."""
    scales = read_packaged_toml(FILE)["scales"]
    if device.name in read_packaged_toml(FILE)["devices"]:
        return 1.0
    # Unmeasured itself, but of the architecture of a measured device: known better than others.
    is_family = device.datasheet.architecture in _architectures()
    return float(scales["family" if is_family else "unmeasured"])


def has_calibrated_interval(kind: str, device: Device) -> bool:
    """Return whether rows of the device itself tell the interval; ops alone tell no steps."""
    calibration = device.calibration
    return bool(calibration.intervals) and (
        kind in KERNEL_KINDS or not calibration.is_of_single_ops
    )


@cache
def _architectures() -> frozenset[str]:
    measured = (
        catalog.device(name).datasheet.architecture for name in read_packaged_toml(FILE)["devices"]
    )
    return frozenset(filter(None, measured))


def widen(
    kind: str,
    value: Any,
    low: Any,
    high: Any,
    device: Device,
) -> tuple[Any, Any]:
    """Return the ends of an interval that follows from kernels, as campaigns say.

    The numbers may be arrays. A device that was calibrated by its own rows keeps its ends.
    """
    # Methods without intervals have None; a device's own rows know it better than campaigns.
    is_unbounded = low is None or high is None
    if is_unbounded or has_calibrated_interval(kind, device):
        return low, high
    ends = find_ends(kind, device)
    # Of these kinds the ends are exponents of the kernels' interval: above 1 they widen it.
    if kind in SCALED:
        low_ratio = low / (value + TINY)
        high_ratio = high / (value + TINY)
        return value * low_ratio**ends.below, value * high_ratio**ends.above
    return value * exp(-ends.below), value * exp(ends.above)


class MemoryVerdictFields(TypedDict):
    """A memory verdict by the fields of an answer."""

    verdict: str
    needed_low_bytes: int
    needed_high_bytes: int


class MemoryVerdict(NamedTuple):
    """Whether a process fits the memory of a device.

    Attributes:
        verdict: `yes`, `no`, `too close to call`, or `unknown` where the memory is.
        low_bytes: lower end of the 80 % interval of the bytes that it needs.
        high_bytes: upper end of it.
    """

    verdict: str
    low_bytes: int
    high_bytes: int

    def to_fields(self) -> MemoryVerdictFields:
        """Return the verdict by the fields of an answer."""
        return {
            "verdict": self.verdict,
            "needed_low_bytes": self.low_bytes,
            "needed_high_bytes": self.high_bytes,
        }


def judge_memory(needed_bytes: float, usable_bytes: float | None, device: Device) -> MemoryVerdict:
    """Return whether a process fits a device.

    It is too close to call where the inner part of the interval, in which half of the
    campaigns lie, holds the memory of the device.

    Args:
        needed_bytes: bytes that the process needs.
        usable_bytes: bytes that it may use; None where nobody says.
        device: the device.
    """
    needed_low, needed_high = find_ends(MEMORY, device).bounds_around(needed_bytes)
    # The inner half of the interval: a "no" or "yes" needs the capacity outside of it.
    row = read_packaged_toml(FILE)["close_memory"]
    close_low, close_high = Ends(row["below"], row["above"]).bounds_around(needed_bytes)
    if usable_bytes is None:
        verdict = "unknown"
    elif close_high <= usable_bytes:
        verdict = "yes"
    else:
        verdict = "no" if close_low > usable_bytes else TOO_CLOSE
    return MemoryVerdict(verdict, round(needed_low), round(needed_high))
