"""Kernels of a step under Paleo's rules, or under those of its faults that are kept."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
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

# fault: the passes whose products follow Paleo's rule
_RULED_PASSES: Mapping[str, Collection[Part]] = {
    "padding": {"forward"},
    "first": {"forward", "backward"},
    "backward": {"backward"},
}


def lower(graph: Graph, dtype: str, settings: Settings) -> Lowered:
    """Return the kernels of a step, with the faults of Paleo that the settings keep.

    Without faults these are the kernels of the ops alone.

    Raises:
        InputError: if a rule is kept that does not cover a layer.
    """
    paleo_settings = settings_of(settings)
    faults = paleo_settings.faults
    # A kept fault ("ops": layers alone are priced) is a part of Paleo's published behaviour.
    if "ops" in faults:
        return _lower_layers(graph, dtype, paleo_settings)
    if "dtype" in faults and precision(dtype).compute != "float32":
        raise InputError(
            f"option dtype=paleo counts elements of 4 bytes, but the ops are of {dtype}; "
            "add --option ops=paleo, or take --dtype float32"
        )
    return _lower_ops(graph, dtype, paleo_settings)


def update_kernel(parameters: int, dtype: str = "float32") -> Kernel:
    """Return the kernel of Paleo's update of parameters; it belongs to no row."""
    return _make_kernel("", "update", "update", dtype, update(parameters))


def _lower_layers(graph: Graph, dtype: str, settings: PaleoSettings) -> Lowered:
    """Return the kernels of the layers alone; ops that are no layer of Paleo's cost nothing."""
    faults = settings.faults
    compute = precision(dtype).compute
    # Paleo prices every data type as float32.
    kernel_dtype = "float32" if "dtype" in faults else compute
    element_bytes = FLOAT_BYTES if "dtype" in faults else SIZE_BYTES[compute]
    layers = layers_of(graph)
    rules = _LayerRules(layers, settings, element_bytes, kernel_dtype)
    trains = _is_training(graph)
    kernels = [kernel for layer in layers for kernel in rules.kernels(layer, layer.name, trains)]
    parameters = sum(layer.parameters for layer in layers)
    if trains and "update" in faults:
        kernels.append(update_kernel(parameters, kernel_dtype))
    elif trains:
        kernels += [
            # The update of all weights belongs to no layer.
            kernel._replace(op="", dtype=kernel_dtype)
            for kernel in lower_ops(graph, dtype, settings).kernels
            if kernel.pass_ == "update"
        ]
    # Paleo exchanges 4 bytes for each parameter, whatever the type.
    exchanged = FLOAT_BYTES * parameters if "update" in faults else gradient_bytes(graph)
    rows = _make_rows(layers, SIZE_BYTES[compute])
    return Lowered(rows, tuple(kernels), input_bytes(graph), exchanged, by_layer=True)


def _make_rows(layers: Sequence[Layer], element_bytes: float) -> tuple[Row, ...]:
    """Return a row for each layer; the network's input is the parent ""."""
    network_inputs = {layer.name for layer in layers if layer.kind == "input"} | {INPUT}
    return tuple(
        Row(
            name=layer.name,
            kind=layer.type,
            parameters=layer.parameters,
            parents=tuple("" if name in network_inputs else name for name in layer.parents),
            output_bytes=round(prod(layer.outputs) * element_bytes),
            is_input=layer.kind == "input",
        )
        for layer in layers
    )


def _lower_ops(graph: Graph, dtype: str, settings: PaleoSettings) -> Lowered:
    """Return the kernels of every op; a rule that is kept replaces the products of its layers."""
    faults = settings.faults
    lowered = lower_ops(graph, dtype, settings)
    compute = precision(dtype).compute
    passes: set[Part] = set()  # whose products have Paleo's costs, because of a kept fault
    for fault in faults & _RULED_PASSES.keys():
        passes.update(_RULED_PASSES[fault])
    # Layers as Paleo sees them are needed only where its rules replace the kernels of ops.
    layers = layers_of(graph) if passes or "update" in faults else ()
    if passes:
        rules = _LayerRules(layers, settings, SIZE_BYTES[compute], compute)
        trains = _is_training(graph)
        kernels = _replace_products(lowered.kernels, rules, layers, passes, trains)
        lowered = replace(lowered, kernels=tuple(kernels))
    return _replace_update(lowered, graph, layers, compute) if "update" in faults else lowered


def _replace_update(lowered: Lowered, graph: Graph, layers: Iterable[Layer], dtype: str) -> Lowered:
    """Return kernels with Paleo's update: one kernel of SGD, and 4 bytes a parameter exchanged."""
    kernels = [kernel for kernel in lowered.kernels if kernel.pass_ != "update"]
    if _is_training(graph):
        parameters = sum(layer.parameters for layer in layers)
        kernels.append(update_kernel(parameters, dtype))
    exchanged = FLOAT_BYTES * sum(parameters_of(graph).values())
    return replace(lowered, kernels=tuple(kernels), gradient_bytes=exchanged)


