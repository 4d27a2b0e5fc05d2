"""Convolutions, their transposes and pooling over images and volumes; sizes of images.

Images are `[batch, channels, height, width]`, volumes `[batch, channels, depth, height, width]`.
Attributes have a size for each axis: `stride (h, w)`, `dilation (h, w)`; and `padding (top, bottom,
left, right)`, `groups`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from steptime.core.graph import Attr, TensorSpec
from steptime.core.windows import count_positions
from steptime.network.ops.gradient_op import emit_single_op, expand_kind
from steptime.network.ops.table import (
    Backward,
    GradientOp,
    Operand,
    OpKind,
    Products,
    Specs,
    Window,
    example,
    format_shapes,
    matrix_kind,
    require,
)

Pair = tuple[int, int]
Sizes = tuple[int, ...]  # one an axis
Sides = tuple[int, ...]  # before and after each axis; () are 0, as sizes of () are 1
_SIDES = {2: "top, bottom, left, right", 3: "front, back, top, bottom, left, right"}


def _count_axes(x: TensorSpec, operation: str) -> int:
    """Return the number of axes that a window moves over: 2 of an image, 3 of a volume."""
    rank = len(x.shape)
    require(rank in (4, 5), f"{operation} needs [batch, channels, h, w], not {format_shapes(x)}")
    return rank - 2


def _check_channels(x: TensorSpec, w: TensorSpec, groups: int) -> None:
    rank = 2 + _count_axes(x, "a convolution")
    require(
        len(w.shape) == rank, f"a convolution needs a filter of rank {rank}, not {format_shapes(w)}"
    )
    require(groups >= 1 and w.shape[0] % groups == 0, f"{w.shape[0]} filters in {groups} groups")


def _pair_sides(sides: Sides) -> list[Pair]:
    """Return pairs (before, after) by axis."""
    return list(zip(sides[::2], sides[1::2], strict=True))


def conv_outputs(
    x: TensorSpec,
    w: TensorSpec,
    stride: Sizes = (),
    padding: Sides = (),
    dilation: Sizes = (),
    groups: int = 1,
) -> Specs:
    """Return `x [n, c_in, h, w], w [c_out, c_in/groups, kh, kw] -> [n, c_out, oh, ow]`."""
    _check_channels(x, w, groups)
    batch, channels, *input_sizes = x.shape
    filters, filter_channels, *kernel = w.shape
    axes = len(input_sizes)
    stride = stride or (1,) * axes
    dilation = dilation or (1,) * axes
    padding = padding or (0,) * 2 * axes
    _check_steps(stride, dilation, axes)
    require(len(padding) == 2 * axes, f"padding {padding}: not {_SIDES[axes]}")
    require(
        channels == filter_channels * groups,
        f"{channels} channels do not fit a filter {format_shapes(w)} in {groups} groups",
    )
    axis_settings = zip(input_sizes, kernel, stride, _pair_sides(padding), dilation, strict=True)
    output_sizes = [count_positions(*settings) for settings in axis_settings]
    require(
        min(output_sizes) >= 1, f"a filter {format_shapes(w)} does not fit into {format_shapes(x)}"
    )
    return (TensorSpec((batch, filters, *output_sizes), x.dtype),)


def _check_steps(stride: Sizes, dilation: Sizes, axes: int) -> None:
    """Check that there is a stride and a dilation of at least 1 for each axis."""
    sizes = f"stride {stride}, dilation {dilation}"
    require(len(stride) == len(dilation) == axes, f"{sizes}: not one for each of {axes} axes")
    require(min(*stride, *dilation) >= 1, f"{sizes}: below 1")


def conv_products(x: TensorSpec, w: TensorSpec, groups: int = 1, **attrs: Any) -> Products:
    """Return positions by filters over the window, for each group (as if unrolled, im2col)."""
    (out,) = conv_outputs(x, w, groups=groups, **attrs)
    filters = w.shape[0] // groups
    window = math.prod(w.shape[1:])
    return ((groups, _positions(out), filters, window),)


def _positions(spec: TensorSpec) -> int:
    """Return the positions of all images `[n, c, h, w]`."""
    return spec.shape[0] * math.prod(spec.shape[2:])


def gradient(b: Backward) -> tuple[str | None, ...]:
    """dX is the transpose of the op on dY; dW correlates X with dY, of a transpose dY with X."""
    needs_dx, needs_dw = b.needs
    dx = _append_input_gradient(b) if needs_dx else None
    dw = _append_weight_gradient(b) if needs_dw else None
    return dx, dw


def _is_transpose(b: Backward) -> bool:
    """Whether the gradient is that of a transposed convolution."""
    return b.op.kind.startswith("conv_transpose")


def _append_input_gradient(b: Backward) -> str:
    """Append dX: a transposed convolution of dY, or a convolution where the op is transposed."""
    _, w = b.op.inputs
    axes = len(b.out.shape) - 2
    # only a transpose has an `output_size`: the size that its convolution would read
    attrs = b.attrs_without("output_size")
    kind = f"conv{axes}d"
    if not _is_transpose(b):
        kind = f"conv_transpose{axes}d"
        attrs = {**attrs, "output_size": b.specs[0].shape[2:]}
    (dx,) = b.emit(kind, (b.grad, w), "grad_input", **attrs)
    return dx


def _append_weight_gradient(b: Backward) -> str:
    """Append dW, from a convolution's input and its output's gradient.

    In a transpose these two change places.
    """
    x, _ = b.op.inputs
    axes = len(b.out.shape) - 2
    image_and_gradient = (b.grad, x) if _is_transpose(b) else (x, b.grad)
    attrs = b.attrs_without("output_size")
    kernel = b.specs[1].shape[2:]
    kind = f"conv{axes}d_grad_weight"
    (dw,) = b.emit(kind, image_and_gradient, "grad_weight", **attrs, kernel=kernel)
    return dw


def grad_weight_outputs(
    x: TensorSpec, grad: TensorSpec, kernel: Sizes, groups: int = 1, **_: Any
) -> Specs:
    """Return `x [n, c_in, h, w], grad [n, c_out, oh, ow] -> [c_out, c_in/groups, kh, kw]`."""
    filters, channels = grad.shape[1], x.shape[1]
    return (TensorSpec((filters, channels // groups, *kernel), x.dtype),)


def grad_weight_products(
    x: TensorSpec, grad: TensorSpec, kernel: Sizes, groups: int = 1, **_: Any
) -> Products:
    """Return filters by window over the positions, for each group."""
    window = x.shape[1] // groups * math.prod(kernel)
    filters = grad.shape[1] // groups
    return ((groups, filters, window, _positions(grad)),)


def conv_transpose_outputs(
    x: TensorSpec, w: TensorSpec, output_size: Sizes, groups: int = 1, **attrs: Any
) -> Specs:
    """Return `x [n, c_in, h, w], w [c_in, c_out/groups, kh, kw] -> [n, c_out, *output_size]`.

    The convolution with these attributes must lead from the output's size back to `x`'s.
    """
    _check_channels(x, w, groups)
    require(
        x.shape[1] == w.shape[0], f"{x.shape[1]} channels do not fit a filter {format_shapes(w)}"
    )
    out = TensorSpec((x.shape[0], w.shape[1] * groups, *output_size), x.dtype)
    # the convolution of the output must lead back to the input
    (convolved,) = conv_outputs(out, w, groups=groups, **attrs)
    require(
        convolved.shape == x.shape,
        f"output size {list(output_size)} does not lead to {format_shapes(x)}",
    )
    return (out,)


def conv_transpose_products(x: TensorSpec, w: TensorSpec, groups: int = 1, **_: Any) -> Products:
    """Return positions of `x` by window over its channels, for each group (then summed, col2im)."""
    window = math.prod(w.shape[1:])
    channels = w.shape[0] // groups
    return ((groups, _positions(x), window, channels),)


def _window(kernel: Sizes, stride: Sizes, output_size: Sizes) -> Window:
    """Return a window over images; the depth of a volume counts as part of the height."""

    def height_and_width(sizes: Sizes) -> Pair:
        # the depth of a volume counts as part of the height
        return math.prod(sizes[:-1]), sizes[-1]

    kernel_pair = height_and_width(kernel)
    stride_pair = height_and_width(stride or (1,) * len(kernel))
    output_pair = height_and_width(output_size)
    return (*kernel_pair, *stride_pair, *output_pair)


def _conv_window(x: TensorSpec, w: TensorSpec, stride: Sizes = (), **attrs: Any) -> Window:
    (out,) = conv_outputs(x, w, stride, **attrs)
    return _window(w.shape[2:], stride, out.shape[2:])


def pool_outputs(
    x: TensorSpec, kernel: Sizes, stride: Sizes, padding: Sides = (), ceil: bool = False
) -> Specs:
    """Return `x [n, c, h, w] -> [n, c, oh, ow]`; `ceil` rounds the size up, as Caffe does."""
    axes = _count_axes(x, "pooling")
    padding = padding or (0,) * 2 * axes
    has_sizes = len(kernel) == len(stride) == axes and len(padding) == 2 * axes
    fits = has_sizes and min(*kernel, *stride) >= 1
    message = f"a window {list(kernel)} with stride {list(stride)}, padding {list(padding)}"
    require(fits, message)
    batch, channels, *input_sizes = x.shape
    axis_settings = zip(input_sizes, kernel, stride, _pair_sides(padding), strict=True)
    output_sizes = [count_positions(*settings, ceil=ceil) for settings in axis_settings]
    require(min(output_sizes) >= 1, f"a window {list(kernel)} does not fit into {format_shapes(x)}")
    return (TensorSpec((batch, channels, *output_sizes), x.dtype),)


def _pool_flop(x: TensorSpec, kernel: Sizes, **attrs: Any) -> int:
    (out,) = pool_outputs(x, kernel, **attrs)
    return out.size * math.prod(kernel)


def _pool_window(
    x: TensorSpec, *_: TensorSpec, kernel: Sizes, stride: Sizes, **attrs: Any
) -> Window:
    (out,) = pool_outputs(x, kernel, stride, **attrs)
    return _window(kernel, stride, out.shape[2:])


def _max_places(x: TensorSpec, **attrs: Any) -> Specs:
    """Return the places of the maxima, in int64 as torch keeps them."""
    (out,) = pool_outputs(x, **attrs)
    return (out._replace(dtype="int64"),)


def global_pool_outputs(x: TensorSpec) -> Specs:
    """Return `x [n, c, h, w] -> [n, c]`, the mean of each map."""
    require(len(x.shape) == 4, f"pooling needs [batch, channels, h, w], not {format_shapes(x)}")
    return (TensorSpec(x.shape[:2], x.dtype),)


RESIZES = {"nearest": 0, "bilinear": 8, "bicubic": 32}  # FLOP an element: 4 or 16 multiply-adds


def resize_outputs(x: TensorSpec, size: Pair, mode: str, align_corners: bool = False) -> Specs:
    """Return `x [n, c, h, w] -> [n, c, *size]`, interpolated between centres (or corners)."""
    require(len(x.shape) == 4, f"resizing needs [batch, channels, h, w], not {format_shapes(x)}")
    require(mode in RESIZES, f"resizing knows {', '.join(RESIZES)}, not {mode!r}")
    require(min(size) >= 1, f"resizing to {list(size)}")
    return (TensorSpec((*x.shape[:2], *size), x.dtype),)


def _spread_mean(b: Backward) -> Mapping[str, Attr]:
    """Return the attributes of the op that gives each element its share of dY."""
    shape = b.specs[0].shape
    _, _, height, width = shape
    return {"shape": shape, "scale": 1.0 / (height * width)}


_IMAGE: dict[str, Attr] = {
    "stride": (2, 1),
    "padding": (1, 1, 0, 0),
    "dilation": (1, 2),
    "groups": 2,
}
_WINDOW: dict[str, Sizes] = {"kernel": (3, 2), "stride": (2, 2), "padding": (1, 1, 0, 0)}
_pooling = partial(
    OpKind, pool_outputs, _pool_flop, example((2, 3, 7, 8), **_WINDOW), window=_pool_window
)

KINDS = {
    "conv2d": matrix_kind(
        conv_outputs,
        conv_products,
        example((2, 4, 7, 8), (6, 2, 3, 2), **_IMAGE),
        "definition: 2 * kernel * c_in/groups * c_out * positions",
        gradient=gradient,
        work="convolution",
        window=_conv_window,
        logits=True,
    ),
    "conv2d_grad_weight": matrix_kind(
        grad_weight_outputs,
        grad_weight_products,
        example((2, 4, 7, 8), (2, 6, 4, 6), **_IMAGE, kernel=(3, 2)),
        "definition: as many multiply-adds as forward",
        work="convolution",
        window=lambda x, grad, kernel, stride=(), **_: _window(kernel, stride, grad.shape[2:]),
    ),
    "conv_transpose2d": matrix_kind(
        conv_transpose_outputs,
        conv_transpose_products,
        example((2, 6, 4, 6), (6, 2, 3, 2), **_IMAGE, output_size=(7, 8)),
        "definition: the transpose of a convolution, as many multiply-adds",
        gradient=gradient,
        work="convolution",
        window=lambda x, w, stride=(), **_: _window(w.shape[2:], stride, x.shape[2:]),
        logits=True,
    ),
    "max_pool2d": _pooling(
        "definition: one comparison an element of a window",
        saved=_max_places,
        always_saves=True,
        gradient_op=GradientOp(
            (Operand.INPUT, Operand.GRADIENT, Operand.SAVED),
            lambda x, grad, places, **_: int(grad.size),
            "definition: one addition an element of the gradient",
            columns={"read": lambda x, grad, places, **_: grad.size_bytes + places.size_bytes},
        ),
    ),
    "avg_pool2d": _pooling(
        "definition: one addition an element of a window, padding counted as zeros",
        gradient_op=GradientOp(
            (Operand.INPUT, Operand.GRADIENT),
            lambda x, grad, kernel, **_: int(grad.size * math.prod(kernel)),
            "definition: one addition an element of a window",
            columns={"read": lambda x, grad, **_: grad.size_bytes},
        ),
    ),
    "global_avg_pool": OpKind(
        global_pool_outputs,
        lambda x: int(x.size),
        example((2, 3, 7, 8)),
        "definition: one addition an element",
        gradient=emit_single_op("expand", (Operand.GRADIENT,), attrs=_spread_mean),
    ),
    "resize2d": OpKind(
        resize_outputs,
        lambda x, size, mode, **_: RESIZES[mode] * resize_outputs(x, size, mode)[0].size,
        example((2, 3, 4, 5), size=(6, 7), mode="bilinear", align_corners=False),
        "definition: a multiply-add for each of 4 or 16 neighbours; the nearest is copied",
        autocast="wide",
        gradient_op=GradientOp(
            (Operand.GRADIENT,),
            lambda grad, size, mode, **_: (RESIZES[mode] or 1) * grad.size,
            "derivative of resize2d: as many multiply-adds; of the nearest one addition an element",
            attrs=lambda b: {**b.attrs, "size": b.specs[0].shape[2:]},
            outputs=resize_outputs,
        ),
    ),
}

_DEPTH: dict[str, tuple[int, ...]] = {
    "stride": (1,),
    "padding": (0, 1),
    "dilation": (1,),
    "kernel": (2,),
    "output_size": (4,),
}
_VOLUMES: dict[str, list[tuple[int, ...]]] = {  # shapes of the examples of kinds over volumes
    "conv3d": [(2, 4, 4, 7, 8), (6, 2, 2, 3, 2)],
    "conv3d_grad_weight": [(2, 4, 4, 7, 8), (2, 6, 4, 4, 6)],
    "conv_transpose3d": [(2, 6, 4, 4, 6), (6, 2, 2, 3, 2)],
    "max_pool3d": [(2, 3, 3, 7, 8)],
    "avg_pool3d": [(2, 3, 3, 7, 8)],
}


def _over_volumes(row: OpKind, shapes: Sequence[tuple[int, ...]]) -> OpKind:
    """Return the row of a kind over images, whose rules hold over volumes, with such an example."""
    attrs = {**row.example.attrs}
    for name, value in row.example.attrs.items():
        if name in _DEPTH and isinstance(value, tuple):
            attrs[name] = _DEPTH[name] + value
    return replace(row, example=example(*shapes, **attrs))


KINDS |= {
    kind: _over_volumes(KINDS[kind.replace("3d", "2d")], shapes)
    for kind, shapes in _VOLUMES.items()
}
OVER_VOLUMES = {
    name: name.replace("3d", "2d") for kind in _VOLUMES for name in expand_kind(kind, KINDS[kind])
}
"""What kinds over volumes are over images."""
