"""Many cases of a device as arrays, so that they are priced at once under any constants."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any, NamedTuple

import numpy as np

from steptime.calibration.cases import Case, conditions
from steptime.calibration.fit import constants_of
from steptime.core.graph import PASSES
from steptime.hardware.device import Device
from steptime.prediction.calibrated.form import Constants, between_events_s, cached_share
from steptime.prediction.calibrated.interval import host_bounds, scale_host
from steptime.prediction.calibrated.method import effective_device, form_of, price
from steptime.prediction.calibrated.product import cached_weight_bytes, product
from steptime.prediction.host import (
    CallCounts,
    Host,
    bound_step,
    count_calls,
    count_constants,
    find_host,
    kernel_weighted_factor,
    time_host,
    wait_for_host,
)
from steptime.prediction.kernel import Interval, Kernel, Settings
from steptime.prediction.kernels import Kernels, Rows
from steptime.prediction.prices import Floats, Ints, Prices, sum_rows

SENSITIVITY_STEP = 1.001  # factor of the kernel's time, for a finite difference
BY_KIND = ""  # in place of a figure's name: each case takes the figure of its kind of op

ConstantCounts = Mapping[str, Mapping[str, Floats]]  # by pass and constant: how often, of each step


class _HostPair(NamedTuple):
    """The hosts of all steps as arrays, if they run ahead of the device and if they wait for it."""

    ahead: Host
    waiting: Host


class Columns:
    """The cases of one device, ready to be priced again and again under other constants.

    Attributes:
        cases: the cases.
        families: the family of each case, or its network's text.
        device: their device, with the peaks of all its types.
        seconds: the measured seconds of each case.
    """

    def __init__(self, cases: Sequence[Case]) -> None:
        self.cases = cases
        self.families = [case.family or _network_label(case) for case in cases]
        first_device = cases[0].device
        self.device: Device = effective_device(
            first_device, reference_dtype(first_device), Settings()
        )
        self.seconds: Floats = np.array([case.seconds for case in cases])
        self._is_single_op = np.array([case.is_single_op for case in cases])
        # Only accelerators are timed by events, between which a part of the host's time is seen.
        is_isolated = np.array([case.condition == "isolated" for case in cases])
        self._is_isolated = is_isolated & (not self.device.is_cpu)
        # A case of one op is of the kind of its first kernel, by which its timing is looked up.
        kinds = [case.kernels[0].kind for case in cases]
        self._distinct_kinds, self._kind_of_case = np.unique(kinds, return_inverse=True)
        self._indices_with_timing = [index for index, case in enumerate(cases) if case.timing]
        self._step_indices = [index for index, case in enumerate(cases) if not case.is_single_op]
        self._is_call_step = np.array(
            [cases[index].condition == "call" for index in self._step_indices]
        )
        self._constant_counts: ConstantCounts | None = None
        # Equal kernels of two cases are priced apart, since each case has its own figures.
        self._kernels = Kernels(
            [kernel for case in cases for kernel in case.kernels],
            owners=[index for index, case in enumerate(cases) for _ in case.kernels],
        )
        self._case_of_kernel = self._kernels.owner  # of each distinct kernel
        kernels_with_case = zip(self._kernels.distinct, self._case_of_kernel, strict=True)
        self._cached_bytes_of_kernel: Floats = np.array(
            [self._cached_weight_bytes(kernel, cases[index]) for kernel, index in kernels_with_case]
        )

    def _cached_weight_bytes(self, kernel: Kernel, case: Case) -> float:
        """Return the bytes of weights that a repeated product finds in the last-level cache."""
        if case.condition != "repeated" or form_of(kernel, self.device) is not product:
            return 0.0
        return float(cached_weight_bytes(kernel, self.device, case.copies))

    def predict_s(self, constants: Constants) -> Floats:
        """Return the predicted seconds of each case."""
        return self._add_host_time(self._predict_passes_s(constants), constants)

    def _predict_passes_s(self, constants: Constants) -> Floats:
        """Return the seconds of the kernels of each case, as [passes, cases]."""
        case_count = len(self.cases)
        pass_and_case = self._kernels.passes * case_count + self._case_of_kernel  # of each kernel
        kernel_s = self._price_kernels(constants).value
        seconds = sum_rows(kernel_s, pass_and_case, len(PASSES) * case_count)
        return seconds.reshape(-1, case_count)

    def predict_intervals(self, constants: Constants) -> tuple[Floats, Floats, Floats]:
        """Return the predicted seconds of each case with the lower and upper ends of its interval.

        The errors of device and host add as squares where an op is measured between two events.
        """
        passes_s = self._predict_passes_s(constants)
        device_s = passes_s.sum(axis=0)
        value_s = self._add_host_time(passes_s, constants)
        device_low_s, device_high_s = self._find_device_intervals(constants)
        low_ratio = device_low_s / device_s
        high_ratio = device_high_s / device_s
        # Three sorts of cases. Ops in a loop or on a CPU: the device alone. Ops between two events:
        # device and host. Steps: a host that runs ahead of the device, or waits for it.
        fast_host = scale_host(constants, end=0)
        slow_host = scale_host(constants, end=1)
        low_error_s = self._isolated_error_s(passes_s, low_ratio, fast_host, constants)
        high_error_s = self._isolated_error_s(passes_s, high_ratio, slow_host, constants)
        low_s = np.where(self._is_isolated, value_s - low_error_s, device_low_s)
        high_s = np.where(self._is_isolated, value_s + high_error_s, device_high_s)
        hosts = self._find_step_hosts(constants)
        if hosts is not None:
            step_low_s, step_high_s = self._bound_steps(passes_s, (low_ratio, high_ratio), hosts)
            low_s[self._step_indices] = step_low_s
            high_s[self._step_indices] = step_high_s
        return value_s, low_s, high_s

    def _isolated_error_s(
        self,
        passes_s: Floats,
        device_ratio: Floats,
        host_constants: Constants,
        constants: Constants,
    ) -> Floats:
        """Return the distance from the value of an isolated op to an end of its interval.

        Args:
            passes_s: seconds of the kernels, as [passes, cases].
            device_ratio: this end of the device's seconds over their value.
            host_constants: constants with the host at this end.
            constants: constants with the usual host.
        """
        value_s = self._add_host_time(passes_s, constants)
        # All passes at the same end, since kernels share most of their error.
        device_error_s = self._add_host_time(passes_s * device_ratio, constants) - value_s
        host_error_s = self._add_host_time(passes_s, host_constants) - value_s
        # Errors of the device and of its host are independent: they add as squares.
        error_s: Floats = np.hypot(device_error_s, host_error_s)
        return error_s

    def _bound_steps(
        self, passes_s: Floats, device_ratios: tuple[Floats, Floats], hosts: _HostPair
    ) -> tuple[Floats, Floats]:
        """Return the ends of the steps, from the ends of the device's seconds over their value."""
        step_passes_s = list(passes_s[:, self._step_indices])
        low_ratios, high_ratios = (ratios[self._step_indices] for ratios in device_ratios)
        ahead = bound_step(step_passes_s, (low_ratios, high_ratios), hosts.ahead)
        waiting = bound_step(step_passes_s, (low_ratios, high_ratios), hosts.waiting)
        # A step that is called alone waits for its end; steps in a loop run ahead of each other.
        return (
            np.where(self._is_call_step, waiting.low_s, ahead.low_s),
            np.where(self._is_call_step, waiting.high_s, ahead.high_s),
        )

    def _find_device_intervals(self, constants: Constants) -> tuple[Floats, Floats]:
        """Return the lower and upper ends of the seconds that the device takes for each case."""
        # Kernels of one class differ in newly mapped pages alone: they have the same error.
        classes, class_count = self._kernels.error_classes
        case_of_class: Ints = np.zeros(class_count, dtype=np.intp)
        case_of_class[classes] = self._case_of_kernel
        # Repeats of a kernel in a case share their whole error, different kernels a part of it.
        prices = self._price_kernels(constants).sum_correlated(classes, class_count)
        sums = prices.sum_groups(case_of_class, len(self.cases))
        return sums.low, sums.high

    def _price_kernels(self, constants: Constants) -> Prices:
        """Return the seconds of each distinct kernel, times the number of its runs."""
        device = replace(self.device, constants=constants)
        is_single_op = self._is_single_op[self._case_of_kernel].astype(float)
        case_pauses_s = self._is_isolated * self._find_timing_figures(constants, "pause_s")
        pauses_s = case_pauses_s[self._case_of_kernel]
        uncached_share = 1 - cached_share(device, constants)

        def price_rows(rows: Rows, indices: Ints) -> Interval:
            # Benchmarks that repeat a kernel find a part of its weights in the last cache.
            saved_bytes = self._cached_bytes_of_kernel[indices] * uncached_share
            interval = price(
                rows._replace(bytes=rows.bytes - saved_bytes),
                device,
                isolated_share=is_single_op[indices],
                pause_s=pauses_s[indices],
            )
            return _correct_products(interval, rows, device, is_single_op[indices])

        return self._kernels.price(price_rows).times(self._kernels.counts)

    def _add_host_time(self, passes_s: Floats, constants: Constants) -> Floats:
        """Return the measurable seconds of cases whose kernels take these seconds.

        Isolated ops get the time between their events, steps that of their host.

        Args:
            passes_s: seconds of the kernels, as [passes, cases].
            constants: the constants of the host.
        """
        total_s: Floats = passes_s.sum(axis=0)
        if self._is_isolated.any():
            # The host's time between two events around an op, of which a share is seen.
            host_factor = self._find_timing_figures(constants, BY_KIND)
            host_s = constants["launch.isolated_s"] * host_factor
            visible_share = self._find_timing_figures(constants, "seen")
            between_s = between_events_s(total_s, host_s, visible_share)
            total_s = np.where(self._is_isolated, between_s, total_s)
        hosts = self._find_step_hosts(constants)
        if hosts is not None:
            step_passes_s = list(passes_s[:, self._step_indices])
            ahead_s = sum(wait_for_host(step_passes_s, hosts.ahead))
            waiting_s = sum(wait_for_host(step_passes_s, hosts.waiting))
            total_s[self._step_indices] = np.where(self._is_call_step, waiting_s, ahead_s)
        return total_s

    def _find_timing_figures(self, constants: Constants, name: str) -> Floats:
        """Return a figure of how each case was timed.

        It comes from the case itself, else from the constants, else from `cases.conditions`.

        Args:
            constants: the constants, with names `isolated.NAME`.
            name: name of the figure, `BY_KIND` for the one named after the kind of op.
        """
        usual_figures = constants_of(conditions())
        # `isolated.KIND` is a factor of the host's time for a kind of op, 1 where it is not fitted.
        names = [kind if name == BY_KIND else name for kind in self._distinct_kinds]
        keys = [f"isolated.{figure_name}" for figure_name in names]
        figures_of_kinds: Floats = np.array(
            [constants.get(key, usual_figures.get(key, 1.0)) for key in keys]
        )
        figures: Floats = figures_of_kinds[self._kind_of_case]
        # What a case says of its own timing wins.
        for index in self._indices_with_timing:
            timing = self.cases[index].timing
            figures[index] = timing.get(names[self._kind_of_case[index]], figures[index])
        return figures

    def find_product_cases(self, constants: Constants) -> tuple[list[int], Floats]:
        """Return the indices of the cases that are one matrix product, and their sensitivity.

        The sensitivity is d ln(case) / d ln(kernel): below 1 where a part of the case is host time.
        """
        has_single_product = [
            len(case.kernels) == 1 and len(case.kernels[0].products) == 1 for case in self.cases
        ]
        # Attention, for example, has products, but is priced by a function of its own.
        is_priced_as_product = [
            form_of(case.kernels[0], self.device) is product for case in self.cases
        ]
        indices = np.flatnonzero(self._is_single_op & has_single_product & is_priced_as_product)
        passes_s = self._predict_passes_s(constants)
        # d ln(case) / d ln(kernels) as a finite difference: kernels that take 0.1 % longer.
        slower_s = self._add_host_time(passes_s * SENSITIVITY_STEP, constants)
        ratios = slower_s / self._add_host_time(passes_s, constants)
        return indices.tolist(), np.log(ratios[indices]) / np.log(SENSITIVITY_STEP)

    def find_host_steps(self, constants: Constants) -> tuple[list[int], Floats, Floats]:
        """Return the indices of the steps behind a host, and the seconds of host and device.

        There are none where the constants have no `host.factor`.
        """
        is_accelerator = "host.factor" in constants  # a CPU has no host that issues its steps
        if not self._step_indices or not is_accelerator:
            return [], np.empty(0), np.empty(0)
        device_s = self._predict_passes_s(constants).sum(axis=0)[self._step_indices]
        # The times by which each pass is issued; the update is the last pass.
        _forward_s, _backward_s, update_s = self._time_step_hosts(constants).issued_s
        host_s: Any = update_s  # an array over the steps, as device_s
        return self._step_indices, host_s, device_s

    def _find_step_hosts(self, constants: Constants) -> _HostPair | None:
        """Return the hosts of all steps, None without steps or without a host.

        A CPU issues its own ops, and begins each step with its base.
        """
        if not self._step_indices:
            return None
        is_accelerator = "host.factor" in constants  # whose steps a host issues
        if is_accelerator:
            return self._find_accelerator_hosts(constants)
        no_calls: CallCounts = {}  # the ops of a CPU have their calls in their prices
        cpu_host = find_host(no_calls, constants)
        if cpu_host is None:
            return None
        # A CPU never runs ahead of itself: both kinds of steps have the same host.
        cpu_host = cpu_host._replace(end_factors=host_bounds(constants))
        return _HostPair(ahead=cpu_host, waiting=cpu_host)

    def _find_accelerator_hosts(self, constants: Constants) -> _HostPair:
        """Return the hosts that issue the steps of an accelerator.

        Both are corrected by the residuals of the steps that the device has run.
        """
        step_residuals = self.device.calibration.steps
        host = self._time_step_hosts(constants)._replace(
            end_factors=host_bounds(constants), measured_steps=step_residuals
        )
        # A host waits for the device after a step unless it is told not to.
        return _HostPair(ahead=host._replace(waits=False), waiting=host)

    def _time_step_hosts(self, constants: Constants) -> Host:
        """Return the host that issues each step: its times are arrays over the steps."""
        if self._constant_counts is None:
            self._constant_counts = self._count_constants(constants)
        return time_host(self._constant_counts, constants)

    def _count_constants(self, constants: Constants) -> ConstantCounts:
        """Count the uses of each constant of the host by each step, by pass and constant.

        The values of the constants play no part, only their names.
        """
        step_counts = [
            # How many times each pass spends each of the constants, such as 53 convolutions.
            count_constants(count_calls(self.cases[index].kernels), constants)
            for index in self._step_indices
        ]
        counts_by_pass: dict[str, dict[str, Floats]] = {}
        for pass_ in PASSES:
            names = sorted({name for counts in step_counts for name in counts[pass_]})
            counts_by_pass[pass_] = {
                name: np.array([counts[pass_].get(name, 0.0) for counts in step_counts])
                for name in names
            }
        return counts_by_pass


