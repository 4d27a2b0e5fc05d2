"""From a graph to kernels: what a step runs. No device and no clock."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

from steptime.core.dtypes import precision
from steptime.core.graph import Attrs, Graph, Op
from steptime.ops import OPS, cost_of, products_of, serial_of
from steptime.ops.table import Products, Specs
from steptime.ops.training import parameters_of
from steptime.predict.kernel import Kernel, Unit

if TYPE_CHECKING:
    from steptime.predict.method import Settings


@dataclass(frozen=True)
class Row:
    """A forward op, or a layer of a file: what a prediction shows.

    `parents` are the rows whose tensors it reads, "" the inputs of the network; `output_bytes` are
    those of what it makes. `is_input` marks a layer of a file that is an input itself.
    """

    name: str
    kind: str
    parameters: int = 0
    parents: tuple[str, ...] = ()
    output_bytes: int = 0
    is_input: bool = False


@dataclass(frozen=True)
class Lowered:
    """The kernels of a step, and the rows that they belong to.

    A kernel of no row (`op` "") is the update of all. `input_bytes` are those of the network's
    inputs, `gradient_bytes` those of what replicas exchange. `by_layer` says that rows are layers
    of a file and not ops.
    """

    rows: tuple[Row, ...]
    kernels: tuple[Kernel, ...]
    input_bytes: int = 0
    gradient_bytes: int = 0
    by_layer: bool = False

    @cached_property
    def parameters(self) -> int:
        """Parameters as the method counts them."""
        return sum(row.parameters for row in self.rows)

    @cached_property
    def flop(self) -> float:
        """FLOP of the step."""
        return sum(kernel.flop for kernel in self.kernels)

    @cached_property
    def traffic_bytes(self) -> float:
        """Bytes that the kernels of the step move."""
        return sum(kernel.bytes for kernel in self.kernels)


def lower(graph: Graph, dtype: str, settings: Settings) -> Lowered:
    """Return the kernels of the step that `graph` is, forward alone or training, op by op."""
    return Lowered(
        op_rows(graph),
        tuple(kernels(graph, dtype, settings)),
        input_bytes(graph),
        gradient_bytes(graph),
    )


def kernels(graph: Graph, dtype: str, settings: Settings) -> Iterator[Kernel]:
    """Yield the kernels of a graph in the order of its ops."""
    compute = precision(dtype).compute
    groups = fused(graph) if settings.fuse else ((op,) for op in graph.ops)
    readers = _readers(graph) if settings.fuse else {}
    for ops in groups:
        if settings.views or OPS[ops[0].kind].storage != "view":
            yield _kernel(graph, ops, compute, readers)


def op_rows(graph: Graph) -> tuple[Row, ...]:
    """Return a row for each forward op, in order."""
    parameters = parameters_of(graph)
    maker = dict.fromkeys(graph.inputs, "")
    rows = []
    for op in graph.ops:
        if op.part != "forward":
            continue
        parents = tuple([maker[name] for name in op.inputs if name in maker])
        size = graph.tensors[op.outputs[0]].size_bytes
        rows.append(Row(op.name, op.kind, parameters.get(op.name, 0), parents, size))
        for name in op.outputs:
            maker[name] = op.name
    return tuple(rows)


def input_bytes(graph: Graph) -> int:
    """Return the bytes of a network's inputs."""
    return sum(graph.tensors[name].size_bytes for name in graph.inputs)


def gradient_bytes(graph: Graph) -> int:
    """Return the bytes of the gradients of every weight that is trained."""
    return sum(graph.tensors[op.inputs[-1]].size_bytes for op in graph.ops if op.part == "update")


def fused(graph: Graph) -> list[list[Op]]:
    """Return the ops of a step in groups that run as one kernel, as compilers arrange them.

    A pointwise op joins the group that made its inputs last, if both are in one part of the step
    and of one shape. So a group reads only what groups before it have made, and groups can run in
    their order.
    """
    group_of: dict[str, int] = {}
    groups: list[list[Op]] = []
    for op in graph.ops:
        joined = _group_to_join(graph, op, group_of, groups)
        if joined is None:
            groups.append([])
            joined = len(groups) - 1
        groups[joined].append(op)
        group_of.update(dict.fromkeys(op.outputs, joined))
    return groups


def _group_to_join(
    graph: Graph, op: Op, group_of: dict[str, int], groups: list[list[Op]]
) -> int | None:
    made = [(group_of[name], name) for name in op.inputs if name in group_of]
    if not made or not OPS[op.kind].pointwise:
        return None
    last = max(group for group, _ in made)
    head = groups[last][0]
    if head.part != op.part or OPS[head.kind].storage == "view":
        return None
    shape = graph.tensors[op.outputs[0]].shape
    fits = any(group == last and graph.tensors[name].shape == shape for group, name in made)
    return last if fits else None


def _readers(graph: Graph) -> dict[str, list[str]]:
    readers: dict[str, list[str]] = {}
    for op in graph.ops:
        for name in op.inputs:
            readers.setdefault(name, []).append(op.name)
    return readers


def _kernel(graph: Graph, ops: Sequence[Op], compute: str, readers: dict[str, list[str]]) -> Kernel:
    """Return the kernel of ops that run as one.

    It reads what it did not make, each tensor once, and writes what is read outside of it; in
    between, tensors stay in registers. x -> a -> b -> y, `a` and `b` pointwise on 4 bytes and
    nobody else reading what is between: 8 bytes in place of 24.
    """
    head = ops[0]
    flop, moved, products, serial = _work_of(graph, head)
    if len(ops) > 1:
        for op in ops[1:]:
            more = _work_of(graph, op)
            flop, moved, products = flop + more[0], moved + more[1], products + more[2]
            serial = max(serial, more[3])
        moved -= _kept_bytes(graph, ops, readers)
    unit: Unit = "matrix" if products else "vector"
    row = head.of or head.name
    return Kernel(row, head.kind, head.part, compute, unit, flop, moved, products, serial)


def _kept_bytes(graph: Graph, ops: Sequence[Op], readers: dict[str, list[str]]) -> int:
    """Return the bytes that a group of ops neither reads nor writes, because it made them."""
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
    return kept


def _work_of(graph: Graph, op: Op) -> tuple[int, int, Products, int]:
    tensors = graph.tensors
    specs = tuple([tensors[name] for name in op.inputs])
    written = tuple([tensors[name] for name in op.outputs])
    return _work(op.kind, specs, op.settings, written)


@lru_cache(maxsize=1 << 16)
def _work(kind: str, specs: Specs, attrs: Attrs, written: Specs) -> tuple[int, int, Products, int]:
    """Return FLOP, bytes, products and dependent steps of an op."""
    flop, moved = cost_of(kind, specs, attrs, written)
    return flop, moved, products_of(kind, specs, attrs), serial_of(kind, specs, attrs)
