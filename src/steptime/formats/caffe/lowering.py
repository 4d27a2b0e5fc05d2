"""The graph that Caffe layers are lowered to: its blobs, its weights and views of its tensors."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from steptime.formats.caffe.net import BlobInput, CaffeLayer
from steptime.network.ops.builder import Builder
from steptime.network.ops.table import ShapeError, require

Tensors = tuple[str, ...]
"""The tensors that a layer reads or makes."""
NO_BLOB = -1  # in place of a blob's number


class UnmodelledError(Exception):
    """A layer, or a setting of one, for which there are no op kinds; the message says which."""


class AxesView(NamedTuple):
    """A tensor with some axes moved to its end.

    Attributes:
        tensor: the tensor with the axes last.
        restore: appends the reverse move to a tensor of the same shape.
    """

    tensor: str
    restore: Callable[[str], str]


class _Parameter(NamedTuple):
    """The settings of one weight of a layer.

    Attributes:
        shared_name: the name under which layers share it, "" if they do not.
        is_trained: whether its learning rate is not 0.
    """

    shared_name: str
    is_trained: bool


@dataclass
class CaffeGraph:
    """The graph of a network while its layers are lowered.

    Attributes:
        b: the builder of the graph.
        batch: the batch of the graph.
        file_batch: the batch in the file, which `batch` replaces.
        source_by_blob: the blobs that are fed, by their numbers.
        layer_names: the names of all layers, which inputs must not have.
        tensor_by_blob: the tensor of each blob, by the blob's number.
        shared_tensors: weights and labels that several layers read, by a key.
        scale_by_blob: the Scale layers that are the weights of a batch norm, by the blob between.
    """

    b: Builder
    batch: int
    file_batch: int
    source_by_blob: Mapping[int, BlobInput]
    layer_names: frozenset[str]
    tensor_by_blob: dict[int, str] = field(default_factory=dict)
    shared_tensors: dict[str, str] = field(default_factory=dict)
    scale_by_blob: dict[int, CaffeLayer] = field(default_factory=dict)

    def shape(self, tensor: str) -> tuple[int, ...]:
        """Return the shape of a tensor."""
        return self.b.shape(tensor)

    def blob_tensor(self, number: int) -> str:
        """Return the tensor of a blob; a fed blob becomes an input when it is first read."""
        if number not in self.tensor_by_blob:
            # no layer before made it: the network is fed with it, or it is an error of the file
            require(number in self.source_by_blob, "reads a blob that its layer does not make")
            source = self.source_by_blob[number]
            # a blob of unknown shape holds labels, one for each example
            self.tensor_by_blob[number] = self.add_input(number, source.shape or (self.file_batch,))
        return self.tensor_by_blob[number]

    def add_input(self, number: int, shape: tuple[int, ...]) -> str:
        """Append the input of a fed blob, with the graph's batch in place of the file's."""
        first_size, *further_sizes = shape
        has_file_batch = first_size == self.file_batch
        batch = self.batch if has_file_batch else first_size
        name = self.source_by_blob[number].name
        while not self.is_free_name(name):
            name += "_"
        return self.b.input(name, (batch, *further_sizes))

    def is_free_name(self, name: str) -> bool:
        """Whether an input may have a name."""
        return name not in self.b.tensors and name not in self.layer_names

    def add_labels(self, layer: CaffeLayer, shape: tuple[int, ...]) -> str:
        """Return the int64 labels that a loss reads; two losses of one blob and shape share them.

        They have the name of the loss's second bottom if that is free, else `<layer>/labels`.
        """
        number = layer.bottoms[1] if len(layer.bottoms) > 1 else NO_BLOB
        # losses that read the same labels, in the same shape, share one input
        key = f"{number}:{shape}"
        if key not in self.shared_tensors:
            source = self.source_by_blob.get(number)
            has_free_name = source is not None and self.is_free_name(source.name)
            name = source.name if source and has_free_name else f"{layer.name}/labels"
            self.shared_tensors[key] = self.b.input(name, shape, "int64")
        return self.shared_tensors[key]

    def add_weight(
        self, layer: CaffeLayer, number: int, suffix: str, shape: tuple[int, ...]
    ) -> str:
        """Return a weight of a layer, `<layer>/<suffix>`, or that of a layer which shares it.

        Args:
            layer: the layer.
            number: which weight of the layer, from 0.
            suffix: its name in the layer.
            shape: its shape.

        Raises:
            ShapeError: if layers that share it need different shapes.
        """
        parameter = _read_parameter(layer.message, number)
        path = f"{layer.name}/{suffix}"
        # a shared name gets "=" in front and a path "/", so that no name is taken for a path
        key = f"={parameter.shared_name}" if parameter.shared_name else f"/{path}"
        if key not in self.shared_tensors:
            add = self.b.weight if parameter.is_trained else self.b.buffer
            self.shared_tensors[key] = add(path, shape)
        weight = self.shared_tensors[key]
        require(
            self.shape(weight) == shape,
            f"shares '{parameter.shared_name}' {list(self.shape(weight))}, but needs {list(shape)}",
        )
        return weight

    def add_constant(self, name: str) -> str:
        """Append a number that is not trained."""
        return self.b.buffer(name, ())

    def move_axes_last(self, x: str, axes: range, name: str) -> AxesView:
        """Append a view of `x` with `axes` last: a transpose, or a reshape where that suffices."""
        shape = self.shape(x)
        rank = len(shape)
        are_last = axes.stop == rank
        if are_last:
            return AxesView(x, lambda y: y)
        has_unit_axes_behind = math.prod(shape[axes.stop :]) == 1
        if has_unit_axes_behind:  # to drop these is a view, which moves no data
            view = self.b.op("reshape", x, name=f"{name}/in", shape=shape[: axes.stop])
            return AxesView(
                view, lambda y: self.b.op("reshape", y, name=f"{name}/out", shape=shape)
            )
        leading_axes = [axis for axis in range(rank) if axis not in axes]
        order = (*leading_axes, *axes)
        inverse_order = tuple(order.index(axis) for axis in range(rank))
        view = self.b.op("transpose", x, name=f"{name}/in", order=order)
        return AxesView(
            view, lambda y: self.b.op("transpose", y, name=f"{name}/out", order=inverse_order)
        )


def _read_parameter(message: Any, number: int) -> _Parameter:
    """Return the settings of a layer's weight, in the present form or in that of `layers`."""
    if "blobs_lr" in message.DESCRIPTOR.fields_by_name:  # the older form
        shared_name = str(message.param[number]) if number < len(message.param) else ""
        states_rate = number < len(message.blobs_lr)
        is_frozen = states_rate and message.blobs_lr[number] == 0
        return _Parameter(shared_name, is_trained=not is_frozen)
    states_parameter = number < len(message.param)
    if not states_parameter:
        return _Parameter(shared_name="", is_trained=True)
    parameter = message.param[number]
    return _Parameter(str(parameter.name), is_trained=parameter.lr_mult != 0)


def resolve_axis(axis: int, rank: int) -> int:
    """Return an axis counted from the front; raises `ShapeError` for one that is not there."""
    if not -rank <= axis < rank:
        raise ShapeError(f"axis {axis} of a blob with {rank} axes")
    return axis % rank
