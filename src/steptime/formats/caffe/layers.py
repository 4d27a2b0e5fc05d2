"""Layers of Caffe lowered to op kinds: one function a type, `(lowering, layer, tensors) -> tops`.

The op that does a layer's main work has the layer's name. What a function leaves out of Caffe's
own way to compute, it says.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from steptime.core.windows import positions, reach
from steptime.formats.caffe import shapes
from steptime.formats.caffe.lowering import Lowering, Tops, UnmodelledError, axis_of
from steptime.formats.caffe.net import CaffeLayer
from steptime.formats.caffe.schema import enum_name
from steptime.network.layers.dense import dropout as drop
from steptime.network.ops.table import ShapeError, require

Pair = tuple[int, int]
MANY = 1000  # bottoms; no network joins so many


@dataclass(frozen=True)
class LayerType:
    """How a type of layer is lowered, and how many bottoms it takes."""

    lower: Callable[[Lowering, CaffeLayer, Tops], Tops]
    least: int = 1
    most: int = 1


def _pair(p: Any, both: str, height: str, width: str, default: int) -> Pair:
    """Return (height, width) of a size that is given once, as a pair, or by `_h` and `_w`."""
    given = list(getattr(p, both))
    if p.HasField(height) or p.HasField(width):
        require(not given, f"gives '{both}' and '{height}' or '{width}'")
        h, w = (getattr(p, f) if p.HasField(f) else default for f in (height, width))
        return h, w
    if len(given) > 2:
        raise UnmodelledError(f"{len(given)} sizes of '{both}', not height and width alone")
    result = given or [default]
    return result[0], result[-1]


def _window(p: Any) -> tuple[Pair, Pair, Pair]:
    """Return kernel, stride and padding of a convolution or of pooling."""
    kernel = _pair(p, "kernel_size", "kernel_h", "kernel_w", 0)
    stride = _pair(p, "stride", "stride_h", "stride_w", 1)
    require(min(kernel) >= 1, f"kernel {list(kernel)}: kernel_size is missing or below 1")
    require(min(stride) >= 1, f"stride {list(stride)} is below 1")
    return kernel, stride, _pair(p, "pad", "pad_h", "pad_w", 0)


def _image(n: Lowering, x: str) -> tuple[int, ...]:
    shape = n.b.shape(x)
    require(len(shape) == 4, f"needs [batch, channels, h, w], not {list(shape)}")
    return shape


def _outputs(p: Any) -> int:
    require(p.num_output >= 1, "num_output is missing or below 1")
    return int(p.num_output)


def _bias(n: Lowering, layer: CaffeLayer, y: str, axis: int) -> str:
    width = n.b.shape(y)[axis]
    b = n.weight(layer, 1, "b", (width,))
    return n.b.op("bias", y, b, name=f"{layer.name}/bias", axis=axis)


def convolution(n: Lowering, layer: CaffeLayer, x: Tops) -> Tops:
    """Return a convolution or, for `Deconvolution`, its transpose, with a bias unless told not to.

    A transposed one has `stride * (in - 1) + dilation * (kernel - 1) + 1 - 2 * pad` rows.
    """
    p = layer.message.convolution_param
    channels = _image(n, x[0])[1]
    kernel, stride, pad = _window(p)
    given = list(p.dilation) or [1]
    if len(given) > 2 or axis_of(p.axis, 4) != 1:
        raise UnmodelledError("a convolution that is not over height and width")
    dilation = (given[0], given[-1])
    require(min(dilation) >= 1, f"dilation {list(dilation)} is below 1")
    new, groups = _outputs(p), p.group
    require(
        groups >= 1 and channels % groups == 0 and new % groups == 0,
        f"{channels} channels and {new} outputs in {groups} groups",
    )
    how: dict[str, Any] = {
        "stride": stride,
        "padding": (pad[0], pad[0], pad[1], pad[1]),
        "dilation": dilation,
        "groups": groups,
    }
    if layer.type == "Convolution":
        w = n.weight(layer, 0, "w", (new, channels // groups, *kernel))
        y = n.b.op("conv2d", x[0], w, name=layer.name, **how)
    else:
        size = tuple(
            reach(n.b.shape(x[0])[2 + i], kernel[i], stride[i], dilation[i]) - 2 * pad[i]
            for i in (0, 1)
        )
        require(min(size) >= 1, f"an output of {list(size)}")
        w = n.weight(layer, 0, "w", (channels, new // groups, *kernel))
        y = n.b.op("conv_transpose2d", x[0], w, name=layer.name, output_size=size, **how)
    return (_bias(n, layer, y, 1) if p.bias_term else y,)


def pooling(n: Lowering, layer: CaffeLayer, x: Tops) -> Tops:
    """Return pooling, by Caffe's rule for its size (PoolingLayer::Reshape).

    Rounded up, and only where there is padding a last window that begins in it is left out.
    Stochastic pooling counts as that by maxima: it reads and writes as much.
    """
    p = layer.message.pooling_param
    size = _image(n, x[0])[2:]
    ceil = enum_name(p, "round_mode") == "CEIL"
    kernel: Pair = (size[0], size[1])
    stride: Pair = (1, 1)
    pad: Pair = (0, 0)
    if not p.global_pooling:
        kernel, stride, pad = _window(p)
        require(
            pad[0] < kernel[0] and pad[1] < kernel[1], f"padding {list(pad)}, kernel {list(kernel)}"
        )
    kept, usual = (
        [
            positions(size[i], kernel[i], stride[i], (pad[i],) * 2, ceil=ceil, in_padding=unpadded)
            for i in (0, 1)
        ]
        for unpadded in (max(pad) == 0, False)
    )
    require(min(kept) >= 1, f"a window {list(kernel)} does not fit into {list(size)}")
    padding = (pad[0], pad[0], pad[1], pad[1])
    if kept != usual:  # Caffe keeps a window that begins behind the map: pad the map up to it
        rest = [reach(kept[i], kernel[i], stride[i]) - size[i] for i in (0, 1)]
        padding, ceil = (0, max(rest[0], 0), 0, max(rest[1], 0)), False
    kind = "avg_pool2d" if enum_name(p, "pool") == "AVE" else "max_pool2d"
    how: dict[str, Any] = {"kernel": kernel, "stride": stride, "padding": padding}
    return (n.b.op(kind, x[0], name=layer.name, **how, **({"ceil": True} if ceil else {})),)


def inner_product(n: Lowering, layer: CaffeLayer, x: Tops) -> Tops:
    """Return a product with all axes from `axis` on; `transpose` says only how weights lie."""
    p = layer.message.inner_product_param
    shape = n.b.shape(x[0])
    axis = axis_of(p.axis, len(shape))
    require(axis >= 1, "an inner product over the batch (axis 0)")
    fan_in = math.prod(shape[axis:])
    seen = x[0]
    if len(shape) > axis + 1:
        lead = (*shape[:axis], fan_in)
        seen = n.b.op("reshape", seen, name=f"{layer.name}/flatten", shape=lead)
    w = n.weight(layer, 0, "w", (_outputs(p), fan_in))
    y = n.b.op("linear", seen, w, name=layer.name)
    return (_bias(n, layer, y, axis) if p.bias_term else y,)


def batch_norm(n: Lowering, layer: CaffeLayer, x: Tops) -> Tops:
    """Return batch norm with the weights of the Scale after it, or with constants if there is none.

    With `use_global_stats` training, too, reads the stored statistics. Its gradient is counted as
    that of the usual one: as many bytes, a few FLOP more.
    """
    p = layer.message.batch_norm_param
    shape = n.b.shape(x[0])
    require(len(shape) >= 2, f"needs [batch, channels, ...], not {list(shape)}")
    width = shape[1:2]
    scale = n.scaled.get(layer.tops[0]) if layer.tops else None
    if scale is None:
        w = n.b.buffer(f"{layer.name}/w", width)
        b = n.b.buffer(f"{layer.name}/b", width)
    else:
        w = n.weight(scale, 0, "w", width)
        has_bias = scale.message.scale_param.bias_term
        b = n.weight(scale, 1, "b", width) if has_bias else n.b.buffer(f"{scale.name}/b", width)
    mean = n.b.buffer(f"{layer.name}/running_mean", width)
    variance = n.b.buffer(f"{layer.name}/running_variance", width)
    training = n.b.training and layer.training
    if p.HasField("use_global_stats"):
        training = not p.use_global_stats
    inputs = (x[0], w, b, mean, variance)
    return (n.b.op("batch_norm", *inputs, name=layer.name, training=training),)


def joins_batch_norm(layer: CaffeLayer) -> bool:
    """Whether a layer is a Scale that can be the weights of the batch norm before it."""
    p = layer.message.scale_param
    return layer.type == "Scale" and len(layer.bottoms) == 1 and p.axis == 1 and p.num_axes == 1


def scale(n: Lowering, layer: CaffeLayer, x: Tops) -> Tops:
    """Return `x` times a vector along some axes, trained or the second bottom, and plus another."""
    if layer.bottoms[0] in n.scaled:
        return x  # the batch norm before it has done the work
    p = layer.message.scale_param
    factors, back, shape = _along(n, layer, x, p, "w")
    y = back(n.b.op("mul", *factors, name=layer.name))
    if p.bias_term:
        first = 0 if len(x) > 1 else 1
        y = _shift(n, layer, y, p.axis, shape, first, f"{layer.name}/bias")
    return (y,)


def bias(n: Lowering, layer: CaffeLayer, x: Tops) -> Tops:
    """Return `x` plus a vector along some axes, trained or the second bottom."""
    p = layer.message.bias_param
    terms, back, _ = _along(n, layer, x, p, "b")
    return (back(n.b.op("add", *terms, name=layer.name)),)


def _along(
    n: Lowering, layer: CaffeLayer, x: Tops, p: Any, suffix: str
) -> tuple[Tops, Callable[[str], str], tuple[int, ...]]:
    """Return `x` and what is applied along its axes from `p.axis` on, seen as its last ones."""
    shape = n.b.shape(x[0])
    count = len(n.b.shape(x[1])) if len(x) > 1 else p.num_axes
    first = axis_of(p.axis, len(shape)) if count else len(shape)
    stop = len(shape) if count == -1 else first + count
    require(count >= -1 and stop <= len(shape), f"{count} axes from {first} of {list(shape)}")
    covered = shape[first:stop]
    other = x[1] if len(x) > 1 else n.weight(layer, 0, suffix, covered)
    require(n.b.shape(other) == covered, f"{list(n.b.shape(other))} along {list(covered)}")
    seen, back = n.last(x[0], range(first, stop), layer.name)
    return (seen, other), back, covered


def _shift(
    n: Lowering, layer: CaffeLayer, y: str, axis: int, shape: tuple[int, ...], i: int, name: str
) -> str:
    b = n.weight(layer, i, "b", shape)
    if len(shape) == 1:
        return n.b.op("bias", y, b, name=name, axis=axis)
    first = axis_of(axis, len(n.b.shape(y))) if shape else len(n.b.shape(y))
    seen, back = n.last(y, range(first, first + len(shape)), name)
    return back(n.b.op("add", seen, b, name=name))


def local_response_norm(n: Lowering, layer: CaffeLayer, x: Tops) -> Tops:
    """Return response normalisation across channels; within one there is no op kind for it."""
    p = layer.message.lrn_param
    _image(n, x[0])
    if enum_name(p, "norm_region") != "ACROSS_CHANNELS":
        raise UnmodelledError("LRN with norm_region WITHIN_CHANNEL")
    require(p.local_size % 2 == 1, f"local_size {p.local_size} is not odd")
    how = {"size": p.local_size, "alpha": p.alpha, "beta": p.beta, "k": p.k}
    return (n.b.op("local_response_norm", x[0], name=layer.name, **how),)


def relu(n: Lowering, layer: CaffeLayer, x: Tops) -> Tops:
    """Return ReLU; with a slope for inputs below 0 it is PReLU whose slope is not trained."""
    if layer.message.relu_param.negative_slope == 0:
        return (n.b.op("relu", x[0], name=layer.name),)
    slope = n.b.buffer(f"{layer.name}/slope", (1,))
    return (n.b.op("prelu", x[0], slope, name=layer.name),)


def prelu(n: Lowering, layer: CaffeLayer, x: Tops) -> Tops:
    """Return ReLU with a trained slope for each channel, or for all."""
    shape = n.b.shape(x[0])
    require(len(shape) >= 2, f"needs [batch, channels, ...], not {list(shape)}")
    width = (1,) if layer.message.prelu_param.channel_shared else shape[1:2]
    return (n.b.op("prelu", x[0], n.weight(layer, 0, "w", width), name=layer.name),)


def _same(kind: str) -> Callable[[Lowering, CaffeLayer, Tops], Tops]:
    return lambda n, layer, x: (n.b.op(kind, x[0], name=layer.name),)


def power(n: Lowering, layer: CaffeLayer, x: Tops) -> Tops:
    """Return `(shift + scale x)^power` for the powers 1 and 2: a product, a sum, a square."""
    p = layer.message.power_param
    if p.power not in (1, 2):
        raise UnmodelledError(f"Power with power {p.power:g}")
    steps = [
        *(["scale"] if p.scale != 1 else []),
        *(["shift"] if p.shift != 0 else []),
        *(["square"] if p.power == 2 else []),
    ]
    y = x[0]
    for step in steps:
        name = layer.name if step == steps[-1] else f"{layer.name}/{step}"
        other = y if step == "square" else n.scalar(f"{layer.name}/{step}_by")
        y = n.b.op("add" if step == "shift" else "mul", y, other, name=name)
    return (y,)


def dropout(n: Lowering, layer: CaffeLayer, x: Tops) -> Tops:
    """Return `x` with a share `dropout_ratio` dropped in training, as it is in inference."""
    ratio = layer.message.dropout_param.dropout_ratio
    require(0 <= ratio < 1, f"dropout_ratio {ratio:g} is not at least 0 and below 1")
    return (drop(n.b, x[0], ratio, layer.name) if layer.training else x[0],)


def softmax(n: Lowering, layer: CaffeLayer, x: Tops) -> Tops:
    """Return the softmax along an axis, by default that of the channels."""
    axis = axis_of(layer.message.softmax_param.axis, len(n.b.shape(x[0])))
    seen, back = n.last(x[0], range(axis, axis + 1), layer.name)
    return (back(n.b.op("softmax", seen, name=layer.name)),)


TYPES = {
    "Convolution": LayerType(convolution),
    "Deconvolution": LayerType(convolution),
    "InnerProduct": LayerType(inner_product),
    "Pooling": LayerType(pooling),
    "BatchNorm": LayerType(batch_norm),
    "Scale": LayerType(scale, 1, 2),
    "Bias": LayerType(bias, 1, 2),
    "LRN": LayerType(local_response_norm),
    "ReLU": LayerType(relu),
    "PReLU": LayerType(prelu),
    "Sigmoid": LayerType(_same("sigmoid")),
    "TanH": LayerType(_same("tanh")),
    "Power": LayerType(power),
    "Dropout": LayerType(dropout),
    "Softmax": LayerType(softmax),
    "Concat": LayerType(shapes.concat, 1, MANY),
    "Eltwise": LayerType(shapes.eltwise, 2, MANY),
    "Flatten": LayerType(shapes.flatten),
    "Reshape": LayerType(shapes.reshape),
    "Split": LayerType(shapes.split),
    "Slice": LayerType(shapes.slices),
    "Crop": LayerType(shapes.crop, 2, 2),
}
UNMODELLED = (  # types that Caffe knows and for which there are no op kinds here
    "AbsVal ArgMax BatchReindex BNLL Clip ELU Embed Exp Filter Im2col Log LSTM MVN Parameter"
    " Python Reduction RNN SPP Swish Threshold Tile"
)


def lowered(n: Lowering, layer: CaffeLayer, x: Tops) -> Tops:
    """Return the tensors of a layer's tops.

    Raises `ShapeError` for sizes that do not fit, `UnmodelledError` for what has no op kinds.
    """
    row = TYPES.get(layer.type)
    if row is None:
        raise UnmodelledError(f"a layer of type '{layer.type}'")
    if not row.least <= len(x) <= row.most:
        several = "" if row.least == row.most else f" to {row.most}"
        raise ShapeError(f"{len(x)} bottoms, not {row.least}{several}")
    return row.lower(n, layer, x)
