"""What the layers of a Paleo file say of themselves: shapes and parameters by the file's rules.

Shapes are channels last, `[n, h, w, c]` or `[n, k]`; filters `[kh, kw, c_in, c_out]`. The rules are
those of Qi, Sparks, Talwalkar, *Paleo*, ICLR 2017, and of its public implementation. A bias is
counted for every filter, whether there is one or not.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from steptime.core.errors import shorten
from steptime.core.graph import Layer
from steptime.core.ranges import LARGEST
from steptime.core.windows import positions, same_padding
from steptime.importers.paleo.blocks import Entry

Shape = tuple[int, ...]
Pair = tuple[int, int]
Padding = str | Pair


@dataclass(frozen=True)
class Batch:
    """The batch that the file names, and the size that takes its place."""

    file: int
    size: int


def checked(e: Entry, shape: Sequence[int], what: str) -> Shape:
    """Return `shape` if it has at most 2^53 elements."""
    if math.prod(shape) > LARGEST:
        raise e.fault(f"{what} {shorten(list(shape))} has more than 2^53 elements")
    return tuple(shape)


def _size(e: Entry, what: str, value: Any, least: int = 1) -> int:
    if type(value) is not int or not least <= value <= LARGEST:
        raise e.fault(f"{what} must be whole numbers from {least} to 2^53, not {shorten(value)}")
    return value


def _sizes(e: Entry, name: str, ranks: tuple[int, ...], least: int = 1) -> Shape:
    value = e.key(name)
    if not isinstance(value, list) or len(value) not in ranks:
        count = " or ".join(str(rank) for rank in ranks)
        raise e.fault(f"{name} must be a list of {count} numbers, not {shorten(value)}")
    return tuple(_size(e, name, size, least) for size in value)


def _window(e: Entry, name: str) -> Pair:
    """Return (height, width) of `[1, height, width, 1]`."""
    first, height, width, last = _sizes(e, name, (4,))
    if (first, last) != (1, 1):
        raise e.fault(f"{name} must be [1, height, width, 1], not {shorten(e.keys[name])}")
    return height, width


def _padding(e: Entry) -> Padding:
    value = e.key("padding")
    if value in ("VALID", "SAME"):
        return str(value)
    if isinstance(value, list) and len(value) == 2:
        height, width = (_size(e, "padding", side, 0) for side in value)
        return height, width
    raise e.fault(f"padding must be VALID, SAME or [height, width], not {shorten(value)}")


def _image(e: Entry, shape: Shape) -> Shape:
    if len(shape) != 4:
        raise e.fault(f"needs [n, h, w, c], but its parent gives {list(shape)}")
    return shape


def _sliding(e: Entry, kernel: Pair) -> dict[str, Any]:
    return {"kernel": kernel, "strides": _window(e, "strides"), "padding": _padding(e)}


def _slid(e: Entry, shape: Shape, kernel: Pair, strides: Pair, padding: Padding) -> Pair:
    """Height and width of a window's positions; raises `InputError` where it fits nowhere."""
    new = []
    for i in (0, 1):
        size = shape[1 + i]
        if padding == "SAME":
            sides = same_padding(size, kernel[i], strides[i])
        else:
            sides = (0, 0) if isinstance(padding, str) else (padding[i], padding[i])
        new.append(positions(size, kernel[i], strides[i], sides))
    if min(new) < 1:
        raise e.fault(f"a window {list(kernel)} does not fit into {list(shape)}")
    return new[0], new[1]


def _filter(e: Entry) -> tuple[Pair, int, int]:
    """Return kernel, and the third and fourth size of a filter; the third may be -1."""
    value = e.key("filter")
    if not isinstance(value, list) or len(value) != 4:
        raise e.fault(f"filter must be [kh, kw, c_in, c_out], not {shorten(value)}")
    kh, kw, third, fourth = value
    kernel = _size(e, "filter", kh), _size(e, "filter", kw)
    third = -1 if type(third) is int and third == -1 else _size(e, "filter", third)
    return kernel, third, _size(e, "filter", fourth)


def _divided(e: Entry, filters: int) -> int:
    if filters < e.splits:
        raise e.fault(f"{filters} filters cannot be divided by {e.splits} splits")
    return filters // e.splits


def _layer(e: Entry, kind: str, inputs: Shape, outputs: Sequence[int], **more: Any) -> Layer:
    new = checked(e, outputs, "output")
    return Layer(e.name, kind, e.type, e.parents, inputs, new, split=e.split, **more)


def input_layer(e: Entry, _: Sequence[Shape], batch: Batch) -> Layer:
    """`tensor [n, ...]`, the asked batch in the place of n."""
    shape = (batch.size, *_sizes(e, "tensor", (2, 3, 4))[1:])
    return _layer(e, "input", shape, shape)


def convolution(e: Entry, parents: Sequence[Shape], _: Batch) -> Layer:
    """`filter [kh, kw, c_in, c_out], strides, padding`; kh*kw*c_in*c_out + c_out parameters."""
    shape = _image(e, parents[0])
    kernel, c_in, c_out = _filter(e)
    if c_in not in (-1, shape[3]):
        raise e.fault(f"its filter takes {c_in} channels, its parent gives {shape[3]}")
    c_out = _divided(e, c_out)
    window = _sliding(e, kernel)
    weights = checked(e, (*kernel, shape[3], c_out), "filter")
    outputs = (shape[0], *_slid(e, shape, **window), c_out)
    return _layer(e, "conv", shape, outputs, **window, parameters=math.prod(weights) + c_out)


