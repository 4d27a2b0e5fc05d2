"""The work of a step, row by row, under the assumptions of a method. No device yet."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from steptime.core.dtypes import SIZE_BYTES, precision
from steptime.core.errors import InputError
from steptime.core.graph import Graph, Layer, Op
from steptime.count import op_work
from steptime.ops import OPS
from steptime.ops.training import parameters_of
from steptime.paleo import rules
from steptime.paleo.layers import layers_of
from steptime.paleo.rules import FLOAT_BYTES, skipped_on_data, true_work
from steptime.predict.fusion import fused
from steptime.predict.settings import Settings
from steptime.predict.work import Work

PARTS = ("forward", "backward", "update")
Works = tuple[Work, ...]


@dataclass(frozen=True)
class Row:
    """A layer of a file, or a forward op with its gradients: its kernels by part of the step."""

    name: str
    kind: str
    forward: Works
    backward: Works = ()
    update: Works = ()
    parameters: int = 0


@dataclass(frozen=True)
class Costs:
    """The work of one step. `update` is that of the whole network where rows have none."""

    rows: tuple[Row, ...]
    update: Works = ()

    @property
    def parameters(self) -> int:
        """Parameters as the method counts them."""
        return sum(row.parameters for row in self.rows)


def costs(graph: Graph, dtype: str, settings: Settings) -> Costs:
    """Give the work of the step that `graph` is, forward alone or training.

    Raises `InputError` where Paleo's rules are asked for and do not know a layer.
    """
    if settings.ops:
        if not settings.dtype and precision(dtype).compute != "float32":
            raise InputError(
                f"option dtype=paleo counts elements of 4 bytes, but the ops are of {dtype}; "
                "add --option ops=paleo, or take --dtype float32"
            )
        return _by_op(graph, dtype, settings)
    size = SIZE_BYTES[precision(dtype).compute] if settings.dtype else FLOAT_BYTES
    layers = layers_of(graph)
    trains = _trains(graph)
    wanted = _wants_gradient(layers)
    rows = tuple(
        Row(
            layer.name,
            layer.type,
            _scaled(_forward(layer, settings), size),
            _scaled(_backward(layer, settings, wanted), size) if trains else (),
            parameters=layer.parameters,
        )
        for layer in layers
    )
    if not trains:
        return Costs(rows)
    if settings.update:
        return Costs(rows, tuple(_work(graph, op) for op in graph.ops if op.part == "update"))
    return Costs(rows, (rules.update(sum(row.parameters for row in rows)),))


def gradient_bytes(graph: Graph, found: Costs, settings: Settings) -> int:
    """Give the bytes of the gradients that replicas exchange: of every weight that is trained.

    Paleo's rule, where it is kept, is 4 bytes for each parameter that it counts.
    """
    if not settings.update:
        return FLOAT_BYTES * found.parameters
    return sum(graph.tensors[op.inputs[-1]].size_bytes for op in graph.ops if op.part == "update")


def _trains(graph: Graph) -> bool:
    """Whether the step trains: then it ends with the loss, a scalar."""
    return graph.tensors[graph.outputs[0]].shape == ()


def _scaled(works: Works, element_bytes: int) -> Works:
    """Give works on elements of 4 bytes as works on elements of another size."""
    if element_bytes == FLOAT_BYTES:
        return works
    factor = element_bytes / FLOAT_BYTES
    return tuple(Work(flop, tuple(term * factor for term in terms)) for flop, terms in works)


def _wants_gradient(layers: Iterable[Layer]) -> frozenset[str]:
    """Give the layers whose input hangs on a weight."""
    trained: set[str] = set()
    wanted: set[str] = set()
    for layer in layers:
        if trained.intersection(layer.parents):
            wanted.add(layer.name)
        if layer.name in wanted or layer.parameters:
            trained.add(layer.name)
    return frozenset(wanted)


def _forward(layer: Layer, settings: Settings) -> Works:
    if not settings.first and skipped_on_data(layer) == "forward":
        return ()
    if settings.padding and (work := true_work(layer)):
        return (work,)
    return rules.forward(layer, settings.conv)


def _backward(layer: Layer, settings: Settings, wanted: frozenset[str]) -> Works:
    """Give the kernels of a layer's gradients: of its input, if that wants one, and its weights."""
    data = layer.name in wanted
    if not settings.first:
        data = skipped_on_data(layer) != "backward"
    if settings.backward and (work := true_work(layer)):
        return (work,) * (2 if data else 1)
    of_input = rules.data_gradient(layer, settings.conv)
    of_weights = rules.weight_gradient(layer, settings.conv)
    return (*of_input, *of_weights) if data else of_weights


def _by_op(graph: Graph, dtype: str, settings: Settings) -> Costs:
    """Give the work of every op, each with its gradients and updates in the row of the forward op.

    Where a rule of Paleo's is kept, the matrix work of a layer is that of the rule.
    """
    size = SIZE_BYTES[precision(dtype).compute]
    rows: dict[str, tuple[list[Work], list[Work], list[Work]]] = {
        op.name: ([], [], []) for op in graph.ops if op.part == "forward"
    }
    corrected = settings.padding and settings.backward and settings.first
    layers = () if corrected and settings.update else layers_of(graph)
    ruled = {} if corrected else {one.op: one for one in layers if one.op and true_work(one)}
    wanted = _wants_gradient(layers)
    trains = _trains(graph)
    for name, layer in ruled.items():
        rows[name][0].extend(_scaled(_forward(layer, settings), size))
        if trains:
            rows[name][1].extend(_scaled(_backward(layer, settings, wanted), size))
    for op, work in _kernels(graph, settings):
        name = op.of or op.name
        row = OPS[op.kind]
        if (row.storage == "view" and not settings.views) or (name in ruled and row.work):
            continue
        rows[name][PARTS.index(op.part)].append(work)
    kinds = {op.name: op.kind for op in graph.ops}
    parameters = parameters_of(graph)
    found = tuple(
        Row(
            name,
            kinds[name],
            tuple(forward),
            tuple(backward),
            tuple(update) if settings.update else (),
            parameters.get(name, 0),
        )
        for name, (forward, backward, update) in rows.items()
    )
    if settings.update or not trains:
        return Costs(found)
    return Costs(found, (rules.update(sum(layer.parameters for layer in layers)),))


def _kernels(graph: Graph, settings: Settings) -> Iterable[tuple[Op, Work]]:
    """Give the kernels of a step, each with the op whose row it belongs to."""
    if settings.fuse:
        return fused(graph)
    return ((op, _work(graph, op)) for op in graph.ops)


def _work(graph: Graph, op: Op) -> Work:
    flop, moved = op_work(graph, op)
    return Work(flop, (moved,))
