"""A forward graph as an ONNX file, and what the functions of `onnx_kinds` put its nodes with.

Numbers of fields are those of onnx.proto. Every op is a node of its name, with nodes before or
after it (`NAME#1`, ...) where ONNX has another layout. Weights are values that are given, or
constants made by a node, so that the file of a network of any size is small.
"""

import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from steptime.core.errors import InputError
from steptime.core.graph import Graph, Op, TensorSpec
from steptime.exporters.protobuf import Value, message
from steptime.ops.joining import joined_products

OPSET, IR_VERSION = 23, 11  # the first with Attention, RMSNormalization and RotaryEmbedding
TYPES = {
    "float32": 1,
    "int8": 3,
    "int32": 6,
    "int64": 7,
    "bool": 9,
    "float16": 10,
    "float64": 11,
    "bfloat16": 16,
}
_PACKS = {"float32": "<f", "int8": "<b", "int32": "<i", "int64": "<q", "bool": "<?"}
_PACKS |= {"float16": "<e", "float64": "<d"}
Weights = Callable[[str, TensorSpec], bytes]


class NoOnnxError(InputError):
    """A network that ONNX cannot say, or that is not written as ONNX here."""


@dataclass
class Node:
    """A node of the file: `kind` is ONNX's op type."""

    name: str
    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: Mapping[str, Any]


class Nodes:
    """The nodes of a file so far, and the small constants that they read.

    `op` is the op being written; functions of `onnx_kinds` append its nodes with `add`.
    """

    def __init__(self, graph: Graph) -> None:
        self.tensors = graph.tensors
        self.constants: dict[str, bytes] = {}
        self.made: list[Node] = []
        self.op = Op("", "", (), ())

    @property
    def output(self) -> TensorSpec:
        """The spec of the op's first output."""
        return self.tensors[self.op.outputs[0]]

    def shape(self, tensor: str) -> tuple[int, ...]:
        """Return the shape of a tensor of the graph."""
        return self.tensors[tensor].shape

    def add(self, kind: str, *inputs: str, **attrs: Any) -> str:
        """Append a node, and return the name of its output."""
        return self.add_several(kind, 1, *inputs, **attrs)[0]

    def add_several(self, kind: str, count: int, *inputs: str, **attrs: Any) -> tuple[str, ...]:
        """Append a node of `count` outputs, and return their names."""
        name = f"{self.op.name}#{len(self.made) + 1}"
        outputs = (name, *(f"{name}.{i}" for i in range(1, count)))
        self.made.append(Node(name, kind, inputs, outputs, attrs))
        return outputs

    def ints(self, *values: int) -> str:
        """Return the name of a vector of whole numbers: a shape, axes."""
        name = f"#{','.join(map(str, values))}"
        self.constants[name] = tensor(name, TensorSpec((len(values),), "int64"), values)
        return name

    def number(self, value: float, dtype: str) -> str:
        """Return the name of a scalar of a type."""
        name = f"#{dtype} {value!r}"
        self.constants[name] = tensor(name, TensorSpec((), dtype), (value,))
        return name

    def finish(self, first: int, made: str | tuple[str, ...]) -> None:
        """Give what an op's function returned the names of the op's outputs."""
        results = made if isinstance(made, tuple) else (made,)
        names = dict(zip(results, self.op.outputs, strict=False))
        own = self.made[first:]
        for node in own:
            node.inputs = tuple(names.get(name, name) for name in node.inputs)
            node.outputs = tuple(names.get(name, name) for name in node.outputs)
        own[-1].name = self.op.name


def tensor(name: str, spec: TensorSpec, values: Iterable[float]) -> bytes:
    """Return a TensorProto of a few values."""
    return raw_tensor(name, spec, b"".join(pack(value, spec.dtype) for value in values))


def pack(value: float, dtype: str) -> bytes:
    """Return a number in a type; bfloat16 is the upper half of a float32."""
    if dtype == "bfloat16":
        return struct.pack("<f", value)[2:]
    return struct.pack(_PACKS[dtype], value if "float" in dtype else int(value))


def raw_tensor(name: str, spec: TensorSpec, content: bytes | None) -> bytes:
    """Return a TensorProto of these bytes; of None, one whose values are said elsewhere."""
    about: list[tuple[int, Value]] = [(1, size) for size in spec.shape]
    about += [(2, TYPES[spec.dtype]), (8, name)]
    if content is not None:
        return message(*about, (9, content))
    place = {"location": "given", "offset": "0", "length": str(spec.size_bytes)}
    entries = [(13, message((1, key), (2, value))) for key, value in place.items()]
    return message(*about, *entries, (14, 1))


def model_of(graph: Graph, weights: Weights | None = None, apart: bool = False) -> bytes:
    """Return the ONNX file of a forward graph, with the batch that it was built for.

    `weights(name, spec)` returns the values of a weight or buffer, little-endian; without it each
    is a constant, made by a node, that keeps sums in range. `apart` leaves the values out, for a
    runtime that is given them by name. Raises `NoOnnxError` for an op that cannot be written.
    """
    from steptime.exporters.onnx_kinds import KINDS, TAKES_BIAS

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
    products = joined_products(graph, TAKES_BIAS)
    joined = {op.name for op in products.values()}
    for op in graph.ops:
        if op.name in joined:
            continue
        written = products.get(op.name, op)
        inputs = op.inputs if written is op else (*written.inputs, op.inputs[1])
        if written.kind not in KINDS:
            raise NoOnnxError(f"{graph.name}: {written.name}: ONNX has no form for {written.kind}")
        nodes.op = Op(written.name, written.kind, inputs, op.outputs, written.attrs)
        first = len(nodes.made)
        nodes.finish(first, KINDS[written.kind](nodes, *inputs, **written.attrs))
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
    nodes.made.append(Node(name, "ConstantOfShape", shape, (name,), {"value": value}))


def _nodes(made: Iterable[Node]) -> list[tuple[int, Value]]:
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


def _tensors(graph: Graph, made: Iterable[Node]) -> list[tuple[int, Value]]:
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
