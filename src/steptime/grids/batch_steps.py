"""The step of one network at many batches, interpolated linearly in the batch where possible.

Most kernels grow linearly with the batch: then three batches are built, and all others lie on the
lines between them (`prediction.lines`). Where software pads the sides of products to multiples of
8, batches with equal remainders lie on lines. Any other network is built for each batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from steptime.core.graph import PASSES, Graph
from steptime.prediction.lower import NUMBERS_IN_PIECE, stack_of
from steptime.prediction.memory import describe_lacks
from steptime.prediction.remarks import RemarkKey, remark_key
from steptime.prediction.steps.lines import Span, StepLines, find_step_lines, spans
from steptime.prediction.steps.states import may_leave_device
from steptime.prediction.steps.step_model import StepModel

FEW = 3  # batches that are built one by one: lines take three
MIN_SPLIT_BATCHES = (FEW + 1) * NUMBERS_IN_PIECE  # of fewer, few remainders would have lines
HEAD_BATCHES = 1_000  # of a grid, priced before all others: the rows that are written at once
MAX_LOWERED_BATCHES = 64  # batches whose kernels stay in memory from device to device


class BatchSteps:
    """A network's step at many batches.

    It is of the stack and the data type of `model`; a device with another stack or type has steps
    of its own (`for_model`).

    Attributes:
        model: the network on some device.
        batches: the batches, in the order of the question.
        lines: the kernels as lines in the batch; None where they lie on none.
        groups: without lines, the steps at the batches of each remainder of 8, with the indices of
            these batches; none where that would not help.
        graphs: the first graph of each remark key.
        remark_keys: what the remarks of each batch depend on, a single key on lines.
    """

    def __init__(
        self,
        model: StepModel,
        batches: Sequence[int],
        may_split: bool = True,
        lines: StepLines | None = None,
    ) -> None:
        """Find what the network needs at each batch.

        Args:
            model: the network on some device.
            batches: the batches.
            may_split: batches may be split by their remainder where they lie on no lines.
            lines: the lines on which the batches lie, where they are known.
        """
        self.model = model
        self.batches = batches
        distinct_batches = sorted(set(batches))
        # Lines: the sizes of kernels as linear functions of the batch, from three built batches.
        # They are priced as arrays over the batches, which not all methods take.
        is_worth_lines = model.method.arrays and len(distinct_batches) > FEW
        self.lines = lines
        if lines is None and is_worth_lines:
            self.lines = find_step_lines(model, distinct_batches)
        self.groups: list[BatchGroup] = []
        # Padding to multiples of 8 makes time a staircase in the batch; batches with one remainder
        # of 8 still lie on a line.
        lacks_lines = is_worth_lines and self.lines is None
        if lacks_lines and may_split and stack_of(model.settings).pads:
            self.groups = _split_by_remainder(model, batches)
        # Devices with another usual stack or data type get their own `BatchSteps` (`for_model`).
        self._steps_by_key = {_step_key(model): self}
        self.graphs: dict[RemarkKey, Graph] = {}
        self.remark_keys: list[RemarkKey] = []
        # At each batch, where neither lines nor groups hold and each batch is built:
        self._built_peak_bytes: list[int] = []
        self._built_blocks_bytes: list[int] = []
        self._collect_graphs()

    def _collect_graphs(self) -> None:
        """Keep the remark key of each batch, and the bytes of those that are built.

        What is built is asked for its bytes while its graph is at hand.
        """
        model = self.model
        lines = self.lines
        # Graphs with one remark key have the same remarks: one graph of each key is kept.
        if lines is not None:
            # One graph serves all batches: where kernels lie on lines, the remarks are equal. The
            # graph of the highest batch was built last, so that it is still cached.
            self._add_remark_key(model.graph(lines.high_batch))
            return
        if self.groups:
            for group in self.groups:
                self.graphs |= group.steps.graphs
            self.remark_keys = self.merge([group.steps.keys_of_batches() for group in self.groups])
            return
        for batch in self.batches:
            self._add_remark_key(model.graph(batch))
            peak_bytes = max(model.living_bytes(batch))  # of the tensors, at the worst moment
            self._built_peak_bytes.append(peak_bytes)
            # What the allocator reserves beyond the tensors.
            self._built_blocks_bytes.append(model.blocks(peak_bytes, batch))
            # Lower the graph to kernels while it is cached: all devices will use them.
            if len(self.batches) <= MAX_LOWERED_BATCHES:
                model.lower_step(batch)

    @cached_property
    def peak_bytes(self) -> list[int]:
        """The size of all tensors at the worst moment, at each batch."""
        if self.lines is not None:
            return self.lines.highest_values(self.lines.memory_lines, self.batches)
        if self.groups:
            return self.merge([group.steps.peak_bytes for group in self.groups])
        return self._built_peak_bytes

    @cached_property
    def blocks_bytes(self) -> list[int]:
        """The memory that the allocator holds beyond tensors, at each batch."""
        if self.lines is not None:
            # A line is drawn between two built batches: 0 is the lower of them, 1 the higher.
            positions = self.lines.share_between_ends(self.batches)
            reserved_bytes = self.lines.block_lines.reserved_bytes(positions)  # tensors included
            blocks: list[int] = (reserved_bytes - np.array(self.peak_bytes)).tolist()
            return blocks
        if self.groups:
            return self.merge([group.steps.blocks_bytes for group in self.groups])
        return self._built_blocks_bytes

    def keys_of_batches(self) -> list[RemarkKey]:
        """Return the key of the remarks of each batch."""
        return self.remark_keys * len(self.batches) if self.lines else self.remark_keys

    def merge(self, columns: Sequence[Sequence[Any]]) -> list[Any]:
        """Return the values of all batches in their order, from those of each group."""
        merged: list[Any] = [None] * len(self.batches)
        for group, column in zip(self.groups, columns, strict=True):
            for batch_index, value in zip(group.batch_indices, column, strict=True):
                merged[batch_index] = value
        return merged

    def _merge_spans(self, spans_of_groups: Sequence[Span]) -> Span:
        """Return the times of all batches, from those of each group."""

        def merge_bounds(columns: Sequence[Any]) -> Any:
            is_any_unknown = any(column is None for column in columns)  # in some group
            return None if is_any_unknown else self.merge(columns)

        times_of_groups = [span.times for span in spans_of_groups]
        times_of_passes = zip(*times_of_groups, strict=True)
        times = [self.merge(columns) for columns in times_of_passes]
        return Span(
            times=times,
            is_extrapolated=self.merge([span.is_extrapolated for span in spans_of_groups]),
            low_s=merge_bounds([span.low_s for span in spans_of_groups]),
            high_s=merge_bounds([span.high_s for span in spans_of_groups]),
        )

    def _add_remark_key(self, graph: Graph) -> None:
        key = remark_key(graph)
        self.graphs.setdefault(key, graph)
        self.remark_keys.append(key)

    def split_batches(self) -> Iterator[BatchSteps]:
        """Yield the steps at a few batches, then at as many as are priced at once, to the last.

        Batches that lie on no lines, or are few, are not split: the steps are those of all.
        """
        if self.lines is None or len(self.batches) <= 2 * HEAD_BATCHES:
            yield self
            return
        # The head comes first, so that its rows appear at once; then chunks that are priced as one
        # array each.
        starts = [0, *range(HEAD_BATCHES, len(self.batches), self.lines.chunk_length)]
        for start, stop in pairwise([*starts, len(self.batches)]):
            yield BatchSteps(self.model, self.batches[start:stop], lines=self.lines)

    def for_model(self, model: StepModel) -> BatchSteps:
        """Return the steps as the stack of a model's device runs them, in its data type."""
        key = _step_key(model)
        if key not in self._steps_by_key:
            self._steps_by_key[key] = BatchSteps(model, self.batches)
        return self._steps_by_key[key]

    def needed_bytes(self, model: StepModel) -> list[int]:
        """Return the memory that a process needs of a model's device at each batch."""
        steps = self.for_model(model)
        # The needs without any tensor are those of the process itself (its GPU context). Where the
        # stack's allocator is unknown, `blocks_bytes` is None, and no blocks count.
        process_needs = model.process_memory.needs(peak_bytes=0, blocks_bytes=0)
        process_bytes = np.array(steps.peak_bytes) + process_needs.total_bytes
        if process_needs.blocks_bytes is not None:
            process_bytes += np.rint(steps.blocks_bytes).astype(np.int64)
        needed_bytes: list[int] = process_bytes.tolist()
        return needed_bytes

    def fit(self, model: StepModel) -> list[bool]:
        """Return whether a model's device has the memory that a step needs, at each batch."""
        return fit_device(model, self.needed_bytes(model))

    def remarks(self, model: StepModel, needed_bytes: Sequence[int]) -> list[tuple[str, ...]]:
        """Return the remarks of each batch on a model's device, of which a process needs so much.

        Args:
            model: the network on the device.
            needed_bytes: what `needed_bytes` returns for it.
        """
        steps = self.for_model(model)
        remarks_by_key = {key: model.remarks_on(graph) for key, graph in steps.graphs.items()}
        remarks = [remarks_by_key[key] for key in steps.keys_of_batches()]
        fit_flags = fit_device(model, needed_bytes)
        unfit_indices = [index for index, is_fitting in enumerate(fit_flags) if not is_fitting]
        memory_remarks = describe_lacks(
            model.device, [needed_bytes[index] for index in unfit_indices]
        )
        for index, memory_remark in zip(unfit_indices, memory_remarks, strict=True):
            remarks[index] = (memory_remark, *remarks[index])
        return remarks

    def spans(self, models: Sequence[StepModel]) -> list[Span]:
        """Return times with their bounds on several devices, by columns where steps lie on lines.

        Raises:
            InputError: as a prediction does, for the first device that has no peak for the dtype.
        """
        steps_of_models = [self.for_model(model) for model in models]
        if any(steps is not self for steps in steps_of_models):
            return _price_by_steps(steps_of_models, models)
        # New pages of a CPU and states on the host make times that do not grow linearly.
        can_interpolate = not any(map(_lies_on_no_line, models))
        if self.groups and can_interpolate:
            spans_of_groups = [group.steps.spans(models) for group in self.groups]
            spans_of_models = zip(*spans_of_groups, strict=True)  # for each model, of all groups
            return [self._merge_spans(model_spans) for model_spans in spans_of_models]
        if self.lines is None or not can_interpolate:
            return [_price_batches(model, self.batches) for model in models]
        return spans(self.lines, models, self.batches)


