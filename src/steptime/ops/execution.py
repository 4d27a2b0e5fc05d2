"""What a software stack executes of a graph: kernels, and the FLOP and bytes that they take.

`cost_of` is the convention, and a bound: every input read once, every output written once. Here a
`Stack` says what is run in its place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from steptime.core.graph import Attrs, Graph, Op
from steptime.core.stack import Execution, Stack
from steptime.ops import OPS, cost_of, serial_of
from steptime.ops.table import Specs

PLAIN = Execution()


class Launch(NamedTuple):
    """What runs as one: its ops, the first of which names it, FLOP, bytes, and kernels launched.

    Views launch nothing and move nothing. Ops that run together for all weights (an optimizer over
    lists) are launches of their own, of which the first counts the kernels.
    """

    ops: tuple[Op, ...]
    flop: float
    traffic_bytes: float
    kernels: int


def executed(graph: Graph, stack: Stack) -> list[Launch]:
    """Return what `stack` executes of a step, in order; every op is in one launch.

    A kernel reads what it did not make, each tensor as often as the stack does, and writes what is
    read outside of it; in between, tensors stay in registers. x -> a -> b -> y, `a` and `b` fused,
    on 4 bytes and nobody else reading what is between: 8 bytes in place of 24.
    """
    readers: dict[str, list[str]] = {}
    launches = []
    seen: set[str] = set()
    known: dict[_Case, _Work] = {}
    for ops in groups(graph, stack):
        head = ops[0]
        flop, moved, kernels = _executed(graph, head, stack, known)
        if len(ops) > 1:
            readers = readers or _readers(graph)
            for op in ops[1:]:
                more = _executed(graph, op, stack, known)
                flop, moved = flop + more[0], moved + more[1]
            moved = max(0.0, moved - _kept_bytes(graph, ops, readers))
        if head.part == "update" and execution_of(head, stack).together:
            kernels = 0 if head.kind in seen else kernels
            seen.add(head.kind)
        launches.append(Launch(tuple(ops), flop, moved, kernels))
    return launches


def execution_of(op: Op, stack: Stack) -> Execution:
    """Return how `stack` runs an op."""
    result = stack.kinds.get(op.kind, PLAIN)
    return result if not result.when or op.attrs.get(result.when) else PLAIN


def groups(graph: Graph, stack: Stack) -> list[list[Op]]:
    """Return the ops of a step, in groups that run as one kernel.

    An op joins the group that made its inputs last, if both are in one part of the step and of one
    shape, and `stack` joins or fuses the two. So a group reads only what groups before it have
    made, and groups can run in their order.
    """
    group_of: dict[str, int] = {}
    result: list[list[Op]] = []
    users: Counter[str] = Counter()
    if stack.joins:
        users.update([name for op in graph.ops for name in op.inputs])
        users.update(graph.outputs)
    for op in graph.ops:
        last = -1
        if op.kind in stack.joins or (stack.fuses and OPS[op.kind].pointwise):
            last = max((group_of[name] for name in op.inputs if name in group_of), default=-1)
        if last < 0 or not _joins(graph, op, result[last], users, stack):
            last = len(result)
            result.append([])
        result[last].append(op)
        for name in op.outputs:
            group_of[name] = last
    return result


def _joins(
    graph: Graph, op: Op, group: Sequence[Op], users: Mapping[str, int], stack: Stack
) -> bool:
    head = group[0]
    if head.part != op.part:
        return False
    if head.kind in stack.joins.get(op.kind, ()):
        return op.inputs[0] == head.outputs[0] and users[op.inputs[0]] == 1
    unit = "matrix" if OPS[head.kind].products else "vector"
    if not OPS[op.kind].pointwise or OPS[head.kind].storage == "view" or unit not in stack.fuses:
        return False
    shape = graph.tensors[op.outputs[0]].shape
    new = {name for one in group for name in one.outputs}
    return any(name in new and graph.tensors[name].shape == shape for name in op.inputs)


def _readers(graph: Graph) -> dict[str, list[str]]:
    readers: dict[str, list[str]] = {}
    for op in graph.ops:
        for name in op.inputs:
            readers.setdefault(name, []).append(op.name)
    return readers


def _kept_bytes(graph: Graph, ops: Sequence[Op], readers: Mapping[str, Sequence[str]]) -> int:
    """Return the bytes that a group of ops neither reads nor writes, because it made them."""
    inside = {op.name for op in ops}
    new = {name for op in ops for name in op.outputs}
    kept = 0
    counted: set[str] = set()
    for op in ops:
        for name in op.inputs:
            if name in new or name in counted:  # in a register, or read already
                kept += graph.tensors[name].size_bytes
            counted.add(name)
        for name in op.outputs:
            wanted = name in graph.outputs or any(r not in inside for r in readers.get(name, ()))
            if not wanted and readers.get(name):
                kept += graph.tensors[name].size_bytes
    return kept


_Case = tuple[str, Specs, Attrs, Specs]
_Work = tuple[float, float, int]


def _executed(graph: Graph, op: Op, stack: Stack, known: dict[_Case, _Work]) -> _Work:
    """Return FLOP, bytes and kernels of an op that runs alone; equal ops are evaluated once."""
    if OPS[op.kind].storage == "view":
        return 0.0, 0.0, 0
    tensors = graph.tensors
    specs = tuple([tensors[name] for name in op.inputs])
    written = tuple([tensors[name] for name in op.outputs])
    case = (op.kind, specs, op.settings, written)
    if case not in known:
        known[case] = _executed_as(*case, execution_of(op, stack))
    return known[case]


def _executed_as(kind: str, specs: Specs, attrs: Attrs, written: Specs, how: Execution) -> _Work:
    flop, moved = cost_of(kind, specs, attrs, written)
    done = flop * how.flop * (how.causal_flop if dict(attrs).get("causal") else 1.0)
    if how.passes:
        return done, how.passes * specs[0].size_bytes, how.kernels
    steps = serial_of(kind, specs, attrs)
    again = sum((n - 1) * spec.size_bytes for n, spec in zip(how.reads, specs, strict=False))
    again += sum((steps - 1) * specs[place].size_bytes for place in how.each_step)
    return done, moved + again, how.kernels
