"""A network as data: tensors, ops in order, and the check that they fit together."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, NamedTuple

from steptime.core.dtypes import SIZE_BYTES

Attr = int | float | str | bool | tuple[int, ...]
Attrs = tuple[tuple[str, Attr], ...]
Part = Literal["forward", "backward", "update"]
PASSES: tuple[Part, ...] = ("forward", "backward", "update")  # of a step, in order
PASS_INDEX = {name: i for i, name in enumerate(PASSES)}


def freeze_attrs(attrs: Mapping[str, Attr]) -> Attrs:
    """Return attributes in a form that can be a key: identical ops are evaluated once."""
    return tuple(sorted(attrs.items())) if attrs else ()


class TensorSpec(NamedTuple):
    """Shape and element type of a tensor; `()` is a scalar."""

    shape: tuple[int, ...]
    dtype: str = "float32"

    @property
    def is_floating(self) -> bool:
        """Whether elements are floating numbers, real or complex: only those have gradients."""
        return "float" in self.dtype or "complex" in self.dtype

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def size_bytes(self) -> int:
        """Bytes of all elements."""
        return math.ceil(math.prod(self.shape) * SIZE_BYTES[self.dtype])


@dataclass(frozen=True)
class Op:
    """One operation: `kind` is a row of the op table, inputs and outputs are names of tensors.

    `part` says in which part of a step it runs. `forward_op` names the one whose gradient or
    update it is ("" for a forward op itself).
    """

    name: str
    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: Mapping[str, Attr] = field(default_factory=dict)
    part: Part = "forward"
    forward_op: str = ""

    @property
    def settings(self) -> Attrs:
        """The attributes in a form that can be a key."""
        return freeze_attrs(self.attrs)


class OpCase(NamedTuple):
    """An op without its names: equal cases cost the same, and are evaluated once."""

    kind: str
    specs: tuple[TensorSpec, ...]
    attrs: Attrs
    output_specs: tuple[TensorSpec, ...]


class Checkpoint(NamedTuple):
    """Forward ops, by name, whose results are dropped and computed again in the backward pass.

    They run again up to the last tensor that a gradient reads, or all of them (`to_end`).
    """

    ops: frozenset[str]
    to_end: bool = False


@dataclass(frozen=True)
class Graph:
    """A network, every shape known.

    `inputs` are fed by the user, `weights` are trained, `buffers` are kept but not trained (running
    statistics, position tables, and weights that a fine-tuning has `frozen`), `outputs` are what a
    step gives. In training the only output is the loss, a scalar. Of a network read from a file
    `source` is what a method that knows such files needs of it beside the ops, and `unmodelled`
    names its layers of unknown type, which pass their input on. `remarks` are what else a reader
    must know of how the network was read. `checkpoints` are the parts that the network itself
    computes again in the backward pass.
    """

    name: str
    tensors: Mapping[str, TensorSpec]
    ops: tuple[Op, ...]
    inputs: tuple[str, ...]
    weights: tuple[str, ...]
    outputs: tuple[str, ...]
    buffers: tuple[str, ...] = ()
    source: tuple[object, ...] = ()
    unmodelled: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    frozen: tuple[str, ...] = ()
    checkpoints: tuple[Checkpoint, ...] = ()

    @property
    def tokens(self) -> int | None:
        """Tokens of a step: of the first input, where it holds numbers of tokens by example."""
        first = self.tensors[self.inputs[0]] if self.inputs else None
        if first is None or not first.dtype.startswith("int") or len(first.shape) != 2:
            return None
        return math.prod(first.shape)

    @cached_property
    def cases(self) -> Mapping[str, OpCase]:
        """What the costs of each op follow from, by the op's name."""
        tensors = self.tensors  # a tuple of a list is made faster than one of a generator
        return {
            op.name: OpCase(
                op.kind,
                tuple([tensors[name] for name in op.inputs]),
                op.settings,
                tuple([tensors[name] for name in op.outputs]),
            )
            for op in self.ops
        }

    def __hash__(self) -> int:  # by what is cheap: the latest graph's storages are kept by it
        return hash((self.name, len(self.ops)))

    @property
    def parameters(self) -> int:
        """Number of trainable parameters."""
        return sum(self.tensors[name].size for name in self.weights)


class GraphError(ValueError):
    """A graph that does not fit together: the message names the op."""


def check(graph: Graph) -> None:
    """Raise `GraphError` unless names are unique, the order topological and shapes known."""
    ready = {*graph.inputs, *graph.weights, *graph.buffers}
    for name in ready:
        if name not in graph.tensors:
            raise GraphError(f"{graph.name}: tensor '{name}' has no shape")
    op_names: set[str] = set()
    for op in graph.ops:
        if op.name in op_names:
            raise GraphError(f"{graph.name}: two ops are named '{op.name}'")
        op_names.add(op.name)
        for name in op.inputs:
            if name not in ready:
                raise GraphError(f"{graph.name}: op '{op.name}' reads '{name}' before it is made")
        for name in op.outputs:
            if name in ready:
                raise GraphError(f"{graph.name}: op '{op.name}' makes '{name}' a second time")
            if name not in graph.tensors:
                raise GraphError(f"{graph.name}: output '{name}' of op '{op.name}' has no shape")
            ready.add(name)
    for name in graph.outputs:
        if name not in ready:
            raise GraphError(f"{graph.name}: output '{name}' is never made")
