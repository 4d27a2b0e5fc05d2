"""Scores of cases: their predictions by a method, and figures of the errors."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from steptime.calibration.cases import Case
from steptime.calibration.choice import choose_cases
from steptime.calibration.columns import Columns, reference_dtype
from steptime.calibration.device import calibrate
from steptime.core.answer import AnswerRow
from steptime.core.errors import InputError, check_choice
from steptime.hardware.device import Device
from steptime.prediction import conformal, cost_model
from steptime.prediction.calibrated.form import Constants
from steptime.prediction.calibrated.interval import interval_constants
from steptime.prediction.kernel import Interval, Settings
from steptime.prediction.kernels import Kernels
from steptime.prediction.method import Method, PriceError
from steptime.prediction.schedule import total
from steptime.prediction.steps.step_model import StepModel
from steptime.records.ratios import farness, relative_errors
from steptime.records.row import group_by

DRAWS = 5
GROUPS = ("kind", "device", "family", "condition", "regime")


@dataclass(frozen=True)
class Scored:
    """A case with its prediction.

    Attributes:
        case: the measured case.
        value: the predicted seconds.
        low: lower end of the interval, in seconds, None without one.
        high: upper end of the interval, in seconds, None without one.
    """

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
        median: median of |predicted / measured - 1|.
        p90: 90th percentile of |predicted / measured - 1|.
        max: maximum of |predicted / measured - 1|.
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


class ComparedValue(NamedTuple):
    """A measured quantity with its prediction.

    Attributes:
        measured: the measured value.
        predicted: the predicted value.
        low: lower end of its interval, None without one.
        high: upper end of its interval, None without one.
        balance_group: the group that weighs as much as each other group in `balanced`.
    """

    measured: float
    predicted: float
    low: float | None
    high: float | None
    balance_group: tuple[Any, ...]


def errors_of(scored: Sequence[Scored]) -> ErrorFigures:
    """Return the errors of some cases: predictions of 1.1 and 0.8 s for 1 s are 15 % off."""
    return summarise_errors([_compare(score) for score in scored])


def _compare(scored: Scored) -> ComparedValue:
    """Return a scored case with the group of its device and kind."""
    case = scored.case
    balance_group = case.device.name, case.kind
    return ComparedValue(case.seconds, scored.value, scored.low, scored.high, balance_group)


def summarise_errors(values: Sequence[ComparedValue]) -> ErrorFigures:
    """Return the errors of some quantities, `balanced` over their cells."""
    ratios = np.array([value.measured / value.predicted for value in values])
    value_errors = relative_errors(ratios)
    errors_by_group: dict[Any, list[float]] = defaultdict(list)
    is_covered = []
    relative_widths = []
    for value, error in zip(values, value_errors, strict=True):
        errors_by_group[value.balance_group].append(float(error))
        # Methods without intervals have no coverage.
        if value.low is not None and value.high is not None:
            is_covered.append(value.low <= value.measured <= value.high)
            relative_widths.append((value.high - value.low) / value.predicted)
    group_means = [np.mean(group_errors) for group_errors in errors_by_group.values()]
    return ErrorFigures(
        cases=len(values),
        mape=float(value_errors.mean()),
        median=float(np.median(value_errors)),
        p90=float(np.quantile(value_errors, 0.9)),
        max=float(value_errors.max()),
        # Positive if predictions are too long.
        bias=-float(np.log(ratios).mean()),
        factor=float(np.exp(farness(ratios).mean())),
        balanced=float(np.mean(group_means)),
        coverage=float(np.mean(is_covered)) if is_covered else None,
        width=float(np.median(relative_widths)) if relative_widths else None,
    )


def score(cases: Sequence[Case], method: Method) -> list[Scored]:
    """Return the predictions of a method.

    A case is left out if the method has no peak for its type or needs its network.

    Raises:
        InputError: if a price function of the user returns no time.
    """
    if method.name == "calibrated":
        return _score_calibrated(cases, method)
    scored = []
    for case in cases:
        try:
            prediction = _score_case(case, method)
        except PriceError as error:
            raise InputError(f"{case.place}: {error}") from error
        except InputError:  # the method cannot predict it
            continue
        if not prediction.value:
            raise InputError(f"{case.place}: {method.name}: a time of 0 s")
        scored.append(prediction)
    return scored


def _score_case(case: Case, method: Method) -> Scored:
    """Predict a case by a method other than `calibrated`."""
    if case.workload:
        options = options_for(case, method)
        model = StepModel(case.workload, case.device, method=method, options=options)
        times = model.timeline()
        return Scored(case, times.step_s, times.low_s, times.high_s)
    # Kernels of a table, without a network: no host plays a part in their times.
    settings = replace(method.with_options(options_for(case, method)).settings, host="no")
    step = total(kernel_times(case, method, settings))
    return Scored(case, step.value, step.low, step.high)


def options_for(case: Case, method: Method) -> dict[str, str]:
    """Return the options of a case that a method has, such as its stack."""
    return {name: text for name, text in case.options.items() if name in method.options}


def kernel_times(case: Case, method: Method, settings: Settings) -> list[Interval]:
    """Return the seconds of each kernel of a case under settings of a method."""
    device = method.derate(case.device, case.kernels[0].dtype, settings)
    kernels = Kernels(case.kernels)
    return method.prices(kernels, device).take(kernels.distinct_of_kernel).intervals()


def _score_calibrated(cases: Sequence[Case], method: Method) -> list[Scored]:
    """Return the predictions of `calibrated`, priced in groups of equal device and options."""
    devices = _DeviceNumbers()
    score_by_id: dict[int, Scored] = {}
    for group in group_by(cases, devices.group_key).values():
        first_case = group[0]
        device = first_case.device.in_phase(first_case.phase)
        settings = method.with_options(first_case.options).settings
        settings = replace(settings, tf32="auto")  # kernels say whether they use it
        constants = method.derate(device, reference_dtype(device), settings).constants
        cases_in_phase = [replace(case, device=device) for case in group]
        scores = score_with_constants(cases_in_phase, constants)
        # A group is of one kind of work, so that the scores come in the order of its cases.
        for case, scored in zip(group, scores, strict=True):
            score_by_id[id(case)] = replace(scored, case=case)
    return [score_by_id[id(case)] for case in cases]


class _DeviceNumbers:
    """Numbers devices of one name, since a file may carry another device's name."""

    def __init__(self) -> None:
        self._devices_by_name: dict[str, list[Device]] = defaultdict(list)

    def number(self, device: Device) -> int:
        """Return the number of a device among those of its name; a new one gets the next."""
        namesakes = self._devices_by_name[device.name]
        if device not in namesakes:
            namesakes.append(device)
        return namesakes.index(device)

    def group_key(self, case: Case) -> tuple[Any, ...]:
        """Return a key that is equal for cases that are priced at once.

        `score_with_constants` sorts cases by kind of work, so that a group has a single kind.
        """
        is_low_op = case.is_single_op and case.has_low_operands
        options = sorted(case.options.items())
        number = self.number(case.device)  # two devices may have one name
        return case.device.name, number, case.phase, is_low_op, *options


