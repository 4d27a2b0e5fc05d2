"""An ONNX file as the package `onnx` reads it; its weights are left out before it is parsed.

Format: https://onnx.ai/onnx/repo-docs/IR.html, `onnx.proto`; Protocol Buffers, "Encoding"
(https://protobuf.dev/programming-guides/encoding).
"""

import mmap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from steptime.core.errors import InputError, shorten
from steptime.formats import READ_ERRORS, Source, describe_error
from steptime.formats.onnx.constant import FileConstant, Spec
from steptime.formats.onnx.weightless import (
    DTYPES,
    NoModelError,
    WeightlessCopy,
    element_type,
    is_read,
)

try:
    import onnx
    from google.protobuf.message import DecodeError
    from onnx import AttributeProto, FunctionProto, GraphProto, NodeProto, TensorProto
except ModuleNotFoundError:
    raise InputError("an ONNX file is read by onnx: pip install 'steptime[onnx]'") from None

MAX_NODES = 300_000
MAX_FUNCTION_DEPTH = 16
_STANDARD_DOMAINS = ("", "ai.onnx")


@dataclass(frozen=True)
class OnnxNode:
    """One node of the file, after its local functions were replaced by their nodes.

    Attributes:
        name: its name, or that of its first output.
        op: its operator, with its domain unless that is ONNX's own: `com.microsoft.Attention`.
        inputs: the names of the tensors that it reads, "" for one that is left out.
        outputs: the names of the tensors that it makes.
        attrs: its attributes.
        opset: the version of ONNX's operators that its file uses.
        proto: the node as `onnx` parses it.
    """

    name: str
    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: Mapping[str, Any]
    opset: int
    proto: NodeProto


class _NameScope(NamedTuple):
    """The names of tensors inside a call of a local function, or in a graph.

    Attributes:
        prefix: what the names of inner tensors begin with, "" in a graph.
        caller_names: the caller's name of each input and output of the function.
    """

    prefix: str
    caller_names: Mapping[str, str]

    def rename(self, name: str) -> str:
        is_left_out = name == ""  # an optional input or output
        return name if is_left_out else self.caller_names.get(name, f"{self.prefix}{name}")


@dataclass(frozen=True)
class OnnxInput:
    """An input of the graph, or a tensor whose type the file states.

    Attributes:
        name: its name.
        dtype: the type of its elements.
        sizes: its sizes; for an open size the name that the file gives it, or "".
    """

    name: str
    dtype: str
    sizes: tuple[int | str, ...]


@dataclass(frozen=True)
class Subgraph:
    """The graph of the file, of a branch or of a loop's body: nodes in order, constants by name."""

    nodes: tuple[OnnxNode, ...]
    constants: Mapping[str, FileConstant]
    inputs: tuple[OnnxInput, ...]
    outputs: tuple[str, ...]


