"""Read the native file of a network: a graph as JSON, which steptime or a converter wrote."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from sys import float_info
from typing import Annotated, Literal

from msgspec import Meta, Struct

from steptime.core.dtypes import SIZE_BYTES, precision
from steptime.core.errors import InputError, shorten, unknown
from steptime.core.graph import Graph, GraphError, Op, TensorSpec, check
from steptime.core.graph_json import KEY, VERSION, graph_from_json
from steptime.core.json_types import JsonValue
from steptime.core.signatures.typed import convert_table
from steptime.core.values import MAX_COUNT
from steptime.core.workload import Phase
from steptime.formats import READ_ERRORS, Source, describe_error
from steptime.network import ops
from steptime.network.families.family import Family
from steptime.network.ops.builder import MAX_OPS, Builder
from steptime.network.ops.training import training_graph

SOURCE = "a graph as JSON"
_Integer = Annotated[int, Meta(ge=-MAX_COUNT, le=MAX_COUNT)]
_Size = Annotated[int, Meta(ge=1, le=MAX_COUNT, description="a whole number from 1 to 2^53")]
_Name = Annotated[str, Meta(min_length=1, max_length=500, description="a name, not too long")]
_Names = Annotated[list[_Name], Meta(min_length=1, description="a list of at least one name")]
_Shape = Annotated[list[_Size], Meta(max_length=16, description="a list of at most 16 sizes")]
_Finite = Annotated[float, Meta(ge=-float_info.max, le=float_info.max)]
_Attribute = Annotated[
    bool | _Integer | _Finite | str | list[_Integer],
    Meta(description="a number, a text, true or false, or a list of whole numbers"),
]


class _Op(Struct, forbid_unknown_fields=True):
    name: _Name
    kind: _Name
    inputs: list[_Name]
    outputs: _Names
    attrs: dict[str, _Attribute] = {}


class _GraphFile(Struct, forbid_unknown_fields=True):
    steptime_graph: Literal[1]
    name: _Name
    phase: Phase
    dtype: _Name
    batch: _Size
    inputs: list[_Name]
    weights: list[_Name]
    outputs: _Names
    tensors: dict[_Name, tuple[_Name, _Shape]]
    ops: Annotated[list[_Op], Meta(max_length=MAX_OPS, description=f"at most {MAX_OPS} ops")]
    buffers: list[_Name] = []
    unmodelled: list[_Name] = []


def read(source: Source, _allow_unknown: bool) -> Family:
    """Read the network of a native file; its shapes are of one batch, phase and data type.

    Raises:
        InputError: for a file of another form, and for ops that do not fit their tensors.
    """
    place = shorten(source.name)[1:-1]  # without quotes
    table: JsonValue = source.table
    file = _check_file(table, place)
    graph = graph_from_json(table)
    updated_ops = tuple(_update_kind(graph, op) for op in graph.ops)  # kinds of older files
    graph = replace(graph, ops=updated_ops)
    _verify_ops(graph, place)
    if file.phase == "train":
        _verify_training(graph, place)

    def build(b: Builder, _: Mapping[str, object], batch: int) -> str:
        _check_step(file, b, batch, place)
        b.tensors.update(graph.tensors)
        b.ops.extend(graph.ops)
        b.inputs.extend(graph.inputs)
        b.weights.extend(graph.weights)
        b.buffers.extend(graph.buffers)
        b.unmodelled.extend(graph.unmodelled)
        return graph.outputs[0]

    return Family(
        source.name, build, {}, SOURCE, batch=file.batch, is_preset=True, dtype=file.dtype
    )


def _check_step(file: _GraphFile, b: Builder, batch: int, place: str) -> None:
    """Raise `InputError` for another batch, phase or data type than those of the file."""
    phase = "train" if b.training else "infer"
    matches_step = batch == file.batch and phase == file.phase
    matches_dtype = b.precision == precision(file.dtype)
    if not (matches_step and matches_dtype):
        raise InputError(
            f"{place}: a graph of batch {file.batch}, phase {file.phase} and {file.dtype}; "
            f"it cannot be made into another one (--batch {file.batch} --phase {file.phase} "
            f"--dtype {file.dtype})"
        )


def _update_kind(graph: Graph, op: Op) -> Op:
    """Return the op with the present name of its kind, which has another one in older files."""
    input_shapes = [graph.tensors[name].shape for name in op.inputs if name in graph.tensors]
    present_kind, present_attrs = ops.resolve_alias(op.kind, input_shapes, op.attrs)
    if present_kind == op.kind:
        return op
    return replace(op, kind=present_kind, attrs=present_attrs)


def _check_file(table: object, place: str) -> _GraphFile:
    """Return the typed content of a file; raises `InputError` for another version or form."""
    version = table.get(KEY) if isinstance(table, dict) else None
    is_newer = type(version) is int and version > VERSION
    if is_newer:
        raise InputError(
            f"{place}: version {shorten(version)} of a graph; this steptime reads {VERSION}"
        )
    file = convert_table(table, _GraphFile, place)
    precision(file.dtype)
    for name, (dtype, _) in file.tensors.items():
        if dtype not in SIZE_BYTES:
            raise unknown("dtype", dtype, SIZE_BYTES, f"{place}: tensor {shorten(name)}")
    return file


def _verify_ops(graph: Graph, place: str) -> None:
    """Raise `InputError` unless all ops are known and in order, and make the stated tensors."""
    listing_counts = Counter((*graph.inputs, *graph.weights, *graph.buffers))
    repeated_names = [name for name, count in listing_counts.items() if count > 1]
    if repeated_names:
        raise InputError(f"{place}: tensor {shorten(repeated_names[0])} is given twice")
    try:
        check(graph)
    except GraphError as error:
        raise InputError(f"{place}: {describe_error(error)}") from None
    for op in graph.ops:
        ops.kind_row(op.kind)  # raises for a kind that is not known
        op_place = f"{place}: op {shorten(op.name)}"
        try:
            fault = _describe_fault(graph, op)
        except READ_ERRORS as error:
            raise InputError(f"{op_place}: {op.kind}: {describe_error(error)}") from None
        if fault:
            raise InputError(f"{op_place}: {fault}")


def _verify_training(graph: Graph, place: str) -> None:
    """Raise `InputError` unless the graph ends with a loss that can be differentiated."""
    loss_shape = graph.tensors[graph.outputs[0]].shape
    is_scalar = loss_shape == ()
    if not is_scalar:
        raise InputError(
            f"{place}: a graph to train ends with the loss, a scalar, not {list(loss_shape)}"
        )
    try:
        training_graph(graph, "sgd")
    except READ_ERRORS as error:
        raise InputError(f"{place}: cannot be differentiated: {describe_error(error)}") from None


def _describe_fault(graph: Graph, op: Op) -> str:
    """Describe the first fault of an op's attributes, outputs or cost; "" if it has none.

    Example: `relu makes [['float32', [2, 8]]], not [['float32', [2, 9]]]`.
    """
    attribute_fault = _describe_attribute_fault(op)
    if attribute_fault:
        return attribute_fault
    input_specs = tuple(graph.tensors[name] for name in op.inputs)
    stated_outputs = tuple(graph.tensors[name] for name in op.outputs)
    right_outputs = ops.outputs_of(op.kind, input_specs, op.settings)
    if right_outputs != stated_outputs:
        right_text = shorten(_list_specs(right_outputs))
        stated_text = shorten(_list_specs(stated_outputs))
        return f"{op.kind} makes {right_text}, not {stated_text}"
    if not all(_has_valid_sizes(spec) for spec in right_outputs):
        return f"{op.kind} makes a tensor without a size"
    if not _has_cost(op, input_specs, right_outputs):
        return f"{op.kind} has attributes without a cost"
    return ""


def _describe_attribute_fault(op: Op) -> str:
    """Describe the first attribute of another type than the op table has; "" without one."""
    # the example of a kind has an attribute of each name, of the right type
    example_attrs = ops.OPS[op.kind].example.attrs
    for name, value in op.attrs.items():
        right_type = type(example_attrs[name]) if name in example_attrs else type(value)
        if type(value) is not right_type:
            return f"{shorten(name)} is a {right_type.__name__}, not {shorten(value)}"
    return ""


def _list_specs(specs: Sequence[TensorSpec]) -> list[list[object]]:
    """Return the data type and the shape of each tensor as a file states them."""
    return [[spec.dtype, list(spec.shape)] for spec in specs]


def _has_valid_sizes(spec: TensorSpec) -> bool:
    return all(type(size) is int and 0 < size <= MAX_COUNT for size in spec.shape)


def _has_cost(op: Op, inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...]) -> bool:
    """Whether all numbers that the op table computes of an op are whole and not negative."""
    # the functions of the op table must work for these attributes, and give whole numbers
    kind, settings = op.kind, op.settings
    ops.saved_of(kind, inputs, settings)  # raises where it cannot be computed
    product_sizes = [
        size for product in ops.products_of(kind, inputs, settings) for size in product
    ]
    numbers = [
        *ops.cost_of(kind, inputs, settings, outputs),
        ops.scratch_of(kind, inputs, settings),
        ops.serial_of(kind, inputs, settings),
        *product_sizes,
    ]
    return all(type(number) is int and number >= 0 for number in numbers)
