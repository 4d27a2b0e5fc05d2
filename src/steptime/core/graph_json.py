"""A network as JSON: the native file, which converters write and every command reads."""

from collections.abc import Mapping
from typing import Any

import msgspec

from steptime.core.graph import Graph, Op, TensorSpec

KEY = "steptime_graph"  # its value is the version
VERSION = 1


def graph_to_json(graph: Graph, *, phase: str, dtype: str, batch: int) -> Mapping[str, Any]:
    """Return the forward ops of a graph as JSON values.

    In phase `train` its output is the loss; gradients and updates follow from it. `dtype` is the
    precision's name and `batch` the number of examples that its shapes are made for. What the file
    that a network was read from says of its layers is left out.
    """
    forward_ops = [op for op in graph.ops if op.part == "forward"]
    tensor_names = [*graph.inputs, *graph.weights]
    tensor_names += [name for name in graph.buffers if name not in tensor_names]
    tensor_names += [name for op in forward_ops for name in op.outputs]
    forward_tensors = set(tensor_names)  # without those of the backward pass and the update
    table: dict[str, object] = {
        KEY: VERSION,
        "name": graph.name,
        "phase": phase,
        "dtype": dtype,
        "batch": batch,
        "inputs": list(graph.inputs),
        "weights": list(graph.weights),
        "buffers": list(graph.buffers),
        "outputs": [name for name in graph.outputs if name in forward_tensors],
        "tensors": {
            name: [graph.tensors[name].dtype, list(graph.tensors[name].shape)]
            for name in tensor_names
        },
        "ops": [_op_to_json(op) for op in forward_ops],
    }
    if graph.unmodelled:
        table["unmodelled"] = list(graph.unmodelled)
    return table


def _op_to_json(op: Op) -> dict[str, object]:
    """Return a forward op as JSON values, without attributes where it has none."""
    table: dict[str, object] = {
        "name": op.name,
        "kind": op.kind,
        "inputs": [*op.inputs],
        "outputs": [*op.outputs],
    }
    if op.attrs:
        table["attrs"] = {**op.attrs}
    return table


def graph_from_json(table: Mapping[str, Any]) -> Graph:
    """Return the graph of `graph_to_json`; what a user wrote is checked by its importer."""
    lists = ("inputs", "weights", "outputs", "buffers", "unmodelled")
    tensors = table["tensors"].items()
    return Graph(
        table["name"],
        {name: TensorSpec(tuple(shape), dtype) for name, (dtype, shape) in tensors},
        msgspec.convert(table["ops"], tuple[Op, ...]),
        **{name: tuple(table.get(name, ())) for name in lists},
    )
