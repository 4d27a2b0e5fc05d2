"""What each layer of Keras is lowered to: a function `(layer, *values) -> value`.

Who lacks a layer adds a function and a row of `LAYERS`, or of `OPERATIONS` for `keras.ops`.
"""

from __future__ import annotations

import math
import re
from functools import partial
from typing import Any, Literal

from steptime.core.errors import shorten
from steptime.core.windows import reach
from steptime.formats import elements, lowering
from steptime.formats.keras.layer import KerasLayer, Lower, Value
from steptime.network.ops.table import require


def _dense(at: KerasLayer, x: Value) -> Value:
    units = at.whole("units")
    w = at.weight("kernel", units, at.shape(x)[-1])
    return at.ended(at.do(lowering.linear, x, w, bias=at.chosen("use_bias", "bias", units)))


def einsum_dense(at: KerasLayer, x: Value) -> Value:
    """Return a linear layer of the axes that an equation says: those that end the input go."""
    y, equation = at.last(x), at.config.get("equation")
    said = re.fullmatch(r"([a-z]+),([a-z]+)->([a-z]+)", str(equation))
    given, weight, made = said.groups() if said else ("", "", "")
    gone = "".join(c for c in given if c not in made)
    new = "".join(c for c in made if c not in given)
    kept = given.removesuffix(gone)
    fits = gone and new and len(given) == len(at.b.shape(y)) and made == kept + new
    if not fits or sorted(weight) != sorted(gone + new):
        raise at.refuse(f"equation {shorten(equation)} is not of a linear layer")
    shape, sizes = at.b.shape(y), [n for n in (at.config.get("output_shape"),) if n]
    after = sizes[0] if sizes and isinstance(sizes[0], list) else sizes
    after = after[len(after) - len(new) :]
    if len(after) != len(new) or any(type(n) is not int or n < 1 for n in after):
        raise at.refuse(f"output_shape ends with {len(new)} whole numbers, not {shorten(after)}")
    inside, outside = math.prod(shape[len(kept) :]), math.prod(after)
    bias = at.config.get("bias_axes")
    if bias and bias != new:
        raise at.refuse(f"bias_axes {shorten(bias)}: known is {new!r}, the new axes")
    w = at.weight("kernel", outside, inside)
    rows = at.do(elements.reshape, y, (*shape[: len(kept)], inside), at="/rows")
    z = at.do(lowering.linear, rows, w, bias=at.weight("bias", outside) if bias else "")
    return at.ended(at.do(elements.reshape, z, (*shape[: len(kept)], *after), at="/shape"))


PADDINGS = ("valid", "same", "causal")


