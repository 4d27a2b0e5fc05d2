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
from steptime.prediction.block_lines import BlockLines, block_lines_through
from steptime.prediction.host import finish
from steptime.prediction.kernels import Floats, Kernels, Numbers, Prices, numbers_of, sums_of
from steptime.prediction.lower import Lowered
from steptime.prediction.memory import Allocation
from steptime.prediction.remarks import RemarkKey, remark_key
from steptime.prediction.step_model import StepModel

CHUNK = 1 << 18  # numbers of a column at once


class Span(NamedTuple):
    """The seconds of each of a step's passes, and between which the step lies, batch by batch.

    None for what the method does not say. `is_extrapolated` is that of a `Timeline`.
    """

    times: Sequence[Sequence[float]]
    is_extrapolated: Sequence[bool]
    low_s: Sequence[float] | None = None
    high_s: Sequence[float] | None = None


@dataclass(frozen=True)
class Lines:
    """What a step runs at any batch from `low` to `high`: `first` and `last` at both ends.

    `memory` are bytes that live at both ends; `blocks` what an allocator takes for them.
    """

    low: int
    high: int
    first: Lowered
    last: Lowered
    memory: Sequence[tuple[float, float]]
    blocks: BlockLines

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

    New pages of a CPU do not, and are left out: its batches are priced singly. Nor do steps of
    which the graphs have other remarks at another batch.
    """
    points = (wanted[0], wanted[len(wanted) // 2], wanted[-1])

    def at(batch: int) -> tuple[Lowered, Numbers, list[Allocation], RemarkKey]:
        living, allocations = model.living(batch), model.allocations(batch)
        step = model.lowered(batch)
        kernels = tuple([one._replace(fresh=0.0) for one in step.kernels])
        return (
            replace(step, kernels=kernels),
            tuple(map(float, living)),
            allocations,
            remark_key(model.graph(batch)),
        )

    steps, memory, allocations, remark_keys = zip(*map(at, points), strict=True)
    numbers = [[numbers_of(kernel) for kernel in step.kernels] for step in steps]
    if len({*remark_keys}) > 1 or len({len(one) for one in numbers}) > 1:
        return None
    if not _straight(points, memory):
        return None
    if not all(_straight(points, same) for same in {*zip(*numbers, strict=True)}):
        return None
    blocks = block_lines_through(points, allocations)
    if blocks is None:
        return None
    lives = list(zip(memory[0], memory[2], strict=True))
    return Lines(points[0], points[2], steps[0], steps[2], lives, blocks)


def merging_batches(lines: Lines) -> set[int]:
    """Return batches at which two kernels are the same that differ at others.

    Such are off alike there, so that the interval lies on no line.
    """
    kernels = Kernels(lines.first.kernels, lines.last.kernels)
    length = lines.high - lines.low
    return {lines.low + round(share * length) for share in kernels.merging_shares()}


def spans(lines: Lines, models: Sequence[StepModel], batches: Sequence[int]) -> list[Span]:
    """Return the times of a network at each batch on each device.

    Kernels that are alike are priced once. All models are of one method and type.
    """
    kernels = Kernels(lines.first.kernels, lines.last.kernels)
    often = _often(lines, kernels, models[0].settings.pipelined)
    step = max(1, CHUNK // len(kernels.distinct))
    pieces = []
    for i in range(0, len(batches), step):
        some = kernels.between(lines.share(batches[i : i + step]))
        pieces.append([_rows(lines, some, often, on) for on in models])
        if step < len(batches):  # of one piece somebody else says how far it is
            tell("batches", i, len(batches))
    of_models = (np.concatenate(same, axis=1).tolist() for same in zip(*pieces, strict=True))
    return [Span(whole[:3], [count > 0 for count in whole[3]], *whole[4:]) for whole in of_models]


def _often(lines: Lines, kernels: Kernels, pipelined: bool) -> Floats:
    """Return how often each kernel comes in each pass, of each row where arithmetic overlaps."""
    cells = np.array([PLACE[one.pass_] for one in lines.first.kernels])
    cells = lines.first.cells if pipelined else cells
    found: Floats = np.zeros((int(cells.max()) // 3 * 3 + 3, len(kernels.distinct)))
    np.add.at(found, (cells, kernels.which), 1.0)
    return found


def _rows(lines: Lines, kernels: Kernels, often: Floats, on: StepModel) -> Floats:
    """Return rows of numbers: passes, extrapolated kernels, the ends of the step if known."""
    parts = kernels.weighted(on.method.ask(on.seen), often)
    if on.settings.pipelined:  # arithmetic and traffic of a row overlap
        parts[0] = parts[1] = np.maximum(parts[4], parts[5])
    by_pass = parts[0].reshape(-1, 3, parts[0].shape[-1]).sum(axis=0)
    whole = sums_of([one.sum(axis=0) for one in parts])
    low, high = (
        None if np.isnan(end).any() else end / whole.value for end in (whole.low, whole.high)
    )
    shown, *ends = finish(by_pass, (low, high), on.host(lines.first))
    low, high = on.widen(sum(shown), *ends)
    extrapolated = parts[Prices._fields.index("is_extrapolated")].sum(axis=0)
    return np.array([*shown, extrapolated, *(end for end in (low, high) if end is not None)])


def _straight(points: tuple[int, int, int], values: Sequence[Numbers]) -> bool:
    """Whether each number lies on a line through its values at the three points."""
    low, between, high = points
    share = (between - low) / (high - low)
    return len({len(row) for row in values}) == 1 and all(
        abs(first + (last - first) * share - middle) <= 1e-12 * abs(middle)
        for first, middle, last in zip(*values, strict=True)
    )