def fit_device(model: StepModel, needed_bytes: Sequence[int]) -> list[bool]:
    """Return whether a model's device has as many bytes, of each of many needs."""
    usable_bytes = model.device.datasheet.usable_bytes
    if usable_bytes is None:
        return [True] * len(needed_bytes)
    fits: list[bool] = (np.array(needed_bytes) <= usable_bytes).tolist()
    return fits


def _price_by_steps(
    steps_of_models: Sequence[BatchSteps], models: Sequence[StepModel]
) -> list[Span]:
    """Return the times of models, each by its own steps; models of the same steps go together."""
    indices_by_steps: dict[BatchSteps, list[int]] = {}
    for model_index, steps in enumerate(steps_of_models):
        indices_by_steps.setdefault(steps, []).append(model_index)
    span_by_index: dict[int, Span] = {}
    for steps, model_indices in indices_by_steps.items():
        # Models with the same steps are priced together, which interpolates the kernels once.
        shared_spans = steps.spans([models[index] for index in model_indices])
        span_by_index.update(zip(model_indices, shared_spans, strict=True))
    return [span_by_index[index] for index in range(len(models))]


class BatchGroup(NamedTuple):
    """The steps at some batches, with the indices of these among all batches."""

    batch_indices: list[int]
    steps: BatchSteps


