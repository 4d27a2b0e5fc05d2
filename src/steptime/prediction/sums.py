"""Prices of many kernels at many batches, on devices side by side, summed by pass: arrays."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, NamedTuple

from steptime.hardware.device import Device
from steptime.prediction.calibrated.power import dynamic_j
from steptime.prediction.host import Host
from steptime.prediction.kernel import Kernel
from steptime.prediction.schedule import overlapped
from steptime.prediction.step_model import StepModel

Numbers = tuple[float, ...]  # of a kernel: FLOP, bytes, sizes of products, bytes of tensors
Ends = tuple[tuple[Numbers, Numbers], ...]  # of kernels: at the least and at the largest batch
Key = tuple[object, ...]  # what kernels share that differ in numbers alone


@dataclass(frozen=True)
class Group:
    """Kernels of one pass that differ in numbers alone, and how often each of these comes.

    Several kernels where all arithmetic of a row overlaps with all its traffic.
    """

    kernels: tuple[Kernel, ...]
    times: dict[Ends, int]


Groups = Mapping[Key, Group]  # of a pass


class Prepared(NamedTuple):
    """Kernels that differ in numbers alone, with arrays of these, and to which sums they add.

    A row is a kernel, that comes `often`; those from each of `starts` on belong to one of `jobs`.
    """

    kernels: list[Kernel]
    often: Any
    starts: list[int]
    jobs: list[int]


def prepare(jobs: Sequence[Groups], share: Any) -> list[Prepared]:
    """Return the kernels of some passes with arrays of their numbers at each batch."""
    import numpy as np

    merged: dict[Key, list[int]] = {}
    for job, groups in enumerate(jobs):
        for key in groups:
            merged.setdefault(key, []).append(job)
    found = []
    for key, members in merged.items():
        same = [jobs[job][key] for job in members]
        rows = [ends for group in same for ends in group.times]
        starts = np.cumsum([0, *(len(group.times) for group in same[:-1])]).tolist()
        often = np.array([count for group in same for count in group.times.values()], dtype=float)
        kernels = [
            _at(kernel, np.array([row[place] for row in rows]), share)
            for place, kernel in enumerate(same[0].kernels)
        ]
        found.append(Prepared(kernels, often[:, None], starts, members))
    return found


def summed(prepared: Sequence[Prepared], jobs: int, alike: Sequence[StepModel]) -> Any:
    """Return the sums of each job: seconds; under constants also what bounds need.

    An array of (job, sum, device, batch). The sums are seconds, joules (`dynamic_j`), how far both
    bounds are from them for what all prices share, and the squares of that for what is each one's.
    """
    import numpy as np

    on = alike[0]
    bounded = bool(on.seen.constants)
    update = [one.seen_in_update for one in alike]
    at = [one.seen for one in alike]
    usual, last = (some[0] if len(some) == 1 else beside(some) for some in (at, update))
    flop: Any = prepared[0].kernels[0].flop
    size = jobs, 6 if bounded else 1, len(alike), flop.shape[-1]
    sums = np.zeros(size)
    for kernels, often, starts, places in prepared:
        device = last if kernels[0].pass_ == "update" else usual
        found = [on.method.price(kernel, device, np.maximum) for kernel in kernels]
        value: Any = sum(one.value for one in found)
        if on.settings.pipelined:
            whole = found[0]._replace(
                compute_s=sum(one.compute_s for one in found),
                memory_s=sum(one.memory_s for one in found),
            )
            value = overlapped(whole, np.maximum)
        block = np.zeros((size[1], *value.shape))
        block[0] = often * value
        if bounded:
            one: Any = found[0]
            for kernel in kernels if "power.flop_j" in usual.constants else ():
                block[1] = often * dynamic_j(kernel, kernel.flop, device, usual.constants)
            block[2], block[3] = often * (value - one.low), often * (one.high - value)
            block[4:] = (1 - one.shared**2) * block[2:4] ** 2
            block[2:4] *= one.shared
        parts = np.add.reduceat(block, starts, axis=-2)  # (sum, [device,] job, batch)
        if parts.ndim == 3:
            parts = parts[:, None]
        sums[places] += parts.transpose(2, 0, 1, 3)
    return sums


def shares_of(sums: Any) -> list[Any]:
    """Return between which shares of their seconds the kernels of a step lie, as `total` has it."""
    import numpy as np

    value, _, *away = np.sum(sums, axis=0)
    return [
        1 + sign * np.sqrt(away[end] ** 2 + away[end + 2]) / value
        for end, sign in enumerate((-1, 1))
    ]


def _at(kernel: Kernel, ends: Any, share: Any) -> Kernel:
    """Return a kernel with arrays of its numbers, each between its values at both ends.

    `ends` are of (kernel, end, number); an array has a row a kernel and a column a batch.
    """
    first, last = ends.transpose(1, 2, 0)[..., None]
    return with_numbers(kernel, first + (last - first) * share)


def numbers_of(kernel: Kernel) -> Numbers:
    """Return the numbers in which kernels differ that are priced side by side."""
    sizes = [size for product in kernel.products for size in product]
    return (kernel.flop, kernel.bytes, *sizes, *kernel.tensors)


def with_numbers(kernel: Kernel, numbers: Any) -> Kernel:
    """Return a kernel with other numbers, or arrays of them, in the order of `numbers_of`."""
    flop, moved, *rest = numbers
    sizes = 4 * len(kernel.products)
    products: Any = tuple(zip(*[iter(rest[:sizes])] * 4, strict=True))
    return kernel._replace(flop=flop, bytes=moved, products=products, tensors=tuple(rest[sizes:]))


def alike_of(models: Sequence[StepModel]) -> Iterator[list[StepModel]]:
    """Yield the models side by side as far as the same figures of their devices are known.

    Devices with constants of their own are priced one at a time.
    """

    def known(on: StepModel) -> tuple[object, ...]:
        alone = id(on) if on.seen.constants else None
        peaks = frozenset(on.seen.peak_flop_per_s)
        return alone, peaks, on.issue_s is None, on.seen.launch_s is None, on.seen.clock_hz is None

    for _, alike in groupby(models, known):
        yield list(alike)


def beside(devices: Sequence[Device]) -> Device:
    """Return devices as one whose figures, as far as prices ask for them, are arrays."""

    def figures(values: Iterable[float | None]) -> Any:
        return _column([[[value]] for value in values])

    first, names = devices[0], ("memory_bytes_per_s", "launch_s", "clock_hz")
    peaks = {n: figures(one.peak_flop_per_s[n] for one in devices) for n in first.peak_flop_per_s}
    others = {name: figures(getattr(one, name) for one in devices) for name in names}
    return replace(first, peak_flop_per_s=peaks, **others)


def hosts_beside(hosts: Sequence[Host | None]) -> Host | None:
    """Return hosts as one whose times are arrays, a row a device; None where they are not known."""
    known = [one for one in hosts if one is not None]
    if len(known) < 2:
        return known[0] if known else None
    passes = zip(*[one.issued_s for one in known], strict=True)
    issued: Any = tuple(_column([[seconds] for seconds in some]) for some in passes)
    return Host(issued, _column([[one.base_s] for one in known]), known[0].waits)


def _column(values: Sequence[Any]) -> Any:
    import numpy as np

    found = np.array(values)
    return None if found.flat[0] is None else found