class Model:
    """An ONNX file.

    Attributes:
        file_label: the file's name, for messages.
        graph: its graph.
        identity: the bytes of the file without those of its weights.
    """

    def __init__(self, source: Source) -> None:
        self.file_label = shorten(source.name)[1:-1]  # without quotes
        self._node_count = 0
        weightless = WeightlessCopy(source)
        try:
            content = weightless.copy_without_weights("model", offset=0, end=len(source.content))
            proto = onnx.load_model_from_string(content)
            if not proto.HasField("graph"):
                raise NoModelError("it has no graph")
            if not proto.opset_import:
                raise NoModelError("it has no opsets")
            self._functions = {
                (function.domain, function.name): function for function in proto.functions
            }
            self.graph = self._read_graph(proto.graph, _read_opsets(proto))
            stated_values = (*proto.graph.value_info, *proto.graph.output)
            self._stated_values = {value.name: value for value in stated_values}
        except (*READ_ERRORS, DecodeError) as error:
            reason = error if isinstance(error, NoModelError) else describe_error(error)
            fault = f"is not an ONNX file that can be read: {reason}"
            raise InputError(f"{self.file_label}: {fault}") from None
        weight_spans = weightless.weight_spans
        # files that differ in the numbers of their weights alone are the same network
        self.identity = _cut_spans(source.content, weight_spans)

    def find_stated_input(self, name: str) -> OnnxInput | None:
        """Return type and sizes that the file states of a tensor, None if it states none."""
        value = self._stated_values.get(name)
        if value is None or not value.type.tensor_type.HasField("shape"):
            return None
        try:
            return _read_input(value)
        except NoModelError:
            return None

    def expand_operator(self, node: OnnxNode, specs: Sequence[Spec | None]) -> Subgraph | None:
        """Return the nodes that ONNX defines an operator by; None where it defines none.

        Args:
            node: a node of the file.
            specs: type and shape of each of its inputs, None for one that is left out.
        """
        function = _find_definition(node, specs)
        if function is None:
            return None
        opsets = _read_opsets(function) or {"": node.opset}
        attributes = _index_attributes(
            _list_default_attributes(node), function.attribute_proto, node.proto.attribute
        )
        nodes = self._read_nodes(
            function.node,
            opsets,
            attributes,
            _bind_names(f"{node.name}/", function, node.inputs, node.outputs),
            depth=0,
        )
        return Subgraph(tuple(nodes), constants={}, inputs=(), outputs=node.outputs)

    def _read_graph(self, graph: GraphProto, opsets: Mapping[str, int]) -> Subgraph:
        """Return a graph; raises `NoModelError` for one that is not read."""
        if graph.sparse_initializer:
            raise NoModelError("it has sparse weights")
        constants = {tensor.name: _read_constant(tensor) for tensor in graph.initializer}
        names = _NameScope(prefix="", caller_names={})  # a graph calls its tensors by their names
        nodes = tuple(self._read_nodes(graph.node, opsets, {}, names, depth=0))
        # constants may stand among the inputs, too: before IR version 4 they have to
        stated_inputs = [_read_input(value) for value in graph.input]
        inputs = [value for value in stated_inputs if value.name not in constants]
        output_names = [value.name for value in graph.output]
        return Subgraph(nodes, constants, tuple(inputs), tuple(output_names))

    def _read_nodes(
        self,
        nodes: Sequence[NodeProto],
        opsets: Mapping[str, int],
        attributes: Mapping[str, AttributeProto],
        names: _NameScope,
        depth: int,
    ) -> Iterator[OnnxNode]:
        """Yield nodes; a call of a local function is replaced by the function's nodes.

        `onnx.inliner` is not used: it does not bound functions that call each other twice, level by
        level, and inlines no function of another opset than the file's.

        Args:
            nodes: the nodes of a graph or a function.
            opsets: versions of operators by domain.
            attributes: those of the call, to which nodes of a function may refer.
            names: the names of their tensors.
            depth: the number of function calls around the nodes.
        """
        if depth > MAX_FUNCTION_DEPTH:
            raise NoModelError(f"local functions nest deeper than {MAX_FUNCTION_DEPTH}")
        standard_opsets = [opsets[domain] for domain in _STANDARD_DOMAINS if domain in opsets]
        opset = standard_opsets[0] if standard_opsets else 1
        for node in nodes:
            self._node_count += 1
            if self._node_count > MAX_NODES:
                raise NoModelError(f"more than {MAX_NODES} nodes")
            proto = _resolve_attributes(node, attributes)
            inputs = tuple(map(names.rename, node.input))
            outputs = tuple(map(names.rename, node.output))
            first_output = outputs[0] if outputs else node.op_type
            name = f"{names.prefix}{node.name or first_output}"
            function = self._functions.get((node.domain, node.op_type))
            if function is None:
                is_standard = node.domain in _STANDARD_DOMAINS
                op = node.op_type if is_standard else f"{node.domain}.{node.op_type}"
                attrs = self._read_attributes(_rename_captured(proto, names.rename), opsets)
                yield OnnxNode(name, op, inputs, outputs, attrs, opset, proto)
                continue
            yield from self._read_nodes(
                function.node,
                _read_opsets(function) or opsets,
                _index_attributes(function.attribute_proto, proto.attribute),
                _bind_names(f"{name}/", function, inputs, outputs),
                depth=depth + 1,
            )

    def _read_attributes(self, proto: NodeProto, opsets: Mapping[str, int]) -> dict[str, object]:
        return {
            attribute.name: self._read_value(attribute, opsets)
            for attribute in proto.attribute
            if attribute.name
        }

    def _read_value(self, attribute: AttributeProto, opsets: Mapping[str, int]) -> Any:
        """Return an attribute's value: a number, a text, a tuple, a graph, a constant."""
        value = onnx.helper.get_attribute_value(attribute)
        if isinstance(value, GraphProto):
            return self._read_graph(value, opsets)
        if isinstance(value, TensorProto):
            return _read_constant(value)
        if isinstance(value, bytes):
            return value.decode()
        is_list = isinstance(value, Sequence) and not isinstance(value, str)
        if is_list:
            return tuple(item.decode() if isinstance(item, bytes) else item for item in value)
        return value


def _cut_spans(content: bytes | mmap.mmap, spans: Sequence[tuple[int, int]]) -> bytes:
    """Return bytes without those of some spans, which may overlap."""
    parts: list[bytes] = []
    part_start = 0
    for span_start, span_end in sorted(spans):
        parts.append(content[part_start:span_start])
        part_start = max(part_start, span_end)  # spans may lie in each other
    last_part = content[part_start:]
    return b"".join([*parts, last_part])


def _bind_names(
    prefix: str, function: FunctionProto, inputs: Sequence[str], outputs: Sequence[str]
) -> _NameScope:
    """Return the names inside a call of a function, "" for an input that the call leaves out."""
    caller_names = dict.fromkeys(function.input, "")  # a call may leave out inputs at the end
    caller_names.update(zip(function.input, inputs, strict=False))
    caller_names.update(zip(function.output, outputs, strict=False))
    return _NameScope(prefix, caller_names)