_NOT_PADDED = -1  # in place of a remainder


def _split_by_remainder(model: StepModel, batches: Sequence[int]) -> list[BatchGroup]:
    """Return the steps at batches with equal remainders, each with the indices of its batches.

    A product with `c * batch` rows is padded to `ceil(c * batch / 8) * 8` of them, which is linear
    in the batches with one remainder of 8. Fewer than 8 rows are not padded, so that batches below
    8 are apart.
    """
    if len(set(batches)) < MIN_SPLIT_BATCHES:
        return []
    indices_by_remainder: dict[int, list[int]] = {}
    for batch_index, batch in enumerate(batches):
        # Rows are padded to multiples of 8 (`NUMBERS_IN_PIECE`), so that batches with one remainder
        # lie on a line. Fewer rows than 8 are not padded: these batches share a line of their own.
        is_padded = batch >= NUMBERS_IN_PIECE
        remainder = batch % NUMBERS_IN_PIECE if is_padded else _NOT_PADDED
        indices_by_remainder.setdefault(remainder, []).append(batch_index)
    groups = []
    for batch_indices in indices_by_remainder.values():
        group_batches = [batches[batch_index] for batch_index in batch_indices]
        groups.append(BatchGroup(batch_indices, BatchSteps(model, group_batches, may_split=False)))
    return groups


def _step_key(model: StepModel) -> tuple[str, str]:
    """Return the settings that may differ from device to device: stack and data type."""
    return model.settings.stack, model.workload.dtype


def _lies_on_no_line(model: StepModel) -> bool:
    """Return whether times are no lines: new pages of a CPU, states in the host's memory."""
    has_new_pages = model.device.is_cpu and bool(model.effective_device.constants)
    return has_new_pages or may_leave_device(model.workload.tuning)


def _price_batches(model: StepModel, batches: Sequence[int]) -> Span:
    """Predict the step at each batch by itself."""
    timelines = [model.timeline(batch) for batch in batches]

    def collect(field: str) -> list[Any]:
        return [getattr(timeline, field) for timeline in timelines]

    def collect_bounds(field: str) -> list[Any] | None:
        bounds = collect(field)
        return None if None in bounds else bounds  # a bound has to be known at all batches

    times = [collect(f"{name}_s") for name in PASSES]
    return Span(
        times=times,
        is_extrapolated=collect("is_extrapolated"),
        low_s=collect_bounds("low_s"),
        high_s=collect_bounds("high_s"),
    )
