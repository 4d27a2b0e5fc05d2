"""From the seconds of kernels to the time of a step: overlap, and waits for host and links."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from steptime.core.graph import PASS_INDEX
from steptime.prediction.collectives import StepEnds, widen_by_links
from steptime.prediction.host import Host, bound_step
from steptime.prediction.kernel import Interval, Kernel
from steptime.prediction.kernels import Kernels
from steptime.prediction.lower import NO_CELL, Lowered, Row
from steptime.prediction.prices import Prices


class RowSeconds(NamedTuple):
    """The seconds of a row by key; a bound of the step is None if unknown."""

    name: str
    kind: str
    step_s: float
    low_s: float | None
    high_s: float | None
    forward_s: float
    backward_s: float
    update_s: float


class RowTime(NamedTuple):
    """The times of one row, pass by pass and all together; `launches` are numbers by pass."""

    row: Row
    forward: Interval
    backward: Interval
    update: Interval
    step: Interval
    launches: tuple[int, ...]

    @property
    def step_s(self) -> float:
        """Seconds of the row in a step."""
        return self.forward.value + self.backward.value + self.update.value

    @property
    def seconds(self) -> RowSeconds:
        """The row's name, kind and seconds."""
        return RowSeconds(
            name=self.row.name,
            kind=self.row.kind,
            step_s=self.step_s,
            low_s=self.step.low,
            high_s=self.step.high,
            forward_s=self.forward.value,
            backward_s=self.backward.value,
            update_s=self.update.value,
        )


@dataclass(frozen=True)
class Timeline:
    """The times of one step. Passes, and `exposed_s` of its collectives, add up to the step.

    Attributes:
        rows: the times of each row.
        forward_s: the forward pass: the sum of its rows, or longer where the device waits for the
            host. So are the next two.
        backward_s: the backward pass.
        update_s: the update.
        host_s: seconds of the host to issue the step; None where unknown or left out.
        low_s: lower bound of the step; None where no price has a bound.
        high_s: upper bound, likewise.
        is_extrapolated: whether any price is.
        exchange_s: seconds of all collectives of its ops.
        exposed_s: exposed communication: seconds for which the step waits for collectives.
    """

    rows: tuple[RowTime, ...]
    forward_s: float
    backward_s: float
    update_s: float
    host_s: float | None
    low_s: float | None
    high_s: float | None
    is_extrapolated: bool
    exchange_s: float = 0.0
    exposed_s: float = 0.0

    @property
    def step_s(self) -> float:
        """Seconds of one step."""
        return self.forward_s + self.backward_s + self.update_s + self.exposed_s

    @property
    def host_slowdowns(self) -> list[float]:
        """The factors by which passes take longer than their rows, behind the host."""
        forward_s = sum(row.forward.value for row in self.rows)
        backward_s = sum(row.backward.value for row in self.rows)
        update_s = sum(row.update.value for row in self.rows)
        passes_s = (self.forward_s, self.backward_s, self.update_s)
        return _ratios(passes_s, (forward_s, backward_s, update_s))


def _ratios(values: Sequence[float], references: Sequence[float]) -> list[float]:
    """Return values over their references; 1 where a reference is 0."""
    pairs = zip(values, references, strict=True)
    return [value / reference if reference else 1.0 for value, reference in pairs]


def schedule(
    lowered: Lowered,
    prices: Prices,
    host: Host | None = None,
    pipelined: bool = False,
    overlap: bool = True,
    link_slowdown: float = 1.0,
) -> Timeline:
    """Return the timeline of kernels that run one after another, issued by a host ahead of them.

    Collectives run one after another over the link, each when all kernels before it are done;
    kernels go on meanwhile, and wait for the collectives whose results they read. The update waits
    for all, as PyTorch's optimizers do.

    Args:
        lowered: the kernels of the step.
        prices: prices of the distinct kernels of `lowered.columns`.
        host: the host that issues the kernels; None where it plays no part.
        pipelined: whether all arithmetic of a row's pass overlaps with its traffic: a lower bound.
        overlap: whether kernels go on beside collectives.
        link_slowdown: collectives take this factor longer at one end of their 80 % interval, and
            are this factor quicker at the other.
    """
    passes, row_cells = _price_cells(lowered, prices, pipelined)
    # Repeats of a kernel share one error, so that these are summed up first. In an ideal overlap
    # (`pipelined`) all errors are common, and passes can be summed up as they are.
    all_kernels = passes.total() if pipelined else sum_repeats(lowered.columns, prices).total()
    device_passes_s = passes.value.tolist()  # forward, backward, update
    bounded = bound_step(device_passes_s, all_kernels.shares, host)
    forward_s, backward_s, update_s = map(float, bounded.passes_s)
    low_s = None if bounded.low_s is None else float(bounded.low_s)
    high_s = None if bounded.high_s is None else float(bounded.high_s)
    communication = _Communication(StepEnds(low_s, high_s))
    # A kernel without a cell is a collective.
    if (lowered.cell_of_kernel == NO_CELL).any():
        passes_s = (forward_s, backward_s, update_s)
        seconds = prices.value[lowered.columns.distinct_of_kernel].tolist()
        queue = _Queue(lowered.kernels, seconds, _ratios(passes_s, device_passes_s), overlap)
        communication = _add_communication(
            queue, sum(passes_s), StepEnds(low_s, high_s), link_slowdown
        )
    host_end_s = None if host is None else host.issued_s[-1]  # when the last pass is issued
    return Timeline(
        rows=_time_rows(lowered, row_cells),
        forward_s=forward_s,
        backward_s=backward_s,
        update_s=update_s,
        host_s=host_end_s,
        low_s=communication.ends.low_s,
        high_s=communication.ends.high_s,
        is_extrapolated=all_kernels.is_extrapolated,
        exchange_s=communication.exchange_s,
        exposed_s=communication.exposed_s,
    )


