"""The layer types of a Paleo file, and what each runs as: op kinds over channels-first tensors.

A tensor `[n, ..., c]` of the file is `[n, c, ...]` here. The op that does a layer's main work has
the layer's name; what goes with it is named `layer/bias`, `layer/batch_norm`, `layer/relu`, ...
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from steptime.core.errors import shorten, unknown
from steptime.core.graph import Layer
from steptime.core.windows import same_padding
from steptime.importers.paleo import shapes
from steptime.importers.paleo.blocks import Entry
from steptime.importers.paleo.shapes import Batch, Shape
from steptime.layers import dense, image
from steptime.ops.builder import Builder

ACTIVATIONS = ("relu", "sigmoid", "tanh", "gelu", "silu")
NORMALIZERS = ("batch_norm",)

Lower = Callable[[Builder, Entry, Layer, Sequence[str]], str]
Sides = tuple[int, int, int, int]


def channels_first(shape: Sequence[int]) -> tuple[int, ...]:
    """Return `[n, ..., c]` as `[n, c, ...]`."""
    return (shape[0], shape[-1], *shape[1:-1])


def channels_last(shape: Sequence[int]) -> tuple[int, ...]:
    """Return `[n, c, ...]` as `[n, ..., c]`."""
    return (shape[0], *shape[2:], shape[1])


def sides(layer: Layer, size: tuple[int, ...]) -> Sides:
    """Return padding (top, bottom, left, right) of a window over height and width `size`."""
    if not isinstance(layer.padding, str):
        height, width = layer.padding
        return height, height, width, width
    if layer.padding == "VALID":
        return 0, 0, 0, 0
    above, beside = (same_padding(size[i], layer.kernel[i], layer.strides[i]) for i in (0, 1))
    return (*above, *beside)


def name_of(e: Entry, name: str, known: Sequence[str]) -> str:
    """Return the activation or normaliser of a layer, "" for none."""
    value = e.keys.get(name)
    if value is None:
        return ""
    if value not in known:
        raise unknown(name, value, known, f"layer {shorten(e.name)}")
    return str(value)


def has_bias(e: Entry, width: int) -> bool:
    """Whether a layer adds a bias: unless its `bias` is false or null.

    A list is the bias's shape, `[filters]`, as in Paleo's Overfeat.
    """
    value = e.keys.get("bias", True)
    if value is None or isinstance(value, bool):
        return bool(value)
    shape = [n // e.splits for n in value if type(n) is int] if isinstance(value, list) else []
    if shape != [width]:
        raise e.fault(f"bias must be true, false or [filters], not {shorten(value)}")
    return True


def _bias(b: Builder, x: str, name: str) -> str:
    return b.op("bias", x, b.weight(f"{name}/b", (b.shape(x)[1],)), name=f"{name}/bias", axis=1)


def _after(b: Builder, e: Entry, x: str) -> str:
    """Return what follows a product: batch norm or bias, then the activation."""
    if name_of(e, "normalizer_fn", NORMALIZERS):
        x = image.batch_norm(b, x, f"{e.name}/batch_norm", f"{e.name}/batch_norm")
    elif has_bias(e, b.shape(x)[1]):
        x = _bias(b, x, e.name)
    activation = name_of(e, "activation_fn", ACTIVATIONS)
    return b.op(activation, x, name=f"{e.name}/{activation}") if activation else x


def flat(b: Builder, x: str, name: str) -> str:
    """Return `[n, k]`."""
    return b.op("flatten", x, name=f"{name}/flatten") if len(b.shape(x)) > 2 else x


def rows(b: Builder, x: str, name: str) -> str:
    """Return classes last: `[n, c, 1, 1]` as `[n, c]`, `[n, c, h, w]` as `[n, h, w, c]`."""
    shape = b.shape(x)
    if len(shape) == 2:
        return x
    if set(shape[2:]) == {1}:
        return flat(b, x, name)
    order = (0, *range(2, len(shape)), 1)
    return b.op("transpose", x, name=f"{name}/transpose", order=order)


def convolution(b: Builder, e: Entry, layer: Layer, x: Sequence[str]) -> str:
    """Return convolution, batch norm or bias, activation."""
    shape = b.shape(x[0])
    w = b.weight(f"{e.name}/w", (layer.outputs[3], shape[1], *layer.kernel))
    pads = sides(layer, shape[2:])
    y = b.op("conv2d", x[0], w, name=e.name, stride=layer.strides, padding=pads)
    return _after(b, e, y)


def deconvolution(b: Builder, e: Entry, layer: Layer, x: Sequence[str]) -> str:
    """Return a transposed convolution, padded as the convolution that it transposes."""
    _, height, width, channels = layer.outputs
    w = b.weight(f"{e.name}/w", (b.shape(x[0])[1], channels, *layer.kernel))
    size = (height, width)
    how: dict[str, Any] = {"stride": layer.strides, "padding": sides(layer, size)}
    y = b.op("conv_transpose2d", x[0], w, name=e.name, output_size=size, **how)
    return _after(b, e, y)


def inner_product(b: Builder, e: Entry, layer: Layer, x: Sequence[str]) -> str:
    """Return a linear layer over the flattened input.

    The elements are flattened channels first: other places of the weights, the same work.
    """
    y = flat(b, x[0], e.name)
    w = b.weight(f"{e.name}/w", (layer.outputs[1], b.shape(y)[1]))
    return _after(b, e, b.op("linear", y, w, name=e.name))


def concatenate(b: Builder, e: Entry, layer: Layer, x: Sequence[str]) -> str:
    """Return the parents joined along the file's axis."""
    rank = len(layer.outputs)
    dim = e.keys["dim"] % rank
    return b.op("concat", *x, name=e.name, axis=channels_first(range(rank)).index(dim))


