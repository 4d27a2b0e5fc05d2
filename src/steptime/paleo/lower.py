"""The kernels of a step under Paleo's rules, or under those of them that are kept."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from math import prod

from steptime.core.dtypes import SIZE_BYTES, precision
from steptime.core.errors import InputError
from steptime.core.graph import Graph, Part
from steptime.network.ops import OPS
from steptime.network.ops.training import parameters_of
from steptime.paleo.layers import INPUT, Layer, layers_of
from steptime.paleo.rules import (
    FLOAT_BYTES,
    Cost,
    Costs,
    PaleoSettings,
    rule_of,
    settings_of,
    update,
)
from steptime.prediction.kernel import Kernel, Settings, Unit
from steptime.prediction.lower import Lowered, Row, gradient_bytes, input_bytes
from steptime.prediction.lower import lower as lower_ops

_RULED = (  # which rule says what the products of a pass are
    ("padding", "forward"),
    ("first", "forward"),
    ("first", "backward"),
    ("backward", "backward"),
)


def lower(graph: Graph, dtype: str, settings: Settings) -> Lowered:
    """Return the kernels of the step that `graph` is, with the faults that settings keep.

    Without faults these are the kernels of the ops alone. Raises `InputError` where a rule is kept
    that does not know a layer.
    """
    how = settings_of(settings)
    if "ops" in how.faults:
        return _by_layer(graph, dtype, how)
    if "dtype" in how.faults and precision(dtype).compute != "float32":
        raise InputError(
            f"option dtype=paleo counts elements of 4 bytes, but the ops are of {dtype}; "
            "add --option ops=paleo, or take --dtype float32"
        )
    return _by_op(graph, dtype, how)


def update_kernel(parameters: int, dtype: str = "float32") -> Kernel:
    """Return Paleo's update of parameters, of no row in particular."""
    return _kernel("", "update", "update", dtype, update(parameters))


def _by_layer(graph: Graph, dtype: str, settings: PaleoSettings) -> Lowered:
    """Return the kernels of the layers, and nothing of the ops beside them."""
    faults = settings.faults
    compute = precision(dtype).compute
    size = FLOAT_BYTES if "dtype" in faults else SIZE_BYTES[compute]
    shown = "float32" if "dtype" in faults else compute
    layers = layers_of(graph)
    ruled, trains = _Ruled(layers, settings, size, shown), _trains(graph)
    start = {layer.name for layer in layers if layer.kind == "input"} | {INPUT}
    rows = tuple(
        Row(
            layer.name,
            layer.type,
            layer.parameters,
            tuple("" if name in start else name for name in layer.parents),
            round(prod(layer.outputs) * SIZE_BYTES[compute]),
            layer.kind == "input",
        )
        for layer in layers
    )
    found = [kernel for layer in layers for kernel in ruled.kernels(layer, layer.name, trains)]
    parameters = sum(row.parameters for row in rows)
    if trains and "update" in faults:
        found.append(update_kernel(parameters, shown))
    elif trains:
        of_ops = lower_ops(graph, dtype, settings).kernels
        found += [one._replace(op="", dtype=shown) for one in of_ops if one.pass_ == "update"]
    exchanged = FLOAT_BYTES * parameters if "update" in faults else gradient_bytes(graph)
    return Lowered(rows, tuple(found), input_bytes(graph), exchanged, by_layer=True)


def _by_op(graph: Graph, dtype: str, settings: PaleoSettings) -> Lowered:
    """Return the kernels of every op; where a rule is kept, a layer's products are the rule's."""
    faults = settings.faults
    of_ops = lower_ops(graph, dtype, settings)
    found = list(of_ops.kernels)
    compute = precision(dtype).compute
    ruling = {"update", *(name for name, _ in _RULED)}
    layers = layers_of(graph) if faults & ruling else ()
    passes = {pass_ for name, pass_ in _RULED if name in faults}
    if passes:
        ruled = _Ruled(layers, settings, SIZE_BYTES[compute], compute)
        by_rule = {one.op: one for one in layers if one.op and rule_of(one).exact(one)}
        trains, pairs = _trains(graph), by_rule.items()
        of_rules = (k for op, layer in pairs for k in ruled.kernels(layer, op, trains))
        by_op = found
        found = [kernel for kernel in of_rules if kernel.pass_ in passes]
        for kernel in by_op:
            if kernel.op in by_rule and kernel.pass_ in passes and OPS[kernel.kind].work:
                found += ruled.beside(kernel, by_rule[kernel.op])
            else:
                found.append(kernel)
    exchanged = of_ops.gradient_bytes
    if "update" in faults:
        parameters = sum(layer.parameters for layer in layers)
        exchanged = FLOAT_BYTES * sum(parameters_of(graph).values())
        found = [kernel for kernel in found if kernel.pass_ != "update"]
        if _trains(graph):
            found.append(update_kernel(parameters, compute))
    return replace(of_ops, kernels=tuple(found), gradient_bytes=exchanged)


