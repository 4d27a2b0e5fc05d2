"""What a network runs at any batch, as lines; their prices at many batches, devices, networks.

FLOP and bytes of every kernel are lines in the batch, or bend one way only. So three batches, the
least, the largest and one between, tell: if they lie on a line for every kernel, all do, and what
the network runs at any batch between is known without building it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from steptime.core.graph import PASSES
from steptime.core.progress import tell
from steptime.hardware.device import Device
from steptime.network.count import live_bytes
from steptime.prediction.host import finish
from steptime.prediction.kernel import Kernel
from steptime.prediction.lower import Lowered
from steptime.prediction.memory import blocks_bytes
from steptime.prediction.step_model import StepModel
from steptime.prediction.sums import (
    Ends,
    Group,
    Groups,
    Key,
    Numbers,
    Prepared,
    alike_of,
    hosts_beside,
    numbers_of,
    prepare,
    shares_of,
    summed,
)

CHUNK = 1 << 20  # numbers of an array at once


class Span(NamedTuple):
    """The seconds of each of a step's passes, between which the step lies, and its kernels' joules.

    Batch by batch; None for what the method does not say. Joules are those beyond what a device
    draws that waits (`calibrated/power.py`), 0 where that is not known.
    """

    times: Sequence[Sequence[float]]
    low_s: Sequence[float] | None = None
    high_s: Sequence[float] | None = None
    dynamic_j: Sequence[float] | None = None


@dataclass(frozen=True)
class Lines:
    """What a step runs at any batch from `low` to `high`: values at both ends of lines.

    What the host has to issue is the same at all of them, `issued`. Sums of passes that
    `price_together` made are `known`, to the steps of all optimizers. `blocks` are the bytes that
    an allocator takes beyond tensors, at both ends.
    """

    low: int
    high: int
    groups: Mapping[str, Groups]
    issued: Lowered
    memory: Sequence[tuple[float, float]]
    blocks: tuple[float, float]
    known: dict[Key, tuple[Device, Any]] = field(default_factory=dict)

    def spans(self, models: Sequence[StepModel], batches: Sequence[int]) -> list[Span]:
        """Return the times of each pass on each device, at each batch."""
        import numpy as np

        most = max(
            sum(len(group.times) for group in groups.values()) for groups in self.groups.values()
        )
        step = max(1, CHUNK // most)
        pieces = []
        for i in range(0, len(batches), step):
            pieces.append(list(self._piece(models, batches[i : i + step])))
            if step < len(batches):  # of one piece somebody else says how far it is
                tell("batches", i, len(batches))
        joined = (np.concatenate(same, axis=1).tolist() for same in zip(*pieces, strict=True))
        return [Span(whole[:3], *whole[3:]) for whole in joined]

    def _piece(self, models: Sequence[StepModel], batches: Sequence[int]) -> Iterator[Any]:
        """Yield rows of numbers for each device: three passes, then the ends and joules."""
        import numpy as np

        prepared: list[Prepared] | None = None
        for alike in alike_of(models):
            host = hosts_beside([on.host(self.issued) for on in alike])
            keys = [self.key(name, alike[0], alike[0].device, batches) for name in PASSES]
            if all(key in self.known for key in keys):
                sums = [self.known[key][1] for key in keys]
            else:
                if prepared is None:
                    prepared = prepare(list(self.groups.values()), self.share(batches))
                sums = summed(prepared, len(PASSES), alike)
            bounded = bool(alike[0].seen.constants)
            shares = shares_of(sums) if bounded else alike[0].price(self.issued.kernels[0]).shares
            shown, *ends = finish([one[0] for one in sums], shares, host, np.maximum)
            rows = [*shown, *(end for end in ends if end is not None)]
            rows += [sum(one[1] for one in sums)] if bounded else []
            size = len(alike), len(batches)
            yield from np.stack([np.broadcast_to(one, size) for one in rows], axis=1)

    def key(self, name: str, on: StepModel, device: Device, batches: Sequence[int]) -> Key:
        """Return under which name the sums of a pass are known."""
        trained = on.workload.optimizer if name == "update" else ""
        return name, trained, on.method.name, on.settings, id(device), *batches

    def with_update_of(self, model: StepModel) -> Lines | None:
        """Return the lines of the network under another optimizer, None if its ops are others."""
        graph = model.graph(self.low)
        lives = live_bytes(graph, model.stack)
        low, high = self.blocks
        first = blocks_bytes(graph, model.stack, max(lives))
        kernels = model.lowered(self.low).kernels
        if len(lives) != len(self.memory) or model.settings.pipelined:
            return None
        update = [kernel for kernel in kernels if kernel.pass_ == "update"]
        groups: dict[Key, Group] = {}
        for kernel in update:
            ends = numbers_of(kernel)
            _join(groups, (kernel,), ((ends, ends),))
        others = tuple(one for one in self.issued.kernels if one.pass_ != "update")
        return replace(
            self,
            groups={**self.groups, "update": groups},
            issued=Lowered((), (*others, *update)),
            blocks=(first, high + first - low),
            memory=[
                (float(live), last + live - first)
                for live, (first, last) in zip(lives, self.memory, strict=True)
            ],
        )

    def highest(self, lines: Sequence[tuple[float, float]], batches: Sequence[int]) -> list[int]:
        """Return the highest of lines at each batch."""
        import numpy as np

        ends, share = np.unique(np.array(lines), axis=0), self.share(batches)
        found: list[int] = []
        for piece in np.array_split(share, -(-len(batches) * len(ends) // CHUNK)):
            values = ends[:, :1] + (ends[:, 1:] - ends[:, :1]) * piece
            found += np.rint(values.max(axis=0)).astype(np.int64).tolist()
        return found

    def share(self, batches: Sequence[int]) -> Any:
        """Return where each batch lies between the least, 0, and the largest, 1."""
        import numpy as np

        return (np.array(batches, dtype=float) - self.low) / (self.high - self.low)


def lines_of(model: StepModel, wanted: Sequence[int]) -> Lines | None:
    """Return what a step runs at any of `wanted` batches, None if it does not lie on lines."""
    points = (wanted[0], wanted[len(wanted) // 2], wanted[-1])

    def at(batch: int) -> tuple[Lowered, Numbers, float]:
        graph, living = model.graph(batch), live_bytes(model.graph(batch), model.stack)
        blocks = blocks_bytes(graph, model.stack, max(living))
        return model.lowered(batch), tuple(map(float, living)), blocks

    steps, memory, blocks = zip(*map(at, points), strict=True)
    numbers = [[numbers_of(kernel) for kernel in step.kernels] for step in steps]
    if not _straight(points, memory) or len({len(one) for one in numbers}) > 1:
        return None
    if not all(_straight(points, same) for same in {*zip(*numbers, strict=True)}):
        return None
    groups: dict[str, dict[Key, Group]] = {name: {} for name in PASSES}
    for row in _rows(steps[0], model.settings.pipelined):
        kernels = tuple(steps[0].kernels[i] for i in row)
        ends = tuple((numbers[0][i], numbers[2][i]) for i in row)
        _join(groups[kernels[0].pass_], kernels, ends)
    lives = list(zip(memory[0], memory[2], strict=True))
    return Lines(points[0], points[2], groups, steps[0], lives, (blocks[0], blocks[2]))


def price_together(
    many: Sequence[tuple[StepModel, Lines]], devices: Iterable[Device], batches: Sequence[int]
) -> None:
    """Price the passes of many networks on devices, to be known when these are asked for.

    Kernels of all networks that differ in numbers alone are priced as one array. The networks are
    of one method and dtype, and have the same ends; arithmetic and traffic of a row do not overlap.
    """
    first, lines = many[0]
    jobs = {}
    for model, one in many:
        for name in PASSES:
            jobs[id(one.known), *one.key(name, model, model.device, ())[:2]] = model, one, name
    groups = [one.groups[name] for _, one, name in jobs.values()]
    prepared = prepare(groups, lines.share(batches))
    for device in devices:
        on = first.on(device)
        sums = summed(prepared, len(jobs), [on])
        for (model, one, name), found in zip(jobs.values(), sums, strict=True):
            one.known[one.key(name, model, device, batches)] = device, found


def _join(groups: dict[Key, Group], kernels: tuple[Kernel, ...], ends: Ends) -> None:
    """Count kernels in the group of those that differ from them in numbers alone."""
    alike = tuple(
        (
            *(k.kind, k.pass_, k.dtype, k.unit, len(k.products), len(k.tensors), k.serial),
            *(k.launches, k.window, k.row, k.channels_last, k.tf32),
        )
        for k in kernels
    )
    times = groups.setdefault(alike, Group(kernels, {})).times
    times[ends] = times.get(ends, 0) + 1


def _rows(step: Lowered, whole: bool) -> list[list[int]]:
    """Return which kernels belong together: those of a row's pass if they overlap, else each."""
    found: dict[object, list[int]] = {}
    for i, kernel in enumerate(step.kernels):
        found.setdefault((kernel.op, kernel.pass_) if whole else i, []).append(i)
    return list(found.values())


def _straight(points: tuple[int, int, int], values: Sequence[Numbers]) -> bool:
    """Whether each number lies on a line through its values at the three points."""
    low, between, high = points
    share = (between - low) / (high - low)
    return len({len(row) for row in values}) == 1 and all(
        abs(first + (last - first) * share - middle) <= 1e-12 * abs(middle)
        for first, middle, last in zip(*values, strict=True)
    )