def _replace_products(
    kernels: Iterable[Kernel],
    rules: _LayerRules,
    layers: Iterable[Layer],
    passes: Collection[Part],
    trains: bool,
) -> list[Kernel]:
    """Replace the product kernels of the given passes by those of Paleo's rules."""
    # Only layers whose rule is an exact product can replace the product of an op.
    ruled_layers = {layer.op: layer for layer in layers if layer.op and rule_of(layer).exact(layer)}
    ruled_kernels = [
        kernel
        for op, layer in ruled_layers.items()
        for kernel in rules.kernels(layer, op, trains)
        if kernel.pass_ in passes
    ]
    for kernel in kernels:
        layer = ruled_layers.get(kernel.op)
        if layer is not None and kernel.pass_ in passes and OPS[kernel.kind].work:
            # What the op does beyond its product, such as adding the bias, stays.
            ruled_kernels += rules.bias_kernels(kernel, layer)
        else:
            ruled_kernels.append(kernel)
    return ruled_kernels


class _LayerRules:
    """Paleo's rules for the layers of a network: the faults that are kept, and the elements."""

    def __init__(
        self, layers: Iterable[Layer], settings: PaleoSettings, element_bytes: float, dtype: str
    ) -> None:
        self.faults = settings.faults
        self.algorithm = settings.algorithm
        self.size_factor = element_bytes / FLOAT_BYTES  # Paleo's rules count bytes of float32
        self.dtype = dtype
        self.with_data_gradient = _layers_with_data_gradient(layers)

    def kernels(self, layer: Layer, row: str, trains: bool) -> Iterator[Kernel]:
        """Yield the kernels of a layer; `row` names the layer or its op."""
        costs_by_pass: dict[Part, Costs] = {"forward": self._forward(layer)}
        if trains:
            costs_by_pass["backward"] = self._backward(layer)
        for pass_, costs in costs_by_pass.items():
            for flop, float32_bytes in costs:
                sizes_bytes = float32_bytes
                if self.size_factor != 1:  # else the numbers stay whole
                    sizes_bytes = tuple([size * self.size_factor for size in float32_bytes])
                yield _make_kernel(row, layer.kind, pass_, self.dtype, Cost(flop, sizes_bytes))

    def bias_kernels(self, kernel: Kernel, layer: Layer) -> Iterator[Kernel]:
        """Yield a kernel for the work of a layer's kernel that exceeds its product: the bias."""
        product_cost = rule_of(layer).exact(layer)
        if product_cost is None or kernel.pass_ != "forward":
            return
        product_bytes = sum(product_cost.tensors) * self.size_factor
        further_flop = max(0, kernel.flop - product_cost.flop)
        further_bytes = max(0, kernel.bytes - product_bytes)
        if further_flop > 0 or further_bytes > 0:
            yield kernel._replace(
                unit="vector", flop=further_flop, bytes=further_bytes, products=(), launches=0
            )

    def _forward(self, layer: Layer) -> Costs:
        if "first" in self.faults and _find_omitted_pass(layer) == "forward":
            return ()
        rule = rule_of(layer)
        # corrected, a layer that is one matrix product has its cost; else Paleo's rule holds
        exact_cost = None if "padding" in self.faults else rule.exact(layer)
        if exact_cost:
            return (exact_cost,)
        return rule.forward(layer, self.algorithm)

    def _backward(self, layer: Layer) -> Costs:
        """Return the gradients of a layer's input, if one is needed, and of its weights."""
        rule = rule_of(layer)
        needs_data_gradient = layer.name in self.with_data_gradient
        if "first" in self.faults:  # Paleo omits a pass of first layers by their kind
            needs_data_gradient = _find_omitted_pass(layer) != "backward"
        exact_cost = None if "backward" in self.faults else rule.exact(layer)
        if exact_cost:
            # A corrected gradient costs as much as the forward product, for each operand.
            return (exact_cost, exact_cost) if needs_data_gradient else (exact_cost,)
        weight_costs = rule.weight_gradient(layer, self.algorithm)
        if not needs_data_gradient:
            return weight_costs
        return (*rule.data_gradient(layer, self.algorithm), *weight_costs)


def _find_omitted_pass(layer: Layer) -> Part | None:
    """Return the pass that Paleo omits for a layer whose only parent is the input."""
    return rule_of(layer).skipped_for_input if layer.parents == (INPUT,) else None


def _make_kernel(op: str, kind: str, pass_: Part, dtype: str, cost: Cost) -> Kernel:
    unit: Unit = "matrix" if kind in ("conv", "deconv", "inner_product") else "vector"
    flop, tensors = cost
    return Kernel(op, kind, pass_, dtype, unit, flop, sum(tensors), figures=tensors)


def _is_training(graph: Graph) -> bool:
    """Whether the step trains: then it ends with the loss, a scalar."""
    return graph.tensors[graph.outputs[0]].shape == ()


def _layers_with_data_gradient(layers: Iterable[Layer]) -> frozenset[str]:
    """Return the layers whose input depends on a weight, so that it needs a gradient."""
    depends_on_weights: set[str] = set()
    with_data_gradient: set[str] = set()
    for layer in layers:
        if depends_on_weights.intersection(layer.parents):
            with_data_gradient.add(layer.name)
        # Whatever follows a layer with weights depends on a weight.
        if layer.name in with_data_gradient or layer.parameters:
            depends_on_weights.add(layer.name)
    return frozenset(with_data_gradient)