class _Ruled:
    """The rules for the layers of a network: which of them are kept, and for what elements."""

    def __init__(
        self, layers: Iterable[Layer], settings: PaleoSettings, element_bytes: float, dtype: str
    ) -> None:
        self.faults, self.algorithm = settings.faults, settings.algorithm
        self.factor = element_bytes / FLOAT_BYTES
        self.dtype = dtype
        self.wanted = _wants_gradient(layers)

    def kernels(self, layer: Layer, row: str, trains: bool) -> Iterator[Kernel]:
        """Yield the kernels of a layer, for the row of its name or of its op."""
        parts: dict[Part, Costs] = {"forward": self._forward(layer)}
        parts |= {"backward": self._backward(layer)} if trains else {}
        for pass_, costs in parts.items():
            for flop, tensors in costs:
                sizes = tensors if self.factor == 1 else tuple([n * self.factor for n in tensors])
                yield _kernel(row, layer.kind, pass_, self.dtype, Cost(flop, sizes))

    def beside(self, kernel: Kernel, layer: Layer) -> Iterator[Kernel]:
        """Yield what the kernel of a layer's product does beside that: it adds a bias."""
        cost = rule_of(layer).exact(layer)
        if cost is None or kernel.pass_ != "forward":
            return
        flop, moved = kernel.flop - cost.flop, kernel.bytes - sum(cost.tensors) * self.factor
        if flop > 0 or moved > 0:
            yield kernel._replace(
                unit="vector", flop=max(0, flop), bytes=max(0, moved), products=(), launches=0
            )

    def _forward(self, layer: Layer) -> Costs:
        if "first" in self.faults and _skipped(layer) == "forward":
            return ()
        rule = rule_of(layer)
        if "padding" not in self.faults and (cost := rule.exact(layer)):
            return (cost,)
        return rule.forward(layer, self.algorithm)

    def _backward(self, layer: Layer) -> Costs:
        """Return the gradients of a layer's input, if that wants one, and of its weights."""
        rule, data = rule_of(layer), layer.name in self.wanted
        if "first" in self.faults:
            data = _skipped(layer) != "backward"
        if "backward" not in self.faults and (cost := rule.exact(layer)):
            return (cost,) * (2 if data else 1)
        of_input = rule.data_gradient(layer, self.algorithm)
        of_weights = rule.weight_gradient(layer, self.algorithm)
        return (*of_input, *of_weights) if data else of_weights


def _skipped(layer: Layer) -> Part | None:
    """Return the pass that Paleo leaves out for a layer whose only parent is the input."""
    return rule_of(layer).skipped_on_data if layer.parents == (INPUT,) else None


def _kernel(op: str, kind: str, pass_: Part, dtype: str, cost: Cost) -> Kernel:
    unit: Unit = "matrix" if kind in ("conv", "deconv", "inner_product") else "vector"
    flop, tensors = cost
    return Kernel(op, kind, pass_, dtype, unit, flop, sum(tensors), figures=tensors)


def _trains(graph: Graph) -> bool:
    """Whether the step trains: then it ends with the loss, a scalar."""
    return graph.tensors[graph.outputs[0]].shape == ()


def _wants_gradient(layers: Iterable[Layer]) -> frozenset[str]:
    """Return the layers whose input hangs on a weight."""
    trained: set[str] = set()
    wanted: set[str] = set()
    for layer in layers:
        if trained.intersection(layer.parents):
            wanted.add(layer.name)
        if layer.name in wanted or layer.parameters:
            trained.add(layer.name)
    return frozenset(wanted)