def _price_cells(lowered: Lowered, prices: Prices, pipelined: bool) -> tuple[Prices, Prices]:
    """Return the prices of the three passes, and of the cells (`Lowered.cell_of_kernel`).

    The update of all weights is shared among the rows by their parameters.
    """
    cell_count = 3 * len(lowered.rows)  # of the rows: `3 * row + pass`
    update_cell = cell_count + 2  # the update of all weights: the last pass of one more row
    has_cell = lowered.cell_of_kernel != NO_CELL
    cells = lowered.cell_of_kernel[has_cell]
    kernel_prices = prices.take(lowered.columns.distinct_of_kernel[has_cell])
    all_cells = kernel_prices.sum_groups(cells, update_cell + 1)
    # An ideal overlap: its bound is the value itself, and its errors are all common.
    if pipelined:
        value = overlap_traffic(all_cells)
        all_cells = all_cells._replace(value=value, low=value, shared=np.ones_like(value))
    row_cells = all_cells.take(slice(cell_count))
    common_update = all_cells.take(slice(update_cell, None))
    has_common_update = bool((cells == update_cell).any())
    if has_common_update and lowered.parameters:
        _share_update(lowered, common_update, row_cells)
    pass_of_cell = np.arange(cell_count) % 3
    passes = row_cells.sum_groups(pass_of_cell, 3)
    if has_common_update:  # as priced: a sum of its shares takes their one error for several
        forward_and_backward = passes.take(slice(2))
        passes = Prices(*map(np.append, forward_and_backward, common_update))  # column by column
    return passes, row_cells


def _share_update(lowered: Lowered, common_update: Prices, row_cells: Prices) -> None:
    """Set the updates of the rows in `row_cells` to their shares of one update, by parameters."""
    parameters = np.array([row.parameters for row in lowered.rows])
    row_shares = parameters / lowered.parameters
    repeated_update = common_update.take(np.zeros(len(lowered.rows), dtype=np.intp))
    row_updates = repeated_update.times(row_shares)
    for column, row_column in zip(row_cells, row_updates, strict=True):
        column[2::3] = row_column  # the updates: the last pass of each row


class _Communication(NamedTuple):
    """The collectives of a step.

    Attributes:
        ends: bounds of the step with its collectives.
        exchange_s: seconds of all collectives.
        exposed_s: seconds for which the step waits for them.
    """

    ends: StepEnds
    exchange_s: float = 0.0
    exposed_s: float = 0.0


def _add_communication(
    queue: _Queue, passes_s: float, ends: StepEnds, link_slowdown: float
) -> _Communication:
    """Return the collectives of a step whose passes take `passes_s` without them."""

    def exposed_s(slowdown: float) -> float:
        return max(0.0, queue.end_s(slowdown) - passes_s)

    usual_s = exposed_s(1.0)
    # Links at both ends of what they reach, with the kernels as predicted.
    slow_s = passes_s + exposed_s(link_slowdown)
    quick_s = passes_s + exposed_s(1 / link_slowdown)
    ends = widen_by_links(passes_s + usual_s, ends.delay(usual_s), quick_s, slow_s)
    return _Communication(ends, queue.exchange_s, usual_s)