def deconvolution(e: Entry, parents: Sequence[Shape], batch: Batch) -> Layer:
    """Read the transpose of a convolution that leads from `output_shape` to the input.

    `filter [kh, kw, c_O, c_I]`; kh*kw*c_O*c_I + c_I parameters: the bias is the convolution's.
    """
    shape = _image(e, parents[0])
    n, *size, channels = _sizes(e, "output_shape", (4,))
    if batch.size == batch.file and n != shape[0]:
        raise e.fault(f"output_shape has batch {n}, its parent has {shape[0]}")
    kernel, c_out, c_in = _filter(e)
    if c_out not in (-1, channels):
        raise e.fault(f"its filter gives {c_out} channels, output_shape has {channels}")
    if c_in != shape[3]:
        raise e.fault(f"its filter takes {c_in} channels, its parent gives {shape[3]}")
    outputs = (shape[0], *size, _divided(e, channels))
    window = _sliding(e, kernel)
    back = _slid(e, outputs, **window)
    if back != shape[1:3]:
        raise e.fault(
            f"its convolution leads from {list(outputs)} to {list(back)}, "
            f"not to the {list(shape[1:3])} of its parent"
        )
    weights = checked(e, (*kernel, outputs[3], c_in), "filter")
    return _layer(e, "deconv", shape, outputs, **window, parameters=math.prod(weights) + c_in)


def inner_product(e: Entry, parents: Sequence[Shape], _: Batch) -> Layer:
    """`num_outputs` m: the input seen as `[n, k]` `-> [n, m]`; k*m + m parameters."""
    width = _divided(e, _size(e, "num_outputs", e.key("num_outputs")))
    inputs = (parents[0][0], math.prod(parents[0][1:]))
    weights = checked(e, (inputs[1], width), "weights")
    outputs = (inputs[0], width)
    return _layer(e, "inner_product", inputs, outputs, parameters=math.prod(weights) + width)


def pooling(e: Entry, parents: Sequence[Shape], _: Batch) -> Layer:
    """`ksize, strides, padding`."""
    shape = _image(e, parents[0])
    window = _sliding(e, _window(e, "ksize"))
    outputs = (shape[0], *_slid(e, shape, **window), shape[3])
    return _layer(e, "pool", shape, outputs, **window)


def dropout(e: Entry, parents: Sequence[Shape], _: Batch) -> Layer:
    """`dropout_keep_prob`, the share of elements that is kept."""
    keep = e.key("dropout_keep_prob")
    if type(keep) not in (int, float) or not 0 < keep <= 1:
        raise e.fault(f"dropout_keep_prob must be above 0 and at most 1, not {shorten(keep)}")
    return _layer(e, "dropout", parents[0], parents[0])


def concatenate(e: Entry, parents: Sequence[Shape], _: Batch) -> Layer:
    """`dim`, the axis along which the parents' sizes add up."""
    first = parents[0]
    dim = e.key("dim")
    if type(dim) is not int or not -len(first) <= dim < len(first):
        raise e.fault(f"dim must be an axis of {list(first)}, not {shorten(dim)}")
    dim %= len(first)
    for name, shape in zip(e.parents, parents, strict=True):
        if len(shape) != len(first) or any(
            shape[i] != first[i] for i in range(len(first)) if i != dim
        ):
            raise e.fault(
                f"{list(shape)} of {shorten(name)} does not fit to {list(first)} along axis {dim}"
            )
    joined = sum(shape[dim] for shape in parents)
    return _layer(e, "other", first, (*first[:dim], joined, *first[dim + 1 :]))


def reshape(e: Entry, parents: Sequence[Shape], batch: Batch) -> Layer:
    """`output_shape` of as many elements; one -1 is filled in, and the file's batch replaced."""
    value = e.key("output_shape")
    if not isinstance(value, list) or len(value) not in (2, 3, 4):
        raise e.fault(f"output_shape must be 2 to 4 numbers, not {shorten(value)}")
    sizes = [-1 if type(s) is int and s == -1 else _size(e, "output_shape", s) for s in value]
    if sizes[0] == batch.file:
        sizes[0] = batch.size
    size = math.prod(parents[0])
    known = math.prod(s for s in sizes if s != -1)
    if sizes.count(-1) == 1 and size % known == 0:
        sizes[sizes.index(-1)] = size // known
    if -1 in sizes or math.prod(sizes) != size:
        raise e.fault(f"{list(parents[0])} cannot be seen as {shorten(value)}")
    return _layer(e, "other", parents[0], sizes)


def upsampling(e: Entry, parents: Sequence[Shape], _: Batch) -> Layer:
    """`ksize`, by which height and width are multiplied: `[1, h, w, 1]`, `[h, w]` or a number."""
    n, h, w, c = _image(e, parents[0])
    value = e.key("ksize")
    if isinstance(value, list) and len(value) == 4:
        scale = _window(e, "ksize")
    elif isinstance(value, list):
        height, width = _sizes(e, "ksize", (2, 4))
        scale = height, width
    else:
        scale = (_size(e, "ksize", value),) * 2
    return _layer(e, "other", parents[0], (n, h * scale[0], w * scale[1], c), kernel=scale)


def softmax(e: Entry, parents: Sequence[Shape], _: Batch) -> Layer:
    """`[n, num_classes]`; without `num_classes` the last size of the input."""
    classes = e.keys.get("num_classes")
    width = parents[0][-1] if classes is None else _size(e, "num_classes", classes)
    return _layer(e, "other", parents[0], (parents[0][0], width))


def sigmoid(e: Entry, parents: Sequence[Shape], _: Batch) -> Layer:
    """`[n, 1]`, whatever the input: the file's rule."""
    return _layer(e, "other", parents[0], (parents[0][0], 1))


def passing(e: Entry, parents: Sequence[Shape], _: Batch) -> Layer:
    """Pass on the first parent's shape."""
    return _layer(e, "other", parents[0], parents[0])
