"""What networks run at any batch, as lines; their times at many batches, on many devices.

FLOP and bytes of every kernel are lines in the batch, or bend one way only. So three batches, the
least, the largest and one between, tell: if they lie on a line for every kernel, all do, and what
the network runs at any batch between is known without building it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from steptime.core.graph import PLACE
from steptime.core.progress import tell
from steptime.prediction.calibrated.power import spent_j
from steptime.prediction.host import finish
from steptime.prediction.kernels import Floats, Kernels, Numbers, numbers_of, sums_of
from steptime.prediction.lower import Lowered
from steptime.prediction.step_model import StepModel

CHUNK = 1 << 17  # numbers of a column at once


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
    """What a step runs at any batch from `low` to `high`: `first` and `last` at both ends.

    `memory` are bytes that live, and `blocks` those that an allocator takes beyond, at both ends.
    """

    low: int
    high: int
    first: Lowered
    last: Lowered
    memory: Sequence[tuple[float, float]]
    blocks: tuple[float, float]

    def with_update_of(self, model: StepModel) -> Lines | None:
        """Return the lines of the network under another optimizer, None if its ops are others."""
        lives = model.living(self.low)
        low, high = self.blocks
        first = model.blocks(max(lives), self.low)
        if len(lives) != len(self.memory) or model.settings.pipelined:
            return None
        kernels = _without_pages(model.lowered(self.low)).kernels
        update = tuple(one for one in kernels if one.pass_ == "update")
        begin, end = (
            Lowered((), (*(one for one in step.kernels if one.pass_ != "update"), *update))
            for step in (self.first, self.last)
        )
        memory = [
            (float(live), last + live - first)
            for live, (first, last) in zip(lives, self.memory, strict=True)
        ]
        return Lines(self.low, self.high, begin, end, memory, (first, high + first - low))

    def highest(self, lines: Sequence[tuple[float, float]], batches: Sequence[int]) -> list[int]:
        """Return the highest of lines at each batch."""
        ends, share = np.unique(np.array(lines), axis=0), self.share(batches)
        found: list[int] = []
        for piece in np.array_split(share, -(-len(batches) * len(ends) // CHUNK)):
            values = ends[:, :1] + (ends[:, 1:] - ends[:, :1]) * piece
            found += np.rint(values.max(axis=0)).astype(np.int64).tolist()
        return found

    def share(self, batches: Sequence[int]) -> Floats:
        """Return where each batch lies between the least, 0, and the largest, 1."""
        return (np.array(batches, dtype=float) - self.low) / (self.high - self.low)


def lines_of(model: StepModel, wanted: Sequence[int]) -> Lines | None:
    """Return what a step runs at any of `wanted` batches, None if it does not lie on lines.

    New pages of a CPU do not, and are left out: its batches are priced singly.
    """
    points = (wanted[0], wanted[len(wanted) // 2], wanted[-1])

    def at(batch: int) -> tuple[Lowered, Numbers, float]:
        living = model.living(batch)
        blocks = model.blocks(max(living), batch)
        return _without_pages(model.lowered(batch)), tuple(map(float, living)), blocks

    steps, memory, blocks = zip(*map(at, points), strict=True)
    numbers = [[numbers_of(kernel) for kernel in step.kernels] for step in steps]
    if not _straight(points, memory) or len({len(one) for one in numbers}) > 1:
        return None
    if not all(_straight(points, same) for same in {*zip(*numbers, strict=True)}):
        return None
    lives = list(zip(memory[0], memory[2], strict=True))
    return Lines(points[0], points[2], steps[0], steps[2], lives, (blocks[0], blocks[2]))


def spans(
    lines: Sequence[Lines], places: Sequence[Sequence[StepModel]], batches: Sequence[int]
) -> list[list[Span]]:
    """Return the times of networks at each batch, place by place: each has a model of each network.

    Kernels of all networks are priced side by side, once where they are the same. All models are of
    one method and type, those of a place of one device; all lines have the same ends.
    """
    beside = _Beside(lines, places[0][0])
    step = max(1, CHUNK // len(beside.kernels.distinct))
    pieces = []
    for i in range(0, len(batches), step):
        kernels = beside.kernels.between(lines[0].share(batches[i : i + step]))
        pieces.append([beside.rows(kernels, models) for models in places])
        if step < len(batches):  # of one piece somebody else says how far it is
            tell("batches", i, len(batches))
    return [
        [
            Span(whole[:3], *whole[3:])
            for whole in (np.concatenate(some, axis=1).tolist() for some in zip(*same, strict=True))
        ]
        for same in zip(*pieces, strict=True)
    ]


class _Beside:
    """The kernels of networks at some batches, and how often each comes in what is summed."""

    def __init__(self, lines: Sequence[Lines], model: StepModel) -> None:
        self.lines = lines
        first = [kernel for one in lines for kernel in one.first.kernels]
        last = [kernel for one in lines for kernel in one.last.kernels]
        self.kernels = Kernels(first, last)
        jobs = [i for i, one in enumerate(lines) for _ in one.first.kernels]
        cells = [3 * job + PLACE[one.pass_] for job, one in zip(jobs, first, strict=True)]
        if model.settings.pipelined:  # of one network: arithmetic and traffic of a row overlap
            (alone,) = lines
            cells = alone.first.cells.tolist()
        self.often: Floats = np.zeros((max(cells) // 3 * 3 + 3, len(self.kernels.distinct)))
        np.add.at(self.often, (np.array(cells), self.kernels.which), 1.0)

    def rows(self, kernels: Kernels, models: Sequence[StepModel]) -> list[Floats]:
        """Return rows of numbers of each network: passes, then ends and joules where known."""
        on, size = models[0], (len(models), -1, 3)
        ask = on.method.ask(on.seen)
        parts = kernels.weighted(ask, self.often)
        if on.settings.pipelined:
            parts[0] = parts[1] = np.maximum(parts[4], parts[5])
        # of each network pass by pass, then whole
        by_pass = parts[0].reshape(*size, parts[0].shape[-1]).sum(axis=1)
        whole = sums_of([one.reshape(len(models), -1, one.shape[-1]).sum(axis=1) for one in parts])
        often = self.often.reshape(len(models), -1, self.often.shape[-1]).sum(axis=1)
        joules = spent_j(kernels, on.seen, often)
        found = []
        for i, (model, one) in enumerate(zip(models, self.lines, strict=True)):
            low, high = (
                None if np.isnan(end).any() else end[i] / whole.value[i]
                for end in (whole.low, whole.high)
            )
            shown, *ends = finish(by_pass[i], (low, high), model.host(one.first))
            rows = [*shown, *(end for end in ends if end is not None)]
            found.append(np.array([*rows, joules[i]] if len(rows) > 4 else rows))
        return found


def _without_pages(step: Lowered) -> Lowered:
    return replace(step, kernels=tuple([one._replace(fresh=0.0) for one in step.kernels]))


def _straight(points: tuple[int, int, int], values: Sequence[Numbers]) -> bool:
    """Whether each number lies on a line through its values at the three points."""
    low, between, high = points
    share = (between - low) / (high - low)
    return len({len(row) for row in values}) == 1 and all(
        abs(first + (last - first) * share - middle) <= 1e-12 * abs(middle)
        for first, middle, last in zip(*values, strict=True)
    )
