"""A calibration session: it measures the points that tell most, and fits the constants to them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from time import monotonic
from typing import Any

import numpy as np

from steptime.calibration.cases import Case, priors_of
from steptime.calibration.choice import choose_point, update_covariance
from steptime.calibration.columns import Columns
from steptime.calibration.device import calibrate
from steptime.calibration.fit import constants_of, fit_constants, log_residuals, log_slopes
from steptime.calibration.points import NETWORK_STEP, Point, candidates
from steptime.core.graph_json import graph_to_json
from steptime.core.json_types import JsonObject
from steptime.hardware.device import Device
from steptime.measure.point import BUSY
from steptime.prediction.prices import Floats
from steptime.records.ratios import relative_errors

MAX_STEP_S = 0.4  # predicted time of a step that is worth a point
MAX_MEMORY_SHARE = 0.5  # of the device's memory, that a kernel of a point may move
CHECK_INTERVAL = 3  # points, of which the last only checks the fit
REFIT_INTERVAL = 6  # points
SUSTAINED_S = 4.0  # of work for a device with a power limit: its clocks follow in 1 s
MAX_ERROR_RATIO = 0.98  # of a new to an earlier check error: two fits above it end the session
WARM_UP = "relu 4194304"  # not counted: until arrays were freed, small ones lie in new pages
SHARE_OF_TIME = 0.7  # of what is left for a point, that its rounds take
MAX_POINT_S = 2.0

Request = Callable[[Mapping[str, Any]], Mapping[str, Any]]  # sends the worker a request, answers
SaveAnswer = Callable[[str, Mapping[str, Any]], object]  # the name of a point, and its answer
Report = Callable[["MeasuredPoint", float], object]  # a point, and the seconds that are left


@dataclass(frozen=True)
class MeasuredPoint:
    """A point that was measured.

    Attributes:
        point: the point.
        seconds: its seconds by part, empty if it could not be measured.
        disturbed: the share of rounds that a neighbour disturbed.
        note: why it could not be measured.
        is_check: whether it checks the fit instead of taking part in it.
    """

    point: Point
    seconds: Mapping[str, float]
    disturbed: float
    note: str = ""
    is_check: bool = False


@dataclass
class Session:
    """A calibration of one device, with its points so far.

    Interrupted from the keyboard, it ends with the points that it has.

    Attributes:
        device: the device.
        send_request: sends a request to the worker and returns the answer.
        report_point: is called with each measured point.
        limit_s: seconds after which the session ends.
        max_points: the largest number of points.
        min_points: points after which errors that fall no more end the session.
        dtypes: the types of products; the first is that of all other points.
        clock: a clock in seconds.
        save_answer: is called with each answer as it comes.
        earlier_answers: answers of a session that was killed, by point; these points are not
            measured again.
        measured_points: the points so far.
        check_errors: the mean error of the check points after each fit.
        drift: by which share the first point took longer at the end.
        interrupted: whether the session was interrupted.
    """

    device: Device
    send_request: Request
    report_point: Report
    limit_s: float
    max_points: int = 60
    min_points: int = 40
    dtypes: tuple[str, ...] = ("float32",)
    clock: Callable[[], float] = monotonic
    save_answer: SaveAnswer = lambda _, __: None
    earlier_answers: Mapping[str, list[Mapping[str, Any]]] = field(default_factory=dict)
    measured_points: list[MeasuredPoint] = field(default_factory=list)
    check_errors: list[float] = field(default_factory=list)
    drift: float | None = None
    interrupted: bool = False
    _end_s: float = field(default=0.0, init=False)

    def run(self) -> JsonObject:
        """Measure points, and return the table `calibration` of the device's file.

        Raises:
            InputError: if not a single point could be measured.
        """
        self._end_s = self.clock() + self.limit_s
        points = self._list_candidates()
        try:
            # Not counted: until arrays were freed, small ones lie in new pages.
            self._request_point(Point(WARM_UP, "stream", "infer", dtype=self.dtypes[0]))
            self._measure_points(points)
            self._repeat_disturbed_points()
            self._measure_sustained_work()
            self._measure_drift()
        except KeyboardInterrupt:
            if not self.measured_points:
                raise
            self.interrupted = True
        return calibrate(
            self.device,
            self._cases_of(self.measured_points),
            points=None,
            source="steptime calibrate",
            facts=self._facts(),
        )

    def _facts(self) -> JsonObject:
        """Return the keys of the calibration that describe the session."""
        good_names = {
            measured_point.point.name
            for measured_point in self.measured_points
            if measured_point.seconds
        }
        disturbed = [measured_point.disturbed for measured_point in self.measured_points] or [0.0]
        facts: JsonObject = {
            "measured_points": len(good_names),
            "disturbed": round(median(disturbed), 3),
        }
        if self.drift is not None:
            facts["drift"] = round(self.drift, 3)
        if self.check_errors:
            facts["check_mape"] = round(self.check_errors[-1], 3)
        facts["check_points"] = sum(
            measured_point.is_check for measured_point in self.measured_points
        )
        facts["failed"] = {
            measured_point.point.name: measured_point.note
            for measured_point in self.measured_points
            if measured_point.note
        }
        return facts

    def _repeat_disturbed_points(self) -> None:
        """Measure disturbed points again while there is time; the shorter time of each part counts.

        Neighbours come and go within seconds, so a second visit tells more than a longer first one.
        """
        disturbed_indices = [
            index
            for index, measured_point in enumerate(self.measured_points)
            if measured_point.seconds and measured_point.disturbed > BUSY
        ]
        for index in disturbed_indices:
            if self._remaining_s() <= 0:
                continue
            measured_point = self.measured_points[index]
            repeated_s = self._request_point(measured_point.point).get("seconds", {})
            # Neighbours only ever make a measurement longer.
            shortest_s = {
                pass_: min(pass_s, repeated_s.get(pass_, pass_s))
                for pass_, pass_s in measured_point.seconds.items()
            }
            self.measured_points[index] = replace(measured_point, seconds=shortest_s)
            self.report_point(self.measured_points[index], self._remaining_s())
        was_fitted = bool(self.check_errors)
        if disturbed_indices and was_fitted:  # the last error is then one of the mended points
            self._refit()

    def _measure_drift(self) -> None:
        """Measure the first point again, and set `drift`."""
        first_point = next(
            (measured_point for measured_point in self.measured_points if measured_point.seconds),
            None,
        )
        if first_point is None:
            return
        repeated_point = self._measure_point(first_point.point)
        if repeated_point.seconds:
            self.drift = (
                sum(repeated_point.seconds.values()) / sum(first_point.seconds.values()) - 1
            )

    def _list_candidates(self) -> dict[str, Point]:
        """Return the candidates that the device has memory and, by prediction, time for."""
        datasheet = self.device.datasheet
        dtypes = tuple(dtype for dtype in self.dtypes if dtype in datasheet.peak_flop_per_s)
        max_bytes = MAX_MEMORY_SHARE * (datasheet.usable_bytes or np.inf)  # or unknown: no limit
        constants = constants_of(priors_of(self.device))
        points = {}
        for point in candidates(dtypes or self.dtypes[:1]):
            case = Case(
                point.kernels,
                self.device,
                seconds=1.0,  # stands for a measurement, which a prediction does not need
                kind=point.kind,
                condition="step",
                family=point.name,
            )
            (step_s,) = Columns([case]).predict_s(constants)
            kernel_bytes = max(kernel.bytes for kernel in point.kernels)
            if step_s <= MAX_STEP_S and kernel_bytes <= max_bytes:
                points[point.name] = point
        return points

    def _measure_points(self, points: dict[str, Point]) -> None:
        """Measure the most telling points, in turn, until errors fall no more or time is over.

        The targets that shall become surest are whole steps. Measured points leave `points`.
        """
        priors = priors_of(self.device)
        names = [name for name, prior in priors.items() if prior.spread > 0]
        slopes = self._slopes_by_point(points, constants_of(priors), names)
        step_slopes = [slopes[name] for name, point in points.items() if point.kind == NETWORK_STEP]
        no_slopes = np.empty((0, len(names)))  # there may be no points at all
        # Whole steps are the targets; without any, all points are.
        target_slopes = np.concatenate([no_slopes, *(step_slopes or slopes.values())])
        # In units of the constants' spreads, as slopes are: the priors are the identity.
        covariance: Floats = np.eye(len(names))  # of the constants, after each measured point
        while points and len(self.measured_points) < self.max_points and self._remaining_s() > 0:
            # The last of each interval only checks the fit, and tells it nothing.
            is_check = len(self.measured_points) % CHECK_INTERVAL == CHECK_INTERVAL - 1
            candidate_slopes = {name: slopes[name] for name in points}
            name = choose_point(candidate_slopes, target_slopes, covariance)
            measured_point = self._measure_point(points.pop(name), is_check=is_check)
            if measured_point.seconds and not is_check:
                covariance = update_covariance(covariance, slopes[name])
            if len(self.measured_points) % REFIT_INTERVAL == 0:
                constants = self._refit()
                slopes = self._slopes_by_point(points, constants, names)
                if len(self.measured_points) >= self.min_points and self._has_converged():
                    break

    def _slopes_by_point(
        self, points: Mapping[str, Point], constants: Mapping[str, float], names: Sequence[str]
    ) -> dict[str, Floats]:
        """Return the slopes of each point (`fit.log_slopes`), as if each pass were a row."""
        cases = []
        for name, point in points.items():
            for pass_ in sorted({kernel.pass_ for kernel in point.kernels}):
                kernels = tuple(kernel for kernel in point.kernels if kernel.pass_ == pass_)
                case = Case(
                    kernels,
                    self.device,
                    seconds=1.0,  # slopes do not depend on the measured time
                    kind=point.kind,
                    condition="repeated",  # as `Point.cases` has the passes of longer steps
                    family=name,
                )
                cases.append(case)
        if not cases:
            return {}
        slopes = log_slopes(Columns(cases), priors_of(self.device), constants, names)
        name_of_row = np.array([case.family for case in cases])
        return {name: slopes[name_of_row == name] for name in points}

    def _measure_point(
        self, point: Point, min_s: float = 0.0, is_check: bool = False
    ) -> MeasuredPoint:
        """Measure a point, or take an earlier answer; add it to the points and report it."""
        earlier_answers = self.earlier_answers.get(point.name)
        if earlier_answers:
            answer = earlier_answers.pop(0)
        else:
            answer = self._request_point(point, min_s)
            self.save_answer(point.name, answer)
        measured_point = MeasuredPoint(
            point=point,
            seconds=answer.get("seconds", {}),
            disturbed=answer.get("disturbed", 0.0),
            note=answer.get("note", ""),
            is_check=is_check,
        )
        self.measured_points.append(measured_point)
        self.report_point(measured_point, self._remaining_s())
        return measured_point

    def _request_point(self, point: Point, min_s: float = 0.0) -> Mapping[str, Any]:
        """Return the worker's answer to a point that runs for `min_s` seconds at least."""
        remaining_s = max(0.0, self._remaining_s())
        remaining_points = max(1, self.max_points - len(self.measured_points))
        # What is left is shared among the points that may still come.
        point_s = min(SHARE_OF_TIME * remaining_s / remaining_points, MAX_POINT_S)
        return self.send_request(
            {
                "do": "point",
                "graph": graph_to_json(point.graph, phase=point.phase, dtype=point.dtype, batch=1),
                "optimizer": point.optimizer,
                "budget_s": max(min_s, point_s),
                "least_s": min_s,
            }
        )

    def _measure_sustained_work(self) -> None:
        """Let a device with a power limit work for seconds, since short ops do not show it."""
        # Short ops do not show a power limit, which the largest product reaches.
        if self.device.datasheet.peak_w is None or self.device.is_cpu:
            return
        points = [
            measured_point.point
            for measured_point in self.measured_points
            if measured_point.seconds
        ]
        products = [
            point
            for point in points
            if point.kind == "product" and point.text.startswith("linear")  # `linear 64 1024 1024`
        ]
        if products:
            largest = max(products, key=_count_flop)
            self._measure_point(largest, min_s=SUSTAINED_S)

    def _cases_of(self, points: Sequence[MeasuredPoint]) -> list[Case]:
        """Return the cases of measured points."""
        return [
            case
            for measured_point in points
            for case in measured_point.point.cases(self.device, measured_point.seconds)
        ]

    def _refit(self) -> dict[str, float]:
        """Return the constants fitted to the points; add the error of the check points."""
        priors = priors_of(self.device)
        cases = self._cases_of(
            [
                measured_point
                for measured_point in self.measured_points
                if not measured_point.is_check
            ]
        )
        checks = self._cases_of(
            [measured_point for measured_point in self.measured_points if measured_point.is_check]
        )
        # Check points never tell the fit anything: their errors are those of unseen points.
        constants = fit_constants([Columns(cases)], priors) if cases else constants_of(priors)
        if checks:
            residuals = log_residuals(Columns(checks), constants)
            self.check_errors.append(float(relative_errors(np.exp(residuals)).mean()))
        return constants

    def _has_converged(self) -> bool:
        """Whether the last two fits have not reduced the error of the check points."""
        *earlier, previous, last = [float("inf"), float("inf"), *self.check_errors]
        return min(previous, last) > MAX_ERROR_RATIO * min(earlier)

    def _remaining_s(self) -> float:
        return self._end_s - self.clock()


def _count_flop(point: Point) -> float:
    """Return the FLOP of a point's kernels."""
    return sum(kernel.flop for kernel in point.kernels)
