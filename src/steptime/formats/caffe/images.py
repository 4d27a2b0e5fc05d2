"""Convolution, pooling and normalization of Caffe's images, lowered to op kinds; see `layers`."""

from typing import Any, NamedTuple

from steptime.core.graph import Attr
from steptime.core.windows import count_positions, covered_size
from steptime.formats.caffe.lowering import CaffeGraph, Tensors, UnmodelledError, resolve_axis
from steptime.formats.caffe.net import CaffeLayer
from steptime.formats.caffe.schema import enum_name
from steptime.network.ops.table import require

Pair = tuple[int, int]
"""A size along height and width."""


class _CaffeWindow(NamedTuple):
    """A window of a convolution or of pooling."""

    kernel: Pair
    stride: Pair
    padding: Pair

    @property
    def op_padding(self) -> tuple[int, int, int, int]:
        """The padding as ops have it: top, bottom, left, right."""
        height, width = self.padding
        return height, height, width, width


def _read_pair(
    settings: Any, repeated_field: str, height_field: str, width_field: str, default: int
) -> Pair:
    """Return a size that is stated once, as a pair, or by a field for each axis.

    Args:
        settings: the message with the fields.
        repeated_field: the field that holds one size for both axes, or a pair of sizes.
        height_field: the field of the height alone.
        width_field: the field of the width alone.
        default: the size where nothing states it.
    """
    sizes = list(getattr(settings, repeated_field))
    states_height = settings.HasField(height_field)
    states_width = settings.HasField(width_field)
    if states_height or states_width:
        require(not sizes, f"gives '{repeated_field}' and '{height_field}' or '{width_field}'")
        return (
            getattr(settings, height_field) if states_height else default,
            getattr(settings, width_field) if states_width else default,
        )
    if len(sizes) > 2:
        raise UnmodelledError(
            f"{len(sizes)} sizes of '{repeated_field}', not height and width alone"
        )
    # a single size holds for both axes
    return (sizes[0], sizes[-1]) if sizes else (default, default)


def _read_window(settings: Any) -> _CaffeWindow:
    """Return the window of a convolution or of pooling."""
    kernel = _read_pair(settings, "kernel_size", "kernel_h", "kernel_w", default=0)
    stride = _read_pair(settings, "stride", "stride_h", "stride_w", default=1)
    require(min(kernel) >= 1, f"kernel {list(kernel)}: kernel_size is missing or below 1")
    require(min(stride) >= 1, f"stride {list(stride)} is below 1")
    padding = _read_pair(settings, "pad", "pad_h", "pad_w", default=0)
    return _CaffeWindow(kernel, stride, padding)


def _image_shape(graph: CaffeGraph, x: str) -> tuple[int, ...]:
    """Return the shape of an image; raises `ShapeError` for another rank than 4."""
    shape = graph.shape(x)
    require(len(shape) == 4, f"needs [batch, channels, h, w], not {list(shape)}")
    return shape


def read_output_width(settings: Any) -> int:
    """Return the field `num_output`; raises `ShapeError` if it is missing."""
    require(settings.num_output >= 1, "num_output is missing or below 1")
    return int(settings.num_output)


def add_bias_weight(graph: CaffeGraph, layer: CaffeLayer, y: str, axis: int) -> str:
    """Append a bias along an axis, the second weight of its layer."""
    weight = graph.add_weight(layer, number=1, suffix="b", shape=(graph.shape(y)[axis],))
    return graph.b.op("bias", y, weight, name=f"{layer.name}/bias", axis=axis)


