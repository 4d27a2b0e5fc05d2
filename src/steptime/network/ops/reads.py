"""How often tensors are read, ops that lead to outputs, and forward ops that nobody reads."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

from steptime.core.graph import Graph, Op
from steptime.hardware.stack import Stack
from steptime.network.ops import OPS


class RunGraph(NamedTuple):
    """The part of a graph that a stack runs, and how often its tensors are read."""

    graph: Graph
    read_counts: Mapping[str, int]


def count_reads(graph: Graph) -> Counter[str]:
    """Count the ops that read each tensor; an output of the graph is read once more."""
    return Counter(chain(graph.outputs, *[op.inputs for op in graph.ops]))


def select_leading_ops(ops: Sequence[Op], outputs: Iterable[str]) -> list[Op]:
    """Return the ops that lead to any of some tensors, in their order."""
    needed_tensors = set(outputs)
    leading_ops: list[Op] = []
    for op in reversed(ops):
        if not needed_tensors.isdisjoint(op.outputs):
            needed_tensors.update(op.inputs)
            leading_ops.append(op)
    return leading_ops[::-1]


def select_run_ops(graph: Graph, stack: Stack) -> RunGraph:
    """Return the graph that a stack runs: a compiler leaves out forward ops that nobody reads.

    With them go the ops that only they read.
    """
    read_counts = count_reads(graph)
    if not stack.compile:
        return RunGraph(graph, read_counts)
    stored_tensors = {*graph.inputs, *graph.weights, *graph.buffers}
    remaining_ops: list[Op] = []
    for op in reversed(graph.ops):
        is_read = any(read_counts[name] for name in op.outputs)
        if is_read or not _is_removable(op, stored_tensors):
            remaining_ops.append(op)
        else:
            read_counts.subtract(op.inputs)
    if len(remaining_ops) == len(graph.ops):
        return RunGraph(graph, read_counts)
    return RunGraph(replace(graph, ops=tuple(reversed(remaining_ops))), read_counts)


def _is_removable(op: Op, stored_tensors: Collection[str]) -> bool:
    """Whether a compiler may leave an op out: it does nothing but make tensors of the step."""
    row = OPS[op.kind]
    overwritten = op.inputs[: len(op.outputs)] if row.storage == "in_place" else ()
    changes_stored = any(name in stored_tensors for name in overwritten)
    return op.part == "forward" and row.exchanged is None and not changes_stored
