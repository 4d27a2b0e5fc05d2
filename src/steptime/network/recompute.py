"""Steps in another order: layers computed again, and gradients applied as soon as they are made.

Layers keep their input alone, and compute the rest again before their backward pass. So does
`torch.utils.checkpoint`, which stops where the last tensor is made that a gradient needs (Chen et
al. 2016, section 4; `early_stop`).
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from steptime.core.errors import InputError
from steptime.core.graph import Graph, Op

LAYERS = ("block", "decoder")  # what the names of layers begin with, a number behind


def recomputed(graph: Graph, to_end: bool = False) -> Graph:
    """Return the step of a network whose layers compute again what their gradients read.

    Some software repeats a layer `to_end`. Raises `InputError` for a network without layers.
    """
    left = needed(graph, to_end)
    if not left:
        raise InputError(f"--recompute: {graph.name} has no layers that could be computed again")
    tensors, ops, again = dict(graph.tensors), [], dict[str, str]()
    for op in graph.ops:
        layer = _layer_of(op.of) if op.part == "backward" else ""
        for one in left.pop(layer, ()):
            again |= {name: f"{name}/again" for name in one.outputs}
            tensors |= {again[name]: tensors[name] for name in one.outputs}
            ops.append(_renamed(one, again, f"{one.name}/again"))
        ops.append(_renamed(op, again) if op.part == "backward" else op)
    return replace(graph, tensors=tensors, ops=tuple(ops))


def needed(graph: Graph, to_end: bool = False) -> dict[str, list[Op]]:
    """Return the ops of each layer that make what its gradients read, from its input.

    What another layer reads is there: it is the input of that one. All of a layer's ops run again
    where it is repeated `to_end`.
    """
    layers: dict[str, list[Op]] = {}
    for op in graph.ops:
        if op.part == "forward" and (name := _layer_of(op.name)):
            layers.setdefault(name, []).append(op)
    inside = {
        name: _layer_of(op.name) for ops in layers.values() for op in ops for name in op.outputs
    }
    shared = {
        name
        for op in graph.ops
        if op.part == "forward"
        for name in op.inputs
        if name in inside and inside[name] != _layer_of(op.name)
    }
    own = {name: layer for name, layer in inside.items() if name not in shared}
    read: dict[str, set[str]] = {}
    for op in graph.ops:
        for name in op.inputs if op.part == "backward" else ():
            if name in own:
                read.setdefault(own[name], set()).add(name)
    return {
        name: layers[name] if to_end else _needed(layers[name], tensors, own)
        for name, tensors in read.items()
    }


def updated_early(graph: Graph) -> Graph:
    """Return a step that applies each gradient as soon as it is made, and drops it."""
    updates = {op.inputs[-1]: op for op in graph.ops if op.part == "update"}
    ops = []
    for op in (one for one in graph.ops if one.part != "update"):
        ops.append(op)
        ops += [updates[name] for name in op.outputs if name in updates]
    return replace(graph, ops=tuple(ops))


def _layer_of(row: str) -> str:
    head = row.partition("/")[0]
    return head if head.rstrip("0123456789") in LAYERS else ""


def _needed(ops: Sequence[Op], read: Collection[str], own: Mapping[str, str]) -> list[Op]:
    """Return the ops of a layer that make what is read, in their order."""
    wanted, found = {*read}, []
    for op in reversed(ops):
        if wanted.intersection(op.outputs):
            found.append(op)
            wanted.update(name for name in op.inputs if name in own)
    return found[::-1]


def _renamed(op: Op, again: Mapping[str, str], name: str = "") -> Op:
    inputs = tuple([again.get(one, one) for one in op.inputs])
    if not name:
        return op if inputs == op.inputs else replace(op, inputs=inputs)
    outputs = tuple([again[one] for one in op.outputs])
    return Op(name, op.kind, inputs, outputs, op.attrs, "backward", op.of or op.name)
