"""How far predictions are from what was measured: cases, methods, and tables of errors."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from steptime.calibration.cases import Case
from steptime.calibration.columns import Columns, first_dtype
from steptime.calibration.device import calibrate, chosen
from steptime.core.answer import AnswerRow
from steptime.core.errors import InputError, check_choice
from steptime.hardware.device import Device
from steptime.prediction import conformal, cost_model
from steptime.prediction.calibrated.form import Constants
from steptime.prediction.calibrated.interval import ends_of
from steptime.prediction.kernel import Interval, Settings
from steptime.prediction.kernels import Kernels
from steptime.prediction.method import Method, PriceError
from steptime.prediction.schedule import total
from steptime.prediction.step_model import StepModel
from steptime.records.ratios import farness, relative_errors
from steptime.records.row import grouped

DRAWS = 5
GROUPS = ("kind", "device", "family", "condition", "regime")


@dataclass(frozen=True)
class Scored:
    """A case, the seconds that a method predicts for it, and between which bounds it does."""

    case: Case
    value: float
    low: float | None
    high: float | None

    @property
    def ratio(self) -> float:
        """Predicted / measured."""
        return self.value / self.case.seconds


class ErrorFigures(AnswerRow, frozen=True, kw_only=True):
    """Errors of predictions of some cases.

    Attributes:
        cases: number of cases.
        mape: mean of |predicted / measured - 1|.
        median: median of the same.
        p90: 90th percentile of the same.
        max: maximum of the same.
        bias: mean of ln(predicted / measured).
        factor: exp of the mean of |ln(predicted / measured)|.
        balanced: mean of the `mape` of each kind on each device.
        coverage: share of the cases that lie in their interval, None without intervals.
        width: median of (high - low) / predicted, None without intervals.
    """

    cases: int
    mape: float
    median: float
    p90: float
    max: float
    bias: float
    factor: float
    balanced: float
    coverage: float | None
    width: float | None


# what was measured and predicted, between which bounds, and the kind and device of it
Compared = tuple[float, float, float | None, float | None, tuple[Any, ...]]


def errors_of(scored: Sequence[Scored]) -> ErrorFigures:
    """Return the errors of some cases: predictions of 1.1 and 0.8 s for 1 s are 15 % off."""
    return errors([
        (one.case.seconds, one.value, one.low, one.high, (one.case.device.name, one.case.kind))
        for one in scored
    ])  # fmt: skip


def errors(compared: Sequence[Compared]) -> ErrorFigures:
    """Return the errors of some quantities, `balanced` over their cells."""
    ratios = np.array([measured / value for measured, value, *_ in compared])
    wrong = relative_errors(ratios)
    cells: dict[Any, list[float]] = defaultdict(list)
    inside, widths = [], []
    for (measured, value, low, high, cell), far in zip(compared, wrong, strict=True):
        cells[cell].append(float(far))
        if low is not None and high is not None:
            inside.append(low <= measured <= high)
            widths.append((high - low) / value)
    return ErrorFigures(
        cases=len(compared),
        mape=float(wrong.mean()),
        median=float(np.median(wrong)),
        p90=float(np.quantile(wrong, 0.9)),
        max=float(wrong.max()),
        bias=-float(np.log(ratios).mean()),
        factor=float(np.exp(farness(ratios).mean())),
        balanced=float(np.mean([np.mean(some) for some in cells.values()])),
        coverage=float(np.mean(inside)) if inside else None,
        width=float(np.median(widths)) if widths else None,
    )


def score(cases: Sequence[Case], method: Method) -> list[Scored]:
    """Return what a method predicts.

    One that has no peak for a type, or no network for a case, leaves the case out. Raises
    `InputError` where a price of one's own says no time.
    """
    if method.name == "calibrated":
        return _calibrated(cases, method)
    found = []
    for case in cases:
        try:
            options = {n: text for n, text in case.options.items() if n in method.options}
            if own := case.workload:
                times = StepModel(own, case.device, method=method, options=options).timeline()
                found.append(Scored(case, times.step_s, times.low_s, times.high_s))
            else:
                settings = replace(method.under(options).settings, host="no")
                whole = total(kernel_times(case, method, settings))
                found.append(Scored(case, *whole[:3]))
        except PriceError as error:
            raise InputError(f"{case.place}: {error}") from error
        except InputError:
            continue
        if not found[-1].value:
            raise InputError(f"{case.place}: {method.name}: a time of 0 s")
    return found


def kernel_times(case: Case, method: Method, settings: Settings) -> list[Interval]:
    """Return the seconds of each kernel of a case under settings of a method."""
    seen = method.sees(case.device, case.kernels[0].dtype, settings)
    columns = Kernels(case.kernels)
    return method.prices(columns, seen).at(columns.which).intervals()


def _calibrated(cases: Sequence[Case], method: Method) -> list[Scored]:
    """Return what `calibrated` predicts, the cases of a device and of options side by side."""
    named: dict[str, list[Device]] = defaultdict(list)

    def place(case: Case) -> tuple[Any, ...]:
        alike = named[case.device.name]  # a file may carry the name of another device
        if case.device not in alike:
            alike.append(case.device)
        at = case.device.name, case.phase, alike.index(case.device)
        return *at, *sorted(case.options.items())

    found: dict[int, Scored] = {}
    for own in grouped(cases, place).values():
        device = own[0].device.in_phase(own[0].phase)
        settings = replace(method.under(own[0].options).settings, tf32="auto")  # kernels know it
        seen = method.sees(device, first_dtype(device), settings)
        there = [replace(one, device=device) for one in own]
        for case, one in zip(own, scored_at(there, seen.constants), strict=True):
            found[id(case)] = replace(one, case=case)
    return [found[id(case)] for case in cases]


def scored_at(cases: Sequence[Case], constants: Constants) -> list[Scored]:
    """Return what constants say of the cases of one device, its own ones of ops by themselves.

    Intervals are those of kernels and of steps of one device (`prediction/conformal.py`).
    """
    found: list[Scored] = []
    device = cases[0].device
    table = device.calibration
    by_itself: Constants = {**table.get("alone", {}), **ends_of(table)}
    for alone, at in ((True, {**constants, **by_itself}), (False, constants)):
        if own := [case for case in cases if case.alone is alone]:
            value_s, low_s, high_s = Columns(own).intervals(at)
            kind = conformal.KERNELS if alone else conformal.DEVICE_STEPS
            low_s, high_s = conformal.widen(kind, value_s, low_s, high_s, device)
            found += map(Scored, own, value_s.tolist(), low_s.tolist(), high_s.tolist())
    return found


def after_calibration(
    cases: Sequence[Case], points: int, draws: int = DRAWS
) -> tuple[list[list[Scored]], float]:
    """Return the scores of the cases that are left when `points` of each device calibrate it.

    The points are drawn anew `draws` times; cases that do not calibrate are scored in each. With
    them comes the median number of constants that moved. Raises `InputError` where a device has no
    case to calibrate with, or none is left.
    """
    by_device = grouped(cases, lambda case: case.device.name)
    every, moved = [], []
    for seed in range(draws):
        left: list[Case] = []
        for own in by_device.values():
            points_of = chosen([case for case in own if case.calibrates], points, seed)
            taken = {(case.kernels, case.condition) for case in points_of}  # rows that repeat, too
            table = calibrate(own[0].device, points_of, None)
            moved.append(len(table["constants"].keys() | table.get("alone", {}).keys()))
            device = replace(own[0].device, calibration=table)
            rest = [case for case in own if (case.kernels, case.condition) not in taken]
            left += [replace(case, device=device) for case in rest]
        if not left:
            raise InputError(f"no case is left to check beside {points} points of each device")
        every.append(score(left, cost_model("calibrated")))
    return every, float(np.median(moved))


def by_group(scored: Sequence[Scored], by: Sequence[str]) -> dict[tuple[str, ...], list[Scored]]:
    """Return the cases by what `by` names: kind, device, family, condition or regime."""
    for name in by:
        check_choice("group", name, GROUPS, "--by")
    found = grouped(scored, lambda one: tuple(_group(one, name) for name in by))
    return dict(sorted(found.items()))


def _group(one: Scored, name: str) -> str:
    known = {"device": one.case.device.name, "regime": regime(one.case)}
    return known[name] if name in known else str(getattr(one.case, name))


REGIMES = ((1e-4, "below 0.1 ms"), (1e-2, "0.1 to 10 ms"), (float("inf"), "above 10 ms"))


def regime(case: Case) -> str:
    """Return how long a case took, in words."""
    return next(words for most, words in REGIMES if case.seconds < most)
