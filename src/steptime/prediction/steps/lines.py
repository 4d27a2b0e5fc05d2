"""The kernels of a network at any batch, interpolated between two; times at many batches.

FLOP and bytes of every kernel are lines in the batch, or bend one way only. So three batches, the
lowest, the highest and one between, decide: if they lie on a line for every kernel, all do, and the
kernels at any batch between are known without building the step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from steptime.core.graph import PASS_INDEX
from steptime.core.progress import report_progress
from steptime.network.count import sum_living_bytes
from steptime.prediction.host import bound_step
from steptime.prediction.kernels import Kernels, MergingPair, Numbers, kernel_numbers
from steptime.prediction.lower import NO_CELL, Lowered
from steptime.prediction.memory import Allocation
from steptime.prediction.prices import Floats
from steptime.prediction.remarks import RemarkKey, remark_key
from steptime.prediction.schedule import overlap_traffic
from steptime.prediction.steps.block_lines import BlockLines, block_lines_through
from steptime.prediction.steps.step_model import StepModel

CHUNK = 1 << 18  # numbers of a column at once


class Span(NamedTuple):
    """The times of a step, batch by batch.

    Attributes:
        times: seconds of each of the three passes.
        is_extrapolated: as of a `Timeline`.
        low_s: lower bound of the step; None if the method has none.
        high_s: upper bound, likewise.
    """

    times: Sequence[Sequence[float]]
    is_extrapolated: Sequence[bool]
    low_s: Sequence[float] | None = None
    high_s: Sequence[float] | None = None


@dataclass(frozen=True)
class StepLines:
    """The steps of a network at any batch between two.

    Attributes:
        low_batch: the lowest batch.
        high_batch: the highest batch.
        low_step: the kernels at the lowest batch.
        high_step: the kernels at the highest batch.
        memory_lines: living bytes of each moment of a step, at both batches.
        block_lines: bytes of the allocator for them.
    """

    low_batch: int
    high_batch: int
    low_step: Lowered
    high_step: Lowered
    memory_lines: Sequence[tuple[float, float]]
    block_lines: BlockLines

    @cached_property
    def kernels(self) -> Kernels:
        """The kernels at both batches; equal ones are priced once."""
        return Kernels(self.low_step.kernels, self.high_step.kernels)

    @cached_property
    def merging(self) -> Mapping[int, Sequence[MergingPair]]:
        """Pairs of kernels that are equal at a batch and differ at others, by the batch.

        Equal kernels have a common error, so that the interval lies on no line there.
        """
        pairs_by_offset = self.kernels.find_merging(self.high_batch - self.low_batch)
        return {self.low_batch + offset: pairs for offset, pairs in pairs_by_offset.items()}

    @property
    def chunk_length(self) -> int:
        """The number of batches that are priced at once: theirs are the numbers of a `CHUNK`."""
        return max(1, CHUNK // len(self.kernels.distinct))

    def highest_values(
        self, lines: Sequence[tuple[float, float]], batches: Sequence[int]
    ) -> list[int]:
        """Return the highest of lines, given by their values at both ends, at each batch."""
        upper_lines = _drop_lower_lines(np.array(lines))
        low_values = upper_lines[:, :1]  # at the lowest batch
        high_values = upper_lines[:, 1:]
        shares = self.share_between_ends(batches)
        chunk_count = -(-len(batches) * len(upper_lines) // CHUNK)  # bounds memory
        highest: list[int] = []
        for chunk_shares in np.array_split(shares, chunk_count):
            line_values = low_values + (high_values - low_values) * chunk_shares  # [lines, batches]
            highest += np.rint(line_values.max(axis=0)).astype(np.int64).tolist()
        return highest

    def share_between_ends(self, batches: Sequence[int]) -> Floats:
        """Return the place of each batch between the lowest (0) and the highest (1)."""
        return (np.array(batches, dtype=float) - self.low_batch) / (
            self.high_batch - self.low_batch
        )


def _drop_lower_lines(lines: Floats) -> Floats:
    """Return the lines, given by their values at both ends, of which none lies below another."""
    # Sorted by falling first value, equal ones by falling last value.
    falling = lines[np.lexsort((-lines[:, 1], -lines[:, 0]))]
    last_values = falling[:, 1]
    highest_before = np.maximum.accumulate(last_values)[:-1]
    # A line whose first value is no higher than that of those before must end above all of them.
    is_upper = np.append(True, last_values[1:] > highest_before)
    upper_lines: Floats = falling[is_upper]
    return upper_lines


class _StepAtBatch(NamedTuple):
    """A step at one batch, with all that has to lie on lines."""

    lowered: Lowered
    living_bytes: Numbers
    allocations: list[Allocation]
    remark_key: RemarkKey

    @classmethod
    def read(cls, model: StepModel, batch: int) -> _StepAtBatch:
        """Return the step of a model at a batch, without new pages."""
        allocations = model.allocations(batch)
        living_bytes = tuple(map(float, sum_living_bytes(allocations)))
        lowered = model.lower_step(batch)
        # New pages of a CPU are no straight lines of the batch.
        kernels = tuple([kernel._replace(fresh=0.0) for kernel in lowered.kernels])
        key = remark_key(model.graph(batch))
        return cls(replace(lowered, kernels=kernels), living_bytes, allocations, key)


def find_step_lines(model: StepModel, batches: Sequence[int]) -> StepLines | None:
    """Return the steps of a model between the first and the last batch; None if they bend.

    New pages of a CPU lie on no lines, and are left out: its batches are priced singly. Steps of
    which the graphs have other remarks at another batch count as bent, too.

    Args:
        model: the network on a device.
        batches: the batches, ascending.
    """
    # The middle batch shows whether the lines through the ends are straight.
    three_batches = (batches[0], batches[len(batches) // 2], batches[-1])
    steps = [_StepAtBatch.read(model, batch) for batch in three_batches]
    if not _are_straight(three_batches, steps):
        return None
    block_lines = block_lines_through(three_batches, [step.allocations for step in steps])
    if block_lines is None:
        return None
    low_step, _middle_step, high_step = steps
    return StepLines(
        low_batch=batches[0],
        high_batch=batches[-1],
        low_step=low_step.lowered,
        high_step=high_step.lowered,
        memory_lines=list(zip(low_step.living_bytes, high_step.living_bytes, strict=True)),
        block_lines=block_lines,
    )


def _are_straight(batches: tuple[int, int, int], steps: Sequence[_StepAtBatch]) -> bool:
    """Whether the remarks of steps are equal, and their kernels and tensors lie on lines."""
    has_changing_remarks = len({step.remark_key for step in steps}) > 1
    has_changing_kernels = len({len(step.lowered.kernels) for step in steps}) > 1
    if has_changing_remarks or has_changing_kernels:
        return False
    if not _is_straight(batches, [step.living_bytes for step in steps]):
        return False
    # Of each kernel its numbers at the three batches; equal kernels are looked at once.
    numbers_by_step = [[*map(kernel_numbers, step.lowered.kernels)] for step in steps]
    distinct_kernels = {*zip(*numbers_by_step, strict=True)}
    return all(_is_straight(batches, numbers) for numbers in distinct_kernels)


def spans(lines: StepLines, models: Sequence[StepModel], batches: Sequence[int]) -> list[Span]:
    """Return the times of a network at each batch on the device of each model.

    All models are of one method and type.
    """
    counts = _count_kernels(lines, models[0].settings.pipelined)
    chunk_length = lines.chunk_length
    has_several_chunks = chunk_length < len(batches)
    chunks = []
    for start in range(0, len(batches), chunk_length):
        chunk_batches = batches[start : start + chunk_length]
        step_kernels = _interpolate_kernels(lines, counts, chunk_batches)
        chunks.append([_price_batches(lines, step_kernels, model) for model in models])
        if has_several_chunks:  # the caller reports the progress of a single chunk
            report_progress("batches", start, len(batches))
    chunks_by_model = zip(*chunks, strict=True)
    return [_make_span(np.concatenate(parts, axis=1)) for parts in chunks_by_model]


def _interpolate_kernels(lines: StepLines, counts: Floats, batches: Sequence[int]) -> _StepKernels:
    """Return the kernels at some batches, and which of them are equal there."""
    kernels = lines.kernels.interpolate(lines.share_between_ends(batches))
    # Batches at which different kernels become equal, by their index.
    merging = {
        batch_index: lines.merging[batch]
        for batch_index, batch in enumerate(batches)
        if batch in lines.merging
    }
    return _StepKernels(kernels, counts, merging)


def _make_span(rows: Floats) -> Span:
    """Return the rows of `_price_batches` as a span."""
    forward_s, backward_s, update_s, extrapolated_counts, *ends_s = rows
    is_extrapolated = extrapolated_counts > 0
    times = [forward_s.tolist(), backward_s.tolist(), update_s.tolist()]
    return Span(times, is_extrapolated.tolist(), *(end_s.tolist() for end_s in ends_s))


class _StepKernels(NamedTuple):
    """The kernels of a step at many batches, as `Kernels.price_sums` takes them."""

    kernels: Kernels
    counts: Floats
    merging: Mapping[int, Sequence[MergingPair]]


def _count_kernels(lines: StepLines, pipelined: bool) -> Floats:
    """Count the distinct kernels of each pass; of each pass of each row if `pipelined`.

    In the latter case, arithmetic and traffic overlap within a row.
    """
    pass_of_kernel = np.array([PASS_INDEX[kernel.pass_] for kernel in lines.low_step.kernels])
    # The sum that a kernel belongs to, `3 * row + pass`: all kernels are of one row, unless
    # arithmetic and traffic overlap within rows.
    sum_of_kernel = pass_of_kernel
    if pipelined:
        row_cells = lines.low_step.cell_of_kernel  # `NO_CELL` without a row: they get one more
        extra_row_cells = 3 * len(lines.low_step.rows) + pass_of_kernel
        sum_of_kernel = np.where(row_cells == NO_CELL, extra_row_cells, row_cells)
    last_row = int(sum_of_kernel.max()) // 3
    # Always whole rows of three passes.
    counts: Floats = np.zeros((3 * (last_row + 1), len(lines.kernels.distinct)))
    np.add.at(counts, (sum_of_kernel, lines.kernels.distinct_of_kernel), 1.0)
    return counts


def _price_batches(lines: StepLines, step_kernels: _StepKernels, model: StepModel) -> Floats:
    """Return rows of numbers, a column a batch.

    The rows are the three passes, the number of extrapolated kernels, and the bounds of the step if
    they are known.
    """
    price_rows = model.method.price_on(model.effective_device)
    kernels, counts, merging = step_kernels
    # Sums `3 * row + pass` by batches, as `_count_kernels` orders them.
    parts = kernels.price_sums(price_rows, counts, merging)
    if model.settings.pipelined:  # the longer of arithmetic and traffic: a lower bound as such
        value = overlap_traffic(parts)
        parts = parts._replace(value=value, low=value)
    batch_count = parts.value.shape[-1]
    passes_s = parts.value.reshape(-1, 3, batch_count).sum(axis=0)  # over the rows
    step = parts.sum_all().to_prices()
    # NaN stands for a method without bounds.
    low_share = None if np.isnan(step.low).any() else step.low / step.value
    high_share = None if np.isnan(step.high).any() else step.high / step.value
    bounded = bound_step(passes_s, (low_share, high_share), model.host(lines.low_step))
    low_s, high_s = model.widen(sum(bounded.passes_s), bounded.low_s, bounded.high_s)
    extrapolated_counts = parts.is_extrapolated.sum(axis=0)
    # A bound that is unknown has no row in the result.
    bounds_s = [bound_s for bound_s in (low_s, high_s) if bound_s is not None]
    return np.array([*bounded.passes_s, extrapolated_counts, *bounds_s])  # read by `_make_span`


def _is_straight(batches: tuple[int, int, int], values: Sequence[Numbers]) -> bool:
    """Return whether each number lies on a line through its values at the three points."""
    low, middle, high = batches
    middle_share = (middle - low) / (high - low)
    low_values, middle_values, high_values = values
    if not len(low_values) == len(middle_values) == len(high_values):
        return False
    for low_value, middle_value, high_value in zip(
        low_values, middle_values, high_values, strict=True
    ):
        interpolated = low_value + (high_value - low_value) * middle_share
        # Written so that NaN is not straight either.
        if not abs(interpolated - middle_value) <= 1e-12 * abs(middle_value):
            return False
    return True
