"""Ops of a step that a stack runs as one kernel, and the bytes that they spare."""

from collections import Counter
from collections.abc import Mapping, Sequence

from steptime.core.graph import Graph, Op
from steptime.hardware.stack import Stack
from steptime.network.ops import OPS


def group_ops(graph: Graph, stack: Stack, read_counts: Mapping[str, int]) -> list[list[Op]]:
    """Return the ops of a step, in groups that run as one kernel.

    An op joins the group that made its inputs last, if both are in one part of the step and of one
    shape, and `stack` joins or fuses the two. So a group reads only the results of earlier groups,
    and groups can run in their order. A kernel that absorbs an op runs when the op's other inputs
    are made: a product with a bias after the bias is cast.
    """
    group_by_tensor: dict[str, int] = {}  # the index of the group that makes a tensor
    groups: list[list[Op]] = []
    for op in graph.ops:
        input_groups: list[int] = []  # without any, the op begins a group
        if op.kind in stack.joins or (stack.fuses and _can_run_in_loop(op, stack)):
            input_groups = [group_by_tensor[name] for name in op.inputs if name in group_by_tensor]
        group_index = len(groups)  # of a new group
        if input_groups:
            # Before the last of these groups has run, some input is not made.
            first_index, last_index = input_groups[0], max(input_groups)
            # A product runs before the cast of its bias: it moves behind the cast, to add the bias.
            is_before_other_input = first_index < last_index
            if is_before_other_input and _can_wait(op, groups[first_index], read_counts, stack):
                last_index = len(groups)
                groups.append(groups[first_index])
                groups[first_index] = []
            can_join = _can_join(graph, op, groups[last_index], read_counts, stack)
            group_index = last_index if can_join else len(groups)
        if group_index == len(groups):
            groups.append([])
        groups[group_index].append(op)
        for name in op.outputs:
            group_by_tensor[name] = group_index
    return [ops for ops in groups if ops]  # groups that moved have left empty ones


def _can_run_in_loop(op: Op, stack: Stack) -> bool:
    """Whether an op can run in the loop of its input; a compiled loop sees through views."""
    row = OPS[op.kind]
    return row.pointwise or (stack.compile and row.storage == "view")


def _can_join(
    graph: Graph, op: Op, group: Sequence[Op], read_counts: Mapping[str, int], stack: Stack
) -> bool:
    """Whether an op can run in the kernel of a group."""
    first_op = group[0]
    first_row, op_row = OPS[first_op.kind], OPS[op.kind]
    if first_op.part != op.part:
        return False
    mergeable_kinds = stack.joins.get(op.kind, ())
    if first_op.kind in mergeable_kinds:
        return _is_absorbed(op, group, read_counts, stack)
    # A stack names all products as `matrix`, and all other kernels as `vector`.
    unit = "matrix" if first_row.products else "vector"
    if unit not in stack.fuses or first_row.storage == "view":
        return False
    group_outputs = {name for member in group for name in member.outputs}
    results_read = group_outputs.intersection(op.inputs)
    # A view, or an op that the stack names, such as a reduction, may have another shape than the
    # results that it reads. Any other op runs element by element.
    if unit in mergeable_kinds or op_row.storage == "view":
        return bool(results_read)
    shape = graph.tensors[op.outputs[0]].shape
    return op_row.pointwise and any(graph.tensors[name].shape == shape for name in results_read)


def _is_absorbed(op: Op, group: Sequence[Op], read_counts: Mapping[str, int], stack: Stack) -> bool:
    """Whether a kernel also does an op that alone reads its result, as a product does a bias."""
    if not group or group[0].kind not in stack.joins.get(op.kind, ()):
        return False
    result = group[-1].outputs[0]
    return result in op.inputs and read_counts[result] == 1


def _can_wait(op: Op, group: Sequence[Op], read_counts: Mapping[str, int], stack: Stack) -> bool:
    """Whether a kernel can run as late as an op that it absorbs: only that op reads it."""
    outputs = [name for member in group for name in member.outputs]
    internal_reads = [name for member in group for name in member.inputs if name in outputs]
    outside_reads = sum(read_counts[name] for name in outputs) - len(internal_reads)
    return outside_reads == 1 and _is_absorbed(op, group, read_counts, stack)


def find_unmoved_bytes(graph: Graph, ops: Sequence[Op], read_counts: Mapping[str, int]) -> int:
    """Return the bytes that a group of ops neither reads nor writes, as they stay in registers.

    A view stays in registers with its source, which is written only if ops outside of the group
    read either of them.
    """
    views = {name for op in ops if _is_view(op) for name in op.outputs}
    results = {name for op in ops for name in op.outputs}
    reads = Counter(name for op in ops if not _is_view(op) for name in op.inputs)
    outside_reads = _count_outside_reads(ops, reads, read_counts)
    # A tensor from outside is read from memory once, a result of the group never.
    remaining_reads = Counter(dict.fromkeys(reads.keys() - results, 1))
    spared_reads = reads - remaining_reads
    # A result that no op reads at all is an output of the step, or is written all the same.
    spared_writes = Counter(
        name for name in results - views if read_counts[name] and not outside_reads[name]
    )
    spared_accesses = spared_reads + spared_writes
    return sum(graph.tensors[name].size_bytes * count for name, count in spared_accesses.items())


def _count_outside_reads(
    ops: Sequence[Op], reads: Mapping[str, int], read_counts: Mapping[str, int]
) -> dict[str, int]:
    """Return, of each result of a group, the reads by ops outside of it, also through views.

    Args:
        ops: the group.
        reads: reads of each tensor by the ops of the group that are no views.
        read_counts: reads of each tensor by all ops of the step.
    """
    outside_reads = {
        name: read_counts[name] - reads.get(name, 0) for op in ops for name in op.outputs
    }
    # From the last op back, so that reads of a view of a view come to the source, too.
    for op in reversed(ops):
        if _is_view(op):
            reads_of_views = sum(outside_reads[name] for name in op.outputs)
            # The view is among the reads of its source, but reads nothing itself.
            outside_reads[op.inputs[0]] += reads_of_views - 1
    return outside_reads


def _is_view(op: Op) -> bool:
    return OPS[op.kind].storage == "view"
