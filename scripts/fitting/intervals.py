"""Widths of intervals on devices never seen: how far predictions were off on devices left out.

Of each form (and of what a host takes), rows of a device that was left out lie around a middle of
their own: the spread around it is `own`, that of the middles of all devices is `shared`, with
Student's factor, for there are few devices. Both are halves of the middle 80 %, in ln.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import stdtrit

from steptime.calibration.cases import Case
from steptime.calibration.columns import Columns
from steptime.calibration.fit import logs
from steptime.core.constants import Constant
from steptime.predict.calibrated.interval import LEVEL
from steptime.predict.calibrated.method import form_of

FEWEST = 15  # rows of a group on a device that count
UPPER = (1 + LEVEL) / 2
LEAST = 0.03  # of a width: no device is known better


@dataclass(frozen=True)
class Off:
    """How far a row of a device that was left out is off: ln(measured / predicted)."""

    device: str
    group: str
    case: Case
    off: float


def off_of(cases: Sequence[Case], constants: Mapping[str, float]) -> list[Off]:
    """Return how far the rows of one device are off under constants of others."""
    columns = Columns(cases)
    off, predicted = logs(columns, constants), columns.predicted(constants)
    bare = Columns([replace(case, condition="repeated") for case in cases]).predicted(constants)
    return [
        Off(case.device.name, _group(case, kernels_s / whole_s), case, float(one))
        for case, one, whole_s, kernels_s in zip(cases, off, predicted, bare, strict=True)
    ]


def _group(case: Case, share: float) -> str:
    """Return what a case tells of: a form, or the host where its kernels take less than half."""
    if share < 0.5:
        return "host" if case.condition == "step" else "isolated"
    if case.condition == "step":
        return "step"
    return form_of(max(case.kernels, key=lambda one: one.bytes), case.device).__name__


def widths(rows: Sequence[Off], leave: str = "") -> dict[str, tuple[float, float, int, int]]:
    """Return own and shared width, devices and rows of each group, and of `all`.

    The rows of the device `leave` are left out.
    """
    groups: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for one in rows:
        if one.device != leave:
            for group in (one.group, "all"):
                groups[group][one.device].append(one.off)
    found = {}
    for group, devices in groups.items():
        enough = [np.array(some) for some in devices.values() if len(some) >= FEWEST]
        if len(enough) < 2:
            continue
        middles = np.array([np.median(some) for some in enough])
        around = np.concatenate([_alike(some - np.median(some)) for some in enough])
        own = float(np.diff(np.quantile(around, (1 - UPPER, UPPER)))[0] / 2)
        few = float(stdtrit(len(middles), UPPER))
        shared = few * float(np.sqrt(np.mean(middles**2)))
        count = sum(map(len, enough))
        found[group] = max(own, LEAST), max(shared, LEAST), len(enough), count
    return found


def _alike(values: np.ndarray, count: int = 200) -> np.ndarray:
    """Return as many quantiles of each device, so that devices weigh the same."""
    return np.quantile(values, (np.arange(count) + 0.5) / count)


def constants_of(found: Mapping[str, tuple[float, float, int, int]]) -> dict[str, Constant]:
    """Return widths as constants of the priors."""
    made = {}
    for group, (own, shared, devices, rows) in found.items():
        if group == "step":
            continue
        words = f"{rows} rows of {devices} devices, each left out of the fit"
        made[f"interval.{group}_own"] = Constant(own, 0.0, words)
        made[f"interval.{group}_shared"] = Constant(shared, 0.0, words)
    return made


def coverage(rows: Sequence[Off]) -> list[tuple[str, str, float, float, int]]:
    """Return device, group, coverage and half width (ln) of each device under widths of others."""
    found = []
    for device in sorted({one.device for one in rows}):
        known = widths(rows, device)
        groups = sorted({one.group for one in rows if one.device == device})
        inside: list[bool] = []
        for group in groups:
            own, shared, _, _ = known.get(group) or known["all"]
            half = float(np.hypot(own, shared))
            here = [abs(r.off) <= half for r in rows if (r.device, r.group) == (device, group)]
            inside += here
            found.append((device, group, float(np.mean(here)), half, len(here)))
        found.append((device, "all", float(np.mean(inside)), float("nan"), len(inside)))
    return found
