"""One layer of a Paleo file that is being built: its keys, checked, and what its parents made."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from steptime.core.errors import InputError, shorten, unknown
from steptime.core.values import MAX_COUNT
from steptime.core.windows import positions
from steptime.formats.windows import sides_of
from steptime.network.layers import image
from steptime.network.ops.builder import Builder
from steptime.paleo.files.blocks import Entry
from steptime.paleo.layers import Layer

ACTIVATIONS = ("relu", "sigmoid", "tanh", "gelu", "silu")

Shape = tuple[int, ...]
Pair = tuple[int, int]


def channels_first(shape: Sequence[int]) -> Shape:
    """Return `[n, ..., c]` as `[n, c, ...]`."""
    return (shape[0], shape[-1], *shape[1:-1])


def channels_last(shape: Sequence[int]) -> Shape:
    """Return `[n, c, ...]` as `[n, ..., c]`."""
    return (shape[0], *shape[2:], shape[1])


@dataclass(frozen=True)
class At:
    """A layer being built; `is_loss` says that a softmax is part of the loss.

    `shapes` are those of its parents by the file's rules, `x` the tensors that they made. `batch`
    takes the place of that which the file names, `own_batch`.
    """

    b: Builder
    entry: Entry
    own_batch: int
    batch: int
    shapes: Sequence[Shape]
    x: Sequence[str]
    is_loss: bool

    @property
    def name(self) -> str:
        """The layer's name."""
        return self.entry.name

    def fault(self, message: str) -> InputError:
        """Return an error that names the layer."""
        return self.entry.fault(message)

    @property
    def image(self) -> Shape:
        """The shape `[n, h, w, c]` of its parent; raises `InputError` for any other."""
        if len(self.shapes[0]) != 4:
            raise self.fault(f"needs [n, h, w, c], but its parent gives {list(self.shapes[0])}")
        return self.shapes[0]

    def size(self, what: str, value: Any, least: int = 1) -> int:
        """Return a whole number."""
        if type(value) is not int or not least <= value <= MAX_COUNT:
            raise self.fault(
                f"{what} must be whole numbers from {least} to 2^53, not {shorten(value)}"
            )
        return value

    def sizes(self, name: str, *ranks: int) -> Shape:
        """Return a list of so many whole numbers."""
        value = self.entry.key(name)
        if not isinstance(value, list) or len(value) not in ranks:
            count = " or ".join(str(rank) for rank in ranks)
            raise self.fault(f"{name} must be a list of {count} numbers, not {shorten(value)}")
        return tuple(self.size(name, size) for size in value)

    def over(self, name: str) -> Pair:
        """Return (height, width) of `[1, height, width, 1]`."""
        first, height, width, last = self.sizes(name, 4)
        if (first, last) != (1, 1):
            said = shorten(self.entry.keys[name])
            raise self.fault(f"{name} must be [1, height, width, 1], not {said}")
        return height, width

    def filter(self) -> tuple[Pair, int, int]:
        """Return kernel, and the third and fourth size of a filter; the third may be -1."""
        value = self.entry.key("filter")
        if not isinstance(value, list) or len(value) != 4:
            raise self.fault(f"filter must be [kh, kw, c_in, c_out], not {shorten(value)}")
        kh, kw, third, fourth = value
        kernel = self.size("filter", kh), self.size("filter", kw)
        third = -1 if type(third) is int and third == -1 else self.size("filter", third)
        return kernel, third, self.size("filter", fourth)

    def divided(self, filters: int) -> int:
        """Return the filters of one part of a model-parallel block."""
        splits = self.entry.splits
        if filters < splits:
            raise self.fault(f"{filters} filters cannot be divided by {splits} splits")
        return filters // splits

    def window(self, kernel: Pair) -> dict[str, Any]:
        """Return a window's kernel, strides and padding as the file says them."""
        strides, padding = self.over("strides"), self.entry.key("padding")
        if isinstance(padding, list) and len(padding) == 2:
            padding = tuple(self.size("padding", side, 0) for side in padding)
        elif padding not in ("VALID", "SAME"):
            raise self.fault(
                f"padding must be VALID, SAME or [height, width], not {shorten(padding)}"
            )
        return {"kernel": kernel, "strides": strides, "padding": padding}

    def slid(self, shape: Shape, window: Mapping[str, Any]) -> tuple[Pair, dict[str, Any]]:
        """Return height and width of a window's positions, and what an op is told of it.

        Raises `InputError` where it fits nowhere.
        """
        kernel, strides, padding = window.values()
        size = shape[1:3]
        high, wide = (0, 0) if isinstance(padding, str) else padding
        said = "same" if padding == "SAME" else (high, high, wide, wide)
        sides = sides_of(said, size, kernel, strides, (1, 1))
        height, width = (
            positions(size[i], kernel[i], strides[i], (sides[2 * i], sides[2 * i + 1]))
            for i in (0, 1)
        )
        if min(height, width) < 1:
            raise self.fault(f"a window {list(kernel)} does not fit into {list(shape)}")
        return (height, width), {"stride": strides, "padding": tuple(sides)}

    def checked(self, shape: Sequence[int], what: str) -> Shape:
        """Return `shape` if it has at most 2^53 elements."""
        if math.prod(shape) > MAX_COUNT:
            raise self.fault(f"{what} {shorten(list(shape))} has more than 2^53 elements")
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
        """Return the layer as the file tells it; without `inputs` these are the parent's shape."""
        what = "weights" if len(weights) == 2 else "filter"
        parameters = math.prod(self.checked(weights, what)) + biases if weights else 0
        e, new = self.entry, self.checked(outputs, "output")
        given = inputs or self.shapes[0]
        more: dict[str, Any] = {"parameters": parameters, "split": e.split, **window}
        return Layer(e.name, kind, e.type, e.parents, given, new, **more)

    def word(self, name: str, known: Sequence[str]) -> str:
        """Return the activation or normaliser of a layer, "" for none."""
        value = self.entry.keys.get(name)
        if value is None:
            return ""
        if value not in known:
            raise unknown(name, value, known, f"layer {shorten(self.name)}")
        return str(value)

    def has_bias(self, width: int) -> bool:
        """Whether a layer adds a bias: unless its `bias` is false or null.

        A list is the bias's shape, `[filters]`, as in Paleo's Overfeat.
        """
        value = self.entry.keys.get("bias", True)
        if value is None or isinstance(value, bool):
            return bool(value)
        whole = isinstance(value, list) and all(type(n) is int for n in value)
        if not whole or [n // self.entry.splits for n in value] != [width]:
            raise self.fault(f"bias must be true, false or [filters], not {shorten(value)}")
        return True

    def op(self, kind: str, *inputs: str, at: str = "", **attrs: Any) -> str:
        """Append an op of the layer's name and `at`."""
        return self.b.op(kind, *inputs, name=f"{self.name}{at}", **attrs)

    def biased(self, x: str) -> str:
        """Return `x` and a bias of each channel."""
        w = self.b.weight(f"{self.name}/b", (self.b.shape(x)[1],))
        return self.op("bias", x, w, at="/bias", axis=1)

    def ended(self, x: str) -> str:
        """Return what follows a product: batch norm or bias, then the activation."""
        if self.word("normalizer_fn", ("batch_norm",)):
            x = image.batch_norm(self.b, x, f"{self.name}/batch_norm", f"{self.name}/batch_norm")
        elif self.has_bias(self.b.shape(x)[1]):
            x = self.biased(x)
        activation = self.word("activation_fn", ACTIVATIONS)
        return self.op(activation, x, at=f"/{activation}") if activation else x
