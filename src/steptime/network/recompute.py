"""Steps in another order: layers computed again, and gradients applied as soon as they are made.

A layer keeps its input alone, and computes the rest again before its backward pass. So does
`torch.utils.checkpoint`, which stops where the last tensor is made that a gradient needs (Chen et
al. 2016, section 4; `early_stop`).
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from steptime.core.errors import InputError
from steptime.core.graph import Checkpoint, Graph, Op

RECOMPUTED_ENDING = "/again"  # the end of the name of an op that runs again, and of what it makes
LAYERS = ("block", "decoder")  # the names of layers: one of these and a number
Regions = Mapping[str, str]  # the name of a forward op -> the region that is computed again with it


def recompute_layers(graph: Graph, to_end: bool = False) -> Graph:
    """Return the step of a network whose layers compute again what their gradients read.

    Some software repeats a layer `to_end`. Raises `InputError` for a network without layers.
    """
    repeated_ops = find_repeated_ops(graph, to_end)
    if not repeated_ops:
        raise InputError(f"--recompute: {graph.name} has no layers that could be computed again")
    return _repeat_ops(graph, _find_layer_of_ops(graph), repeated_ops)


def recompute_checkpoints(graph: Graph) -> Graph:
    """Return the step of a network whose own checkpoints are computed again.

    `torch.utils.checkpoint` runs the function of a checkpoint again, op by op, until all tensors
    are made that the function's own gradients read. Its output is one of these where its last op
    reads its own result, as a ReLU does, although the next layer holds this output, too.
    A checkpoint inside of another runs with it, and then once more before its own gradients.
    """
    checkpoints_by_depth: dict[int, list[Checkpoint]] = {}
    for checkpoint in graph.checkpoints:
        # the number of checkpoints that contain this one: its ops are a proper subset of theirs
        depth = sum(checkpoint.ops < outer.ops for outer in graph.checkpoints)
        checkpoints_by_depth.setdefault(depth, []).append(checkpoint)
    # from the outside in, as an outer checkpoint copies the ops of those inside it
    for depth, checkpoints in sorted(checkpoints_by_depth.items()):
        graph = _repeat_checkpoints(graph, checkpoints, depth)
    return graph


def _repeat_checkpoints(graph: Graph, checkpoints: Sequence[Checkpoint], depth: int) -> Graph:
    """Return a step that computes checkpoints inside so many others again."""
    region_by_op: dict[str, str] = {}
    repeated_ops: dict[str, list[Op]] = {}
    for checkpoint in checkpoints:
        ops = _list_checkpointed_ops(graph, checkpoint, depth)
        if ops:
            region = ops[0].name  # any name that no other region has
            region_by_op.update(dict.fromkeys(checkpoint.ops, region))
            repeated_ops[region] = ops
    return _repeat_ops(graph, region_by_op, repeated_ops)


def _list_checkpointed_ops(graph: Graph, checkpoint: Checkpoint, depth: int) -> list[Op]:
    """Return the ops of a checkpoint that run again; none if no gradient reads what they make.

    Args:
        graph: the step; ops of outer checkpoints run again in it.
        checkpoint: the checkpoint.
        depth: the number of checkpoints around it, and of the runs of its ops so far without one.
    """
    # Each of the `depth` checkpoints around this one has copied its ops, and added an ending to
    # their names: the last copy is the one that is run again.
    last_names = {f"{name}{RECOMPUTED_ENDING * depth}" for name in checkpoint.ops}
    last_runs = [op for op in graph.ops if op.name in last_names]
    tensors_for_gradients = {
        tensor
        for op in graph.ops
        if op.part == "backward" and op.forward_op in checkpoint.ops and not _is_recomputed(op)
        for tensor in op.inputs
    }
    needed_indices = [
        i for i, op in enumerate(last_runs) if not tensors_for_gradients.isdisjoint(op.outputs)
    ]
    if not needed_indices:
        return []
    # without `to_end` the repetition stops early, at the last tensor that a gradient reads
    return last_runs if checkpoint.to_end else last_runs[: needed_indices[-1] + 1]


def _is_recomputed(op: Op) -> bool:
    """Whether an op of the backward pass is a forward op that runs again."""
    return op.name.endswith(RECOMPUTED_ENDING)


def find_repeated_ops(graph: Graph, to_end: bool = False) -> dict[str, list[Op]]:
    """Return the ops of each layer that make what its gradients read, from its input.

    All of a layer's ops run again where it is repeated `to_end`.
    """
    layers = _find_layer_of_ops(graph)
    return _list_repeated_ops(graph, layers, set(layers.values()) if to_end else set())


def move_updates_early(graph: Graph) -> Graph:
    """Return a step that applies each gradient as soon as it is made, and drops it."""
    update_by_gradient: dict[str, Op] = {}
    for op in graph.ops:
        if op.part == "update":
            *_, gradient = op.inputs
            update_by_gradient[gradient] = op
    ops: list[Op] = []
    for op in graph.ops:
        if op.part != "update":
            ops.append(op)
            ops += [update_by_gradient[name] for name in op.outputs if name in update_by_gradient]
    return replace(graph, ops=tuple(ops))


def _find_layer_of_ops(graph: Graph) -> Regions:
    """Return the layer of each forward op that lies in one, by the first part of its name."""
    layer_by_op: dict[str, str] = {}
    for op in graph.ops:
        first_part = op.name.partition("/")[0]
        is_layer = first_part.rstrip("0123456789") in LAYERS
        if op.part == "forward" and is_layer:
            layer_by_op[op.name] = first_part
    return layer_by_op


def _repeat_ops(
    graph: Graph, region_of_op: Regions, repeated_ops: Mapping[str, Sequence[Op]]
) -> Graph:
    """Return a step that runs the `repeated_ops` ops of each region before its first gradient."""
    tensors = dict(graph.tensors)
    ops: list[Op] = []
    copy_by_tensor: dict[str, str] = {}  # name of a tensor's copy by that of the tensor
    pending_ops = dict(repeated_ops)  # of regions that were not repeated yet
    for op in graph.ops:
        if op.part != "backward" or _is_recomputed(op):
            ops.append(op)
            continue
        region = region_of_op.get(op.forward_op, "")
        # the first backward op of a region comes here: repeat the region before it, once
        for forward_op in pending_ops.pop(region, ()):
            for name in forward_op.outputs:
                copy_by_tensor[name] = f"{name}{RECOMPUTED_ENDING}"
                tensors[copy_by_tensor[name]] = tensors[name]
            ops.append(_copy_op(forward_op, copy_by_tensor))
        ops.append(_read_copies(op, copy_by_tensor))
    return replace(graph, tensors=tensors, ops=tuple(ops))


def _list_repeated_ops(
    graph: Graph, region_of_op: Regions, to_end: Collection[str]
) -> dict[str, list[Op]]:
    """Return the ops of each region that make what its gradients read.

    Some software repeats the regions `to_end`, other stops at the last tensor that gradients read.
    A tensor that an op outside of the region reads is kept, and is not made again.
    """
    ops_by_region: dict[str, list[Op]] = {}
    region_by_tensor: dict[str, str] = {}
    for op in graph.ops:
        if op.part == "forward" and op.name in region_of_op:
            region = region_of_op[op.name]
            ops_by_region.setdefault(region, []).append(op)
            region_by_tensor.update(dict.fromkeys(op.outputs, region))
    _drop_tensors_read_outside(graph, region_of_op, region_by_tensor)
    repeated_ops: dict[str, list[Op]] = {}
    for region, tensors in _find_tensors_for_gradients(graph, region_by_tensor).items():
        ops = ops_by_region[region]
        if region not in to_end:
            ops = _list_ops_before(ops, tensors, region_by_tensor)
        repeated_ops[region] = ops
    return repeated_ops


def _find_tensors_for_gradients(
    graph: Graph, region_by_tensor: Mapping[str, str]
) -> dict[str, set[str]]:
    """Return the tensors of each region that backward ops read."""
    tensors_by_region: dict[str, set[str]] = {}
    for op in graph.ops:
        if op.part != "backward":
            continue
        for tensor in op.inputs:
            if tensor in region_by_tensor:
                tensors_by_region.setdefault(region_by_tensor[tensor], set()).add(tensor)
    return tensors_by_region


def _drop_tensors_read_outside(
    graph: Graph, region_of_op: Regions, region_by_tensor: dict[str, str]
) -> None:
    """Remove the tensors that a forward op outside of their region reads, as they are kept."""
    for op in graph.ops:
        if op.part != "forward":
            continue
        for tensor in op.inputs:
            region = region_by_tensor.get(tensor)
            is_read_outside = region is not None and region != region_of_op.get(op.name)
            if is_read_outside:
                # it is kept for that op, and need not be made again
                del region_by_tensor[tensor]


def _list_ops_before(
    ops: Sequence[Op], target_names: Collection[str], region_tensors: Collection[str]
) -> list[Op]:
    """Return the ops of a region that lead to tensors of these names, in their order."""
    targets = set(target_names)
    leading: list[Op] = []
    for op in reversed(ops):
        if targets.intersection(op.outputs):
            leading.append(op)
            targets.update(name for name in op.inputs if name in region_tensors)
    return leading[::-1]


def _copy_op(op: Op, copy_by_tensor: Mapping[str, str]) -> Op:
    """Return a forward op as it runs again in the backward pass, on copies where there are some."""
    inputs = tuple([copy_by_tensor.get(name, name) for name in op.inputs])
    outputs = tuple([copy_by_tensor[name] for name in op.outputs])
    forward_op = op.forward_op or op.name
    name = f"{op.name}{RECOMPUTED_ENDING}"
    return Op(name, op.kind, inputs, outputs, op.attrs, "backward", forward_op)


def _read_copies(op: Op, copy_by_tensor: Mapping[str, str]) -> Op:
    """Return an op of the backward pass that reads what was computed again."""
    inputs = tuple([copy_by_tensor.get(name, name) for name in op.inputs])
    return op if inputs == op.inputs else replace(op, inputs=inputs)
