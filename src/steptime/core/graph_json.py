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
    forward = [op for op in graph.ops if op.part == "forward"]
    names = [*graph.inputs, *graph.weights]
    names += [name for name in graph.buffers if name not in names]
    names += [name for op in forward for name in op.outputs]
    tensor_names = set(names)  # without those of the backward pass and the update
    table: dict[str, object] = {
        KEY: VERSION,
        "name": graph.name,
        "phase": phase,
        "dtype": dtype,
        "batch": batch,
        **{name: list(getattr(graph, name)) for name in ("inputs", "weights", "buffers")},
        "outputs": [name for name in graph.outputs if name in tensor_names],
        "tensors": {
            name: [graph.tensors[name].dtype, list(graph.tensors[name].shape)] for name in names
        },
        "ops": [
            {"name": op.name, "kind": op.kind, "inputs": [*op.inputs], "outputs": [*op.outputs]}
            | ({"attrs": {**op.attrs}} if op.attrs else {})
            for op in forward
        ],
    }
    return table | ({"unmodelled": list(graph.unmodelled)} if graph.unmodelled else {})


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
