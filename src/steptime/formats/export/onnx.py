"""A forward graph as an ONNX file.

Every op is a node of its name, with nodes before it (`NAME#1`, ...) where ONNX has another layout.
Weights are values that are given, or constants made by a node, so that the file of a network of any
size is small.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from steptime.core.graph import Graph, TensorSpec
from steptime.formats.export.onnx_fields import (
    AttributeField,
    AttributeType,
    DimensionField,
    GraphField,
    ModelField,
    NodeField,
    OpsetField,
    ShapeField,
    TensorTypeField,
    TypeField,
    ValueInfoField,
)
from steptime.formats.export.onnx_kinds import KINDS
from steptime.formats.export.onnx_nodes import (
    TYPES,
    ExportNode,
    Nodes,
    NoOnnxError,
    encode_raw_tensor,
    encode_tensor,
)
from steptime.formats.export.protobuf import Value, encode_message
from steptime.network.ops.execution import dequantise, merge_biases

OPSET = 23  # the first with Attention, RMSNormalization and RotaryEmbedding
IR_VERSION = 11
Weights = Callable[[str, TensorSpec], bytes]
Fields = list[tuple[int, Value]]


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
    graph = dequantise(graph)
    nodes = Nodes(graph)
    initializers: list[bytes] = []
    for name in dict.fromkeys((*graph.weights, *graph.buffers)):
        spec = graph.tensors[name]
        if weights or external_values:
            content = weights(name, spec) if weights else None
            initializers.append(encode_raw_tensor(name, spec, content))
        else:  # a node that fills the tensor keeps the file small
            _append_constant(nodes, name, spec)
    _append_ops(graph, nodes)
    initializers += nodes.constants.values()
    graph_fields: Fields = [
        *_encode_nodes(nodes.node_list),
        (GraphField.NAME, graph.name),
        *[(GraphField.INITIALIZER, initializer) for initializer in initializers],
        *_encode_tensor_types(graph, nodes.node_list),
    ]
    return encode_message(
        (ModelField.IR_VERSION, IR_VERSION),
        (ModelField.PRODUCER_NAME, "steptime"),
        (
            ModelField.OPSET_IMPORT,
            encode_message((OpsetField.DOMAIN, ""), (OpsetField.VERSION, OPSET)),
        ),
        (ModelField.GRAPH, encode_message(*graph_fields)),
    )


def _append_ops(graph: Graph, nodes: Nodes) -> None:
    """Append the nodes of all ops; raises `NoOnnxError` for a kind that ONNX has no form for."""
    for op, fused_op in merge_biases(graph):
        kind = fused_op.kind
        if kind not in KINDS:
            raise NoOnnxError(f"{graph.name}: {fused_op.name}: ONNX has no form for {kind}")
        # a product that adds its bias makes the result of the bias's op
        nodes.current_op = replace(fused_op, outputs=op.outputs)
        first_node_index = len(nodes.node_list)
        write_op = KINDS[kind]
        results = write_op(nodes, *fused_op.inputs, **fused_op.attrs)
        nodes.name_results(first_node_index, results)


def _append_constant(nodes: Nodes, name: str, spec: TensorSpec) -> None:
    """Append the node that makes a weight.

    All its values are 1 in vectors, such as the variances of norms, else 1 / its last size.
    """
    # the value of each element: 1 / width in a matrix, so that sums of products stay in range
    is_matrix = len(spec.shape) >= 2 and "float" in spec.dtype
    element = 1 / spec.shape[-1] if is_matrix else 1.0
    value = encode_tensor("", TensorSpec((1,), spec.dtype), (element,))
    shape = nodes.constant_ints(*spec.shape)
    nodes.node_list.append(ExportNode(name, "ConstantOfShape", (shape,), (name,), {"value": value}))


def _encode_nodes(nodes: Iterable[ExportNode]) -> Fields:
    """Return the fields of a GraphProto that hold its nodes."""
    return [(GraphField.NODE, _encode_node(node)) for node in nodes]


def _encode_node(node: ExportNode) -> bytes:
    """Return a NodeProto."""
    attributes = [_encode_attribute(name, value) for name, value in node.attrs.items()]
    return encode_message(
        *[(NodeField.INPUT, name) for name in node.inputs],
        *[(NodeField.OUTPUT, name) for name in node.outputs],
        (NodeField.NAME, node.name),
        (NodeField.OP_TYPE, node.kind),
        *[(NodeField.ATTRIBUTE, attribute) for attribute in attributes],
    )


def _encode_attribute(name: str, value: Any) -> bytes:
    """Return an AttributeProto; bytes are those of a tensor."""
    fields: Fields = [(AttributeField.NAME, name)]
    match value:
        case bytes():
            attribute_type = AttributeType.TENSOR
            fields.append((AttributeField.TENSOR, value))
        case bool() | int():
            attribute_type = AttributeType.INT
            fields.append((AttributeField.INT, int(value)))
        case float():
            attribute_type = AttributeType.FLOAT
            fields.append((AttributeField.FLOAT, value))
        case str():
            attribute_type = AttributeType.STRING
            fields.append((AttributeField.STRING, value))
        case _:
            attribute_type = AttributeType.INTS
            fields += [(AttributeField.INTS, int(number)) for number in value]
    return encode_message(*fields, (AttributeField.TYPE, attribute_type))


def _encode_tensor_types(graph: Graph, nodes: Iterable[ExportNode]) -> Fields:
    """Return the fields of a GraphProto that state types and shapes of its tensors.

    They are the inputs, the outputs, and the tensors of the graph that lie between.
    """
    node_outputs = [name for node in nodes for name in node.outputs]
    inner = [name for name in node_outputs if name in graph.tensors and name not in graph.outputs]
    names_by_field = {
        GraphField.INPUT: graph.inputs,
        GraphField.OUTPUT: graph.outputs,
        GraphField.VALUE_INFO: inner,
    }
    fields: Fields = []
    for graph_field, names in names_by_field.items():
        for name in names:
            fields.append((graph_field, _encode_value_info(name, graph.tensors[name])))
    return fields


def _encode_value_info(name: str, spec: TensorSpec) -> bytes:
    """Return a ValueInfoProto."""
    dimensions = [encode_message((DimensionField.SIZE, size)) for size in spec.shape]
    shape = encode_message(*[(ShapeField.DIMENSION, dimension) for dimension in dimensions])
    tensor_type = encode_message(
        (TensorTypeField.ELEMENT_TYPE, TYPES[spec.dtype]), (TensorTypeField.SHAPE, shape)
    )
    type_message = encode_message((TypeField.TENSOR_TYPE, tensor_type))
    return encode_message((ValueInfoField.NAME, name), (ValueInfoField.TYPE, type_message))
