"""A forward graph as an ONNX file.

Numbers of fields are those of onnx.proto. Every op is a node of its name, with nodes before it
(`NAME#1`, ...) where ONNX has another layout. Weights are values that are given, or constants made
by a node, so that the file of a network of any size is small.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from steptime.core.graph import Graph, TensorSpec
from steptime.formats.export.onnx_kinds import KINDS
from steptime.formats.export.onnx_nodes import (
    TYPES,
    ExportNode,
    Nodes,
    NoOnnxError,
    raw_tensor,
    tensor,
)
from steptime.formats.export.protobuf import Value, message
from steptime.network.ops.execution import dequantised, merge_biases

OPSET, IR_VERSION = 23, 11  # the first with Attention, RMSNormalization and RotaryEmbedding
Weights = Callable[[str, TensorSpec], bytes]


def model_of(graph: Graph, weights: Weights | None = None, apart: bool = False) -> bytes:
    """Return the ONNX file of a forward graph, with the batch that it was built for.

    `weights(name, spec)` returns the values of a weight or buffer, little-endian; without it each
    is a constant, made by a node, that keeps sums in range. `apart` leaves the values out, for a
    runtime that is given them by name. Raises `NoOnnxError` for an op that cannot be written.
    """
    graph = dequantised(graph)
    nodes = Nodes(graph)
    kept = dict.fromkeys((*graph.weights, *graph.buffers))
    values = []
    for name in kept:
        spec = graph.tensors[name]
        if weights or apart:
            content = weights(name, spec) if weights else None
            values.append((5, raw_tensor(name, spec, content)))
        else:
            _constant(nodes, name, spec)
    for op, written in merge_biases(graph):
        if written.kind not in KINDS:
            raise NoOnnxError(f"{graph.name}: {written.name}: ONNX has no form for {written.kind}")
        nodes.op = replace(written, outputs=op.outputs)
        first = len(nodes.made)
        nodes.finish(first, KINDS[written.kind](nodes, *written.inputs, **written.attrs))
    values += [(5, content) for content in nodes.constants.values()]
    return message(
        (1, IR_VERSION),
        (2, "steptime"),
        (8, message((1, ""), (2, OPSET))),
        (7, message(*_nodes(nodes.made), (2, graph.name), *values, *_tensors(graph, nodes.made))),
    )


def _constant(nodes: Nodes, name: str, spec: TensorSpec) -> None:
    """Append the node that makes a weight: 1 in vectors, such as the variances of norms."""
    amount = 1.0 if len(spec.shape) < 2 or "float" not in spec.dtype else 1 / spec.shape[-1]
    value = tensor("", TensorSpec((1,), spec.dtype), (amount,))
    shape = (nodes.ints(*spec.shape),)
    nodes.made.append(ExportNode(name, "ConstantOfShape", shape, (name,), {"value": value}))


def _nodes(made: Iterable[ExportNode]) -> list[tuple[int, Value]]:
    return [
        (
            1,
            message(
                *[(1, name) for name in node.inputs],
                *[(2, name) for name in node.outputs],
                (3, node.name),
                (4, node.kind),
                *[(5, _attribute(name, value)) for name, value in node.attrs.items()],
            ),
        )
        for node in made
    ]


def _attribute(name: str, value: Any) -> bytes:
    """Return an AttributeProto; bytes are those of a tensor."""
    match value:
        case bytes():
            said: list[tuple[int, Value]] = [(5, value), (20, 4)]
        case bool() | int():
            said = [(3, int(value)), (20, 2)]
        case float():
            said = [(2, value), (20, 1)]
        case str():
            said = [(4, value), (20, 3)]
        case _:
            said = [*((8, int(one)) for one in value), (20, 7)]
    return message((1, name), *said)


def _tensors(graph: Graph, made: Iterable[ExportNode]) -> list[tuple[int, Value]]:
    """Return inputs, outputs and what lies between them, with types and shapes."""
    written = [name for node in made for name in node.outputs]
    between = [name for name in written if name in graph.tensors and name not in graph.outputs]
    rows = ((11, graph.inputs), (12, graph.outputs), (13, between))
    return [
        (number, _value_info(name, graph.tensors[name])) for number, names in rows for name in names
    ]


def _value_info(name: str, spec: TensorSpec) -> bytes:
    shape = message(*[(1, message((1, size))) for size in spec.shape])
    return message((1, name), (2, message((1, message((1, TYPES[spec.dtype]), (2, shape))))))
