"""Elementwise ops that run in the kernel which makes their input, as compilers arrange it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from steptime.core.graph import Graph, Op
from steptime.count import op_work
from steptime.ops import OPS
from steptime.predict.work import Work


def fused(graph: Graph) -> Iterator[tuple[Op, Work]]:
    """Give the kernels of a step, each with its first op.

    A pointwise op joins the kernel that made one of its inputs, if both are in one part of the
    step and of one shape. A kernel reads what it did not make, each tensor once, and writes what is
    read outside of it; in between, tensors stay in registers. x -> a -> b -> y, `a` and `b`
    pointwise on 4 bytes and nobody else reading what is between: 8 bytes in place of 24.
    """
    readers: dict[str, list[str]] = {}
    for op in graph.ops:
        for name in op.inputs:
            readers.setdefault(name, []).append(op.name)
    kernel_of: dict[str, int] = {}
    kernels: list[list[Op]] = []
    for op in graph.ops:
        joined = _kernel_to_join(graph, op, kernel_of, kernels)
        if joined is None:
            kernels.append([])
            joined = len(kernels) - 1
        kernels[joined].append(op)
        kernel_of.update(dict.fromkeys(op.outputs, joined))
    for ops in kernels:
        yield ops[0], _work(graph, ops, readers)


def _kernel_to_join(
    graph: Graph, op: Op, kernel_of: dict[str, int], kernels: list[list[Op]]
) -> int | None:
    if not OPS[op.kind].pointwise:
        return None
    shape = graph.tensors[op.outputs[0]].shape
    for name in op.inputs:
        made = kernel_of.get(name)
        if made is None or graph.tensors[name].shape != shape:
            continue
        head = kernels[made][0]
        if head.part == op.part and OPS[head.kind].storage != "view":
            return made
    return None


def _work(graph: Graph, ops: Sequence[Op], readers: dict[str, list[str]]) -> Work:
    works = [op_work(graph, op) for op in ops]
    flop, moved = (sum(values) for values in zip(*works, strict=True))
    if len(ops) == 1:
        return Work(flop, (moved,))
    inside = {op.name for op in ops}
    made = {name for op in ops for name in op.outputs}
    kept = 0
    counted: set[str] = set()
    for op in ops:
        for name in op.inputs:
            if name in made or name in counted:  # in a register, or read already
                kept += graph.tensors[name].size_bytes
            counted.add(name)
        for name in op.outputs:
            wanted = name in graph.outputs or any(r not in inside for r in readers.get(name, ()))
            if not wanted and readers.get(name):
                kept += graph.tensors[name].size_bytes
    return Work(flop, (moved - kept,))
