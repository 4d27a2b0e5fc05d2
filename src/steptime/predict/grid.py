"""Grids: predictions over models, devices, batches and numbers of replicas, cell by cell.

FLOP and bytes of every kernel are lines in the batch, or bend one way only. So three batches, the
least, the largest and one between, tell: if they lie on a line for every kernel, all do, and what
the network runs at any batch between is known without building it. A network for which they do not
is built for each batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from inspect import signature
from itertools import groupby
from typing import Any, NamedTuple

from steptime.catalog import device_hash
from steptime.core.errors import InputError
from steptime.core.graph import Graph
from steptime.core.hardware import Device, Link
from steptime.core.workload import Workload
from steptime.count import live_bytes, peak_memory_bytes
from steptime.predict.host import Host, behind_host
from steptime.predict.kernel import Kernel
from steptime.predict.lower import PASSES, Lowered
from steptime.predict.schedule import overlapped
from steptime.predict.step_model import StepModel, fits_into

FEW = 3  # batches that are built as they are
KEPT = 64  # batches whose kernels are kept from device to device
CHUNK = 1 << 20  # numbers of an array at once


class Cell(NamedTuple):
    """One prediction of a grid. `batch` is a replica's; `step_s` holds the exchange, `comm_s`.

    Where a device has no peak for the dtype, `status` is `unsupported`, `note` says why, and there
    are no times.
    """

    model: str
    device: str
    batch: int
    workers: int
    step_s: float | None
    forward_s: float | None
    backward_s: float | None
    update_s: float | None
    comm_s: float | None
    samples_per_s: float | None
    peak_memory_bytes: int
    status: str
    note: str = ""


Maker = Callable[[int | None], Workload]
Times = tuple[Sequence[float], Sequence[float], Sequence[float]]  # of each pass, batch by batch


def grid(
    models: Sequence[Maker],
    devices: Sequence[Device],
    batches: Sequence[int] | None,
    workers: Sequence[int],
    link: Link | None,
    method: str,
    options: Mapping[str, str],
) -> Iterator[Cell]:
    """Yield every cell, replicas changing fastest, then batches, devices and models.

    A maker returns a model's workload at a batch, at its own for None, which is taken where no
    `batches` are given. Every replica keeps the batch (weak scaling); gradients are exchanged by
    the method's usual collective. Raises `InputError` as a single prediction does, but for a
    device without a peak for the dtype, unless no device has one.
    """
    for make in models:
        first = make(batches[0] if batches else None)
        model = StepModel(first, devices[0], link, method, options)
        steps = Steps(model, batches or (first.batch_per_replica,))
        refused = 0
        for device in devices:
            on = model.on(device)
            try:
                times, why = steps.times(on), ""
            except InputError as error:
                refused, times, why = refused + 1, None, str(error)
                if refused == len(devices):
                    raise
            yield from _cells(on, steps, times, why, workers)


def _cells(
    on: StepModel, steps: Steps, times: Times | None, why: str, workers: Sequence[int]
) -> Iterator[Cell]:
    """Yield the cells of a model on a device, without times where these are not known."""
    label, name, device = on.workload.label, on.device.name, on.device
    if times is None:
        for batch, needed in zip(steps.batches, steps.peak_memory_bytes, strict=True):
            for count in workers:
                yield Cell(
                    label, name, batch, count, None, None, None, None, None, None, needed,
                    "unsupported", why,
                )  # fmt: skip
        return
    comm_s = [(count, on.estimate_comm(count) if count > 1 else 0.0) for count in workers]
    memory = steps.peak_memory_bytes
    for batch, forward, backward, update, needed in zip(steps.batches, *times, memory, strict=True):
        alone = forward + backward + update
        status = "ok" if fits_into(needed, device) else "oom"
        for count, comm in comm_s:
            step = alone + comm
            speed = count * batch / step if step else None
            yield Cell(
                label, name, batch, count, step, forward, backward, update, comm, speed, needed,
                status,
            )  # fmt: skip


class Steps:
    """A network's step at many batches: its memory, and its times on any device.

    `batches` are those asked for, `peak_memory_bytes` what lives at the worst moment at each.
    `like` are the steps of the same network under another optimizer: what an optimizer changes does
    not depend on the batch, so that one batch more tells it.
    """

    def __init__(self, model: StepModel, batches: Sequence[int], like: Steps | None = None) -> None:
        self.batches = batches
        wanted = sorted(set(batches))
        on_arrays = "larger" in signature(model.method.price).parameters
        self.lines: _Lines | None = (
            like.lines.with_update_of(model) if like and like.lines else None
        )
        if self.lines is None and on_arrays and len(wanted) > FEW:
            self.lines = _lines(model, wanted)
        self.peak_memory_bytes = self._memory(model)

    @property
    def from_three(self) -> bool:
        """Whether three batches told all."""
        return self.lines is not None

    def _memory(self, model: StepModel) -> list[int]:
        if self.lines is None:
            found = []
            for batch in self.batches:
                found.append(peak_memory_bytes(model.graph(batch), model.stack))
                if len(self.batches) <= KEPT:  # while its graph is at hand
                    model.lowered(batch)
            return found
        return self.lines.highest(self.lines.memory, self.batches)

    def times(self, on: StepModel) -> Times:
        """Return the times of each pass at each batch; raises `InputError` as a prediction does."""
        return self.times_on([on])[0]

    def times_on(self, models: Sequence[StepModel]) -> list[Times]:
        """Return `times` on several devices, by columns of their figures where lines tell all.

        New pages of a CPU lie on no line: under constants of its own its batches are priced singly.
        """
        singly = any(on.device.is_own_host and on.seen.constants for on in models)
        if self.lines is not None and not singly:
            return self.lines.times(models, self.batches)
        return [
            ([one.forward_s for one in found], [one.backward_s for one in found],
             [one.update_s for one in found])
            for found in ([on.timeline(batch) for batch in self.batches] for on in models)
        ]  # fmt: skip


Numbers = tuple[float, ...]  # of a kernel: FLOP, bytes, sizes of products, bytes of tensors
Ends = tuple[tuple[Numbers, Numbers], ...]  # of kernels: at the least and at the largest batch


@dataclass(frozen=True)
class _Group:
    """Kernels of one pass that differ in numbers alone, and how often each of these comes.

    Several kernels where all arithmetic of a row overlaps with all its traffic.
    """

    kernels: tuple[Kernel, ...]
    times: dict[Ends, int]


@dataclass(frozen=True)
class _Lines:
    """What a step runs at any batch from `low` to `high`: values at both ends of lines.

    What the host has to issue is the same at all of them, `issued`. The seconds of a pass on a
    device are `known` to the steps of all optimizers.
    """

    low: int
    high: int
    groups: Mapping[str, Sequence[_Group]]
    issued: Lowered
    memory: Sequence[tuple[float, float]]
    known: dict[tuple[object, ...], Any] = field(default_factory=dict)

    def times(self, models: Sequence[StepModel], batches: Sequence[int]) -> list[Times]:
        """Return the times of each pass on each device, at each batch."""
        import numpy as np

        most = max(len(group.times) for some in self.groups.values() for group in some)
        step = max(1, CHUNK // most)
        found: list[Times] = []
        for alike in _alike(models):
            host = _hosts([on.host(self.issued) for on in alike])
            pieces = []
            for i in range(0, len(batches), step):
                piece = batches[i : i + step]
                parts = [self._seconds(name, alike, piece) for name in PASSES]
                shown: Any = behind_host(parts, host, np.maximum)
                size = len(alike), len(piece)
                pieces.append(np.stack([np.broadcast_to(part, size) for part in shown], axis=1))
            found += [tuple(one) for one in np.concatenate(pieces, axis=2).tolist()]
        return found

    def _seconds(self, name: str, alike: Sequence[StepModel], batches: Sequence[int]) -> Any:
        """Return the seconds of a pass: a row a device, a column a batch."""
        on = alike[0]
        if not on.seen.constants or name == "update":
            return self._priced(name, alike, batches)
        key = name, on.workload.dtype, device_hash(on.device, on.method.reads), *batches
        if key not in self.known:
            self.known[key] = self._priced(name, alike, batches)
        return self.known[key]

    def _priced(self, name: str, alike: Sequence[StepModel], batches: Sequence[int]) -> Any:
        import numpy as np

        on, share = alike[0], self._share(batches)
        at = [one.seen_in_update if name == "update" else one.seen for one in alike]
        device = at[0] if len(at) == 1 else _beside(at)
        seconds: Any = 0.0
        for group in self.groups[name]:
            ends = zip(group.kernels, zip(*group.times, strict=True), strict=True)
            found = [
                on.method.price(_at(kernel, np.array(numbers), share), device, np.maximum)
                for kernel, numbers in ends
            ]
            value: Any = sum(one.value for one in found)
            if on.settings.pipelined:
                whole = found[0]._replace(
                    compute_s=sum(one.compute_s for one in found),
                    memory_s=sum(one.memory_s for one in found),
                )
                value = overlapped(whole, np.maximum)
            often = np.array(list(group.times.values()))[:, None]
            seconds = seconds + (often * value).sum(axis=-2)
        return seconds

    def with_update_of(self, model: StepModel) -> _Lines | None:
        """Return the lines of the network under another optimizer, None if its ops are others."""
        lives = live_bytes(model.graph(self.low), model.stack)
        kernels = model.lowered(self.low).kernels
        if len(lives) != len(self.memory) or model.settings.pipelined:
            return None
        update = [kernel for kernel in kernels if kernel.pass_ == "update"]
        groups: dict[Any, _Group] = {}
        for kernel in update:
            ends = _numbers(kernel)
            _join(groups, (kernel,), ((ends, ends),))
        others = tuple(one for one in self.issued.kernels if one.pass_ != "update")
        return replace(
            self,
            groups={**self.groups, "update": tuple(groups.values())},
            issued=Lowered((), (*others, *update)),
            memory=[
                (float(live), last + live - first)
                for live, (first, last) in zip(lives, self.memory, strict=True)
            ],
        )

    def highest(self, lines: Sequence[tuple[float, float]], batches: Sequence[int]) -> list[int]:
        """Return the highest of lines at each batch."""
        import numpy as np

        ends = np.unique(np.array(lines), axis=0)
        share = self._share(batches)
        step = max(1, CHUNK // len(ends))
        found: list[int] = []
        for i in range(0, len(batches), step):
            piece = share[i : i + step]
            values = ends[:, :1] + (ends[:, 1:] - ends[:, :1]) * piece
            found += np.rint(values.max(axis=0)).astype(np.int64).tolist()
        return found

    def _share(self, batches: Sequence[int]) -> Any:
        """Return where each batch lies between the least, 0, and the largest, 1."""
        import numpy as np

        return (np.array(batches, dtype=float) - self.low) / (self.high - self.low)


def _at(kernel: Kernel, ends: Any, share: Any) -> Kernel:
    """Return a kernel with arrays of its numbers, each between its values at both ends.

    `ends` are of (kernel, end, number); an array has a row a kernel and a column a batch.
    """
    first, last = ends.transpose(1, 2, 0)[..., None]
    flop, moved, *rest = first + (last - first) * share
    sizes = 4 * len(kernel.products)
    products: Any = tuple(zip(*[iter(rest[:sizes])] * 4, strict=True))
    return kernel._replace(flop=flop, bytes=moved, products=products, tensors=tuple(rest[sizes:]))


def _alike(models: Sequence[StepModel]) -> Iterator[list[StepModel]]:
    """Yield the models side by side as far as the same figures of their devices are known.

    Devices with constants of their own are priced one at a time.
    """

    def known(on: StepModel) -> tuple[object, ...]:
        alone = id(on) if on.seen.constants else None
        peaks = frozenset(on.seen.peak_flop_per_s)
        return alone, peaks, on.issue_s is None, on.seen.launch_s is None, on.seen.clock_hz is None

    for _, alike in groupby(models, known):
        yield list(alike)


def _beside(devices: Sequence[Device]) -> Device:
    """Return devices as one whose figures, as far as prices ask for them, are arrays."""

    def figures(values: Iterable[float | None]) -> Any:
        return _column([[[value]] for value in values])

    return replace(
        devices[0],
        peak_flop_per_s={
            name: figures(one.peak_flop_per_s[name] for one in devices)
            for name in devices[0].peak_flop_per_s
        },
        memory_bytes_per_s=figures(one.memory_bytes_per_s for one in devices),
        launch_s=figures(one.launch_s for one in devices),
        clock_hz=figures(one.clock_hz for one in devices),
    )


def _hosts(hosts: Sequence[Host | None]) -> Host | None:
    """Return hosts as one whose times are arrays, a row a device; None where they are not known."""
    known = [one for one in hosts if one is not None]
    if not known:
        return None
    issued: Any = tuple(
        _column([[seconds] for seconds in passes])
        for passes in zip(*[one.issued_s for one in known], strict=True)
    )
    base: Any = _column([[one.base_s] for one in known])
    return Host(issued, base, known[0].waits)


def _column(values: Sequence[Any]) -> Any:
    """Return an array of numbers, None where they are not known."""
    import numpy as np

    found = np.array(values)
    return None if found.flat[0] is None else found


def _lines(model: StepModel, wanted: Sequence[int]) -> _Lines | None:
    """Return what a step runs at any of `wanted` batches, None if it does not lie on lines."""
    points = (wanted[0], wanted[len(wanted) // 2], wanted[-1])
    graphs: list[Graph] = []
    steps: list[Lowered] = []
    for batch in points:
        graphs.append(model.graph(batch))
        steps.append(model.lowered(batch))
    memory = [tuple(map(float, live_bytes(graph, model.stack))) for graph in graphs]
    numbers = [[_numbers(kernel) for kernel in step.kernels] for step in steps]
    if not _straight(points, memory) or len({len(one) for one in numbers}) > 1:
        return None
    if not all(_straight(points, same) for same in zip(*numbers, strict=True)):
        return None
    groups: dict[str, dict[Any, _Group]] = {name: {} for name in PASSES}
    for row in _rows(steps[0], model.settings.pipelined):
        kernels = tuple(steps[0].kernels[i] for i in row)
        ends = tuple((numbers[0][i], numbers[2][i]) for i in row)
        _join(groups[kernels[0].pass_], kernels, ends)
    return _Lines(
        points[0],
        points[2],
        {name: tuple(found.values()) for name, found in groups.items()},
        steps[0],
        list(zip(memory[0], memory[2], strict=True)),
    )


def _join(groups: dict[Any, _Group], kernels: tuple[Kernel, ...], ends: Ends) -> None:
    """Count kernels in the group of those that differ from them in numbers alone."""
    alike = tuple(
        (
            k.kind,
            k.dtype,
            k.unit,
            len(k.products),
            len(k.tensors),
            k.serial,
            k.launches,
            k.window,
            k.row,
        )
        for k in kernels
    )
    times = groups.setdefault(alike, _Group(kernels, {})).times
    times[ends] = times.get(ends, 0) + 1


def _rows(step: Lowered, whole: bool) -> list[list[int]]:
    """Return which kernels belong together: those of a row's pass if they overlap, else each."""
    if not whole:
        return [[i] for i in range(len(step.kernels))]
    found: dict[tuple[str, str], list[int]] = {}
    for i, kernel in enumerate(step.kernels):
        found.setdefault((kernel.op, kernel.pass_), []).append(i)
    return list(found.values())


def _numbers(kernel: Kernel) -> Numbers:
    sizes = [size for product in kernel.products for size in product]
    return (kernel.flop, kernel.bytes, *sizes, *kernel.tensors)


def _straight(points: tuple[int, int, int], values: Sequence[Numbers]) -> bool:
    """Whether each number lies on a line through its values at the three points."""
    low, between, high = points
    share = (between - low) / (high - low)
    return len({len(row) for row in values}) == 1 and all(
        abs(first + (last - first) * share - middle) <= 1e-12 * abs(middle)
        for first, middle, last in zip(*values, strict=True)
    )
