"""Widths of intervals on devices never seen: how far predictions were off on devices left out.

Of a form, the host or whole steps, rows of a device that was left out lie around a middle of their
own. The spread around it is `own`; what the middle 80 % of its rows is wider is `shared`, times
what Student's distribution says of one more device than the few that were left out. Of devices it
is the mean. Kernels on GPUs before Volta are `old` times as
far off, and are made alike before. All are halves of the middle 80 %, in ln.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import sqrt

import numpy as np
from scipy.special import ndtri, stdtrit

from steptime.calibration.cases import Case
from steptime.calibration.columns import Columns
from steptime.calibration.fit import log_residuals
from steptime.hardware.architectures import has_trait
from steptime.hardware.constants import Constant
from steptime.prediction.calibrated.interval import LEVEL
from steptime.prediction.calibrated.method import form_name
from steptime.prediction.prices import Floats
from validation.fitting import catapult

FEWEST = 15  # rows of a group on a device that count
FEWEST_OF_STEPS = 3  # whole networks, each a sum of many kernels
UPPER = (1 + LEVEL) / 2
LEAST = 0.03  # of a width: no device is known better
UNTOLD = (catapult.STACK,)  # stacks whose kernels no dispatcher told: widths of their own
Groups = Mapping[str, Mapping[str, Floats]]


@dataclass(frozen=True)
class Off:
    """How far a row of a device that was left out is off: ln(measured / predicted).

    `sets` are those of the row. `group` is a form, or `host` or `step`, of a stack in `UNTOLD` with
    `@` and its name.
    """

    device: str
    group: str
    case: Case
    off: float
    sets: tuple[str, ...] = ()

    @property
    def wider(self) -> bool:
        """Whether the row is one of kernels on a GPU before Volta."""
        old = has_trait(self.case.device, "old")
        return old and not self.group.startswith("host")


@dataclass(frozen=True)
class Width:
    """Own and shared width of a group, and the devices and rows that told it."""

    own: float
    shared: float
    devices: int
    rows: int
    sets: tuple[str, ...] = ()

    def constants(self, group: str) -> dict[str, Constant]:
        """Return the width as constants of the priors."""
        words = f"{self.rows} rows of {self.devices} devices, each left out of the fit"
        if group == "step":
            return {"interval.step": Constant(self.shared, 0.0, words, self.sets)}
        ends = {"own": self.own, "shared": self.shared}
        return {
            f"interval.{group}_{end}": Constant(of, 0.0, words, self.sets)
            for end, of in ends.items()
        }


def off_of(
    cases: Sequence[Case], constants: Mapping[str, float], sets: tuple[str, ...] = ()
) -> list[Off]:
    """Return how far the rows of one device are off under constants of others."""
    columns = Columns(cases)
    off, predicted = log_residuals(columns, constants), columns.predict_s(constants)
    bare = Columns([replace(case, condition="repeated") for case in cases]).predict_s(constants)
    return [
        Off(case.device.name, _group(case, kernels_s / whole_s), case, float(one), sets)
        for case, one, whole_s, kernels_s in zip(cases, off, predicted, bare, strict=True)
    ]


def _group(case: Case, share: float) -> str:
    """Return what a case tells of: a form, a step, or the host if kernels take less than half."""
    of = f"@{case.stack}" if case.stack in UNTOLD else ""
    if share < 0.5:
        return f"host{of}"
    largest = max(case.kernels, key=lambda one: one.bytes)
    whole = len(case.kernels) > 1 and case.condition in ("step", "call")
    return f"step{of}" if whole else form_name(largest, case.device)


def _grouped(rows: Iterable[Off], old: float = 1.0) -> Groups:
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for one in rows:
        of_kernels = not one.group.startswith(("host", "step"))
        for group in (one.group, "all") if of_kernels else (one.group,):
            found[group][one.device].append(one.off / (old if one.wider else 1.0))
    return {
        group: {name: np.array(some) for name, some in own.items() if len(some) >= _fewest(group)}
        for group, own in found.items()
    }


def _fewest(group: str) -> int:
    return FEWEST_OF_STEPS if group.startswith("step") else FEWEST


def older(rows: Sequence[Off]) -> float:
    """Return how many times as far off kernels are on old devices: the mean of groups, in ln."""
    groups = [_grouped(one for one in rows if one.wider is wider) for wider in (True, False)]
    found = [
        np.log(_half(groups[0][name].values()) / _half(groups[1][name].values()))
        for name in groups[0]
        if name not in ("host", "all") and groups[0][name] and groups[1].get(name)
    ]
    return float(np.exp(np.mean(found))) if found else 1.0


def widths(rows: Sequence[Off], old: float = 1.0) -> dict[str, Width]:
    """Return the widths of each group, and of `all` kernels.

    A form that one device tells shares what all of them do.
    """
    found: dict[str, Width] = {}
    groups = _grouped(rows, old)
    for group in ("all", *(name for name in groups if name != "all")):
        devices = groups.get(group, {}).values()
        if not devices:
            continue
        own = _half([some - np.median(some) for some in devices])
        count = len(devices)
        few = float(stdtrit(count, UPPER) / ndtri(UPPER)) * sqrt(1 + 1 / count)
        shared = few * sqrt(max(_half(devices) ** 2 - own**2, 0.0))
        if count == 1:
            shared = max(shared, found["all"].shared if "all" in found else 0.0)
        rows_of = sum(map(len, devices))
        told = [one for one in rows if group in (one.group, "all")]
        sets = tuple(dict.fromkeys(name for one in told for name in one.sets))
        found[group] = Width(max(own, LEAST), max(shared, LEAST), count, rows_of, sets)
    return found


def _half(devices: Iterable[Floats]) -> float:
    """Return half of the middle 80 % around 0 of a device: the mean of devices."""
    return float(np.mean([np.quantile(np.abs(one), LEVEL) for one in devices]))


def constants_of(rows: Sequence[Off], leave: str = "", stack: str = "") -> dict[str, Constant]:
    """Return widths as constants of the priors, or of a stack in `UNTOLD`.

    The rows of the device `leave` are left out.
    """
    told = [one for one in rows if one.device != leave]
    old = older(told)
    of = f"@{stack}" if stack else ""
    words = f"{len(told)} rows of devices left out of the fit: GPUs before Volta beside later ones"
    sets = tuple(dict.fromkeys(name for one in told for name in one.sets))
    made = {} if of else {"interval.old": Constant(old, 0.0, words, sets)}
    for group, width in widths(told, old).items():
        if group != "all" and group.partition("@")[1:] == of.partition("@")[1:]:
            made |= width.constants(group.partition("@")[0])
    return made
