"""The nodes of an ONNX file, and the small constants that they read."""

import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from steptime.core.errors import InputError
from steptime.core.graph import Graph, Op, TensorSpec
from steptime.formats.export.protobuf import Value, message

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


Function = Callable[..., str]  # (nodes, *inputs, **attributes) -> output
Write = Callable[..., str | tuple[str, ...]]  # of one output or several


class NoOnnxError(InputError):
    """A network that ONNX cannot say, or that is not written as ONNX here."""


@dataclass
class ExportNode:
    """A node of the file: `kind` is ONNX's op type."""

    name: str
    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: Mapping[str, Any]


class Nodes:
    """The nodes of a file so far, and the small constants that they read.

    `op` is the op being written; functions of `onnx_kinds.KINDS` append its nodes with `add`.
    """

    def __init__(self, graph: Graph) -> None:
        self.tensors = graph.tensors
        self.constants: dict[str, bytes] = {}
        self.made: list[ExportNode] = []
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
        self.made.append(ExportNode(name, kind, inputs, outputs, attrs))
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
        """Name what an op's function returned as the op's outputs."""
        results = made if isinstance(made, tuple) else (made,)
        names = dict(zip(results, self.op.outputs, strict=False))
        own = self.made[first:]
        for node in own:
            node.inputs = tuple(names.get(name, name) for name in node.inputs)
            node.outputs = tuple(names.get(name, name) for name in node.outputs)
        own[-1].name = self.op.name


def node(kind: str, **attrs: Any) -> Function:
    """Return what writes an op as one node that has the same inputs."""
    return lambda b, *inputs, **_: b.add(kind, *inputs, **attrs)


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
