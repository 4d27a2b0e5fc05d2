"""Reads the native file of a network: a graph as JSON, written by us or by a converter."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from steptime.core.dtypes import SIZE_BYTES, precision
from steptime.core.errors import InputError, shorten, unknown
from steptime.core.graph import Graph, GraphError, Op, check
from steptime.core.graph_json import KEY, VERSION, graph_from_json
from steptime.core.ranges import LARGEST
from steptime.formats import WRONG, Source, line_of
from steptime.network import ops
from steptime.network.families.family import Family
from steptime.network.ops.builder import MOST_OPS, Builder
from steptime.network.ops.training import training_graph

SOURCE = "a graph as JSON"
MOST_AXES = 16
Whole = Annotated[int, Field(ge=-LARGEST, le=LARGEST)]
Size = Annotated[int, Field(ge=1, le=LARGEST)]
Name = Annotated[str, Field(min_length=1, max_length=500)]
Shape = Annotated[list[Size], Field(max_length=MOST_AXES)]
Tensor = Annotated[tuple[Name, Shape], Field(strict=False)]  # JSON has lists only
Attribute = bool | Whole | Annotated[float, Field(allow_inf_nan=False)] | str | list[Whole]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, hide_input_in_errors=True)


class _Op(_Strict):
    name: Name
    kind: Name
    inputs: list[Name]
    outputs: Annotated[list[Name], Field(min_length=1)]
    attrs: dict[str, Attribute] = {}


class _File(_Strict):
    steptime_graph: Literal[1]
    name: Name
    phase: Literal["train", "infer"]
    dtype: Name
    batch: Size
    inputs: list[Name]
    weights: list[Name]
    buffers: list[Name] = []
    outputs: Annotated[list[Name], Field(min_length=1)]
    tensors: dict[Name, Tensor]
    ops: Annotated[list[_Op], Field(max_length=MOST_OPS)]
    unmodelled: list[Name] = []


def read(source: Source, _allow_unknown: bool) -> Family:
    """Return the network of a native file, whose shapes are of one batch, phase and dtype."""
    place = shorten(source.name)[1:-1]
    file = _checked(source.table, place)
    graph = graph_from_json(file.model_dump())
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

    return Family(source.name, build, {}, SOURCE, batch=file.batch, named=True)


def _renamed(graph: Graph, op: Op) -> Op:
    shapes = [graph.tensors[name].shape for name in op.inputs if name in graph.tensors]
    kind, attrs = ops.renamed(op.kind, shapes, op.attrs)
    return op if kind == op.kind else replace(op, kind=kind, attrs=attrs)


def _checked(table: object, place: str) -> _File:
    version = table.get(KEY) if isinstance(table, dict) else None
    if type(version) is int and version > VERSION:
        raise InputError(
            f"{place}: version {shorten(version)} of a graph; this one reads {VERSION}"
        )
    try:
        file = _File.model_validate(table)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_input=False)[0]
        where = shorten(".".join(map(str, fault["loc"])))[1:-1]
        raise InputError(f"{place}: {where}: {fault['msg']}") from None
    precision(file.dtype)
    for name, (dtype, _) in file.tensors.items():
        if dtype not in SIZE_BYTES:
            raise unknown("dtype", dtype, SIZE_BYTES, f"{place}: tensor {shorten(name)}")
    return file


def _verify(graph: Graph, trains: bool, place: str) -> None:
    """Raise `InputError` unless all ops are known, in order, and their shapes those that follow."""
    try:
        check(graph)
    except GraphError as error:
        raise InputError(f"{place}: {line_of(error)}") from None
    for op in graph.ops:
        ops.kind_row(op.kind)
        where = f"{place}: op {shorten(op.name)}"
        try:
            problem = _misfit(graph, op)
        except WRONG as error:
            raise InputError(f"{where}: {op.kind}: {line_of(error)}") from None
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
    except WRONG as error:
        raise InputError(f"{place}: cannot be differentiated: {line_of(error)}") from None


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
    if not all(type(size) is int and 0 < size <= LARGEST for one in made for size in one.shape):
        return f"{op.kind} makes a tensor without a size"
    numbers = [*ops.cost_of(*case, written), ops.scratch_of(*case), ops.serial_of(*case)]
    numbers += [n for product in ops.products_of(*case) for n in product]
    ops.saved_of(*case)
    right = all(type(number) is int and number >= 0 for number in numbers)
    return "" if right else f"{op.kind} has attributes without a cost"
