"""The steps of a network under one stack at any batch: graphs, kernels, FLOP and memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

from steptime.core.dtypes import precision
from steptime.core.graph import PASSES, Graph, Part
from steptime.core.values import parse_count
from steptime.core.workload import Workload
from steptime.network.count import live_bytes, op_work, sum_living_bytes
from steptime.prediction.low_products import lower_products
from steptime.prediction.lower import Lowered
from steptime.prediction.memory import (
    Allocation,
    Moment,
    list_allocations,
    stack_sizes,
    worst_moment,
)
from steptime.prediction.steps.allocator import blocks_bytes, peak_segment_bytes
from steptime.prediction.steps.states import merge_updates, sizes_on_host
from steptime.prediction.steps.step_graphs import build_steps
from steptime.prediction.steps.step_setup import StepSetup
from steptime.prediction.training import graph_dtype, lower_training, training_sizes

RowFlop = Mapping[str, Mapping[Part, float]]  # FLOP by row, by pass


class BatchGraph(NamedTuple):
    """The graph of a step on a batch."""

    batch: int
    graph: Graph


class PeakMemory(NamedTuple):
    """The most bytes of a step: of all tensors, and of the allocator beyond them."""

    tensor_bytes: int
    blocks_bytes: int


class NetworkSteps:
    """The steps of a network under one stack at any batch.

    They depend on no device but its kind, since kernels of a CPU know the pages that they write.
    All but graphs is worked out once a batch and kept; of graphs, the latest is kept.
    """

    def __init__(
        self, workload: Workload, setup: StepSetup, latest: BatchGraph | None = None
    ) -> None:
        """Start without any step.

        Args:
            workload: the network, with a batch that stands in where a method is given None.
            setup: a device with the stack.
            latest: a graph that is built already.
        """
        self.workload = workload
        self._setup = setup
        self._latest = latest
        self._build_graph: Callable[[int], Graph] | None = None
        # Results that were computed already, by batch.
        self._lowered: dict[int, Lowered] = {}
        self._flop_of_batch: dict[int, RowFlop] = {}
        self._peaks: dict[int, PeakMemory] = {}

    def for_setup(self, setup: StepSetup) -> NetworkSteps:
        """Return the same steps for another device under the same stack and data type."""
        if setup.device.is_cpu == self._setup.device.is_cpu:
            return self
        return NetworkSteps(self.workload, setup, self._latest)

    def find_batch(self, batch: int | None) -> int:
        """Return a batch, or the workload's own for None."""
        return self.workload.batch_per_replica if batch is None else batch

    def graph(self, batch: int | None = None) -> Graph:
        """Return the graph of a step."""
        size = self.find_batch(None if batch is None else parse_count(batch, "batch"))
        if self._latest is None or self._latest.batch != size:
            self._latest = BatchGraph(size, self._graph_builder(size))
        return self._latest.graph

    @property
    def _graph_builder(self) -> Callable[[int], Graph]:
        """The function that builds the graph of any batch."""
        if self._build_graph is None:
            stack = self._setup.stack
            dtype = graph_dtype(self.workload.dtype, stack.master_weights)
            tuning = self.workload.tuning.with_methods(stack.tuning_rules)
            self._build_graph = build_steps(replace(self.workload, dtype=dtype, tuning=tuning))
        return self._build_graph

    def lower_step(self, batch: int | None = None) -> Lowered:
        """Return the kernels of a step."""
        size = self.find_batch(batch)
        if size not in self._lowered:
            self._lowered[size] = self._lower(size)
        return self._lowered[size]

    def _lower(self, batch: int) -> Lowered:
        """Return the kernels of a step at a batch, as the training stack runs them."""
        setup = self._setup
        graph = self.graph(batch)
        dtype = self.workload.dtype
        step = setup.method.lower(graph, dtype, setup.settings)
        stack_step = lower_training(
            step,
            graph,
            setup.stack_constants,
            dtype,
            setup.stack.master_weights,
            setup.low_dtype,
        )
        # A training stack casts low products itself (`lower_training`); otherwise those of the data
        # type's low type, if it has one, are cast here.
        if stack_step is step:  # no training stack has rewritten it
            stack_step = lower_products(step, graph, precision(dtype).products)
        return merge_updates(stack_step, graph, self.workload.tuning)

    def flop_by_row(self, batch: int | None = None) -> RowFlop:
        """Return the FLOP of each row by pass, by the counting convention.

        No software stack changes them. Layers of a file count by its rules. FLOP of no row are
        those of "".
        """
        size = self.find_batch(batch)
        if size not in self._flop_of_batch:
            self._flop_of_batch[size] = self._count_flop(size)
        return self._flop_of_batch[size]

    def _count_flop(self, batch: int) -> RowFlop:
        graph, lowered = self.graph(batch), self.lower_step(batch)
        names = ("", *(row.name for row in lowered.rows))
        counts: dict[str, dict[Part, float]] = {name: dict.fromkeys(PASSES, 0) for name in names}
        for name, pass_, flop in _work_by_row(graph, lowered):
            counts[name if name in counts else ""][pass_] += flop
        return counts

    def sizes(self, batch: int | None = None) -> Mapping[str, int]:
        """Return the bytes of tensors and ops that the stack holds unlike the graph, by name."""
        graph, stack = self.graph(batch), self._setup.stack
        sizes = stack_sizes(graph, stack)
        constants, dtype = self._setup.stack_constants, self.workload.dtype
        sizes |= training_sizes(graph, constants, dtype, stack.master_weights)
        return sizes | sizes_on_host(graph, self.workload.tuning)

    def living_bytes(self, batch: int | None = None) -> list[int]:
        """Return the bytes that live before the first op of a step, and during each op."""
        return live_bytes(self.graph(batch), self._setup.stack, self.sizes(batch))

    def allocations(self, batch: int | None = None) -> list[Allocation]:
        """Return the sizes that each moment of a step allocates and frees."""
        return list_allocations(self.graph(batch), self._setup.stack, self.sizes(batch))

    def blocks(self, peak_bytes: int, batch: int | None = None) -> int:
        """Return the most bytes that the allocator holds beyond the `peak_bytes` of tensors."""
        return blocks_bytes(self.graph(batch), self._setup.stack, peak_bytes, self.sizes(batch))

    def peak_memory(self, batch: int | None = None) -> PeakMemory:
        """Return the most bytes of a step."""
        size = self.find_batch(batch)
        if size not in self._peaks:
            allocations = self.allocations(size)
            peak_bytes = max(sum_living_bytes(allocations))
            self._peaks[size] = PeakMemory(peak_bytes, peak_segment_bytes(allocations) - peak_bytes)
        return self._peaks[size]

    def worst_moment(self, batch: int | None = None) -> Moment:
        """Return the moment at which most bytes of tensors live, with their purposes."""
        return worst_moment(self.graph(batch), self._setup.stack, self.sizes(batch))

    @cached_property
    def gradients(self) -> Mapping[str, int]:
        """Bytes of the gradients by the forward op that first computes with a weight."""
        graph = self.graph()
        sizes = self.sizes()  # those that differ from the graph's
        gradients: Counter[str] = Counter()
        for op in graph.ops:
            if op.part == "update":
                # By convention the last input of an update is the gradient of its weight.
                gradient = op.inputs[-1]
                gradients[op.forward_op] += sizes.get(gradient, graph.tensors[gradient].size_bytes)
        return gradients


def _work_by_row(graph: Graph, lowered: Lowered) -> Iterable[tuple[str, Part, float]]:
    """Yield the row, the pass and the counted FLOP of each op, or of each kernel of a file."""
    if lowered.by_layer:
        return ((kernel.op, kernel.pass_, kernel.flop) for kernel in lowered.kernels)
    return ((op.forward_op or op.name, op.part, op_work(graph, op)[0]) for op in graph.ops)
