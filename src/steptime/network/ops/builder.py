"""Builds a graph op by op; shapes are inferred and checked as it grows."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import ceil
from typing import NamedTuple

from steptime.core.dtypes import Precision
from steptime.core.graph import Attr, Checkpoint, Graph, Op, TensorSpec, freeze_attrs
from steptime.core.workload import Plan
from steptime.network.ops import kind_row, output_names, outputs_of
from steptime.network.ops.table import ShapeError

Attributes = dict[str, Attr]  # of an op, by their names
MAX_OPS = 1_000_000
SINGLE_DEVICE = Plan()
WORDS_MULTIPLE = 128  # to which Megatron-LM pads a rank's share of a vocabulary


class _Scope(NamedTuple):
    """A part of a network that is being built.

    Attributes:
        name: its name, which prefixes the names of its ops and weights.
        weights_of: the earlier scope whose weights it reads instead of adding its own, or "".
    """

    name: str
    weights_of: str


class Builder:
    """A graph while it is built; tensors have the name of the op that makes them (`made_by`).

    With a `plan` it is the graph of one rank: layers ask for their `rank_share`, and exchange
    tensors with other ranks.
    """

    def __init__(
        self, name: str, precision: Precision, training: bool, plan: Plan = SINGLE_DEVICE
    ) -> None:
        self.plan = plan
        self.name = name
        self.precision = precision
        self.training = training
        self.tensors: dict[str, TensorSpec] = {}
        self.ops: list[Op] = []
        self.inputs: list[str] = []
        self.weights: list[str] = []
        self.buffers: list[str] = []
        self.frozen: list[str] = []  # the `buffers` that are parameters, but are not trained
        self.checkpoints: list[Checkpoint] = []  # parts that the backward pass computes again
        # Of a network that is read from a file:
        self.source: list[object] = []  # its layers as the file has them
        self.unmodelled: list[str] = []  # layers of unknown type, which pass their input on
        self.remarks: list[str] = []  # what a user has to know of how the file was read
        self.made_by: dict[str, Op] = {}  # the op that makes a tensor, by the tensor's name
        self._trained: set[str] = set()  # names of the tensors in `weights`
        self._scopes: list[_Scope] = []  # those that are open, the outermost first

    @contextmanager
    def scope(self, name: str, shares: str = "") -> Iterator[None]:
        """Prefix every name made inside with `name/`, or share the weights of another scope."""
        self._scopes.append(_Scope(name, shares))
        try:
            yield
        finally:
            self._scopes.pop()

    def full_path(self, name: str) -> str:
        """Return the full path of `name` in the open scopes."""
        return "/".join((*(scope.name for scope in self._scopes), name))

    def shape(self, tensor: str) -> tuple[int, ...]:
        """Return the shape of a tensor."""
        return self.tensors[tensor].shape

    def _add_tensor(self, name: str, shape: tuple[int, ...], dtype: str, names: list[str]) -> str:
        """Add a tensor that no op makes, and its name to a list."""
        path = self.full_path(name)
        if path in self.tensors:
            raise ShapeError(f"two tensors are named '{path}'")
        self.tensors[path] = TensorSpec(shape, dtype)
        names.append(path)
        return path

    def input(self, name: str, shape: tuple[int, ...], dtype: str = "") -> str:
        """Add an input; without `dtype` it has the type of the weights, mixed precision or not."""
        return self._add_tensor(name, shape, dtype or self.precision.weights, self.inputs)

    def frozen_weight(self, name: str, shape: tuple[int, ...]) -> str:
        """Add a weight that is a parameter of the network but is not trained."""
        path = self._add_tensor(name, shape, self.precision.weights, self.buffers)
        self.frozen.append(path)
        return path

    def weight(self, name: str, shape: tuple[int, ...]) -> str:
        """Add a trained weight."""
        # inside of a scope that reads the weights of an earlier one, the weight exists already
        reads_shared_weights = any(scope.weights_of for scope in self._scopes)
        if reads_shared_weights:
            path = [scope.weights_of or scope.name for scope in self._scopes]
            return "/".join((*path, name))
        weight = self._add_tensor(name, shape, self.precision.weights, self.weights)
        self._trained.add(weight)
        return weight

    def buffer(self, name: str, shape: tuple[int, ...], dtype: str = "") -> str:
        """Add a tensor that lives through all steps but is not trained."""
        return self._add_tensor(name, shape, dtype or self.precision.weights, self.buffers)

    def _autocast(
        self, path: str, kind: str, inputs: tuple[str, ...], attrs: Mapping[str, Attr]
    ) -> tuple[str, ...]:
        """Return an op's inputs, cast to the type in which mixed precision runs its kind.

        As in torch's autocast, a weight is cast once a step and the copy is reused. Other tensors
        are cast for each op that reads them.
        """
        column = kind_row(kind).autocast
        rule = column(**attrs) if callable(column) else column
        if not rule or not self.precision.mixed:
            return inputs
        types = {"low": self.precision.compute, "wide": self.precision.weights}
        # under any further rule the inputs take the type of the first
        dtype = types.get(rule) or self.tensors[inputs[0]].dtype
        castable_types = (self.precision.compute, self.precision.weights)
        cast_inputs = []
        for i, name in enumerate(inputs):
            if self.tensors[name].dtype in castable_types:
                # the cast of the first input has no number
                cast_inputs.append(self._cast(name, dtype, f"{path}/cast{i or ''}"))
            else:
                cast_inputs.append(name)
        return tuple(cast_inputs)

    def _cast(self, name: str, dtype: str, path: str) -> str:
        if self.tensors[name].dtype == dtype:
            return name
        if name in self._trained:  # autocast keeps the cast of a weight for all ops that read it
            path = f"{name}/cast"
            if path in self.tensors:
                return path
        (result,) = self._append(path, "cast", (name,), {"dtype": dtype})
        return result

    def op(self, kind: str, *inputs: str, name: str, **attrs: Attr) -> str:
        """Append an op in the open scopes, and return the name of its first output."""
        return self.append(self.full_path(name), kind, inputs, **attrs)[0]

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
        if len(self.ops) >= MAX_OPS:
            raise ShapeError(f"more than {MAX_OPS} ops")
        specs = tuple(self.tensors[name] for name in inputs)
        try:
            output_specs = outputs_of(kind, specs, freeze_attrs(attrs))
        except ShapeError as error:
            raise ShapeError(f"{path}: {error}") from None
        outputs = output_names(path, len(output_specs))
        for output, spec in zip(outputs, output_specs, strict=True):
            if output in self.tensors:
                raise ShapeError(f"two ops are named '{path}'")
            self.tensors[output] = spec
        op = Op(path, kind, inputs, outputs, attrs)
        self.ops.append(op)
        self.made_by.update(dict.fromkeys(outputs, op))
        return outputs

    def repeat(self, times: int) -> Iterator[int]:
        """Yield 0, 1, ... `times` - 1, for ops that repeat.

        Raises:
            ShapeError: after the first time, if all repetitions would exceed the ops of a network:
                a mistyped size fails at once.
        """
        # Refused after the first time, so that a mistyped number does not build millions of ops.
        ops_before = len(self.ops)
        for number in range(times):
            yield number
            is_first = number == 0
            if is_first:  # the later ones append as many ops
                ops_of_first = len(self.ops) - ops_before
                repeated_ops = times * ops_of_first
                if ops_before + repeated_ops > MAX_OPS:
                    raise ShapeError(f"{repeated_ops} ops are more than {MAX_OPS}")

    def rank_share(self, count: int, label: str, min_share: int = 0) -> int:
        """Return the number of heads or columns that a tensor-parallel rank has.

        Args:
            count: the heads or columns of all ranks.
            label: their name in messages.
            min_share: with 1, ranks have copies if there are more ranks than heads.

        Raises:
            ShapeError: if they do not divide among the ranks.
        """
        ranks = self.plan.tensor
        # fewer heads of keys and values than ranks: several ranks have a copy of the same head
        ranks_have_copies = count < ranks and ranks % count == 0
        if min_share and ranks_have_copies:
            return min_share
        if count % ranks:
            raise ShapeError(f"{count} {label} do not divide into tensor {ranks}")
        return count // ranks

    def rank_words(self, vocabulary: int) -> int:
        """Return the words of a padded vocabulary that a tensor-parallel rank has."""
        ranks = self.plan.tensor
        if ranks == 1:
            return vocabulary
        # Rounded up, so that each rank has equally many words, a multiple of a tile.
        tiles_per_rank = ceil(vocabulary / (WORDS_MULTIPLE * ranks))
        return WORDS_MULTIPLE * tiles_per_rank

    def gather_sequence(self, x: str, name: str) -> str:
        """Gather `x [n, l, width]` along the sequence, if tensor-parallel ranks share that too."""
        ranks = self.plan.tensor
        if ranks == 1 or not self.plan.sequence:
            return x
        return self.op("all_gather", x, name=name, ranks=ranks, axis=1)

    def sum_over_ranks(self, x: str, name: str) -> str:
        """Return the sum of `x [n, l, width]` over tensor-parallel ranks.

        If they share the sequence too, each rank has its part of the sum.
        """
        ranks = self.plan.tensor
        if ranks == 1:
            return x
        # ranks that share the sequence need only their part of the sum
        if self.plan.sequence:
            return self.op("reduce_scatter", x, name=name, ranks=ranks, axis=1)
        return self.op("all_reduce", x, name=name, ranks=ranks)

    def gather_context(self, x: str, name: str) -> str:
        """Gather `x [n, l, width]` along the sequence, of which each context rank has a part."""
        ranks = self.plan.context
        if ranks == 1:
            return x
        return self.op("all_gather", x, name=name, ranks=ranks, stride=self.plan.tensor, axis=1)

    def exchange_sequence_for_heads(self, x: str, name: str, heads: int) -> str:
        """Return a context rank's heads of `x [n, l, heads width]`, over the full sequence.

        Before, the rank has all heads of its part of the sequence. Fewer heads than ranks are
        repeated. Raises `ShapeError` if heads do not divide among ranks.
        """
        ranks = self.plan.context
        n, length, width = self.shape(x)
        shares_evenly = heads % ranks == 0 or ranks % heads == 0
        if not shares_evenly:
            raise ShapeError(f"{heads} heads of a rank do not divide into context {ranks}")
        # ranks without a head of their own get a copy
        if heads < ranks:
            copies = ranks // heads
            single_copies = (n, length, heads, 1, width // heads)
            x = self.op("reshape", x, name=f"{name}/heads", shape=single_copies)
            x = self.op("tile", x, name=f"{name}/repeated", times=(1, 1, 1, copies, 1))
            x = self.op("reshape", x, name=f"{name}/whole", shape=(n, length, width * copies))
        return self._all_to_all(x, name, ranks, split=2, join=1)

    def exchange_heads_for_sequence(self, y: str, name: str) -> str:
        """Return all heads of a context rank's part of the sequence, the reverse exchange."""
        return self._all_to_all(y, name, self.plan.context, split=1, join=2)

    def _all_to_all(self, x: str, name: str, ranks: int, **attrs: int) -> str:
        stride = self.plan.tensor
        return self.op("all_to_all", x, name=name, **attrs, ranks=ranks, stride=stride)

    def route_rows(self, x: str, name: str, copies: int = 1, merged: int = 1) -> str:
        """Send the rows of `x [n, l, width]` to the ranks of their experts, or back.

        Each row goes to `copies` experts; `merged` rows come back as one.
        """
        ranks = self.plan.expert
        return self._all_to_all(x, name, ranks, split=1, join=1, copies=copies, merged=merged)

    def graph(self, *outputs: str) -> Graph:
        """Return the finished graph."""
        return Graph(
            self.name,
            self.tensors,
            tuple(self.ops),
            inputs=tuple(self.inputs),
            outputs=outputs,
            weights=tuple(self.weights),
            buffers=tuple(self.buffers),
            source=tuple(self.source),
            unmodelled=tuple(self.unmodelled),
            remarks=tuple(self.remarks),
            frozen=tuple(self.frozen),
            checkpoints=tuple(self.checkpoints),
        )
