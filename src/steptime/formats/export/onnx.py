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

OPSET = 23  # the first with Attention, RMSNormalization and RotaryEmbedding
IR_VERSION = 11
Weights = Callable[[str, TensorSpec], bytes]
Fields = list[tuple[int, Value]]
# the enum AttributeProto.AttributeType
FLOAT, INT, STRING, TENSOR, INTS = 1, 2, 3, 4, 7


def export_onnx(
    graph: Graph, weights: Weights | None = None, external_values: bool = False
) -> bytes:
    """Return the ONNX file of a forward graph, with the batch that it was built for.

    Args:
        graph: the graph.
        weights: returns the values of a weight or buffer, little-endian, for its name and spec.
            Without it each is a constant, made by a node, that keeps sums in range.
        external_values: whether the values are left out, for a runtime that gets them by name.

    Raises:
        NoOnnxError: for an op that cannot be written.
    """
    graph = dequantised(graph)
    nodes = Nodes(graph)
    initializers: list[bytes] = []
    for name in dict.fromkeys((*graph.weights, *graph.buffers)):
        spec = graph.tensors[name]
        if weights or external_values:
            content = weights(name, spec) if weights else None
            initializers.append(raw_tensor(name, spec, content))
        else:
            _append_constant(nodes, name, spec)
    _append_ops(graph, nodes)
    initializers += nodes.constants.values()
    graph_fields: Fields = [
        *_node_fields(nodes.nodes),
        (2, graph.name),
        *[(5, initializer) for initializer in initializers],
        *_tensor_fields(graph, nodes.nodes),
    ]
    opset = message((1, ""), (2, OPSET))
    return message((1, IR_VERSION), (2, "steptime"), (8, opset), (7, message(*graph_fields)))


def _append_ops(graph: Graph, nodes: Nodes) -> None:
    """Append the nodes of all ops; raises `NoOnnxError` for a kind that ONNX has no form for."""
    for op, fused_op in merge_biases(graph):
        kind = fused_op.kind
        if kind not in KINDS:
            raise NoOnnxError(f"{graph.name}: {fused_op.name}: ONNX has no form for {kind}")
        nodes.op = replace(fused_op, outputs=op.outputs)
        first_node = len(nodes.nodes)
        write_op = KINDS[kind]
        results = write_op(nodes, *fused_op.inputs, **fused_op.attrs)
        nodes.finish(first_node, results)


def _append_constant(nodes: Nodes, name: str, spec: TensorSpec) -> None:
    """Append the node that makes a weight.

    All its values are 1 in vectors, such as the variances of norms, else 1 / its last size.
    """
    is_matrix = len(spec.shape) >= 2 and "float" in spec.dtype
    element = 1 / spec.shape[-1] if is_matrix else 1.0
    value = tensor("", TensorSpec((1,), spec.dtype), (element,))
    shape = nodes.ints(*spec.shape)
    nodes.nodes.append(ExportNode(name, "ConstantOfShape", (shape,), (name,), {"value": value}))


def _node_fields(nodes: Iterable[ExportNode]) -> Fields:
    """Return the fields of a GraphProto that hold its nodes."""
    return [(1, _encode_node(node)) for node in nodes]


def _encode_node(node: ExportNode) -> bytes:
    """Return a NodeProto."""
    return message(
        *[(1, name) for name in node.inputs],
        *[(2, name) for name in node.outputs],
        (3, node.name),
        (4, node.kind),
        *[(5, _encode_attribute(name, value)) for name, value in node.attrs.items()],
    )


def _encode_attribute(name: str, value: Any) -> bytes:
    """Return an AttributeProto; bytes are those of a tensor."""
    match value:
        case bytes():
            fields: Fields = [(5, value), (20, TENSOR)]
        case bool() | int():
            fields = [(3, int(value)), (20, INT)]
        case float():
            fields = [(2, value), (20, FLOAT)]
        case str():
            fields = [(4, value), (20, STRING)]
        case _:
            fields = [*((8, int(item)) for item in value), (20, INTS)]
    return message((1, name), *fields)


def _tensor_fields(graph: Graph, nodes: Iterable[ExportNode]) -> Fields:
    """Return the fields of a GraphProto that state types and shapes of its tensors.

    They are the inputs, the outputs, and the tensors of the graph that lie between.
    """
    node_outputs = [name for node in nodes for name in node.outputs]
    inner = [name for name in node_outputs if name in graph.tensors and name not in graph.outputs]
    names_by_field = {11: graph.inputs, 12: graph.outputs, 13: inner}
    fields: Fields = []
    for field_number, names in names_by_field.items():
        for name in names:
            fields.append((field_number, _encode_value_info(name, graph.tensors[name])))
    return fields


def _encode_value_info(name: str, spec: TensorSpec) -> bytes:
    """Return a ValueInfoProto."""
    shape = message(*[(1, message((1, size))) for size in spec.shape])
    tensor_type = message((1, TYPES[spec.dtype]), (2, shape))
    return message((1, name), (2, message((1, tensor_type))))
