"""Build one layer of a Paleo file from its checked keys and the tensors of its parents."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from steptime.core.errors import InputError, shorten, unknown
from steptime.core.values import MAX_COUNT
from steptime.core.windows import count_positions
from steptime.formats.windows import resolve_padding
from steptime.network.layers import image
from steptime.network.ops.builder import Builder
from steptime.paleo.files.blocks import FileLayer
from steptime.paleo.layers import Layer

ACTIVATIONS = ("relu", "sigmoid", "tanh", "gelu", "silu")
OPEN_SIZE = -1  # a size in a file that follows from the others, or from the parent

Shape = tuple[int, ...]
Pair = tuple[int, int]


def channels_first(shape: Sequence[int]) -> Shape:
    """Return `[n, ..., c]` as `[n, c, ...]`."""
    return (shape[0], shape[-1], *shape[1:-1])


def channels_last(shape: Sequence[int]) -> Shape:
    """Return `[n, c, ...]` as `[n, ..., c]`."""
    return (shape[0], *shape[2:], shape[1])


def _pad_sides(padding: str | Pair) -> str | tuple[int, int, int, int]:
    """Return `same`, or the padding of a file as much on either side: top, bottom, left, right."""
    if padding == "SAME":
        return "same"
    vertical, horizontal = (0, 0) if isinstance(padding, str) else padding  # VALID: none
    return (vertical, vertical, horizontal, horizontal)


@dataclass(frozen=True)
class LayerBuilder:
    """A layer being built.

    Attributes:
        b: the builder of the graph.
        file_layer: the layer's keys.
        file_batch: the batch that the file states.
        batch: the batch to build, in place of `file_batch`.
        shapes: output shapes of the parents, by the file's rules.
        x: output tensors of the parents.
        is_loss: whether a softmax is part of the loss.
    """

    b: Builder
    file_layer: FileLayer
    file_batch: int
    batch: int
    shapes: Sequence[Shape]
    x: Sequence[str]
    is_loss: bool

    @property
    def name(self) -> str:
        """The layer's name."""
        return self.file_layer.name

    def fault(self, message: str) -> InputError:
        """Return an error that names the layer."""
        return self.file_layer.fault(message)

    @property
    def image(self) -> Shape:
        """The shape `[n, h, w, c]` of its parent; raises `InputError` for any other."""
        if len(self.shapes[0]) != 4:
            raise self.fault(f"needs [n, h, w, c], but its parent gives {list(self.shapes[0])}")
        return self.shapes[0]

    def size(self, key: str, value: Any, minimum: int = 1) -> int:
        """Return a checked whole number of a key."""
        if type(value) is not int or not minimum <= value <= MAX_COUNT:
            raise self.fault(
                f"{key} must be whole numbers from {minimum} to 2^53, not {shorten(value)}"
            )
        return value

    def sizes(self, name: str, *ranks: int) -> Shape:
        """Return a list of whole numbers, of one of the given lengths."""
        value = self.file_layer.key(name)
        if not isinstance(value, list) or len(value) not in ranks:
            count = " or ".join(str(rank) for rank in ranks)
            raise self.fault(f"{name} must be a list of {count} numbers, not {shorten(value)}")
        return tuple(self.size(name, size) for size in value)

    def image_sides(self, name: str) -> Pair:
        """Return (height, width) of `[1, height, width, 1]`."""
        first, height, width, last = self.sizes(name, 4)
        if (first, last) != (1, 1):
            value = shorten(self.file_layer.keys[name])
            raise self.fault(f"{name} must be [1, height, width, 1], not {value}")
        return height, width

    def filter(self) -> tuple[Pair, int, int]:
        """Return kernel, and the third and fourth size of a filter; the third may be -1."""
        value = self.file_layer.key("filter")
        if not isinstance(value, list) or len(value) != 4:
            raise self.fault(f"filter must be [kh, kw, c_in, c_out], not {shorten(value)}")
        height, width, third, fourth = value
        kernel = self.size("filter", height), self.size("filter", width)
        is_open = type(third) is int and third == OPEN_SIZE
        channels = OPEN_SIZE if is_open else self.size("filter", third)
        return kernel, channels, self.size("filter", fourth)

    def filters_per_split(self, filters: int) -> int:
        """Return the filters of one part of a model-parallel block."""
        splits = self.file_layer.splits
        if filters < splits:
            raise self.fault(f"{filters} filters cannot be divided by {splits} splits")
        return filters // splits

    def window(self, kernel: Pair) -> Mapping[str, Any]:
        """Return kernel, strides and padding of a window as the file states them."""
        strides, padding = self.image_sides("strides"), self.file_layer.key("padding")
        if isinstance(padding, list) and len(padding) == 2:
            padding = tuple(self.size("padding", side, minimum=0) for side in padding)
        elif padding not in ("VALID", "SAME"):
            raise self.fault(
                f"padding must be VALID, SAME or [height, width], not {shorten(padding)}"
            )
        return {"kernel": kernel, "strides": strides, "padding": padding}

    def slide_window(
        self, shape: Shape, window: Mapping[str, Any]
    ) -> tuple[Pair, Mapping[str, Any]]:
        """Return the output height and width of a sliding window, and the settings of its op.

        Raises:
            InputError: if the window does not fit.
        """
        kernel, strides = window["kernel"], window["strides"]
        size = shape[1:3]
        stated_padding = _pad_sides(window["padding"])
        top, bottom, left, right = resolve_padding(
            stated_padding, size, kernel, strides, dilation=(1, 1)
        )
        height = count_positions(size[0], kernel[0], strides[0], (top, bottom))
        width = count_positions(size[1], kernel[1], strides[1], (left, right))
        if min(height, width) < 1:
            raise self.fault(f"a window {list(kernel)} does not fit into {list(shape)}")
        return (height, width), {"stride": strides, "padding": (top, bottom, left, right)}

    def check_elements(self, shape: Sequence[int], label: str) -> Shape:
        """Return `shape`; raises `InputError` if it has more than 2^53 elements."""
        if math.prod(shape) > MAX_COUNT:
            raise self.fault(f"{label} {shorten(list(shape))} has more than 2^53 elements")
        return tuple(shape)

    def layer(
        self,
        kind: str,
        outputs: Sequence[int],
        inputs: Shape = (),
        weights: Shape = (),
        biases: int = 0,
        **window: Any,
    ) -> Layer:
        """Return the layer as the file describes it; `inputs` defaults to the parent's shape."""
        label = "weights" if len(weights) == 2 else "filter"  # for the words of an error
        parameters = math.prod(self.check_elements(weights, label)) + biases if weights else 0
        return Layer(
            name=self.file_layer.name,
            kind=kind,
            type=self.file_layer.type,
            parents=self.file_layer.parents,
            inputs=inputs or self.shapes[0],
            outputs=self.check_elements(outputs, "output"),
            parameters=parameters,
            split=self.file_layer.split,
            **window,
        )

    def read_choice(self, name: str, choices: Sequence[str]) -> str:
        """Return the activation or normaliser of a layer, "" for none."""
        value = self.file_layer.keys.get(name)
        if value is None:
            return ""
        if value not in choices:
            raise unknown(name, value, choices, f"layer {shorten(self.name)}")
        return str(value)

    def has_bias(self, width: int) -> bool:
        """Return whether a layer adds a bias: unless its `bias` is false or null.

        A list is the bias's shape, `[filters]`, as in Paleo's Overfeat.
        """
        value = self.file_layer.keys.get("bias", True)
        if value is None or isinstance(value, bool):
            return bool(value)
        is_shape = isinstance(value, list) and all(type(n) is int for n in value)
        # `[filters]`: the file states the filters of all splits together, `width` is of one split
        states_width = is_shape and [n // self.file_layer.splits for n in value] == [width]
        if not states_width:
            raise self.fault(f"bias must be true, false or [filters], not {shorten(value)}")
        return True

    def op(self, kind: str, *inputs: str, suffix: str = "", **attrs: Any) -> str:
        """Append an op named by the layer and a suffix, and return its output."""
        return self.b.op(kind, *inputs, name=f"{self.name}{suffix}", **attrs)

    def add_bias(self, x: str) -> str:
        """Append the addition of a bias per channel."""
        w = self.b.weight(f"{self.name}/b", (self.b.shape(x)[1],))
        return self.op("bias", x, w, suffix="/bias", axis=1)

    def finish_product(self, x: str) -> str:
        """Append the ops that follow a product: batch norm or bias, then the activation."""
        if self.read_choice("normalizer_fn", ("batch_norm",)):
            path = f"{self.name}/batch_norm"  # of its weights, and of its op
            x = image.batch_norm(self.b, x, name=path, op=path)
        elif self.has_bias(self.b.shape(x)[1]):
            x = self.add_bias(x)
        activation = self.read_choice("activation_fn", ACTIVATIONS)
        return self.op(activation, x, suffix=f"/{activation}") if activation else x