def score_with_constants(cases: Sequence[Case], constants: Constants) -> list[Scored]:
    """Return the predictions for cases of one device: single ops first, then steps.

    Intervals are those of single kernels and of steps of one device (`prediction/conformal.py`).

    Args:
        cases: the cases.
        constants: the constants of steps; single ops use those of `alone` in the calibration of
            the device, too.
    """
    device = cases[0].device
    op_constants: Constants = {
        **constants,
        **(device.calibration.alone or {}),  # where single ops differ from steps
        # A calibration by single ops alone has intervals that do not hold for steps: `constants`
        # leave them out. Other intervals are in `constants` already.
        **interval_constants(device.calibration),
    }
    ops = [case for case in cases if case.is_single_op and not case.has_low_operands]
    low_ops = [case for case in cases if case.is_single_op and case.has_low_operands]
    steps = [case for case in cases if not case.is_single_op]
    return [
        *_score_with_interval(ops, op_constants, device, conformal.KERNELS),
        *_score_with_interval(low_ops, op_constants, device, conformal.LOW_KERNELS),
        *_score_with_interval(steps, constants, device, conformal.DEVICE_STEPS),
    ]


def _score_with_interval(
    cases: Sequence[Case], constants: Constants, device: Device, kind: str
) -> list[Scored]:
    """Return predictions whose intervals are widened as measured for a kind of work."""
    if not cases:
        return []
    value_s, low_s, high_s = Columns(cases).predict_intervals(constants)
    low_s, high_s = conformal.widen(kind, value_s, low_s, high_s, device)
    return [*map(Scored, cases, value_s.tolist(), low_s.tolist(), high_s.tolist())]


