"""Convolutions, pooling and resizing of Keras, as functions `(layer, tensor) -> tensor`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Literal, NamedTuple

from steptime.core.json_types import JsonValue
from steptime.core.windows import covered_size
from steptime.formats import elements, lowering
from steptime.formats.keras.layer import AddLayer, KerasLayer, KerasTensor
from steptime.network.ops.table import require

PADDINGS = ("valid", "same", "causal")
NO_PADS = (0, 0)  # in front of and behind an axis
RESIZE_MODES = ("nearest", "bilinear", "bicubic")


class Window(NamedTuple):
    """How a convolution moves over its image."""

    kernel: list[int]
    stride: list[int]
    padding: str
    dilation: list[int]

    def span(self, axis: int) -> int:
        """Return the elements from the first to the last that one window reads along an axis."""
        return covered_size(1, self.kernel[axis], stride=1, dilation=self.dilation[axis])


class ConvolutionOperands(NamedTuple):
    """The image of a convolution with its channels behind the batch, and how it is passed over."""

    image: str
    channels: int
    window: Window


def read_window(layer: KerasLayer, axis_count: int) -> Window:
    """Return the window of a convolution over `axis_count` axes."""
    return Window(
        kernel=layer.read_sizes("kernel_size", axis_count),
        stride=layer.read_sizes("strides", axis_count, default=1),
        padding=layer.read_choice("padding", "valid", PADDINGS),
        dilation=layer.read_sizes("dilation_rate", axis_count, default=1),
    )


def _read_image(layer: KerasLayer, x: KerasTensor, axis_count: int, operation: str) -> str:
    """Return a tensor with its channels behind the batch; raises `ShapeError` for another rank."""
    image = layer.to_image(x)
    has_axes = len(layer.b.shape(image)) == axis_count + 2
    require(has_axes, f"{operation} of {list(layer.shape(x))}")
    return image


def _read_operands(layer: KerasLayer, x: KerasTensor, axis_count: int) -> ConvolutionOperands:
    """Return the image, channels and window of a convolution; raises `ShapeError` by its rank."""
    image = _read_image(layer, x, axis_count, "a convolution")
    channels = layer.b.shape(image)[1]
    return ConvolutionOperands(image, channels, read_window(layer, axis_count))


def add_convolution(axis_count: int, layer: KerasLayer, x: KerasTensor) -> KerasTensor:
    """Append a convolution over `axis_count` axes, with a bias and an activation."""
    image, channels, window = _read_operands(layer, x, axis_count)
    groups = layer.read_int("groups", default=1)
    filters = layer.read_int("filters")
    require(channels % groups == 0, f"{channels} channels in {groups} groups")
    kernel = layer.add_weight("kernel", filters, channels // groups, *window.kernel)
    bias = layer.add_optional_weight("use_bias", "bias", filters)
    y = convolve_image(layer, image, kernel, layer.name, window, groups=groups, bias=bias)
    return layer.apply_configured_activation(layer.from_image(y))


def add_depthwise_convolution(axis_count: int, layer: KerasLayer, x: KerasTensor) -> KerasTensor:
    """Append a convolution in which each channel has `depth_multiplier` filters of its own."""
    image, channels, window = _read_operands(layer, x, axis_count)
    filters = channels * layer.read_int("depth_multiplier", default=1)
    kernel = layer.add_weight("depthwise_kernel", filters, 1, *window.kernel)
    bias = layer.add_optional_weight("use_bias", "bias", filters)
    y = convolve_image(layer, image, kernel, layer.name, window, groups=channels, bias=bias)
    return layer.apply_configured_activation(layer.from_image(y))


def add_separable_convolution(axis_count: int, layer: KerasLayer, x: KerasTensor) -> KerasTensor:
    """Append a depthwise convolution and a pointwise one, which has the bias."""
    image, channels, window = _read_operands(layer, x, axis_count)
    inner_filters = channels * layer.read_int("depth_multiplier", default=1)
    depthwise = layer.add_weight("depthwise_kernel", inner_filters, 1, *window.kernel)
    filters = layer.read_int("filters")
    bias = layer.add_optional_weight("use_bias", "bias", filters)
    depthwise_name = f"{layer.name}/depthwise"
    y = convolve_image(layer, image, depthwise, depthwise_name, window, groups=channels)
    unit = [1] * axis_count
    pointwise = layer.add_weight("pointwise_kernel", filters, inner_filters, *unit)
    unit_window = Window(kernel=unit, stride=unit, padding="valid", dilation=unit)
    y = convolve_image(layer, y, pointwise, layer.name, unit_window, groups=1, bias=bias)
    return layer.apply_configured_activation(layer.from_image(y))


def convolve_image(
    layer: KerasLayer,
    image: str,
    kernel: str,
    name: str,
    window: Window,
    groups: int,
    bias: str = "",
) -> str:
    """Append one convolution of an image with channels behind the batch."""
    return lowering.convolution(
        layer.b,
        image,
        kernel,
        name,
        bias,
        stride=window.stride,
        padding=window.padding,
        dilation=window.dilation,
        groups=groups,
    )


def add_transposed_convolution(axis_count: int, layer: KerasLayer, x: KerasTensor) -> KerasTensor:
    """Append a transposed convolution, with a bias and an activation."""
    image = _read_image(layer, x, axis_count, "a convolution")
    filters = layer.read_int("filters")
    channels, *sizes = layer.b.shape(image)[1:]
    window = Window(
        kernel=layer.read_sizes("kernel_size", axis_count),
        stride=layer.read_sizes("strides", axis_count, default=1),
        padding=layer.read_choice("padding", "valid", ("valid", "same")),
        dilation=layer.read_sizes("dilation_rate", axis_count, default=1),
    )
    output_sizes = _find_transposed_sizes(layer, sizes, window)
    kernel = layer.add_weight("kernel", channels, filters, *window.kernel)
    bias = layer.add_optional_weight("use_bias", "bias", filters)
    y = lowering.convolution(
        layer.b,
        image,
        kernel,
        layer.name,
        bias,
        stride=window.stride,
        padding="valid",
        dilation=window.dilation,
        transposed=True,
        size=output_sizes,
    )
    return layer.apply_configured_activation(layer.from_image(y))


def _find_transposed_sizes(layer: KerasLayer, sizes: Sequence[int], window: Window) -> list[int]:
    """Return the output size of a transposed convolution along each axis."""
    if layer.config.get("output_padding") is None:
        return [_find_transposed_size(size, window, axis) for axis, size in enumerate(sizes)]
    output_paddings = layer.read_sizes("output_padding", len(sizes), default=0, minimum=0)
    return [
        _find_padded_transposed_size(size, window, axis) + output_padding
        for axis, (size, output_padding) in enumerate(zip(sizes, output_paddings, strict=True))
    ]


def _find_transposed_size(size: int, window: Window, axis: int) -> int:
    """Return the output size along an axis without the setting `output_padding`.

    Source: Keras 3, `compute_conv_transpose_output_shape` in `keras/src/backend/common`.
    """
    stride = window.stride[axis]
    if window.padding == "same":
        return size * stride
    # a stride beyond the span of a window leaves a gap behind the last one, too
    gap = max(stride - window.span(axis), 0)
    return covered_size(size, window.kernel[axis], stride, window.dilation[axis]) + gap


def _find_padded_transposed_size(size: int, window: Window, axis: int) -> int:
    """Return the output size along an axis, to which Keras adds the setting `output_padding`.

    Source: as `_find_transposed_size`.
    """
    kernel_span = window.span(axis)
    padding = 2 * (kernel_span // 2) if window.padding == "same" else 0
    return (size - 1) * window.stride[axis] + kernel_span - padding


def add_pool(
    kind: Literal["max", "avg"], axis_count: int, layer: KerasLayer, x: KerasTensor
) -> KerasTensor:
    """Append pooling over windows; by default the stride is the size of the window."""
    image = _read_image(layer, x, axis_count, "pooling")
    kernel = layer.read_sizes("pool_size", axis_count, default=2)
    stride = layer.read_sizes("strides", axis_count) if layer.config.get("strides") else kernel
    padding = layer.read_choice("padding", "valid", PADDINGS)
    y = lowering.pool(
        layer.b, image, kind, layer.name, kernel=kernel, stride=stride, padding=padding
    )
    return layer.from_image(y)


def add_global_pool(function: str, layer: KerasLayer, x: KerasTensor) -> KerasTensor:
    """Append a reduction over all axes but the batch and the channels."""
    image = layer.to_image(x)
    keeps_axes = layer.read_flag("keepdims")
    axes = tuple(range(2, len(layer.b.shape(image))))
    y = elements.reduce(layer.b, function, image, axes, layer.name, keep=keeps_axes)
    return layer.from_image(y) if keeps_axes else KerasTensor(y)


def add_padding(
    key: str, axis_count: int, sign: Literal[1, -1], layer: KerasLayer, x: KerasTensor
) -> KerasTensor:
    """Append zeros around an image, or crop it.

    Args:
        key: the setting with the sizes.
        axis_count: axes of the image.
        sign: 1 to pad, -1 to crop.
        layer: the layer.
        x: the image.
    """
    image = layer.to_image(x)
    image_pads = [sign * size for size in _read_pads(layer, key, axis_count)]
    pads = (*NO_PADS, *NO_PADS, *image_pads)  # neither the batch nor the channels get any
    return layer.from_image(elements.pad(layer.b, image, pads, layer.name))


def _read_pads(layer: KerasLayer, key: str, axis_count: int) -> list[int]:
    """Return the sizes in front of and behind each axis, from a setting of numbers or pairs."""
    setting: JsonValue = layer.config.get(key)
    pairs = setting if isinstance(setting, list) else [setting] * axis_count
    is_unnested_pair = axis_count == 1 and len(pairs) == 2
    if is_unnested_pair:
        pairs = [pairs]
    sizes: list[JsonValue] = []
    for pair in pairs:
        sizes += pair if isinstance(pair, list) else [pair, pair]
    are_sizes = all(type(size) is int and size >= 0 for size in sizes)
    if len(sizes) != 2 * axis_count or not are_sizes:
        raise layer.error(f"{key} is pairs of whole numbers, not {setting}")
    return sizes


def add_upsampling(axis_count: int, layer: KerasLayer, x: KerasTensor) -> KerasTensor:
    """Append a resize by a whole factor along each axis."""
    image = layer.to_image(x)
    factors = layer.read_sizes("size", axis_count, default=2)
    mode = layer.read_choice("interpolation", "nearest", RESIZE_MODES)
    sizes = layer.b.shape(image)[2:]
    output_sizes = [size * factor for size, factor in zip(sizes, factors, strict=True)]
    return layer.from_image(lowering.resize(layer.b, image, output_sizes, mode, layer.name))


def add_resizing(layer: KerasLayer, x: KerasTensor) -> KerasTensor:
    """Append a resize to a height and a width."""
    mode = layer.read_choice("interpolation", "bilinear", RESIZE_MODES)
    if layer.read_flag("crop_to_aspect_ratio") or layer.read_flag("pad_to_aspect_ratio"):
        raise layer.error("resizing that crops or pads")
    size = (layer.read_int("height"), layer.read_int("width"))
    image = layer.to_image(x)
    return layer.from_image(lowering.resize(layer.b, image, size, mode, layer.name))


LAYERS: dict[str, AddLayer] = {
    **{f"Conv{n}D": partial(add_convolution, n) for n in (1, 2, 3)},
    **{f"Conv{n}DTranspose": partial(add_transposed_convolution, n) for n in (1, 2, 3)},
    **{f"DepthwiseConv{n}D": partial(add_depthwise_convolution, n) for n in (1, 2)},
    **{f"SeparableConv{n}D": partial(add_separable_convolution, n) for n in (1, 2)},
    **{f"MaxPooling{n}D": partial(add_pool, "max", n) for n in (1, 2, 3)},
    **{f"AveragePooling{n}D": partial(add_pool, "avg", n) for n in (1, 2, 3)},
    **{f"GlobalMaxPooling{n}D": partial(add_global_pool, "max") for n in (1, 2, 3)},
    **{f"GlobalAveragePooling{n}D": partial(add_global_pool, "mean") for n in (1, 2, 3)},
    **{f"ZeroPadding{n}D": partial(add_padding, "padding", n, 1) for n in (1, 2, 3)},
    **{f"Cropping{n}D": partial(add_padding, "cropping", n, -1) for n in (1, 2, 3)},
    **{f"UpSampling{n}D": partial(add_upsampling, n) for n in (1, 2)},
    "Resizing": add_resizing,
}
