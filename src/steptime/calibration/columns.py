"""Many cases of a device at once: kernels side by side as arrays, priced by the same forms."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from steptime.calibration.cases import Case, conditions
from steptime.calibration.fit import constants_of
from steptime.core.graph import PASSES
from steptime.hardware.device import Device
from steptime.prediction.calibrated.form import Constants, between_events_s, cached_share
from steptime.prediction.calibrated.interval import of_host, widened
from steptime.prediction.calibrated.method import form_of, price, reached
from steptime.prediction.calibrated.product import product, weights_at_hand
from steptime.prediction.host import (
    Host,
    behind_host,
    calls_of,
    finish,
    host_of,
    issued,
    left_over,
    spent,
)
from steptime.prediction.kernel import Interval, Kernel, Settings
from steptime.prediction.kernels import Floats, Ints, Kernels, Prices, Rows, added


class Columns:
    """The cases of one device, ready to be priced again and again under other constants."""

    def __init__(self, cases: Sequence[Case]) -> None:
        self.cases = cases
        named = [case.workload.label if case.workload else "" for case in cases]
        self.families = [case.family or name for case, name in zip(cases, named, strict=True)]
        first = first_dtype(cases[0].device)  # peaks of all types are filled in
        self.device: Device = reached(cases[0].device, first, Settings())
        self.seconds: Floats = np.array([case.seconds for case in cases])
        by_events = not self.device.is_cpu
        self._isolated = np.array([by_events and one.condition == "isolated" for one in cases])
        kinds = [case.kernels[0].kind for case in cases]
        self._kinds, self._kind = np.unique(kinds, return_inverse=True)
        self._own_timing = [i for i, case in enumerate(cases) if case.timing]
        self._alone = np.array([case.alone for case in cases])
        self._steps = [i for i, case in enumerate(cases) if not case.alone]
        self._awaited = np.array([cases[i].condition == "call" for i in self._steps])
        self._spent: Mapping[str, Mapping[str, Floats]] | None = None
        owners = [i for i, case in enumerate(cases) for _ in case.kernels]
        self._kernels = Kernels([one for case in cases for one in case.kernels], owners=owners)
        self._case = self._kernels.owner  # of each kernel that differs
        owned = zip(self._kernels.distinct, self._case, strict=True)
        self._held: Floats = np.array([self._held_of(one, cases[case]) for one, case in owned])

    def _held_of(self, kernel: Kernel, case: Case) -> float:
        """Return the bytes of weights that a kernel finds in the last cache: it is repeated."""
        again = case.condition == "repeated" and form_of(kernel, self.device) is product
        return float(weights_at_hand(kernel, self.device, case.copies)) if again else 0.0

    def predicted(self, constants: Constants) -> Floats:
        """Return the seconds of each case under these constants."""
        return self._timed(self._running(constants), constants)

    def _running(self, constants: Constants) -> Floats:
        """Return the seconds of the kernels of each case, pass by pass."""
        cells = self._kernels.passes * len(self.cases) + self._case
        count = len(self.cases)
        return added(self._priced(constants).value, cells, len(PASSES) * count).reshape(-1, count)

    def intervals(self, constants: Constants) -> tuple[Floats, Floats, Floats]:
        """Return the seconds of each case, and between which bounds they lie.

        Errors of device and host add as squares where an op is measured alone.
        """
        passes = self._running(constants)
        value = passes.sum(axis=0)
        which, of_alike = self._kernels.alike
        cases: Ints = np.zeros(of_alike, dtype=np.intp)
        cases[which] = self._case
        sums = self._priced(constants).alike(which, of_alike).sums(cases, len(self.cases))
        middle = self._timed(passes, constants)
        ends = []
        for end, (device_s, sign) in enumerate(((sums.low, -1), (sums.high, 1))):
            moved = widened(constants, end)
            parts = passes * (device_s / value)
            apart = self._timed(parts, constants) - middle, self._timed(passes, moved) - middle
            ends.append(np.where(self._isolated, middle + sign * np.hypot(*apart), device_s))
        if self._steps and (hosts := self._hosts(constants)):
            shares = [(device_s / value)[self._steps] for device_s in (sums.low, sums.high)]
            of_steps = list(passes[:, self._steps])
            found = [finish(of_steps, shares, host)[1:] for host in hosts]
            for one, (ahead, waiting) in zip(ends, zip(*found, strict=True), strict=True):
                one[self._steps] = np.where(self._awaited, waiting, ahead)
        return middle, ends[0], ends[1]

    def _priced(self, constants: Constants) -> Prices:
        """Return the seconds of the kernels that differ, as often as they come."""
        device = replace(self.device, constants=constants)
        products = device.calibration.get("products", {})
        alone = self._alone[self._case].astype(float)
        rests = (self._isolated * self._timing(constants, "pause_s"))[self._case]

        def ask(rows: Rows, places: Ints) -> Interval:
            moved = rows.bytes - self._held[places] * (1 - cached_share(device, constants))
            found = price(rows._replace(bytes=moved), device, alone[places], rests[places])
            known = products.get(f"{rows.kind} {rows.dtype}")
            if known and len(rows.products) == 1:
                factor = left_over(known, products_alike, *rows.products[0]) ** alone[places]
                value, low, high = (factor * one for one in found[:3])
                found = found._replace(value=value, low=low, high=high)
            return found

        return self._kernels.priced(ask).times(self._kernels.often)

    def _timed(self, passes: Floats, constants: Constants) -> Floats:
        """Return what is measured of cases whose kernels take these seconds, pass by pass."""
        device_s: Floats = passes.sum(axis=0)
        total = device_s
        if self._isolated.any():
            host_s = constants["launch.isolated_s"] * self._timing(constants)
            between = between_events_s(device_s, host_s, self._timing(constants, "seen"))
            total = np.where(self._isolated, between, device_s)
        if self._steps and (hosts := self._hosts(constants)):
            parts = list(passes[:, self._steps])
            ahead, waiting = (sum(behind_host(parts, host)) for host in hosts)
            total[self._steps] = np.where(self._awaited, waiting, ahead)
        return total

    def _timing(self, constants: Constants, name: str = "") -> Floats:
        """Return a figure of how each case was timed, that of its kind if no `name` is said.

        It is what the case says, else constants, else what is usual.
        """
        usual = constants_of(conditions())
        names = [name or kind for kind in self._kinds]
        keys = map("isolated.{}".format, names)
        figures: Floats = np.array([constants.get(key, usual.get(key, 1.0)) for key in keys])
        found: Floats = figures[self._kind]
        for i in self._own_timing:
            found[i] = self.cases[i].timing.get(names[self._kind[i]], found[i])
        return found

    def products(self, constants: Constants) -> tuple[list[int], Floats]:
        """Return which cases are one product of a GPU, and d ln(case) / d ln(kernel): 1 or less."""
        single = [len(one.kernels) == len(one.kernels[0].products) == 1 for one in self.cases]
        by_form = [form_of(one.kernels[0], self.device) is product for one in self.cases]
        places = np.flatnonzero(self._alone & single & by_form)
        running = self._running(constants)
        more = self._timed(running * 1.001, constants) / self._timed(running, constants)
        return places.tolist(), np.log(more[places]) / np.log(1.001)

    def behind_host(self, constants: Constants) -> tuple[list[int], Floats, Floats]:
        """Return which cases are steps behind a host, and what host and device take for them."""
        if not self._steps or "host.factor" not in constants:
            return [], np.empty(0), np.empty(0)
        device_s = self._running(constants).sum(axis=0)[self._steps]
        host_s: Any = self._host(constants).issued_s[-1]
        return self._steps, host_s, device_s

    def _hosts(self, constants: Constants) -> Sequence[Host]:
        """Return the hosts of all steps side by side, of one that runs ahead and of one that waits.

        A CPU issues its own ops, and begins each step with its base; there may be none at all.
        """
        ends = of_host(constants)
        if "host.factor" in constants:
            known = self.device.calibration.get("steps", ())
            host = self._host(constants)._replace(ends=ends, steps=known)
            return host._replace(waits=False), host
        own = host_of({}, constants)
        return () if own is None else (own._replace(ends=ends),) * 2

    def _host(self, constants: Constants) -> Host:
        """Return the hosts of all steps side by side: their times are arrays."""
        if self._spent is None:
            found = [spent(calls_of(self.cases[i].kernels), constants) for i in self._steps]
            self._spent = {
                pass_: {
                    name: np.array([one[pass_].get(name, 0.0) for one in found])
                    for name in sorted({name for one in found for name in one[pass_]})
                }
                for pass_ in PASSES
            }
        return issued(self._spent, constants)


def products_alike(*sizes: Any) -> Any:
    """Return how much products have to do with each other by batch, m, n, k: 0.8 for one double."""
    ratios = [one / other for one, other in zip(sizes[:4], sizes[4:], strict=True)]
    return prod(2 * ratio / (ratio**2 + 1) for ratio in ratios)


def first_dtype(device: Device) -> str:
    """Return the type that a device is best known by: float32 where it has a peak of that."""
    return "float32" if "float32" in device.peak_flop_per_s else next(iter(device.peak_flop_per_s))