def elementwise(b: Builder, e: Entry, _: Layer, x: Sequence[str]) -> str:
    """Return a sum, one op for each parent but the first; the last has the layer's name."""
    first = b.shape(x[0])
    for name, tensor in zip(e.parents, x, strict=True):
        if b.shape(tensor) != first:
            pair = [list(channels_last(shape)) for shape in (b.shape(tensor), first)]
            raise e.fault(f"{pair[0]} of {shorten(name)} is not the shape {pair[1]}")
    y = x[0]
    for i, other in enumerate(x[1:], 1):
        y = b.op("add", y, other, name=e.name if i == len(x) - 1 else f"{e.name}/{i}")
    return y


def scale(b: Builder, e: Entry, _: Layer, x: Sequence[str]) -> str:
    """Return a factor and a shift a channel: a convolution of each channel by itself.

    After a batch norm, which has them already, it passes its input on.
    """
    if f"{x[0]}/running_mean" in b.tensors:
        return x[0]
    shape = b.shape(x[0])
    if len(shape) != 4:
        raise e.fault(f"needs [n, h, w, c], but its parent has {len(shape)} dimensions")
    w = b.weight(f"{e.name}/w", (shape[1], 1, 1, 1))
    return _bias(b, b.op("conv2d", x[0], w, name=e.name, groups=shape[1]), e.name)


class LayerType(NamedTuple):
    """One row: the layer's shapes given those of its parents, its ops, and how many parents."""

    shapes: Callable[[Entry, Sequence[Shape], Batch], Layer]
    lower: Lower
    parents: tuple[int, float] = (1, 1)


def _op(kind: str, b: Builder, e: Entry, _: Layer, x: Sequence[str], **attrs: Any) -> str:
    return b.op(kind, x[0], name=e.name, **attrs)


def _pool(kind: str, b: Builder, e: Entry, layer: Layer, x: Sequence[str]) -> str:
    """Return pooling by an op kind.

    Padding of an average counts as zeros, where TensorFlow leaves it out of the mean: other values
    at the rim, the same work.
    """
    pads = sides(layer, b.shape(x[0])[2:])
    return b.op(kind, x[0], name=e.name, kernel=layer.kernel, stride=layer.strides, padding=pads)


MANY = (1, float("inf"))

UNKNOWN = LayerType(shapes.passing, lambda b, e, layer, x: x[0], MANY)
TYPES = {
    "Input": LayerType(
        shapes.input_layer,
        lambda b, e, layer, x: b.input(e.name, channels_first(layer.outputs)),
        (0, 0),
    ),
    "Convolution": LayerType(shapes.convolution, convolution),
    "Deconvolution": LayerType(shapes.deconvolution, deconvolution),
    "InnerProduct": LayerType(shapes.inner_product, inner_product),
    "Pooling": LayerType(shapes.pooling, partial(_pool, "max_pool2d")),
    "AvgPool": LayerType(shapes.pooling, partial(_pool, "avg_pool2d")),
    "UpSampling2D": LayerType(
        shapes.upsampling,
        lambda b, e, layer, x: b.op("upsample2d", x[0], name=e.name, scale=layer.kernel),
    ),
    "Dropout": LayerType(
        shapes.dropout,
        lambda b, e, layer, x: dense.dropout(b, x[0], 1.0 - e.keys["dropout_keep_prob"], e.name),
    ),
    "Concatenate": LayerType(shapes.concatenate, concatenate, MANY),
    "Elementwise": LayerType(shapes.passing, elementwise, MANY),
    "Reshape": LayerType(  # the elements are in another order than channels last
        shapes.reshape,
        lambda b, e, layer, x: b.op(
            "reshape", x[0], name=e.name, shape=channels_first(layer.outputs)
        ),
    ),
    "Softmax": LayerType(
        shapes.softmax,
        lambda b, e, layer, x: b.op("softmax", rows(b, x[0], e.name), name=e.name),
    ),
    "Sigmoid": LayerType(shapes.sigmoid, partial(_op, "sigmoid")),
    "ReLU": LayerType(shapes.passing, partial(_op, "relu")),
    "BatchNorm": LayerType(
        shapes.passing, lambda b, e, layer, x: image.batch_norm(b, x[0], e.name, e.name)
    ),
    "Scale": LayerType(shapes.passing, scale),
    "LRN": LayerType(  # Caffe's, where a file names no sizes
        shapes.passing, partial(_op, "local_response_norm", size=5, alpha=1.0, beta=0.75, k=1.0)
    ),
    "Accuracy": UNKNOWN,
}
