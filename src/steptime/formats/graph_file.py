"""Reads the native file of a network: a graph as JSON, written by us or by a converter."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from sys import float_info
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from steptime.core.dtypes import SIZE_BYTES, precision
from steptime.core.errors import InputError, shorten, unknown
from steptime.core.graph import Graph, GraphError, Op, check
from steptime.core.graph_json import KEY, VERSION, graph_from_json
from steptime.core.typed import typed
from steptime.core.values import MAX_COUNT
from steptime.core.workload import Phase
from steptime.formats import READ_ERRORS, Source, describe_error
from steptime.network import ops
from steptime.network.families.family import Family
from steptime.network.ops.builder import MOST_OPS, Builder
from steptime.network.ops.training import training_graph

SOURCE = "a graph as JSON"
_Whole = Annotated[int, Meta(ge=-MAX_COUNT, le=MAX_COUNT)]
_Size = Annotated[int, Meta(ge=1, le=MAX_COUNT, description="a whole number from 1 to 2^53")]
_Name = Annotated[str, Meta(min_length=1, max_length=500, description="a name, not too long")]
_Names = Annotated[list[_Name], Meta(min_length=1, description="a list of at least one name")]
_Shape = Annotated[list[_Size], Meta(max_length=16, description="a list of at most 16 sizes")]
_Finite = Annotated[float, Meta(ge=-float_info.max, le=float_info.max)]
_Attribute = Annotated[
    bool | _Whole | _Finite | str | list[_Whole],
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
    ops: Annotated[list[_Op], Meta(max_length=MOST_OPS, description=f"at most {MOST_OPS} ops")]
    buffers: list[_Name] = []
    unmodelled: list[_Name] = []


def read(source: Source, _allow_unknown: bool) -> Family:
    """Return the network of a native file, whose shapes are of one batch, phase and dtype."""
    place = shorten(source.name)[1:-1]
    table: Any = source.table
    file = _checked(table, place)
    graph = graph_from_json(table)
    graph = replace(graph, ops=tuple(_renamed(graph, op) for op in graph.ops))
    _verify(graph, file.phase == "train", place)

    def build(b: Builder, _: Mapping[str, Any], batch: int) -> str:
        wanted = (batch, "train" if b.training else "infer")
        if wanted != (file.batch, file.phase) or b.precision != precision(file.dtype):
            raise InputError(
                f"{place}: a graph of batch {file.batch}, phase {file.phase} and {file.dtype}; "
                f"it cannot be made into another one (--batch {file.batch} --phase {file.phase} "
                f"--dtype {file.dtype})"
            )
        b.tensors.update(graph.tensors)
        b.ops.extend(graph.ops)
        for kept, names in ((b.inputs, graph.inputs), (b.weights, graph.weights)):
            kept.extend(names)
        b.buffers.extend(graph.buffers)
        b.unmodelled.extend(graph.unmodelled)
        return graph.outputs[0]

    return Family(source.name, build, {}, SOURCE, batch=file.batch, named=True, dtype=file.dtype)


def _renamed(graph: Graph, op: Op) -> Op:
    shapes = [graph.tensors[name].shape for name in op.inputs if name in graph.tensors]
    kind, attrs = ops.renamed(op.kind, shapes, op.attrs)
    return op if kind == op.kind else replace(op, kind=kind, attrs=attrs)


def _checked(table: object, place: str) -> _GraphFile:
    version = table.get(KEY) if isinstance(table, dict) else None
    if type(version) is int and version > VERSION:
        raise InputError(
            f"{place}: version {shorten(version)} of a graph; this one reads {VERSION}"
        )
    file = typed(table, _GraphFile, place)
    precision(file.dtype)
    for name, (dtype, _) in file.tensors.items():
        if dtype not in SIZE_BYTES:
            raise unknown("dtype", dtype, SIZE_BYTES, f"{place}: tensor {shorten(name)}")
    return file


def _verify(graph: Graph, trains: bool, place: str) -> None:
    """Raise `InputError` unless all ops are known, in order, and their shapes those that follow."""
    given = Counter((*graph.inputs, *graph.weights, *graph.buffers))
    if twice := [name for name, count in given.items() if count > 1]:
        raise InputError(f"{place}: tensor {shorten(twice[0])} is given twice")
    try:
        check(graph)
    except GraphError as error:
        raise InputError(f"{place}: {describe_error(error)}") from None
    for op in graph.ops:
        ops.kind_row(op.kind)
        where = f"{place}: op {shorten(op.name)}"
        try:
            problem = _misfit(graph, op)
        except READ_ERRORS as error:
            raise InputError(f"{where}: {op.kind}: {describe_error(error)}") from None
        if problem:
            raise InputError(f"{where}: {problem}")
    if not trains:
        return
    loss = graph.tensors[graph.outputs[0]].shape
    if loss != ():
        raise InputError(
            f"{place}: a graph to train ends with the loss, a scalar, not {list(loss)}"
        )
    try:
        training_graph(graph, "sgd")
    except READ_ERRORS as error:
        raise InputError(f"{place}: cannot be differentiated: {describe_error(error)}") from None


def _misfit(graph: Graph, op: Op) -> str:
    """Return what does not fit about an op, "" if all does."""
    example = ops.OPS[op.kind].example.attrs
    for name, value in op.attrs.items():
        if name in example and type(value) is not type(example[name]):
            return f"{shorten(name)} is a {type(example[name]).__name__}, not {shorten(value)}"
    specs = tuple(graph.tensors[name] for name in op.inputs)
    written = tuple(graph.tensors[name] for name in op.outputs)
    case = op.kind, specs, op.settings
    made = ops.outputs_of(*case)
    if made != written:
        follow, said = ([[one.dtype, list(one.shape)] for one in ones] for ones in (made, written))
        return f"{op.kind} makes {shorten(follow)}, not {shorten(said)}"
    if not all(type(size) is int and 0 < size <= MAX_COUNT for one in made for size in one.shape):
        return f"{op.kind} makes a tensor without a size"
    numbers = [*ops.cost_of(*case, written), ops.scratch_of(*case), ops.serial_of(*case)]
    numbers += [n for product in ops.products_of(*case) for n in product]
    ops.saved_of(*case)
    right = all(type(number) is int and number >= 0 for number in numbers)
    return "" if right else f"{op.kind} has attributes without a cost"
