"""From the seconds of kernels to the time of a step: what overlaps, and who waits for whom."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from steptime.core.graph import PLACE
from steptime.prediction.collectives import StepEnds, with_links
from steptime.prediction.host import Host, finish
from steptime.prediction.kernel import Interval, Kernel
from steptime.prediction.kernels import Ints, Kernels, Prices
from steptime.prediction.lower import Lowered, Row


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
    def told(self) -> dict[str, Any]:
        """The row's name, kind and seconds by key; a bound of the step is None if not known."""
        return {
            "name": self.row.name,
            "kind": self.row.kind,
            "step_s": self.step_s,
            "low_s": self.step.low,
            "high_s": self.step.high,
            "forward_s": self.forward.value,
            "backward_s": self.backward.value,
            "update_s": self.update.value,
        }


@dataclass(frozen=True)
class Timeline:
    """The times of one step. Parts, and `exposed_s` of its exchanges, add up to the step.

    The parts are those of the rows, or longer where the device waits for the host, which takes
    `host_s` to issue the step (None where that is unknown or left out). `low_s` and `high_s` bound
    the step, None where no price gives a bound; `is_extrapolated` if any price is. All
    exchanges of its ops take `exchange_s`, of which the step waits for `exposed_s`.
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
    def slower(self) -> list[float]:
        """The factors by which passes take longer than their rows, behind the host."""
        passes = zip(*(row[1:4] for row in self.rows), strict=True)
        own = [sum(time.value for time in times) for times in passes] or [0.0] * 3
        taken = (self.forward_s, self.backward_s, self.update_s)
        return [whole / rows if rows else 1.0 for whole, rows in zip(taken, own, strict=True)]


def schedule(
    lowered: Lowered,
    prices: Prices,
    host: Host | None = None,
    pipelined: bool = False,
    overlap: bool = True,
    link_slowdown: float = 1.0,
) -> Timeline:
    """Return the timeline of kernels that run one after another, issued by a host ahead of them.

    `prices` are those of the kernels of `lowered.columns` that differ.

    Exchanges run one after another over the link, each when all kernels before it are done; kernels
    go on meanwhile (unless `overlap` is off), and wait for the exchanges whose results they read.
    The update waits for all, as PyTorch's optimizers do.

    `host` says when the host has issued each pass, None where it plays no part. `pipelined`
    overlaps all arithmetic of a row's pass with all its traffic: a lower bound. The update
    of no row in particular is shared among the rows by their parameters. Exchanges may take
    `link_slowdown` times as long, or 1 / `link_slowdown` of that (80 %).
    """
    count, known = len(lowered.rows), lowered.cells >= 0
    which, cells = lowered.columns.which[known], lowered.cells[known]
    times = prices.at(which).sums(cells, 3 * count + 3)
    if pipelined:
        value = overlapped(times)
        times = times._replace(value=value, low=value, shared=np.ones_like(value))
    whole = times.at(slice(3 * count + 2, None))
    has_whole = bool((cells == 3 * count + 2).any())
    times = times.at(slice(3 * count))
    if has_whole and lowered.parameters:
        of_rows = np.array([row.parameters for row in lowered.rows]) / lowered.parameters
        shared = whole.at(np.zeros(count, dtype=np.intp)).times(of_rows)
        for column, own in zip(times, shared, strict=True):
            column[2::3] = own
    parts = times.sums(np.arange(3 * count) % 3, 3)
    if has_whole:
        parts = Prices(*map(np.append, parts.at(slice(2)), whole))
    kernels = parts.total() if pipelined else together(lowered.columns, prices).total()
    taken, *ends = finish(parts.value.tolist(), kernels.shares, host)
    forward, backward, update = passes = [float(one) for one in taken]
    low, high = (None if end is None else float(end) for end in ends)
    exchange_s = exposed_s = 0.0
    ends_s = StepEnds(low, high)
    if not known.all():
        slower = [
            taken_s / part if part else 1.0
            for taken_s, part in zip(passes, parts.value.tolist(), strict=True)
        ]
        values = prices.value[lowered.columns.which].tolist()
        issued = _Issued(lowered.kernels, values, slower, overlap)
        exchange_s = issued.exchange_s
        exposed_s, slow_s, quick_s = (
            max(0.0, issued.end_s(times) - sum(passes))
            for times in (1.0, link_slowdown, 1 / link_slowdown)
        )
        ends_s = StepEnds(
            None if low is None else low + exposed_s, None if high is None else high + exposed_s
        )
        step_s = sum(passes)
        ends_s = with_links(step_s + exposed_s, ends_s, step_s + quick_s, step_s + slow_s)
    return Timeline(
        _rows(lowered, times, cells),
        forward,
        backward,
        update,
        None if host is None else host.issued_s[-1],
        ends_s.low_s,
        ends_s.high_s,
        kernels.is_extrapolated,
        exchange_s,
        exposed_s,
    )


class _Issued(NamedTuple):
    """Kernels and exchanges in their order, with their seconds.

    `slower` are the factors by which kernels of each pass take longer behind the host; `overlap`
    says whether kernels go on beside exchanges.
    """

    kernels: Sequence[Kernel]
    seconds: Sequence[float]
    slower: Sequence[float]
    overlap: bool

    @property
    def exchange_s(self) -> float:
        """Seconds of all exchanges."""
        pairs = zip(self.kernels, self.seconds, strict=True)
        return sum(seconds for kernel, seconds in pairs if kernel.exchange is not None)

    def end_s(self, times: float) -> float:
        """Return when all is done if exchanges take so many times as long."""
        seconds = [
            kernel_s * times if kernel.exchange is not None else kernel_s
            for kernel, kernel_s in zip(self.kernels, self.seconds, strict=True)
        ]
        end = 0.0
        for kernel, start, kernel_s in placed(self.kernels, seconds, self.slower, self.overlap):
            slowed = 1.0 if kernel.exchange else self.slower[PLACE[kernel.pass_]]
            end = max(end, start + kernel_s * slowed)
        return end


def _rows(lowered: Lowered, times: Prices, cells: Ints) -> tuple[RowTime, ...]:
    """Return the times of rows, of each its three passes."""
    count, known = len(lowered.rows), lowered.cells >= 0
    counts = np.array([one.launches for one in lowered.kernels], dtype=float)[known]
    launches = np.bincount(cells, counts, 3 * count + 3).astype(int).tolist()
    steps = times.sums(np.arange(3 * count) // 3, count).intervals()
    each = times.intervals()
    return tuple(
        RowTime(row, each[i], each[i + 1], each[i + 2], step, tuple(launches[i : i + 3]))
        for i, row, step in zip(range(0, 3 * count, 3), lowered.rows, steps, strict=True)
    )


def together(kernels: Kernels, prices: Prices) -> Prices:
    """Return the seconds of all kernels of a step but exchanges, one row for those off alike.

    Such are the same kernel whenever it runs, and those that differ in new pages alone.
    """
    own = np.array([one.exchange is None for one in kernels.distinct])
    which, count = kernels.alike
    return prices.times(kernels.often).at(own).alike(which[own], count)


def placed(
    kernels: Sequence[Kernel], times: Sequence[float], slower: Sequence[float], overlap: bool
) -> Iterator[tuple[Kernel, float, float]]:
    """Yield each kernel or exchange, when it starts, and its seconds [s].

    `slower` are the factors by which kernels of each pass take longer behind the host.
    """
    device = link = 0.0
    done: dict[str, float] = {}
    updates = False
    for kernel, seconds in zip(kernels, times, strict=True):
        awaited = max([device, *[done[name] for name in kernel.after if name in done]])
        if kernel.exchange is not None:
            start = max(link, awaited)
            link = done[kernel.exchange.name] = start + seconds
            device = device if overlap else link
        else:
            if kernel.pass_ == "update" and not updates:
                awaited, updates = max(awaited, link), True
            start = awaited
            device = start + seconds * slower[PLACE[kernel.pass_]]
        yield kernel, start, seconds


def total(times: Sequence[Interval]) -> Interval:
    """Return the sum of times, as `Prices.sums` has it."""
    return Prices.of(times).total()


def overlapped(one: Any) -> Any:
    """Return the seconds of times of which all arithmetic overlaps with all traffic."""
    return np.maximum(one.compute_s, one.memory_s)
