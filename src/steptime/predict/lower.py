"""From a graph to kernels: what a step runs. No device and no clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import cast

from steptime import catalog
from steptime.core.dtypes import precision
from steptime.core.graph import Graph, Op
from steptime.core.stack import UNITS, Stack
from steptime.count import op_work
from steptime.ops import OPS, exchanged_of, products_of, serial_of
from steptime.ops.execution import executed
from steptime.ops.table import Products
from steptime.ops.training import parameters_of
from steptime.predict.kernel import Exchange, Kernel
from steptime.predict.price import FLOATS
from steptime.predict.settings import Settings


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
        """Bytes that the kernels of the step move in memory."""
        return sum(kernel.bytes for kernel in self.kernels if kernel.exchange is None)


def lower(graph: Graph, dtype: str, settings: Settings) -> Lowered:
    """Return the kernels that a software stack executes of the step that `graph` is."""
    return _lowered(graph, stack_kernels(graph, dtype, settings))


def lower_minimal(graph: Graph, dtype: str, _: Settings) -> Lowered:
    """Return a kernel for each op, views among them, which moves every tensor once: a bound."""
    compute, awaited = precision(dtype).compute, _awaited(graph)
    return _lowered(
        graph, [_kernel(graph, (op,), compute, awaited, *op_work(graph, op)) for op in graph.ops]
    )


def _lowered(graph: Graph, kernels: Sequence[Kernel]) -> Lowered:
    return Lowered(op_rows(graph), tuple(kernels), input_bytes(graph), gradient_bytes(graph))


def stack_kernels(graph: Graph, dtype: str, settings: Settings) -> list[Kernel]:
    """Return the kernels of a graph in the order in which the stack runs them; views are none."""
    compute, awaited = precision(dtype).compute, _awaited(graph)
    return [
        _kernel(graph, ops, compute, awaited, flop, moved, launches)
        for ops, flop, moved, launches in executed(graph, stack_of(settings))
        if launches or moved
    ]


def stack_of(settings: Settings) -> Stack:
    """Return the software stack of a prediction; raises `InputError` for an unknown one."""
    found = catalog.stack(settings.stack)
    return replace(found, fuses=UNITS) if settings.fuse else found


def _awaited(graph: Graph) -> dict[str, str]:
    """Return the exchange that makes a tensor, or makes what it is a view of; {} without any."""
    makers: dict[str, str] = {}
    for op in graph.ops:
        row = OPS[op.kind]
        if row.exchanged:
            makers.update(dict.fromkeys(op.outputs, op.name))
        elif makers and row.storage == "view" and op.inputs[0] in makers:
            makers[op.outputs[0]] = makers[op.inputs[0]]
    return makers


def _kernel(
    graph: Graph,
    ops: Sequence[Op],
    compute: str,
    awaited: Mapping[str, str],
    flop: float,
    moved: float,
    launches: int = 1,
) -> Kernel:
    """Return the kernel of ops that run as one, in the row of the first."""
    head = ops[0]
    after: tuple[str, ...] = ()
    if awaited:
        after = tuple({awaited[name]: 0 for op in ops for name in op.inputs if name in awaited})
        specs = tuple([graph.tensors[name] for name in head.inputs])
        exchanged = exchanged_of(head.kind, specs, head.settings)
        if exchanged is not None:
            ranks, stride = head.attrs.get("ranks", 2), head.attrs.get("stride", 1)
            group = Exchange(head.name, cast("int", ranks), cast("int", stride))
            row = head.of or head.name
            return Kernel(
                *(row, head.kind, head.part, compute, "vector", 0, exchanged),
                launches=0,
                exchange=group,
                after=after,
            )
    products: Products = ()
    serial = 1
    for op in ops:
        if OPS[op.kind].products:
            specs = tuple([graph.tensors[name] for name in op.inputs])
            products += products_of(op.kind, specs, op.settings)
            serial = max(serial, serial_of(op.kind, specs, op.settings))
    return Kernel(
        head.of or head.name,
        head.kind,
        head.part,
        _dtype_of(graph, head, compute),
        "matrix" if products else "vector",
        _whole(flop),
        _whole(moved),
        products,
        serial,
        launches * serial,
        after=after,
    )


def _dtype_of(graph: Graph, op: Op, compute: str) -> str:
    """Return the type that an op computes in, which in a mixed step is not the same for all."""
    made = graph.tensors[op.outputs[0]].dtype
    return made if made in FLOATS else compute


def _whole(value: float) -> float:
    """Return a whole number as an int, which it is but for a factor of the stack."""
    whole = int(value)
    return whole if whole == value else value


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
