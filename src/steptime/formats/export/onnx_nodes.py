"""The nodes of an ONNX file, and the small constants that they read."""

import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from steptime.core.errors import InputError
from steptime.core.graph import Graph, Op, TensorSpec
from steptime.formats.export.onnx_fields import EntryField, TensorField
from steptime.formats.export.protobuf import Value, encode_message

TYPES = {  # our name of a type -> TensorProto.DataType
    "float32": 1,
    "int8": 3,
    "int32": 6,
    "int64": 7,
    "bool": 9,
    "float16": 10,
    "float64": 11,
    "bfloat16": 16,
}
_PACK_FORMATS = {  # for `struct`
    "float32": "<f",
    "int8": "<b",
    "int32": "<i",
    "int64": "<q",
    "bool": "<?",
    "float16": "<e",
    "float64": "<d",
}
INPUT_SIZE, OPEN_SIZE = 0, -1  # in a shape that ONNX's Reshape reads
EXTERNAL = 1  # TensorProto.DataLocation


Results = str | tuple[str, ...]  # the name of an output, or of several
Function = Callable[..., str]  # (nodes, *inputs, **attributes) -> output
Write = Callable[..., Results]  # the same of one output or several


class NoOnnxError(InputError):
    """A network that ONNX cannot say, or that is not written as ONNX here."""


@dataclass
class ExportNode:
    """A node of the file.

    Attributes:
        name: its name.
        kind: ONNX's op type.
        inputs: the names of the tensors that it reads, "" for one that is left out.
        outputs: the names of the tensors that it makes.
        attrs: its attributes; bytes are those of a tensor.
    """

    name: str
    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: Mapping[str, Any]


class Nodes:
    """The nodes of a file so far, and the small constants that they read.

    Functions of `onnx_kinds.KINDS` append the nodes of an op with `add`.

    Attributes:
        tensors: the tensors of the graph that is written.
        constants: by name, each a TensorProto.
        node_list: the nodes, in order.
        current_op: the op that is written.
    """

    def __init__(self, graph: Graph) -> None:
        self.tensors = graph.tensors
        self.constants: dict[str, bytes] = {}
        self.node_list: list[ExportNode] = []
        self.current_op = Op(name="", kind="", inputs=(), outputs=())

    @property
    def output_spec(self) -> TensorSpec:
        """The spec of the op's first output."""
        return self.tensors[self.current_op.outputs[0]]

    def shape(self, tensor: str) -> tuple[int, ...]:
        """Return the shape of a tensor of the graph."""
        return self.tensors[tensor].shape

    def add(self, kind: str, *inputs: str, **attrs: Any) -> str:
        """Append a node, and return the name of its output."""
        (output,) = self.add_with_outputs(kind, *inputs, output_count=1, **attrs)
        return output

    def add_with_outputs(
        self, kind: str, *inputs: str, output_count: int, **attrs: Any
    ) -> tuple[str, ...]:
        """Append a node of several outputs, and return their names."""
        name = f"{self.current_op.name}#{len(self.node_list) + 1}"
        outputs = (name, *(f"{name}.{i}" for i in range(1, output_count)))
        self.node_list.append(ExportNode(name, kind, inputs, outputs, attrs))
        return outputs

    def constant_ints(self, *values: int) -> str:
        """Return the name of a constant vector of integers: a shape, axes."""
        name = f"#{','.join(map(str, values))}"
        self.constants[name] = encode_tensor(name, TensorSpec((len(values),), "int64"), values)
        return name

    def constant_number(self, value: float, dtype: str) -> str:
        """Return the name of a constant scalar of a type."""
        name = f"#{dtype} {value!r}"
        self.constants[name] = encode_tensor(name, TensorSpec((), dtype), (value,))
        return name

    def name_results(self, first_node_index: int, results: Results) -> None:
        """Name the results of an op's nodes as the op's outputs, and its last node as the op.

        Its nodes are those from `first_node_index` on.
        """
        result_names = results if isinstance(results, tuple) else (results,)
        output_of_result = dict(zip(result_names, self.current_op.outputs, strict=False))
        # nodes have temporary names until the outputs of the op are known
        nodes_of_op = self.node_list[first_node_index:]
        for node in nodes_of_op:
            node.inputs = tuple(output_of_result.get(name, name) for name in node.inputs)
            node.outputs = tuple(output_of_result.get(name, name) for name in node.outputs)
        last_node = self.node_list[-1]
        last_node.name = self.current_op.name


def single_node_writer(kind: str, **attrs: Any) -> Function:
    """Return a function that writes an op as one node with the same inputs."""
    return lambda nodes, *inputs, **_: nodes.add(kind, *inputs, **attrs)


def encode_tensor(name: str, spec: TensorSpec, values: Iterable[float]) -> bytes:
    """Return a TensorProto of a few values."""
    return encode_raw_tensor(
        name, spec, b"".join(pack_number(value, spec.dtype) for value in values)
    )


def pack_number(value: float, dtype: str) -> bytes:
    """Return a number in a type; bfloat16 is the upper half of a float32."""
    if dtype == "bfloat16":
        float32_bytes = struct.pack("<f", value)
        return float32_bytes[2:]
    return struct.pack(_PACK_FORMATS[dtype], value if "float" in dtype else int(value))


def encode_raw_tensor(name: str, spec: TensorSpec, content: bytes | None) -> bytes:
    """Return a TensorProto of these bytes.

    None stands for values that a runtime gets by name. The file then says that they lie in another
    file, which is never opened.
    """
    header: list[tuple[int, Value]] = [(TensorField.DIMS, size) for size in spec.shape]
    header += [(TensorField.DATA_TYPE, TYPES[spec.dtype]), (TensorField.NAME, name)]
    if content is not None:
        return encode_message(*header, (TensorField.RAW_DATA, content))
    # a place in a file that is never opened: the runtime gets the values by name
    location = {"location": "given", "offset": "0", "length": str(spec.size_bytes)}
    entries = [
        encode_message((EntryField.KEY, key), (EntryField.VALUE, value))
        for key, value in location.items()
    ]
    external_data = [(TensorField.EXTERNAL_DATA, entry) for entry in entries]
    return encode_message(*header, *external_data, (TensorField.DATA_LOCATION, EXTERNAL))