def add_convolution(graph: CaffeGraph, layer: CaffeLayer, inputs: Tensors) -> Tensors:
    """Append a convolution or, for `Deconvolution`, its transpose, with a bias by default."""
    settings = layer.message.convolution_param
    channels, height, width = _image_shape(graph, inputs[0])[1:]
    window = _read_window(settings)
    dilation = _read_dilation(settings)
    filters = read_output_width(settings)
    groups = settings.group
    has_even_groups = groups >= 1 and channels % groups == 0 and filters % groups == 0
    require(has_even_groups, f"{channels} channels and {filters} outputs in {groups} groups")
    attrs: dict[str, Attr] = {}
    if layer.type == "Convolution":
        kind = "conv2d"
        weight_shape = (filters, channels // groups, *window.kernel)
    else:
        kind = "conv_transpose2d"
        weight_shape = (channels, filters // groups, *window.kernel)
        attrs["output_size"] = _transposed_size((height, width), window, dilation)
    y = graph.b.op(
        kind,
        inputs[0],
        graph.add_weight(layer, number=0, suffix="w", shape=weight_shape),
        name=layer.name,
        **attrs,
        stride=window.stride,
        padding=window.op_padding,
        dilation=dilation,
        groups=groups,
    )
    return (add_bias_weight(graph, layer, y, axis=1) if settings.bias_term else y,)


def _read_dilation(settings: Any) -> Pair:
    """Return the dilation of a convolution along height and width.

    Raises:
        UnmodelledError: for a convolution over other axes.
    """
    dilations = list(settings.dilation) or [1]
    # `axis` names the axis of the channels: the window moves along the axes after it
    if len(dilations) > 2 or resolve_axis(settings.axis, 4) != 1:
        raise UnmodelledError("a convolution that is not over height and width")
    dilation = (dilations[0], dilations[-1])
    require(min(dilation) >= 1, f"dilation {list(dilation)} is below 1")
    return dilation


def _transposed_size(size: Pair, window: _CaffeWindow, dilation: Pair) -> Pair:
    """Return the output size of a transposed convolution.

    Along each axis it is `stride * (size - 1) + dilation * (kernel - 1) + 1 - 2 * padding`.
    """
    # stride (size - 1) + dilation (kernel - 1) + 1 - 2 padding
    height, width = (
        covered_size(size[axis], window.kernel[axis], window.stride[axis], dilation[axis])
        - 2 * window.padding[axis]
        for axis in (0, 1)
    )
    require(min(height, width) >= 1, f"an output of {[height, width]}")
    return height, width


def add_pooling(graph: CaffeGraph, layer: CaffeLayer, inputs: Tensors) -> Tensors:
    """Append pooling; its size follows Caffe's rule (`PoolingLayer::Reshape`).

    Stochastic pooling counts as max pooling: it reads and writes as much.
    """
    settings = layer.message.pooling_param
    height, width = _image_shape(graph, inputs[0])[2:]
    window = _read_pooling_window(settings, (height, width))
    rounds_up = enum_name(settings, "round_mode") == "CEIL"
    y = graph.b.op(
        "avg_pool2d" if enum_name(settings, "pool") == "AVE" else "max_pool2d",
        inputs[0],
        name=layer.name,
        kernel=window.kernel,
        stride=window.stride,
        **_pad_pooling((height, width), window, rounds_up),
    )
    return (y,)


def _read_pooling_window(settings: Any, size: Pair) -> _CaffeWindow:
    """Return the window of pooling; a global one is as large as the image."""
    if settings.global_pooling:
        return _CaffeWindow(kernel=size, stride=(1, 1), padding=(0, 0))
    window = _read_window(settings)
    is_valid = all(window.padding[axis] < window.kernel[axis] for axis in (0, 1))
    require(is_valid, f"padding {list(window.padding)}, kernel {list(window.kernel)}")
    return window


def _pad_pooling(size: Pair, window: _CaffeWindow, rounds_up: bool) -> dict[str, Attr]:
    """Return the padding and the rounding with which the op makes as many windows as Caffe.

    Caffe keeps a last window that begins behind the image if the layer does not pad; ops never do.
    The op makes this window, too, if the image is padded up to the window's end.
    """
    is_unpadded = max(window.padding) == 0
    output_size = _pooled_size(size, window, rounds_up, counts_window_behind_image=is_unpadded)
    op_output_size = _pooled_size(size, window, rounds_up, counts_window_behind_image=False)
    has_windows = min(output_size) >= 1
    require(has_windows, f"a window {list(window.kernel)} does not fit into {list(size)}")
    if output_size == op_output_size:
        rounding: dict[str, Attr] = {"ceil": True} if rounds_up else {}
        return {"padding": window.op_padding, **rounding}
    bottom, right = (
        covered_size(output_size[axis], window.kernel[axis], window.stride[axis]) - size[axis]
        for axis in (0, 1)
    )
    return {"padding": (0, max(bottom, 0), 0, max(right, 0))}


def _pooled_size(
    size: Pair, window: _CaffeWindow, rounds_up: bool, counts_window_behind_image: bool
) -> Pair:
    """Return the number of windows along height and width.

    Args:
        size: the size of the image.
        window: the window.
        rounds_up: whether a last window may exceed the image.
        counts_window_behind_image: whether a last window that begins behind the image counts.
    """
    height, width = (
        count_positions(
            size[axis],
            window.kernel[axis],
            window.stride[axis],
            (window.padding[axis], window.padding[axis]),
            ceil=rounds_up,
            in_padding=counts_window_behind_image,
        )
        for axis in (0, 1)
    )
    return height, width


def add_batch_norm(graph: CaffeGraph, layer: CaffeLayer, inputs: Tensors) -> Tensors:
    """Append batch norm with the weights of the Scale behind it, or with constants without one.

    With `use_global_stats` training, too, uses the stored statistics. Its gradient counts as the
    usual one: as many bytes, a few FLOP more.
    """
    settings = layer.message.batch_norm_param
    shape = graph.shape(inputs[0])
    require(len(shape) >= 2, f"needs [batch, channels, ...], not {list(shape)}")
    channels = shape[1]
    weight, bias = _add_norm_weights(graph, layer, channels)
    mean = graph.b.buffer(f"{layer.name}/running_mean", (channels,))
    variance = graph.b.buffer(f"{layer.name}/running_variance", (channels,))
    uses_batch_statistics = graph.b.training and layer.training
    if settings.HasField("use_global_stats"):
        uses_batch_statistics = not settings.use_global_stats
    operands = (inputs[0], weight, bias, mean, variance)
    y = graph.b.op("batch_norm", *operands, name=layer.name, training=uses_batch_statistics)
    return (y,)


def _add_norm_weights(graph: CaffeGraph, layer: CaffeLayer, channels: int) -> tuple[str, str]:
    """Append the weight and the bias of a batch norm.

    Caffe's layer only normalises: a Scale layer behind it holds the weights of the norm. Without
    one, nothing of the norm is trained.
    """
    scale = graph.scale_by_blob.get(layer.tops[0]) if layer.tops else None
    if scale is None:
        weight = graph.b.buffer(f"{layer.name}/w", (channels,))
        return weight, graph.b.buffer(f"{layer.name}/b", (channels,))
    weight = graph.add_weight(scale, number=0, suffix="w", shape=(channels,))
    if scale.message.scale_param.bias_term:
        return weight, graph.add_weight(scale, number=1, suffix="b", shape=(channels,))
    return weight, graph.b.buffer(f"{scale.name}/b", (channels,))


def add_local_response_norm(graph: CaffeGraph, layer: CaffeLayer, inputs: Tensors) -> Tensors:
    """Append local response norm across channels; there is no op kind for that within one."""
    settings = layer.message.lrn_param
    _image_shape(graph, inputs[0])
    if enum_name(settings, "norm_region") != "ACROSS_CHANNELS":
        raise UnmodelledError("LRN with norm_region WITHIN_CHANNEL")
    require(settings.local_size % 2 == 1, f"local_size {settings.local_size} is not odd")
    y = graph.b.op(
        "local_response_norm",
        inputs[0],
        name=layer.name,
        size=settings.local_size,
        alpha=settings.alpha,
        beta=settings.beta,
        k=settings.k,
    )
    return (y,)
