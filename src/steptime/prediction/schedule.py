"""From the seconds of kernels to the time of a step: what overlaps, and who waits for whom."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any, NamedTuple

from steptime.core.graph import PLACE
from steptime.prediction.host import Host, finish
from steptime.prediction.kernel import NOTHING, Interval, Kernel, Larger
from steptime.prediction.lower import Lowered, Row


class RowTime(NamedTuple):
    """The times of one row; `launches` are numbers by pass."""

    row: Row
    forward: Interval
    backward: Interval
    update: Interval
    launches: tuple[int, int, int]

    @property
    def step_s(self) -> float:
        """Seconds of the row in a step."""
        return self.forward.value + self.backward.value + self.update.value

    @property
    def told(self) -> dict[str, Any]:
        """The row's name, kind and seconds by key; a bound of the step is None if not known."""
        whole = total((self.forward, self.backward, self.update))
        return {
            "name": self.row.name,
            "kind": self.row.kind,
            "step_s": self.step_s,
            "low_s": whole.low,
            "high_s": whole.high,
            "forward_s": self.forward.value,
            "backward_s": self.backward.value,
            "update_s": self.update.value,
        }


@dataclass(frozen=True)
class Timeline:
    """The times of one step. Parts, and `exposed_s` of its exchanges, add up to the step.

    The parts are those of the rows, or longer where the device waits for the host, which takes
    `host_s` to issue the step (None where that is unknown or left out). `low_s` and `high_s` bound
    the step, None where no price gives a bound; `extrapolates` if any price does. All exchanges of
    its ops take `exchange_s`, of which the step waits for `exposed_s`.
    """

    rows: tuple[RowTime, ...]
    forward_s: float
    backward_s: float
    update_s: float
    host_s: float | None
    low_s: float | None
    high_s: float | None
    extrapolates: bool
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
    times: Sequence[Interval],
    host: Host | None = None,
    pipelined: bool = False,
    overlap: bool = True,
) -> Timeline:
    """Return the timeline of kernels that run one after another, issued by a host ahead of them.

    `times` are those of the kernels of `lowered.distinct`, in their order.

    Exchanges run one after another over the link, each when all kernels before it are done; kernels
    go on meanwhile (unless `overlap` is off), and wait for the exchanges whose results they read.
    The update waits for all, as PyTorch's optimizers do.

    `host` says when the host has issued each pass, None where it plays no part. `pipelined`
    overlaps all arithmetic of a row's pass with all its traffic (Paleo's lower bound). The update
    of no row in particular is shared among the rows by their parameters.
    """
    shape = lowered.shape
    sums = [
        times[some[0]]
        if len(some) == 1 and not pipelined
        else _sum([times[i] for i in some], pipelined)
        for some in shape.sums
    ]
    whole = None if shape.update is None else sums[shape.update]
    rows = [
        RowTime(row, sums[forward], sums[backward], sums[update], launches)
        for row, ((forward, backward, update), launches) in zip(
            lowered.rows, shape.rows, strict=True
        )
    ]
    if whole is not None and lowered.parameters:
        every = lowered.parameters
        rows = [row._replace(update=whole.times(row.row.parameters / every)) for row in rows]
    parts = [total([sums[i] for i in often], often.values()) for often in shape.parts]
    if whole is not None:
        parts[2] = whole
    kernels = total(parts if pipelined else [_often(times, often) for often in shape.alike])
    passes, low, high = finish([part.value for part in parts], kernels.shares, host)
    exchange_s = exposed_s = 0.0
    if shape.exchanges:
        slower = [
            taken_s / part.value if part.value else 1.0
            for taken_s, part in zip(passes, parts, strict=True)
        ]
        end = 0.0
        values = [times[i].value for i in lowered.distinct[1]]
        for kernel, start, seconds in placed(lowered.kernels, values, slower, overlap):
            if kernel.exchange is not None:
                exchange_s += seconds
            slowed = 1.0 if kernel.exchange else slower[PLACE[kernel.pass_]]
            end = max(end, start + seconds * slowed)
        exposed_s = max(0.0, end - sum(passes))
    return Timeline(
        tuple(rows),
        *passes,
        None if host is None else host.issued_s[-1],
        None if low is None else low + exposed_s,
        None if high is None else high + exposed_s,
        kernels.extrapolates,
        exchange_s,
        exposed_s,
    )


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


def total(times: Iterable[Interval], often: Iterable[int] = repeat(1)) -> Interval:
    """Return the sum of times, each so `often`, which has a bound where all of them have one.

    What prices share adds up, and what is their own as squares: each time is of another kernel,
    which is off alike whenever it runs. Two kernels of 1 s, 0.5 s shared and 0.1 s own, are off by
    1 s shared and 0.14 s own.
    """
    value = compute = memory = below = above = low = high = 0.0
    extrapolates, no_low, no_high = False, False, False
    below2 = above2 = 0.0
    for (one, least, most, beyond, compute_s, memory_s, shared), count in zip(
        times, often, strict=False
    ):
        value += one * count
        compute += compute_s * count
        memory += memory_s * count
        extrapolates = extrapolates or beyond
        if least is None or most is None:
            no_low, no_high = no_low or least is None, no_high or most is None
            low += (least or 0.0) * count
            high += (most or 0.0) * count
            continue
        low += least * count
        high += most * count
        if shared < 1:
            down, up = (one - least) * count, (most - one) * count
            below += shared * down
            above += shared * up
            alone2 = 1 - shared * shared
            below2 += alone2 * down * down
            above2 += alone2 * up * up
        else:
            below += (one - least) * count
            above += (most - one) * count
    if not below2 + above2 or no_low or no_high:
        ends = None if no_low else low, None if no_high else high
        return Interval(value, *ends, extrapolates, compute, memory)
    down, up = (below * below + below2) ** 0.5, (above * above + above2) ** 0.5
    shared = above / up if up else 1.0
    return Interval(value, value - down, value + up, extrapolates, compute, memory, shared)


def overlapped(one: Interval, larger: Larger = max) -> float:
    """Return the seconds of times of which all arithmetic overlaps with all traffic."""
    return larger(one.compute_s, one.memory_s)


def _often(times: Sequence[Interval], often: Mapping[int, int]) -> Interval:
    """Return the seconds of one kernel so often, which is off alike each time."""
    found = [times[i].times(count) for i, count in often.items()]
    alike = total([one._replace(shared=1.0) for one in found])
    return alike._replace(shared=found[0].shared)


def _sum(times: Sequence[Interval], pipelined: bool) -> Interval:
    if not times:
        return NOTHING
    found = total(times)
    if not pipelined:
        return found
    value = overlapped(found)
    return found._replace(value=value, low=value)
