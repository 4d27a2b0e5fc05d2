"""Lowers ONNX's products, convolutions, pools and norms to op kinds."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Literal, NamedTuple

from steptime.formats import elements, lowering, windows
from steptime.formats.onnx.constant import FileConstant
from steptime.formats.onnx.fold import Function, Value
from steptime.formats.onnx.opaque import append_stated
from steptime.formats.onnx.run import OnnxWalk
from steptime.formats.products import einsum
from steptime.network.ops.table import require

Values = Sequence[Value]


class _Window(NamedTuple):
    """Strides, dilations and the padding before and after each axis of a convolution or pool."""

    stride: Sequence[int]
    dilation: Sequence[int]
    padding: Sequence[int]


PADDING_WORDS = {"SAME_UPPER": "same", "SAME_LOWER": "same_lower", "VALID": "valid"}


def _multiply_by_number(walk: OnnxWalk, y: Value, factor: float) -> Value:
    """Return `y` times a number; a weight times a number is a weight, which costs nothing."""
    if factor == 1.0 or isinstance(y, FileConstant):
        return y
    return walk.pointwise("mul", y, walk.constant(factor, "float32"))


def matmul(walk: OnnxWalk, x: Value, y: Value, *_: Value) -> Value:
    """Lower a product; with a weight it is a linear layer, whose rows are its outputs."""
    if isinstance(y, FileConstant) and len(y.shape) == 2 and isinstance(x, str):
        return walk.lower(lowering.linear, x, y.transpose((1, 0)))
    return walk.recognise_pattern(walk.lower(lowering.matmul, x, y))


def _swap_last_axes(walk: OnnxWalk, x: Value) -> Value:
    rank = len(walk.shape(x))
    return walk.transpose(x, [*range(rank - 2), rank - 1, rank - 2])


def _lower_fused_matmul(walk: OnnxWalk, x: Value, y: Value) -> Value:
    if walk.attr("transA", 0):
        x = _swap_last_axes(walk, x)
    if walk.attr("transB", 0):
        y = _swap_last_axes(walk, y)
    return _multiply_by_number(walk, matmul(walk, x, y), float(walk.attr("alpha", 1.0)))


def _lower_gemm(walk: OnnxWalk, x: Value, w: Value, c: Value = None) -> Value:
    """Lower alpha * x w + beta * c; a vector `c` is the bias of a linear layer."""
    alpha = float(walk.attr("alpha", 1.0))
    beta = float(walk.attr("beta", 1.0))
    if walk.attr("transA", 0):
        x = walk.transpose(x, (1, 0))
    has_output_rows = walk.attr("transB", 0)  # `w` is [width, fan_in], as a linear layer reads it
    if not has_output_rows:
        w = walk.transpose(w, (1, 0))
    width = walk.shape(w)[0]
    if c is None or beta == 0.0:
        return _multiply_by_number(walk, walk.lower(lowering.linear, x, w), alpha)
    # the factor beta of a bias is left out: an added vector costs the same, whatever its numbers
    is_bias = math.prod(walk.shape(c)) == width
    if is_bias and alpha == 1.0:
        return walk.lower(lowering.linear, x, w, bias=walk.reshape(c, (width,)))
    product = _multiply_by_number(walk, walk.lower(lowering.linear, x, w), alpha)
    return walk.pointwise("add", product, _multiply_by_number(walk, c, beta))


def _read_window(walk: OnnxWalk, x: Value, kernel: Sequence[int]) -> _Window:
    """Return the window of a convolution or pool; a file may state its padding by a word."""
    rank = len(kernel)
    stride = walk.attr("strides", (1,) * rank)
    dilation = walk.attr("dilations", (1,) * rank)
    padding = PADDING_WORDS.get(walk.attr("auto_pad", "NOTSET"), "") or _read_pads(walk, rank)
    image_sizes = walk.shape(x)[2:]  # without batch and channels
    sides = windows.resolve_padding(padding, image_sizes, kernel, stride, dilation)
    return _Window(stride, dilation, sides)


def _read_pads(walk: OnnxWalk, rank: int) -> list[int]:
    """Return the padding before and after each axis; ONNX lists those before all axes first."""
    pads = walk.attr("pads", (0,) * (2 * rank))
    require(len(pads) == 2 * rank, f"{len(pads)} pads of {rank} axes")
    pairs = zip(pads[:rank], pads[rank:], strict=True)
    return [size for pair in pairs for size in pair]


def convolution(walk: OnnxWalk, x: Value, w: Value, bias: Value = None) -> Value:
    """Lower a convolution over one to three axes."""
    window = _read_window(walk, x, walk.shape(w)[2:])
    groups = walk.attr("group", 1)
    return walk.lower(lowering.convolution, x, w, bias=bias, groups=groups, **window._asdict())


def _lower_transposed_convolution(walk: OnnxWalk, x: Value, w: Value, bias: Value = None) -> Value:
    kernel = walk.shape(w)[2:]
    window = _read_window(walk, x, kernel)
    is_padded_to_size = walk.attr("auto_pad", "NOTSET").startswith("SAME")
    states_size = "output_shape" in walk.node.attrs or is_padded_to_size
    return walk.lower(
        lowering.convolution,
        x,
        w,
        bias=bias,
        groups=walk.attr("group", 1),
        transposed=True,
        output_padding=walk.attr("output_padding", (0,) * len(window.stride)),
        size=walk.output_shape()[2:] if states_size else None,
        **window._asdict(),
    )


def _lower_pool(kind: Literal["max", "avg"], walk: OnnxWalk, x: Value) -> Value | Values:
    """Lower a pool; a dilated one counts by its bytes and one FLOP for each element of a window."""
    kernel = walk.attr("kernel_shape", ())
    window = _read_window(walk, x, kernel)
    is_dilated = any(gap != 1 for gap in window.dilation)
    if is_dilated:
        return append_stated(walk, x, flop_per_element=math.prod(kernel))
    return walk.lower(
        lowering.pool,
        x,
        kind,
        kernel=kernel,
        stride=window.stride,
        padding=window.padding,
        ceil=bool(walk.attr("ceil_mode", 0)),
    )


def _lower_global_pool(function: str, walk: OnnxWalk, x: Value) -> Value:
    axes = tuple(range(2, len(walk.shape(x))))
    return walk.lower(elements.reduce, function, x, axes, keep=True)


def _lower_norm(
    norm: Callable[..., str], walk: OnnxWalk, x: Value, w: Value = None, b: Value = None
) -> Value:
    """Lower a norm over the axes from `axis` on."""
    axis_count = len(walk.shape(x)) - walk.axis(x, -1)
    return walk.lower(norm, x, weight=w, bias=b, axes=axis_count)


layer_norm = partial(_lower_norm, lowering.layer_norm)


def rms_norm(walk: OnnxWalk, x: Value, w: Value = None) -> Value:
    """Lower a root-mean-square norm over the axes from `axis` on."""
    return _lower_norm(lowering.rms_norm, walk, x, w)


def _lower_batch_norm(walk: OnnxWalk, x: Value, w: Value, b: Value, *_: Value) -> Value:
    return walk.lower(lowering.batch_norm, x, weight=w, bias=b)


def _lower_group_norm(walk: OnnxWalk, x: Value, w: Value = None, b: Value = None) -> Value:
    """Lower group norm, or instance norm, which has no attribute `num_groups`."""
    groups = walk.attr("num_groups", 0) or None
    weight = _repeat_by_channel(walk, x, w, groups)
    bias = _repeat_by_channel(walk, x, b, groups)
    # `walk.lower` takes None for an input that is left out; here it says that there are no groups
    norm = partial(lowering.group_norm, groups=groups)
    return walk.lower(norm, x, weight=weight, bias=bias)


def _repeat_by_channel(walk: OnnxWalk, x: Value, vector: Value, groups: int | None) -> Value:
    """Return a weight with a number for each channel; in opset 18 it has one for each group."""
    channels = walk.shape(x)[1]
    if vector is None or walk.shape(vector) == (channels,):
        return vector
    group_count = groups or channels
    group_shape = (group_count, channels // group_count)
    column = walk.lower(elements.reshape, vector, (group_count, 1), suffix="/group")
    repeated = walk.lower(elements.expand, column, group_shape, suffix="/each")
    return walk.lower(elements.reshape, repeated, (channels,), suffix="/vector")


def _lower_local_response_norm(walk: OnnxWalk, x: Value) -> Value:
    return walk.lower(
        elements.append_op,
        "local_response_norm",
        x,
        size=walk.attr("size", 1),
        alpha=walk.attr("alpha", 1e-4),
        beta=walk.attr("beta", 0.75),
        k=walk.attr("bias", 1.0),
    )


def _lower_lp_norm(walk: OnnxWalk, x: Value) -> Value:
    order = walk.attr("p", 2)
    function = "l1" if order == 1 else "l2"
    norm = walk.lower(elements.reduce, function, x, (walk.attr("axis", -1),), keep=True)
    return walk.pointwise("div", x, norm)


def _lower_einsum(walk: OnnxWalk, *operands: Value) -> Value:
    return walk.lower(einsum, walk.attr("equation", ""), [*operands])


MATRICES: Mapping[str, Function] = {
    "MatMul": matmul,
    "com.microsoft.FusedMatMul": _lower_fused_matmul,
    "Gemm": _lower_gemm,
    "Conv": convolution,
    "ConvTranspose": _lower_transposed_convolution,
    "MaxPool": partial(_lower_pool, "max"),
    "AveragePool": partial(_lower_pool, "avg"),
    "LpPool": partial(_lower_pool, "avg"),
    "GlobalAveragePool": partial(_lower_global_pool, "mean"),
    "GlobalMaxPool": partial(_lower_global_pool, "max"),
    "BatchNormalization": _lower_batch_norm,
    "LayerNormalization": layer_norm,
    **dict.fromkeys(("RMSNormalization", "SimplifiedLayerNormalization"), rms_norm),
    **dict.fromkeys(("GroupNormalization", "InstanceNormalization"), _lower_group_norm),
    "LRN": _lower_local_response_norm,
    "LpNormalization": _lower_lp_norm,
    "Einsum": _lower_einsum,
}
