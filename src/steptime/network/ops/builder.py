"""Builds a graph op by op; shapes are found and checked as it grows."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from steptime.core.dtypes import Precision
from steptime.core.graph import Attr, Checkpoint, Graph, Op, TensorSpec, frozen
from steptime.core.workload import Plan
from steptime.network.ops import kind_row, output_names, outputs_of
from steptime.network.ops.table import ShapeError

Attributes = dict[str, Any]  # of an op, by their names
MOST_OPS = 1_000_000
WHOLE = Plan()  # one device has all of it
WORDS = 128  # by a multiple of which tensor-parallel ranks share a vocabulary, as Megatron-LM pads


class Builder:
    """The graph so far. Tensors are named after the op that makes them, which is in `made_by`.

    A `plan` makes it the graph of one rank: layers ask for their `share` and where ranks exchange.
    """

    def __init__(self, name: str, precision: Precision, training: bool, plan: Plan = WHOLE) -> None:
        self.plan = plan
        self.name = name
        self.precision = precision
        self.training = training
        self.tensors: dict[str, TensorSpec] = {}
        self.ops: list[Op] = []
        self.inputs: list[str] = []
        self.weights: list[str] = []
        self.buffers: list[str] = []
        self.source: list[object] = []
        self.unmodelled: list[str] = []
        self.remarks: list[str] = []
        self.frozen: list[str] = []
        self.checkpoints: list[Checkpoint] = []
        self.made_by: dict[str, Op] = {}
        self._trained: set[str] = set()
        self._path: list[str] = []
        self._shared: list[str] = []

    @contextmanager
    def scope(self, name: str, shares: str = "") -> Iterator[None]:
        """Prefix every name made inside with `name/`, or share the weights of another scope."""
        self._path.append(name)
        self._shared.append(shares)
        try:
            yield
        finally:
            self._path.pop()
            self._shared.pop()

    def named(self, name: str) -> str:
        """Return the full path of `name` in the open scopes."""
        return "/".join((*self._path, name))

    def shape(self, tensor: str) -> tuple[int, ...]:
        """Return the shape of a tensor made so far."""
        return self.tensors[tensor].shape

    def _keep(self, name: str, shape: tuple[int, ...], dtype: str, kept: list[str]) -> str:
        path = self.named(name)
        if path in self.tensors:
            raise ShapeError(f"two tensors are named '{path}'")
        self.tensors[path] = TensorSpec(shape, dtype)
        kept.append(path)
        return path

    def input(self, name: str, shape: tuple[int, ...], dtype: str = "") -> str:
        """Add an input; without `dtype` it has the type of the weights, mixed precision or not."""
        return self._keep(name, shape, dtype or self.precision.weights, self.inputs)

    def frozen_weight(self, name: str, shape: tuple[int, ...]) -> str:
        """Add a weight that is a parameter of the network but is not trained."""
        path = self._keep(name, shape, self.precision.weights, self.buffers)
        self.frozen.append(path)
        return path

    def weight(self, name: str, shape: tuple[int, ...]) -> str:
        """Add a trained weight."""
        if any(self._shared):
            path = [other or own for own, other in zip(self._path, self._shared, strict=True)]
            return "/".join((*path, name))
        new = self._keep(name, shape, self.precision.weights, self.weights)
        self._trained.add(new)
        return new

    def buffer(self, name: str, shape: tuple[int, ...], dtype: str = "") -> str:
        """Add a tensor that is kept but not trained."""
        return self._keep(name, shape, dtype or self.precision.weights, self.buffers)

    def _autocast(
        self, path: str, kind: str, inputs: tuple[str, ...], attrs: Mapping[str, Attr]
    ) -> tuple[str, ...]:
        """Return an op's inputs in the type that mixed precision runs its kind in, by casts.

        A weight is cast once a step and its copy kept, any other tensor for every op that reads it,
        as torch's autocast does.
        """
        said = kind_row(kind).autocast
        rule = said(**attrs) if callable(said) else said
        if not rule or not self.precision.mixed:
            return inputs
        types = {"low": self.precision.compute, "wide": self.precision.weights}
        dtype = types.get(rule) or self.tensors[inputs[0]].dtype
        floats = (self.precision.compute, self.precision.weights)
        return tuple(
            self._cast(name, dtype, f"{path}/cast{i or ''}")
            if self.tensors[name].dtype in floats
            else name
            for i, name in enumerate(inputs)
        )

    def _cast(self, name: str, dtype: str, path: str) -> str:
        if self.tensors[name].dtype == dtype:
            return name
        if name in self._trained:
            path = f"{name}/cast"
            if path in self.tensors:
                return path
        return self._append(path, "cast", (name,), {"dtype": dtype})[0]

    def op(self, kind: str, *inputs: str, name: str, top: bool = False, **attrs: Attr) -> str:
        """Append an op and give the name of its first output; `top` takes `name` as a full path."""
        return self.append(name if top else self.named(name), kind, inputs, **attrs)[0]

    def append(
        self, path: str, kind: str, inputs: tuple[str, ...], **attrs: Attr
    ) -> tuple[str, ...]:
        """Append an op of full name `path`, and return the names of all its outputs.

        Under mixed precision its inputs are cast first, where its kind runs in another type.
        Raises `ShapeError`, naming the op, where shapes or attributes do not fit.
        """
        return self._append(path, kind, self._autocast(path, kind, inputs, attrs), attrs)

    def _append(
        self, path: str, kind: str, inputs: tuple[str, ...], attrs: Mapping[str, Attr]
    ) -> tuple[str, ...]:
        if len(self.ops) >= MOST_OPS:
            raise ShapeError(f"more than {MOST_OPS} ops")
        specs = tuple(self.tensors[name] for name in inputs)
        try:
            new = outputs_of(kind, specs, frozen(attrs))
        except ShapeError as error:
            raise ShapeError(f"{path}: {error}") from None
        outputs = output_names(path, len(new))
        for output, spec in zip(outputs, new, strict=True):
            if output in self.tensors:
                raise ShapeError(f"two ops are named '{path}'")
            self.tensors[output] = spec
        op = Op(path, kind, inputs, outputs, attrs)
        self.ops.append(op)
        self.made_by.update(dict.fromkeys(outputs, op))
        return outputs

    def repeat(self, times: int) -> Iterator[int]:
        """Return 0, 1, ... `times` - 1, for ops that repeat.

        Raises `ShapeError` after the first time if so many times its ops are more than a network
        may have, so that a slip of the hand in a size is told at once.
        """
        before = len(self.ops)
        for i in range(times):
            yield i
            if i == 0 and before + times * (len(self.ops) - before) > MOST_OPS:
                new = times * (len(self.ops) - before)
                raise ShapeError(f"{new} ops are more than {MOST_OPS}")

    def share(self, count: int, what: str, least: int = 0) -> int:
        """Return how many of `count` heads or columns a tensor-parallel rank has.

        Ranks that are more than `least` of them allows have copies. Raises `ShapeError`, naming
        `what`, where they do not divide.
        """
        ranks = self.plan.tensor
        if least and count < ranks and ranks % count == 0:
            return least
        if count % ranks:
            raise ShapeError(f"{count} {what} do not divide into tensor {ranks}")
        return count // ranks

    def words(self, vocabulary: int) -> int:
        """Return how many words of a vocabulary, padded, a tensor-parallel rank has."""
        ranks = self.plan.tensor
        return vocabulary if ranks == 1 else WORDS * -(-vocabulary // (WORDS * ranks))

    def whole(self, x: str, name: str) -> str:
        """Return `x [n, l, width]` as products need it that tensor-parallel ranks share.

        It is gathered along the sequence where the plan cuts that too.
        """
        ranks = self.plan.tensor
        if ranks == 1 or not self.plan.sequence:
            return x
        return self.op("all_gather", x, name=name, ranks=ranks, axis=1)

    def summed(self, x: str, name: str) -> str:
        """Return the sum of what tensor-parallel ranks have of `x [n, l, width]`.

        It is the own part of the sequence where the plan cuts that.
        """
        ranks = self.plan.tensor
        if ranks == 1:
            return x
        if self.plan.sequence:
            return self.op("reduce_scatter", x, name=name, ranks=ranks, axis=1)
        return self.op("all_reduce", x, name=name, ranks=ranks)

    def all_parts(self, x: str, name: str) -> str:
        """Return `x [n, l, width]` of the whole sequence, of which a context rank has a part."""
        ranks = self.plan.context
        if ranks == 1:
            return x
        return self.op("all_gather", x, name=name, ranks=ranks, stride=self.plan.tensor, axis=1)

    def spread(self, x: str, name: str, heads: int) -> str:
        """Return some of the `heads` of `x [n, l, heads width]` for the whole sequence.

        A context rank has all heads of its part of the sequence before. Fewer heads than ranks are
        repeated. Raises `ShapeError` where they do not divide.
        """
        ranks, (n, length, width) = self.plan.context, self.shape(x)
        if heads % ranks and ranks % heads:
            raise ShapeError(f"{heads} heads of a rank do not divide into context {ranks}")
        if heads < ranks:
            times, single = ranks // heads, (n, length, heads, 1, width // heads)
            x = self.op("reshape", x, name=f"{name}/heads", shape=single)
            x = self.op("tile", x, name=f"{name}/repeated", times=(1, 1, 1, times, 1))
            x = self.op("reshape", x, name=f"{name}/whole", shape=(n, length, width * times))
        return self._turned(x, name, ranks, split=2, join=1)

    def joined(self, y: str, name: str) -> str:
        """Return the own part of the sequence with all heads, back from `spread`."""
        return self._turned(y, name, self.plan.context, split=1, join=2)

    def _turned(self, x: str, name: str, ranks: int, **how: Any) -> str:
        stride = self.plan.tensor
        return self.op("all_to_all", x, name=name, **how, ranks=ranks, stride=stride)

    def routed(self, x: str, name: str, copies: int = 1, merged: int = 1) -> str:
        """Return rows of `x [n, l, width]` where their experts are, or back, among expert ranks.

        Each row goes to `copies` experts; `merged` of them come back as one.
        """
        how = {"copies": copies, "merged": merged}
        return self._turned(x, name, self.plan.expert, split=1, join=1, **how)

    def graph(self, *outputs: str) -> Graph:
        """Return the finished graph."""
        lists = ("inputs", "weights", "buffers", "source", "unmodelled", "remarks", "frozen")
        found = {name: tuple(getattr(self, name)) for name in (*lists, "checkpoints")}
        return Graph(self.name, self.tensors, tuple(self.ops), outputs=outputs, **found)
