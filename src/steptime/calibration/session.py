"""A calibration of the device at hand: which points are measured, when it ends, what it says."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from time import monotonic
from typing import Any

import numpy as np

from steptime.calibration.cases import Case, priors_of
from steptime.calibration.choice import after, best
from steptime.calibration.columns import Columns
from steptime.calibration.device import calibrate
from steptime.calibration.fit import constants_of, fitted, logs, slopes
from steptime.calibration.points import WHOLE_STEP, Point, candidates
from steptime.core.graph_json import graph_to_json
from steptime.hardware.device import Device
from steptime.measure.point import BUSY
from steptime.prediction.kernels import Floats
from steptime.records.ratios import relative_errors

LONGEST_S = 0.4  # of a predicted step that is worth a point
MOST_MEMORY = 0.5  # of the device's, that a point may move
CHECK_EVERY = 3  # a third of the points is kept back
REFIT_EVERY = 6  # points
SUSTAINED_S = 4.0  # of work that a device with a power limit is given: its clocks follow in 1 s
BETTER = 0.98  # of the error kept back before; two fits that do not reach it end the session
WARMING = "relu 4194304"  # not counted: until arrays were freed, small ones lie in new pages
SHARE_OF_TIME = 0.7  # of what is left for a point, that its rounds take

Ask = Callable[[Mapping[str, Any]], Mapping[str, Any]]  # a request to the worker, and its answer
Keep = Callable[[str, Mapping[str, Any]], object]  # the name of a point, and its answer
Tell = Callable[["Taken", float], object]  # a point, and the seconds that are left


@dataclass(frozen=True)
class Taken:
    """A point that was measured: seconds by part, the share of disturbed rounds, or a note."""

    point: Point
    seconds: Mapping[str, float]
    disturbed: float
    note: str = ""
    check: bool = False


@dataclass
class Session:
    """The points of a device so far.

    `ask` sends the worker a request, `tell` hears of each point. `limit_s` or `most` points end it,
    or errors that fall no more once there are `least`. `errors` are those of what was kept back
    after each fit; `drift` is by how much the first point took longer at the end. Interrupted from
    the keyboard, it ends with the points that it has. `keep` is given each answer as it comes, and
    `earlier` holds those of a session that was killed, by point, which are not measured again.
    """

    device: Device
    ask: Ask
    tell: Tell
    limit_s: float
    most: int = 60
    least: int = 40
    dtypes: tuple[str, ...] = ("float32",)
    clock: Callable[[], float] = monotonic
    keep: Keep = lambda _, __: None
    earlier: Mapping[str, list[Mapping[str, Any]]] = field(default_factory=dict)
    taken: list[Taken] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)
    drift: float | None = None
    interrupted: bool = False

    def run(self) -> dict[str, Any]:
        """Measure, and return the table `calibration` of the device's file.

        Raises `InputError` where not a single point could be measured.
        """
        self._ends = self.clock() + self.limit_s
        points = self._possible()
        try:
            self._ask(Point(WARMING, "stream", "infer", dtype=self.dtypes[0]))
            self._measure(points)
            self._again()
            self._sustained()
            self._drift()
        except KeyboardInterrupt:
            if not self.taken:
                raise
            self.interrupted = True
        return calibrate(
            self.device,
            self._cases(self.taken),
            points=None,
            source="steptime calibrate",
            facts={
                "measured_points": len({one.point.name for one in self.taken if one.seconds}),
                "disturbed": round(median([one.disturbed for one in self.taken] or [0.0]), 3),
                **({} if self.drift is None else {"drift": round(self.drift, 3)}),
                **({"check_mape": round(self.errors[-1], 3)} if self.errors else {}),
                "check_points": sum(one.check for one in self.taken),
                "failed": {one.point.name: one.note for one in self.taken if one.note},
            },
        )

    def _again(self) -> None:
        """Measure once more what was disturbed, while there is time: the least of each part counts.

        Neighbours come and go within seconds, so a second visit tells more than a longer first one.
        """
        busy = [at for at, one in enumerate(self.taken) if one.seconds and one.disturbed > BUSY]
        for at in busy:
            if self._left_s() > 0:
                one = self.taken[at]
                again = self._ask(one.point).get("seconds", {})
                least = {part: min(s, again.get(part, s)) for part, s in one.seconds.items()}
                self.taken[at] = replace(one, seconds=least)
                self.tell(self.taken[at], self._left_s())
        if busy and self.errors:
            self._refit()

    def _drift(self) -> None:
        """Measure the first point again."""
        first = next((one for one in self.taken if one.seconds), None)
        if first is None:
            return
        again = self._take(first.point)
        if again.seconds:
            times = [sum(one.seconds.values()) for one in (first, again)]
            self.drift = times[1] / times[0] - 1

    def _possible(self) -> dict[str, Point]:
        """Return the candidates that the device has memory and, as far as is known, time for."""
        dtypes = tuple(one for one in self.dtypes if one in self.device.peak_flop_per_s)
        room = MOST_MEMORY * (self.device.usable_bytes or np.inf)
        found = {}
        for one in candidates(dtypes or self.dtypes[:1]):
            columns = Columns([Case(one.kernels, self.device, 1.0, one.kind, "step", one.name)])
            expected = columns.predicted(constants_of(priors_of(self.device)))[0]
            if expected <= LONGEST_S and max(k.bytes for k in one.kernels) <= room:
                found[one.name] = one
        return found

    def _measure(self, points: dict[str, Point]) -> None:
        """Measure the points that tell most, in turn, until it does not pay or time is over."""
        priors = priors_of(self.device)
        names = [name for name, one in priors.items() if one.spread > 0]
        constants = constants_of(priors)
        steep = self._slopes(points, constants, names)
        whole = [steep[name] for name, one in points.items() if one.kind == WHOLE_STEP]
        asked = np.concatenate([np.empty((0, len(names))), *(whole or steep.values())])
        covariance: Floats = np.eye(len(names))
        while points and len(self.taken) < self.most and self._left_s() > 0:
            check = len(self.taken) % CHECK_EVERY == CHECK_EVERY - 1
            name = best({name: steep[name] for name in points}, asked, covariance)
            found = self._take(points.pop(name), check=check)
            if found.seconds and not check:
                covariance = after(covariance, steep[name])
            if len(self.taken) % REFIT_EVERY == 0:
                constants = self._refit()
                steep = self._slopes(points, constants, names) | {name: steep[name]}
                if len(self.taken) >= self.least and self._is_over():
                    break

    def _slopes(
        self, points: Mapping[str, Point], constants: Mapping[str, float], names: Sequence[str]
    ) -> dict[str, Floats]:
        """Return what the rows of each point tell, as if each part were a row."""
        cases, owner = [], []
        for name, point in points.items():
            parts = {one.pass_ for one in point.kernels}
            for part in sorted(parts):
                own = tuple(one for one in point.kernels if one.pass_ == part)
                cases.append(Case(own, self.device, 1.0, point.kind, "repeated", name))
                owner.append(name)
        if not cases:
            return {}
        every = slopes(Columns(cases), priors_of(self.device), constants, names)
        rows = np.array(owner)
        return {name: every[rows == name] for name in points}

    def _take(self, point: Point, least_s: float = 0.0, check: bool = False) -> Taken:
        if earlier := self.earlier.get(point.name):
            answer = earlier.pop(0)
        else:
            answer = self._ask(point, least_s)
            self.keep(point.name, answer)
        said = answer.get("seconds", {}), answer.get("disturbed", 0.0), answer.get("note", "")
        found = Taken(point, *said, check)
        self.taken.append(found)
        self.tell(found, self._left_s())
        return found

    def _ask(self, point: Point, least_s: float = 0.0) -> Mapping[str, Any]:
        left = max(0.0, self._left_s())
        share = SHARE_OF_TIME * left / max(1, self.most - len(self.taken))
        return self.ask(
            {
                "do": "point",
                "graph": graph_to_json(point.graph, phase=point.phase, dtype=point.dtype, batch=1),
                "optimizer": point.optimizer,
                "budget_s": max(least_s, min(share, 2.0)),
                "least_s": least_s,
            }
        )

    def _sustained(self) -> None:
        """Make a device with a power limit work for seconds, since its short ops do not show it."""
        if self.device.peak_w is None or self.device.is_cpu:
            return
        products = [
            one.point
            for one in self.taken
            if one.seconds and one.point.kind == "product" and one.point.text.startswith("linear")
        ]
        if products:
            largest = max(products, key=lambda one: sum(k.flop for k in one.kernels))
            self._take(largest, SUSTAINED_S)

    def _cases(self, taken: Sequence[Taken], check: bool | None = None) -> list[Case]:
        return [
            case
            for one in taken
            if check is None or one.check is check
            for case in one.point.cases(self.device, one.seconds)
        ]

    def _refit(self) -> dict[str, float]:
        """Return the constants that the points tell, and note how far off those kept back are."""
        priors = priors_of(self.device)
        cases, kept = self._cases(self.taken, False), self._cases(self.taken, True)
        constants = fitted([Columns(cases)], priors) if cases else constants_of(priors)
        if kept:
            off = logs(Columns(kept), constants)
            self.errors.append(float(relative_errors(np.exp(off)).mean()))
        return constants

    def _is_over(self) -> bool:
        """Whether the error of what is kept back has stopped falling."""
        *before, last, latest = [float("inf"), float("inf"), *self.errors]
        return min(last, latest) > BETTER * min(before)

    def _left_s(self) -> float:
        return self._ends - self.clock()