def score_after_calibration(
    cases: Sequence[Case], points: int, draws: int = DRAWS
) -> tuple[list[list[Scored]], float]:
    """Calibrate each device with some of its cases and score the others, in several draws.

    Cases that do not calibrate are scored in each draw.

    Args:
        cases: the cases of all devices.
        points: cases of each device to calibrate with.
        draws: number of draws.

    Returns:
        The scores of each draw, and the median number of constants that moved from the priors.

    Raises:
        InputError: if a device has no case to calibrate with, or no case is left to score.
    """
    cases_by_device = group_by(cases, lambda case: case.device.name)
    scores_of_draws = []
    moved_counts = []
    for seed in range(draws):
        test_cases: list[Case] = []
        for device_cases in cases_by_device.values():
            calibration_candidates = [case for case in device_cases if case.calibrates]
            calibration_points = choose_cases(calibration_candidates, points, seed)
            table = calibrate(device_cases[0].device, calibration_points, points=None)  # all
            moved_step_constants = table["constants"].keys()
            moved_op_constants = table.get("alone", {}).keys()  # of ops that are timed alone
            moved_counts.append(len(moved_step_constants | moved_op_constants))
            device = device_cases[0].device.with_calibration(table)
            unused_cases = _without_repeats_of(device_cases, calibration_points)
            test_cases += [replace(case, device=device) for case in unused_cases]
        if not test_cases:
            raise InputError(f"no case is left to check beside {points} points of each device")
        scores_of_draws.append(score(test_cases, cost_model("calibrated")))
    return scores_of_draws, float(np.median(moved_counts))


def _without_repeats_of(cases: Sequence[Case], points: Sequence[Case]) -> list[Case]:
    """Return the cases that are neither among the points nor repeats of one."""
    point_keys = {(case.kernels, case.condition) for case in points}
    return [case for case in cases if (case.kernels, case.condition) not in point_keys]


def by_group(
    scored: Sequence[Scored], columns: Sequence[str]
) -> dict[tuple[str, ...], list[Scored]]:
    """Return the cases by their values of some columns, in the order of these values.

    Args:
        scored: the cases.
        columns: columns of `GROUPS`.

    Raises:
        InputError: for an unknown column.
    """
    for name in columns:
        check_choice("group", name, GROUPS, "--by")
    groups = group_by(
        scored, lambda score: tuple(_group_value(score.case, name) for name in columns)
    )
    return dict(sorted(groups.items()))


def _group_value(case: Case, name: str) -> str:
    """Return a case's value of a column of `GROUPS`."""
    if name == "device":
        return case.device.name
    if name == "regime":
        return regime(case)
    return str(getattr(case, name))


REGIMES = ((1e-4, "below 0.1 ms"), (1e-2, "0.1 to 10 ms"), (float("inf"), "above 10 ms"))


def regime(case: Case) -> str:
    """Return the range of the measured time in words: "0.1 to 10 ms"."""
    return next(words for limit_s, words in REGIMES if case.seconds < limit_s)