def _rename_captured(node: NodeProto, rename: Callable[[str], str]) -> NodeProto:
    """Return a node whose graphs read the tensors around them by their names outside.

    A graph in a function reads the function's inputs and inner tensors by the function's names.
    """
    if not any(attribute.HasField("g") for attribute in node.attribute):
        return node
    renamed = NodeProto()
    renamed.CopyFrom(node)
    for attribute in renamed.attribute:
        if attribute.HasField("g"):
            _rename_in_graph(attribute.g, rename)
    return renamed


def _rename_in_graph(graph: GraphProto, rename: Callable[[str], str]) -> None:
    """Rename what a graph reads of the tensors around it, in place; its own keep their names."""
    inner_names = {item.name for item in (*graph.input, *graph.initializer)}
    inner_names.update(name for node in graph.node for name in node.output)

    def rename_outer(name: str) -> str:
        return name if name in inner_names else rename(name)

    for node in graph.node:
        node.input[:] = [rename_outer(name) for name in node.input]
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _rename_in_graph(attribute.g, rename_outer)
    for output in graph.output:
        output.name = rename_outer(output.name)


def _index_attributes(*groups: Iterable[AttributeProto]) -> dict[str, AttributeProto]:
    """Return attributes by name; those of a later group replace those of an earlier one."""
    return {attribute.name: attribute for group in groups for attribute in group}


def _find_definition(node: OnnxNode, specs: Sequence[Spec | None]) -> FunctionProto | None:
    """Return the function that ONNX defines a node's operator by, None if there is none.

    ONNX has a fixed function for some operators; for others it makes one for the node's types.
    """
    try:
        schema: Any = onnx.defs.get_schema(node.op, node.opset, domain="")
    except onnx.defs.SchemaError:
        return None
    # some operators have a fixed function, for others ONNX makes one for the node's types
    if schema.has_function:
        function: FunctionProto = schema.function_body
        return function
    if not schema.has_context_dependent_function:
        return None
    input_types = [_make_type_proto(spec).SerializeToString() for spec in specs]
    node_bytes = node.proto.SerializeToString()
    function_bytes = schema.get_context_dependent_function(node_bytes, input_types)
    return FunctionProto.FromString(function_bytes) if function_bytes else None


def _list_default_attributes(node: OnnxNode) -> list[AttributeProto]:
    """Return the attributes of an operator that have a default."""
    attributes = onnx.defs.get_schema(node.op, node.opset, domain="").attributes.values()
    defaults = [attribute.default_value for attribute in attributes]
    return [default for default in defaults if default.name]


def _make_type_proto(spec: Spec | None) -> onnx.TypeProto:
    """Return ONNX's form of type and shape, an empty one for an input that is left out."""
    if spec is None:
        return onnx.TypeProto()
    dtype, shape = spec
    stated_dtype = "float32" if "float" in dtype else dtype
    onnx_dtypes = [number for number, row in DTYPES.items() if row.name == stated_dtype]
    onnx_dtype = onnx_dtypes[0] if onnx_dtypes else TensorProto.FLOAT
    return onnx.helper.make_tensor_type_proto(onnx_dtype, shape)


def _read_constant(tensor: TensorProto) -> FileConstant:
    dtype = element_type(tensor.data_type).name
    values = onnx.numpy_helper.to_array(tensor) if is_read(tensor) else None
    return FileConstant(tensor.name, tuple(tensor.dims), dtype, values)


def _resolve_attributes(
    node: NodeProto, call_attributes: Mapping[str, AttributeProto]
) -> NodeProto:
    """Return a node of a function with the attributes that it takes from the function's call."""
    if not any(attribute.ref_attr_name for attribute in node.attribute):
        return node
    resolved = NodeProto()
    resolved.CopyFrom(node)
    del resolved.attribute[:]
    for attribute in node.attribute:
        name_in_call = attribute.ref_attr_name  # "" for an attribute with a value of its own
        if not name_in_call:
            resolved.attribute.append(attribute)
        elif name_in_call in call_attributes:
            resolved.attribute.append(call_attributes[name_in_call])
            resolved.attribute[-1].name = attribute.name
    return resolved


def _read_opsets(proto: onnx.ModelProto | FunctionProto) -> dict[str, int]:
    return {opset.domain: opset.version for opset in proto.opset_import}


def _read_input(value: onnx.ValueInfoProto) -> OnnxInput:
    if not value.type.HasField("tensor_type"):
        raise NoModelError(f"input {shorten(value.name)} is not a tensor")
    tensor = value.type.tensor_type
    if tensor.elem_type not in DTYPES:
        raise NoModelError(f"input {shorten(value.name)} does not hold numbers")
    # a size that the file leaves open is 0, and may have a name
    sizes = tuple(max(size.dim_value, 0) or size.dim_param for size in tensor.shape.dim)
    if any(isinstance(text, bytes) for text in (value.name, *sizes)):
        raise NoModelError("a text that is not UTF-8")
    return OnnxInput(value.name, DTYPES[tensor.elem_type].name, sizes)


def model_of(source: Source) -> Model:
    """Return the model of a file, read once; raises `InputError` if the file is not one."""
    return source.memoise(Model, lambda: Model(source))


def identity(source: Source) -> bytes:
    """Return the bytes of a file without those of its weights."""
    return model_of(source).identity