def _convolution(
    axes: int, at: KerasLayer, x: Value, depthwise: bool = False, separable: bool = False
) -> Value:
    image = at.image(x)
    require(len(at.b.shape(image)) == axes + 2, f"a convolution of {list(at.shape(x))}")
    channels, each = at.b.shape(image)[1], depthwise or separable
    kernel = at.sizes("kernel_size", axes)
    how: dict[str, Any] = {"stride": at.sizes("strides", axes, 1)}
    how["dilation"] = at.sizes("dilation_rate", axes, 1)
    groups = channels if each else at.whole("groups", 1)
    filters = channels * at.whole("depth_multiplier", 1) if each else at.whole("filters")
    require(channels % groups == 0, f"{channels} channels in {groups} groups")
    w = at.weight("depthwise_kernel" if each else "kernel", filters, channels // groups, *kernel)
    last = at.whole("filters") if separable else filters
    bias = at.chosen("use_bias", "bias", last)
    how |= {"padding": at.word("padding", "valid", PADDINGS), "groups": groups}
    if separable:
        image = lowering.convolution(at.b, image, w, f"{at.name}/depthwise", **how)
        w = at.weight("pointwise_kernel", last, filters, *[1] * axes)
        how = {"stride": [1] * axes, "padding": "valid", "dilation": [1] * axes}
    return at.ended(at.of_image(lowering.convolution(at.b, image, w, at.name, bias, **how)))


def transposed(axes: int, at: KerasLayer, x: Value) -> Value:
    """Return a transposed convolution: its padding is that of the way back."""
    image, filters = at.image(x), at.whole("filters")
    require(len(at.b.shape(image)) == axes + 2, f"a convolution of {list(at.shape(x))}")
    channels, size = at.b.shape(image)[1], at.b.shape(image)[2:]
    kernel, stride = at.sizes("kernel_size", axes), at.sizes("strides", axes, 1)
    dilation = at.sizes("dilation_rate", axes, 1)
    same = at.word("padding", "valid", ("valid", "same")) == "same"
    more = at.config.get("output_padding")
    beyond = at.sizes("output_padding", axes, 0, 0)
    made = []
    for n, k, s, d, extra in zip(size, kernel, stride, dilation, beyond, strict=True):
        covered, wide = reach(n, k, s, d), reach(1, k, 1, d)
        out = n * s if same else covered + max(s - wide, 0)
        if more is not None:
            out = (n - 1) * s + wide - (2 * (wide // 2) if same else 0) + extra
        made.append(out)
    w = at.weight("kernel", channels, filters, *kernel)
    bias = at.chosen("use_bias", "bias", filters)
    how: dict[str, Any] = {"stride": stride, "padding": "valid", "dilation": dilation}
    how |= {"transposed": True, "size": made}
    return at.ended(at.of_image(lowering.convolution(at.b, image, w, at.name, bias, **how)))


def _pool(kind: Literal["max", "avg"], axes: int, at: KerasLayer, x: Value) -> Value:
    image, kernel = at.image(x), at.sizes("pool_size", axes, 2)
    stride = at.sizes("strides", axes) if at.config.get("strides") else kernel
    require(len(at.b.shape(image)) == axes + 2, f"pooling of {list(at.shape(x))}")
    how: dict[str, Any] = {"kernel": kernel, "stride": stride}
    how["padding"] = at.word("padding", "valid", PADDINGS)
    return at.of_image(lowering.pool(at.b, image, kind, at.name, **how))


def _global_pool(function: str, at: KerasLayer, x: Value) -> Value:
    image, keep = at.image(x), at.flag("keepdims")
    axes = tuple(range(2, len(at.b.shape(image))))
    y = elements.reduce(at.b, function, image, axes, at.name, keep)
    return at.of_image(y) if keep else Value(y)


def relu(at: KerasLayer, x: Value) -> Value:
    """Return the larger of `x` and 0, perhaps with a slope below and a limit above."""
    most, slope = at.config.get("max_value"), at.number("negative_slope")
    if at.number("threshold") or (slope and most is not None):
        raise at.refuse("a ReLU with a threshold, or with a slope and a limit")
    if slope:
        return at.each("leaky_relu", x, parameter=slope)
    if most is not None:
        return at.each("clamp", x, low=0.0, high=at.number("max_value"))
    return at.each("relu", x)


def prelu(at: KerasLayer, x: Value) -> Value:
    """Return the larger of `x` and 0 plus a trained slope times the smaller."""
    y, shape = Value(at.last(x)), list(at.shape(x)[1:])
    for axis in at.config.get("shared_axes") or []:
        shape[axis - 1] = 1
    alpha = at.weight("alpha", *shape)
    above, below = at.each("relu", y, at="/above"), at.each("minimum", y, 0.0, at="/below")
    return at.each("add", above, at.each("mul", below, alpha, at="/slope").name)


def function_of(function: str, key: str = "", default: float = 0.0) -> Lower:
    """Return what lowers a function of elements, its parameter under a key."""
    return lambda at, x: at.each(function, x, parameter=at.number(key, default) if key else None)


def merge(function: str, at: KerasLayer, *values: Value | float) -> Value:
    """Return a function of several tensors, or of tensors and numbers."""
    operands, first = at.alike(values)
    require(len(operands) >= 2, f"{function} of one tensor")
    y: str | float = operands[0]
    for i, other in enumerate(operands[1:], start=1):
        name = at.name if i == len(operands) - 1 else f"{at.name}/{i}"
        y = elements.pointwise(at.b, function, y, other, name=name)
    return Value(str(y), first)


def average(at: KerasLayer, *values: Value) -> Value:
    """Return the mean of several tensors."""
    return at.each("mul", merge("add", at, *values), 1 / len(values), at="/mean")


def _concatenate(at: KerasLayer, *values: Value) -> Value:
    rank = len(at.shape(values[0]))
    axis = at.whole("axis", -1, -rank)
    tensors, first = at.alike(values)
    place = axis % rank
    if first and place:
        place = 1 if place == rank - 1 else place + 1
    return Value(elements.concat(at.b, [str(x) for x in tensors], place, at.name), first)


def _reshape(at: KerasLayer, x: Value) -> Value:
    target = at.config.get("target_shape")
    if not isinstance(target, list) or any(type(n) is not int for n in target):
        raise at.refuse(f"target_shape is a list of whole numbers, not {target}")
    return at.do(elements.reshape, x, (at.shape(x)[0], *target))


def repeat(at: KerasLayer, x: Value) -> Value:
    """Return `[n, c] -> [n, times, c]`."""
    n, width = at.b.shape(x.name)
    seen = at.do(elements.reshape, x.name, (n, 1, width), at="/row")
    return at.do(elements.op, "tile", seen, times=(1, at.whole("n"), 1))


def padding(key: str, axes: int, sign: int, at: KerasLayer, x: Value) -> Value:
    """Return an image padded by zeros, or cropped, along so many axes."""
    image = at.image(x)
    said: Any = at.config.get(key)
    pairs = said if isinstance(said, list) else [said] * axes
    if axes == 1 and len(pairs) == 2:
        pairs = [pairs]
    sides = [n for one in pairs for n in (one if isinstance(one, list) else [one, one])]
    if len(sides) != 2 * axes or any(type(n) is not int or n < 0 for n in sides):
        raise at.refuse(f"{key} is pairs of whole numbers, not {said}")
    pads = (0, 0, 0, 0, *(sign * n for n in sides))
    return at.of_image(elements.pad(at.b, image, pads, at.name))


def _upsample(axes: int, at: KerasLayer, x: Value) -> Value:
    image, times = at.image(x), at.sizes("size", axes, 2)
    mode = at.word("interpolation", "nearest", ("nearest", "bilinear", "bicubic"))
    size = [n * m for n, m in zip(at.b.shape(image)[2:], times, strict=True)]
    return at.of_image(lowering.resize(at.b, image, size, mode, at.name))


def _dropout(at: KerasLayer, x: Value) -> Value:
    rate = at.number("rate", at.number("drop_path_rate"))
    return Value(elements.dropout(at.b, x.name, rate, at.name), x.first)


def augmentation(at: KerasLayer, x: Value) -> Value:
    """Return `x`: what varies it does so in training, at a cost that nobody counts."""
    if at.b.training:
        raise at.refuse("it varies its input in training, which is not counted: --phase infer")
    return x


def _resizing(at: KerasLayer, x: Value) -> Value:
    mode = at.word("interpolation", "bilinear", ("nearest", "bilinear", "bicubic"))
    if at.flag("crop_to_aspect_ratio") or at.flag("pad_to_aspect_ratio"):
        raise at.refuse("resizing that crops or pads")
    size = (at.whole("height"), at.whole("width"))
    return at.of_image(lowering.resize(at.b, at.image(x), size, mode, at.name))


def _embedding(at: KerasLayer, x: Value) -> Value:
    ids = at.last(x)
    if elements.is_float(at.b, ids):
        ids = elements.cast(at.b, ids, "int64", f"{at.name}/ids")
    table = at.weight("embeddings", at.whole("input_dim"), at.whole("output_dim"))
    return at.do(elements.embedding, ids, table)


def _channels_first(at: KerasLayer, x: Value) -> tuple[str, bool]:
    """Return a tensor whose axis of a norm is behind the batch, and whether it was turned."""
    said, rank = at.config.get("axis", -1), len(at.shape(x))
    axis = said[0] if isinstance(said, list) and len(said) == 1 else said
    if type(axis) is not int or axis % rank not in (1, rank - 1) or abs(axis) > rank:
        raise at.refuse(f"a norm along axis {said}")
    of_last = axis % rank == rank - 1
    return (at.first(x), rank > 2) if of_last else (at.last(x), False)


def batch_norm(at: KerasLayer, x: Value) -> Value:
    """Return batch norm; that of a layer which is not trained is by its running statistics."""
    y, turned = _channels_first(at, x)
    width = at.b.shape(y)[1]
    weights: list[Any] = [at.chosen("scale", "gamma", width), at.chosen("center", "beta", width)]
    weights += [at.weight(f"moving_{name}", width, trained=False) for name in ("mean", "variance")]
    weights.append(None if at.trained else False)
    return Value(lowering.batch_norm(at.b, y, at.name, *weights), turned)


def layer_norm(at: KerasLayer, x: Value) -> Value:
    """Return layer norm, or RMS norm, over the last axis or axes."""
    y = at.last(x)
    said, rank = at.config.get("axis", -1), len(at.b.shape(y))
    axes = sorted(n % rank for n in (said if isinstance(said, list) else [said]))
    if axes != list(range(rank - len(axes), rank)):
        raise at.refuse(f"a norm along axes {said}")
    shape = at.b.shape(y)[rank - len(axes) :]
    gamma = at.chosen("scale", "gamma", *shape)
    if at.flag("rms_scaling"):
        return at.do(lowering.rms_norm, y, weight=gamma, axes=len(axes))
    beta = at.chosen("center", "beta", *shape)
    return at.do(lowering.layer_norm, y, weight=gamma, bias=beta, axes=len(axes))


def group_norm(at: KerasLayer, x: Value) -> Value:
    """Return group norm; -1 groups are as many as channels."""
    y, turned = _channels_first(at, x)
    width = at.b.shape(y)[1]
    groups = width if at.config.get("groups") == -1 else at.whole("groups", 32)
    weights = at.chosen("scale", "gamma", width), at.chosen("center", "beta", width)
    return Value(lowering.group_norm(at.b, y, groups, at.name, *weights), turned)


def rescaling(at: KerasLayer, x: Value) -> Value:
    """Return `x scale + offset`; one scale a channel costs as much as one for all."""
    y = x.name
    for function, key, none in (("mul", "scale", 1.0), ("add", "offset", 0.0)):
        said = at.config.get(key, none)
        operand: str | float = at.number(key, none) if not isinstance(said, list) else ""
        if isinstance(said, list):
            y = at.last(x) if y == x.name else y
            operand = at.b.buffer(f"{at.name}/{key}", (len(said),))
        if operand != none:
            y = elements.pointwise(at.b, function, y, operand, name=f"{at.name}/{key}")
    return Value(y, x.first and not isinstance(at.config.get("scale"), list))


def normalization(at: KerasLayer, x: Value) -> Value:
    """Return `(x - mean) / deviation` by what the layer has seen, along the last axis."""
    y = at.last(x)
    shape = at.b.shape(y)[-1:] if at.config.get("axis", -1) not in (None, []) else ()
    given = at.config.get("mean") is not None  # then they are no weights
    mean, variance = (
        at.weight(name, *shape, trained=False)
        for name in (("offset", "scale") if given else ("mean", "variance"))
    )
    if not given:
        at.weight("count", trained=False, dtype="int64")
    # the root of the variance is made once
    return at.each("div", at.each("sub", Value(y), mean, at="/centre"), variance)


VARIED = (
    *("Brightness", "Contrast", "Crop", "Flip", "Hue", "Rotation", "Saturation"),
    *("Translation", "Zoom"),
)
LAYERS: dict[str, Lower] = {
    "BatchNormalization": batch_norm,
    "LayerNormalization": layer_norm,
    "RMSNormalization": lambda at, x: at.do(
        lowering.rms_norm, x, weight=at.weight("scale", at.shape(x)[-1])
    ),
    "GroupNormalization": group_norm,
    "Rescaling": rescaling,
    "Normalization": normalization,
    "LayerScale": lambda at, x: at.each(
        "mul", Value(at.last(x)), at.weight("gamma", at.whole("projection_dim"))
    ),
    "Dense": _dense,
    "EinsumDense": einsum_dense,
    "Conv1D": partial(_convolution, 1),
    "Conv2D": partial(_convolution, 2),
    **{f"Conv{n}DTranspose": partial(transposed, n) for n in (1, 2, 3)},
    "DepthwiseConv1D": partial(_convolution, 1, depthwise=True),
    "DepthwiseConv2D": partial(_convolution, 2, depthwise=True),
    "SeparableConv1D": partial(_convolution, 1, separable=True),
    "SeparableConv2D": partial(_convolution, 2, separable=True),
    "Conv3D": partial(_convolution, 3),
    **{f"MaxPooling{n}D": partial(_pool, "max", n) for n in (1, 2, 3)},
    **{f"AveragePooling{n}D": partial(_pool, "avg", n) for n in (1, 2, 3)},
    **{f"GlobalMaxPooling{n}D": partial(_global_pool, "max") for n in (1, 2, 3)},
    **{f"GlobalAveragePooling{n}D": partial(_global_pool, "mean") for n in (1, 2, 3)},
    "Activation": lambda at, x: at.activated(x, at.config.get("activation"), at.name),
    "ReLU": relu,
    "LeakyReLU": function_of("leaky_relu", "negative_slope", 0.3),
    "PReLU": prelu,
    "ELU": function_of("elu", "alpha", 1.0),
    "Softmax": lambda at, x: at.softmax(x, at.whole("axis", -1, -8), at.name),
    "Add": partial(merge, "add"),
    "Subtract": partial(merge, "sub"),
    "Multiply": partial(merge, "mul"),
    "Maximum": partial(merge, "maximum"),
    "Minimum": partial(merge, "minimum"),
    "Average": average,
    "CustomScaleLayer": lambda at, x, y: merge(  # of Inception-ResNet in `keras.applications`
        "add", at, x, at.each("mul", y, at.number("scale", 1.0), at="/scale")
    ),
    "Concatenate": _concatenate,
    "Reshape": _reshape,
    "Flatten": lambda at, x: at.do(elements.reshape, x, (at.shape(x)[0], -1)),
    "Permute": lambda at, x: at.do(
        elements.transpose, x, (0, *at.sizes("dims", len(at.shape(x)) - 1))
    ),
    "RepeatVector": repeat,
    **{f"ZeroPadding{n}D": partial(padding, "padding", n, 1) for n in (1, 2, 3)},
    **{f"Cropping{n}D": partial(padding, "cropping", n, -1) for n in (1, 2, 3)},
    **{f"UpSampling{n}D": partial(_upsample, n) for n in (1, 2)},
    **dict.fromkeys(("Dropout", *(f"SpatialDropout{n}D" for n in (1, 2, 3))), _dropout),
    **dict.fromkeys(("GaussianDropout", "AlphaDropout", "StochasticDepth"), _dropout),
    **dict.fromkeys(("ActivityRegularization", "Identity"), lambda at, x: x),
    **{f"Random{name}": augmentation for name in VARIED},
    "GaussianNoise": augmentation,
    "Resizing": _resizing,
    "Embedding": _embedding,
}
