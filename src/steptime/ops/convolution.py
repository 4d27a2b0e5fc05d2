"""Convolutions over images `[batch, channels, height, width]`, and their transposes.

Attributes: `stride (h, w)`, `padding (top, bottom, left, right)`, `dilation (h, w)`, `groups`.
"""

import math
from typing import Any

from steptime.core.graph import TensorSpec
from steptime.core.windows import positions
from steptime.ops.table import (
    Backward,
    Products,
    Specs,
    Window,
    example,
    matrix_kind,
    require,
    show,
)

Pair = tuple[int, int]
Sides = tuple[int, int, int, int]


def _check_channels(x: TensorSpec, w: TensorSpec, groups: int) -> None:
    require(len(x.shape) == 4, f"a convolution needs [batch, channels, h, w], not {show(x)}")
    require(len(w.shape) == 4, f"a convolution needs a filter of rank 4, not {show(w)}")
    require(groups >= 1 and w.shape[0] % groups == 0, f"{w.shape[0]} filters in {groups} groups")


def conv2d_outputs(
    x: TensorSpec,
    w: TensorSpec,
    stride: Pair = (1, 1),
    padding: Sides = (0, 0, 0, 0),
    dilation: Pair = (1, 1),
    groups: int = 1,
) -> Specs:
    """Return `x [n, c_in, h, w], w [c_out, c_in/groups, kh, kw] -> [n, c_out, oh, ow]`."""
    _check_channels(x, w, groups)
    require(len(stride) == len(dilation) == 2, f"stride {stride}, dilation {dilation}: not a pair")
    require(min(*stride, *dilation) >= 1, f"stride {stride}, dilation {dilation}: below 1")
    require(len(padding) == 4, f"padding {padding}: not top, bottom, left, right")
    require(
        x.shape[1] == w.shape[1] * groups,
        f"{x.shape[1]} channels do not fit a filter {show(w)} in {groups} groups",
    )
    height = positions(x.shape[2], w.shape[2], stride[0], padding[:2], dilation[0])
    width = positions(x.shape[3], w.shape[3], stride[1], padding[2:], dilation[1])
    require(height >= 1 and width >= 1, f"a filter {show(w)} does not fit into {show(x)}")
    return (TensorSpec((x.shape[0], w.shape[0], height, width), x.dtype),)


def conv2d_products(x: TensorSpec, w: TensorSpec, groups: int = 1, **attrs: Any) -> Products:
    """Return positions by filters over the window, for each group (as if unrolled, im2col)."""
    (out,) = conv2d_outputs(x, w, groups=groups, **attrs)
    return ((groups, _positions(out), w.shape[0] // groups, math.prod(w.shape[1:])),)


def _positions(spec: TensorSpec) -> int:
    return spec.shape[0] * spec.shape[2] * spec.shape[3]


def gradient(b: Backward) -> tuple[str | None, ...]:
    """dX is the transpose of the op on dY; dW correlates X with dY, of a transpose dY with X."""
    (x, w), attrs = b.op.inputs, b.without("output_size")
    back, pair, size = "conv_transpose2d", (x, b.grad), {"output_size": b.specs[0].shape[2:]}
    if b.op.kind == back:
        back, pair, size = "conv2d", (b.grad, x), {}
    dx = dw = None
    if b.needs[0]:
        dx = b.emit(back, (b.grad, w), "grad_input", **attrs, **size)[0]
    if b.needs[1]:
        kernel = b.specs[1].shape[2:]
        dw = b.emit("conv2d_grad_weight", pair, "grad_weight", **attrs, kernel=kernel)[0]
    return dx, dw


def conv2d_grad_weight_outputs(
    x: TensorSpec, grad: TensorSpec, kernel: Pair, groups: int = 1, **_: Any
) -> Specs:
    """Return `x [n, c_in, h, w], grad [n, c_out, oh, ow] -> [c_out, c_in/groups, kh, kw]`."""
    return (TensorSpec((grad.shape[1], x.shape[1] // groups, *kernel), x.dtype),)


def conv2d_grad_weight_products(
    x: TensorSpec, grad: TensorSpec, kernel: Pair, groups: int = 1, **_: Any
) -> Products:
    """Return filters by window over the positions, for each group."""
    window = x.shape[1] // groups * math.prod(kernel)
    return ((groups, grad.shape[1] // groups, window, _positions(grad)),)


def conv_transpose2d_outputs(
    x: TensorSpec, w: TensorSpec, output_size: Pair, groups: int = 1, **how: Any
) -> Specs:
    """Return `x [n, c_in, h, w], w [c_in, c_out/groups, kh, kw] -> [n, c_out, *output_size]`.

    The convolution with these attributes must lead from the output's size back to `x`'s.
    """
    _check_channels(x, w, groups)
    require(x.shape[1] == w.shape[0], f"{x.shape[1]} channels do not fit a filter {show(w)}")
    out = TensorSpec((x.shape[0], w.shape[1] * groups, *output_size), x.dtype)
    (back,) = conv2d_outputs(out, w, groups=groups, **how)
    require(back.shape == x.shape, f"output size {list(output_size)} does not lead to {show(x)}")
    return (out,)


def conv_transpose2d_products(x: TensorSpec, w: TensorSpec, groups: int = 1, **_: Any) -> Products:
    """Return positions of `x` by window over its channels, for each group (then summed, col2im)."""
    return ((groups, _positions(x), math.prod(w.shape[1:]), w.shape[0] // groups),)


def _window(x: TensorSpec, w: TensorSpec, stride: Pair = (1, 1), **attrs: Any) -> Window:
    height, width = conv2d_outputs(x, w, stride, **attrs)[0].shape[2:]
    return (w.shape[2], w.shape[3], *stride, height, width)


_ATTRS: dict[str, Any] = {
    "stride": (2, 1),
    "padding": (1, 1, 0, 0),
    "dilation": (1, 2),
    "groups": 2,
}

KINDS = {
    "conv2d": matrix_kind(
        conv2d_outputs,
        conv2d_products,
        example("2x4x7x8 6x2x3x2", **_ATTRS),
        "definition: 2 * kernel * c_in/groups * c_out * positions",
        gradient=gradient,
        work="convolution",
        window=_window,
        logits=True,
    ),
    "conv2d_grad_weight": matrix_kind(
        conv2d_grad_weight_outputs,
        conv2d_grad_weight_products,
        example("2x4x7x8 2x6x4x6", **_ATTRS, kernel=(3, 2)),
        "definition: as many multiply-adds as forward",
        work="convolution",
        window=lambda x, grad, kernel, stride=(1, 1), **_: (*kernel, *stride, *grad.shape[2:]),
    ),
    "conv_transpose2d": matrix_kind(
        conv_transpose2d_outputs,
        conv_transpose2d_products,
        example("2x6x4x6 6x2x3x2", **_ATTRS, output_size=(7, 8)),
        "definition: the transpose of conv2d, as many multiply-adds",
        gradient=gradient,
        work="convolution",
        window=lambda x, w, stride=(1, 1), **_: (*w.shape[2:], *stride, *x.shape[2:]),
        logits=True,
    ),
}