def _correct_products(
    interval: Interval, rows: Rows, device: Device, is_single_op: Floats
) -> Interval:
    """Return the price of kernels times the residuals of similar products that were measured.

    The residuals are those of single ops (1 in `is_single_op`): kernels of a step keep their price.
    """
    residual_rows = device.calibration.products.get(f"{rows.kind} {rows.dtype}")
    is_single_product = len(rows.products) == 1
    if not residual_rows or not is_single_product:
        return interval
    (product_sizes,) = rows.products  # batch, m, n, k
    op_factor = kernel_weighted_factor(residual_rows, product_similarity, *product_sizes)
    factor: Any = np.where(is_single_op > 0, op_factor, 1.0)
    return interval._replace(
        value=factor * interval.value,
        low=factor * interval.low,
        high=factor * interval.high,
    )


def _network_label(case: Case) -> str:
    """Return the text of a case's network, "" for a case without one."""
    return case.workload.label if case.workload else ""


def product_similarity(*sizes: Any) -> Any:
    """Return the similarity of two products: 1 for equal sizes, 0.8 if one size is twice as large.

    Args:
        sizes: batch, m, n, k of the first, then of the second, as numbers or arrays.
    """
    # The sizes of one product (batch, m, n, k), then those of the other.
    ratios = [size / second_size for size, second_size in zip(sizes[:4], sizes[4:], strict=True)]
    # 2 / (r + 1 / r) is 1 for equal sizes, and 0.8 where one is twice the other.
    return prod(2 * ratio / (ratio**2 + 1) for ratio in ratios)


def reference_dtype(device: Device) -> str:
    """Return float32 if the device has a peak for it, else the first type that has a peak."""
    return (
        "float32"
        if "float32" in device.datasheet.peak_flop_per_s
        else next(iter(device.datasheet.peak_flop_per_s))
    )
