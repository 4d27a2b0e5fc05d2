"""What the lowering of a Caffe layer works with: the graph so far, its blobs and its weights."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from steptime.formats.caffe.net import BlobInput, CaffeLayer
from steptime.network.ops.builder import Builder
from steptime.network.ops.table import ShapeError, require

Tops = tuple[str, ...]  # the tensors that a layer reads or makes


class UnmodelledError(Exception):
    """A layer, or a setting of one, for which there are no op kinds; the message says which."""


@dataclass
class Lowering:
    """A network being lowered: `tensors` names the tensor of each blob by the blob's number.

    `file_batch` is the batch that the file names, `batch` the one that takes its place; `names`
    are those of the layers, which go before those of what is fed.
    """

    b: Builder
    batch: int
    file_batch: int
    sources: Mapping[int, BlobInput]
    names: frozenset[str]
    tensors: dict[int, str] = field(default_factory=dict)
    shared: dict[str, str] = field(default_factory=dict)
    scaled: dict[int, CaffeLayer] = field(default_factory=dict)  # by a batch norm's blob: its Scale

    def tensor(self, number: int) -> str:
        """Return the tensor of a blob; what is fed becomes an input when it is first read."""
        if number not in self.tensors:
            require(number in self.sources, "reads a blob that its layer does not make")
            source = self.sources[number]
            self.tensors[number] = self.fed(number, source.shape or (self.file_batch,))
        return self.tensors[number]

    def fed(self, number: int, shape: tuple[int, ...]) -> str:
        """Return a new input for a fed blob, with the asked batch in place of the file's."""
        size = self.batch if shape[0] == self.file_batch else shape[0]
        name = self.sources[number].name
        while not self.free(name):
            name += "_"
        return self.b.input(name, (size, *shape[1:]))

    def free(self, name: str) -> bool:
        """Whether an input may bear a name."""
        return name not in self.b.tensors and name not in self.names

    def labels(self, layer: CaffeLayer, shape: tuple[int, ...]) -> str:
        """Return the labels that a loss reads: an int64 input of `shape`, whatever the file feeds.

        They bear the blob's name if that is free, else the layer's with `/labels`. Two losses
        over as many outputs read the same.
        """
        number = layer.bottoms[1] if len(layer.bottoms) > 1 else -1
        new = f"{number}:{shape}"
        if new not in self.shared:
            source = self.sources.get(number)
            named = source is not None and self.free(source.name)
            name = source.name if source and named else f"{layer.name}/labels"
            self.shared[new] = self.b.input(name, shape, "int64")
        return self.shared[new]

    def weight(self, layer: CaffeLayer, i: int, suffix: str, shape: tuple[int, ...]) -> str:
        """Return the layer's weight number `i`, `<layer>/<suffix>`.

        It is that of another layer if both give it one name, and is not trained if its learning
        rate is 0. Raises `ShapeError` where layers that share it need different shapes.
        """
        name, trained = _parameter(layer.message, i)
        key = f"={name}" if name else f"/{layer.name}/{suffix}"
        if key not in self.shared:
            path = f"{layer.name}/{suffix}"
            add = self.b.weight if trained else self.b.buffer
            self.shared[key] = add(path, shape)
        result = self.shared[key]
        require(
            self.b.shape(result) == shape,
            f"shares '{name}' {list(self.b.shape(result))}, but needs {list(shape)}",
        )
        return result

    def scalar(self, name: str) -> str:
        """Return a fixed number that is not trained."""
        return self.b.buffer(name, ())

    def last(self, x: str, axes: range, name: str) -> tuple[str, Callable[[str], str]]:
        """Return `x` seen with `axes` as its last, and how to see a result as `x` is seen."""
        b, shape = self.b, self.b.shape(x)
        rank = len(shape)
        if axes.stop == rank:
            return x, lambda y: y
        if math.prod(shape[axes.stop :]) == 1:
            seen = b.op("reshape", x, name=f"{name}/in", shape=shape[: axes.stop])
            return seen, lambda y: b.op("reshape", y, name=f"{name}/out", shape=shape)
        order = (*(i for i in range(rank) if i not in axes), *axes)
        back = tuple(order.index(i) for i in range(rank))
        seen = b.op("transpose", x, name=f"{name}/in", order=order)
        return seen, lambda y: b.op("transpose", y, name=f"{name}/out", order=back)


def _parameter(message: Any, i: int) -> tuple[str, bool]:
    """Return the name under which weight `i` is shared (or ""), and whether it is trained."""
    if "blobs_lr" in message.DESCRIPTOR.fields_by_name:  # the older form
        name = str(message.param[i]) if i < len(message.param) else ""
        return name, not i < len(message.blobs_lr) or message.blobs_lr[i] != 0
    if i >= len(message.param):
        return "", True
    return str(message.param[i].name), message.param[i].lr_mult != 0


def axis_of(axis: int, rank: int) -> int:
    """Return an axis counted from the front; raises `ShapeError` for one that is not there."""
    if not -rank <= axis < rank:
        raise ShapeError(f"axis {axis} of a blob with {rank} axes")
    return axis % rank