class _Queue(NamedTuple):
    """Kernels and collectives in their order.

    Attributes:
        kernels: the kernels and collectives.
        seconds: their seconds.
        slowdowns: factors by which kernels of each pass take longer behind the host.
        overlap: whether kernels go on beside collectives.
    """

    kernels: Sequence[Kernel]
    seconds: Sequence[float]
    slowdowns: Sequence[float]
    overlap: bool

    @property
    def exchange_s(self) -> float:
        """Seconds of all collectives."""
        pairs = zip(self.kernels, self.seconds, strict=True)
        return sum(seconds for kernel, seconds in pairs if kernel.exchange is not None)

    def end_s(self, link_slowdown: float) -> float:
        """Return the end of the last kernel if collectives take a factor longer."""
        seconds = [
            kernel_s * link_slowdown if kernel.exchange is not None else kernel_s
            for kernel, kernel_s in zip(self.kernels, self.seconds, strict=True)
        ]
        end_s = 0.0
        for kernel, start_s, kernel_s in place_kernels(
            self.kernels, seconds, self.slowdowns, self.overlap
        ):
            # The host delays kernels, not collectives.
            slowdown = 1.0 if kernel.exchange else self.slowdowns[PASS_INDEX[kernel.pass_]]
            end_s = max(end_s, start_s + kernel_s * slowdown)
        return end_s


def _time_rows(lowered: Lowered, row_cells: Prices) -> tuple[RowTime, ...]:
    """Return the times of each row in its three passes."""
    row_count = len(lowered.rows)
    cell_count = 3 * (row_count + 1)  # the update of all weights has one more row
    has_cell = lowered.cell_of_kernel != NO_CELL
    kernel_launches = np.array([kernel.launches for kernel in lowered.kernels], dtype=float)
    launch_sums = np.bincount(
        lowered.cell_of_kernel[has_cell], kernel_launches[has_cell], cell_count
    )
    launches = launch_sums.astype(int).reshape(-1, 3).tolist()
    row_of_cell = np.arange(3 * row_count) // 3
    steps = row_cells.sum_groups(row_of_cell, row_count).intervals()
    passes = row_cells.intervals()
    row_times = []
    for i, (row, step) in enumerate(zip(lowered.rows, steps, strict=True)):
        forward, backward, update = passes[3 * i : 3 * (i + 1)]
        row_times.append(RowTime(row, forward, backward, update, step, tuple(launches[i])))
    return tuple(row_times)


def sum_repeats(kernels: Kernels, prices: Prices) -> Prices:
    """Return the seconds of all kernels of a step but collectives, summed by common errors.

    Repeats of a kernel have a common error, and so have kernels that differ in new pages alone.
    """
    is_kernel = np.array([kernel.exchange is None for kernel in kernels.distinct])
    classes, class_count = kernels.error_classes
    repeated = prices.times(kernels.counts).take(is_kernel)
    return repeated.sum_correlated(classes[is_kernel], class_count)


class PlacedKernel(NamedTuple):
    """A kernel or collective on the timeline, with the seconds that it takes itself."""

    kernel: Kernel
    start_s: float
    seconds: float


def place_kernels(
    kernels: Sequence[Kernel],
    times: Sequence[float],
    slowdowns: Sequence[float],
    overlap: bool,
) -> Iterator[PlacedKernel]:
    """Yield each kernel or collective with its start.

    Args:
        kernels: kernels and collectives in their order.
        times: their seconds.
        slowdowns: factors by which kernels of each pass take longer behind the host.
        overlap: whether kernels go on beside collectives.
    """
    device_end_s = link_end_s = 0.0
    exchange_ends: dict[str, float] = {}
    is_updating = False
    for kernel, seconds in zip(kernels, times, strict=True):
        input_ends_s = [exchange_ends[name] for name in kernel.after if name in exchange_ends]
        start_s = max([device_end_s, *input_ends_s])
        # The link runs one collective at a time, beside the kernels if they overlap.
        if kernel.exchange is not None:
            start_s = max(link_end_s, start_s)
            link_end_s = start_s + seconds
            exchange_ends[kernel.exchange.name] = link_end_s
            if not overlap:
                device_end_s = link_end_s
        else:
            begins_update = kernel.pass_ == "update" and not is_updating
            if begins_update:  # it waits for all collectives
                start_s = max(start_s, link_end_s)
                is_updating = True
            device_end_s = start_s + seconds * slowdowns[PASS_INDEX[kernel.pass_]]
        yield PlacedKernel(kernel, start_s, seconds)


def total(times: Sequence[Interval]) -> Interval:
    """Return the sum of times, as `Prices.sum_groups` adds them."""
    return Prices.from_intervals(times).total()


def overlap_traffic(times: Any) -> Any:
    """Return the seconds of times of which all arithmetic overlaps with all traffic."""
    return np.maximum(times.compute_s, times.memory_s)
