"""Convolutions, their transposes, pooling and sizes of images `[batch, channels, height, width]`.

Attributes: `stride (h, w)`, `padding (top, bottom, left, right)`, `dilation (h, w)`, `groups`.
"""

import math
from typing import Any

from steptime.core.graph import TensorSpec
from steptime.core.windows import positions
from steptime.network.ops.table import (
    Backward,
    OpKind,
    Products,
    Specs,
    Window,
    example,
    fused,
    matrix_kind,
    no_flop,
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


def pool_outputs(
    x: TensorSpec, kernel: Pair, stride: Pair, padding: Sides = (0, 0, 0, 0), ceil: bool = False
) -> Specs:
    """Return `x [n, c, h, w] -> [n, c, oh, ow]`; `ceil` rounds the size up, as Caffe does."""
    require(len(x.shape) == 4, f"pooling needs [batch, channels, h, w], not {show(x)}")
    sound = len((*kernel, *stride, *padding)) == 8
    said = f"a window {list(kernel)} with stride {list(stride)}, padding {list(padding)}"
    require(sound and min(*kernel, *stride) >= 1, said)
    height = positions(x.shape[2], kernel[0], stride[0], padding[:2], ceil=ceil)
    width = positions(x.shape[3], kernel[1], stride[1], padding[2:], ceil=ceil)
    require(height >= 1 and width >= 1, f"a window {list(kernel)} does not fit into {show(x)}")
    return (TensorSpec((*x.shape[:2], height, width), x.dtype),)


def pool_flop(x: TensorSpec, kernel: Pair, **attrs: Any) -> int:
    """Return one comparison or addition an element of each window."""
    return pool_outputs(x, kernel, **attrs)[0].size * kernel[0] * kernel[1]


def global_pool_outputs(x: TensorSpec) -> Specs:
    """Return `x [n, c, h, w] -> [n, c]`, the mean of each map."""
    require(len(x.shape) == 4, f"pooling needs [batch, channels, h, w], not {show(x)}")
    return (TensorSpec(x.shape[:2], x.dtype),)


def upsample_outputs(x: TensorSpec, scale: Pair) -> Specs:
    """Return `x [n, c, h, w] -> [n, c, h*scale, w*scale]`, each element repeated (nearest)."""
    require(len(x.shape) == 4, f"up-sampling needs [batch, channels, h, w], not {show(x)}")
    require(min(scale) >= 1, f"up-sampling by {list(scale)}")
    shape = (*x.shape[:2], x.shape[2] * scale[0], x.shape[3] * scale[1])
    return (TensorSpec(shape, x.dtype),)


def upsample_grad_outputs(grad: TensorSpec, scale: Pair) -> Specs:
    """Return `grad [n, c, h*scale, w*scale] -> [n, c, h, w]`."""
    shape = (*grad.shape[:2], grad.shape[2] // scale[0], grad.shape[3] // scale[1])
    return (TensorSpec(shape, grad.dtype),)


RESIZES = {"nearest": 0, "bilinear": 8, "bicubic": 32}  # FLOP an element: 4 or 16 multiply-adds


def resize_outputs(x: TensorSpec, size: Pair, mode: str, align_corners: bool = False) -> Specs:
    """Return `x [n, c, h, w] -> [n, c, *size]`, interpolated between centres (or corners)."""
    require(len(x.shape) == 4, f"resizing needs [batch, channels, h, w], not {show(x)}")
    require(mode in RESIZES, f"resizing knows {', '.join(RESIZES)}, not {mode!r}")
    require(min(size) >= 1, f"resizing to {list(size)}")
    return (TensorSpec((*x.shape[:2], *size), x.dtype),)


def _mean(b: Backward) -> dict[str, Any]:
    shape = b.specs[0].shape
    return {"shape": shape, "scale": 1.0 / (shape[2] * shape[3])}


def _pool_window(x: TensorSpec, *_: TensorSpec, kernel: Pair, stride: Pair, **attrs: Any) -> Window:
    height, width = pool_outputs(x, kernel, stride, **attrs)[0].shape[2:]
    return (*kernel, *stride, height, width)


_WINDOW: dict[str, Any] = {"kernel": (3, 2), "stride": (2, 2), "padding": (1, 1, 0, 0)}

KINDS |= {
    "max_pool2d": OpKind(
        pool_outputs,
        pool_flop,
        example("2x3x7x8", **_WINDOW),
        "definition: one comparison an element of a window",
        window=_pool_window,
        gradient=fused("max_pool2d_grad", "x dy saved"),
        saved=lambda x, **how: (pool_outputs(x, **how)[0]._replace(dtype="int64"),),  # as torch's
        always_saves=True,
    ),
    "max_pool2d_grad": OpKind(
        lambda x, grad, places, **_: (x,),
        lambda x, grad, places, **_: int(grad.size),
        example("2x3x7x8 2x3x4x4 2x3x4x4:int64", **_WINDOW),
        "definition: one addition an element of the gradient",
        window=_pool_window,
        read=lambda x, grad, places, **_: int(grad.size_bytes + places.size_bytes),
    ),
    "avg_pool2d": OpKind(
        pool_outputs,
        pool_flop,
        example("2x3x7x8", **_WINDOW),
        "definition: one addition an element of a window, padding counted as zeros",
        window=_pool_window,
        gradient=fused("avg_pool2d_grad", "x dy"),
    ),
    "avg_pool2d_grad": OpKind(
        lambda x, grad, **_: (x,),
        lambda x, grad, kernel, **_: int(grad.size * kernel[0] * kernel[1]),
        example("2x3x7x8 2x3x4x4", **_WINDOW),
        "definition: one addition an element of a window",
        window=_pool_window,
        read=lambda x, grad, **_: int(grad.size_bytes),
    ),
    "global_avg_pool": OpKind(
        global_pool_outputs,
        lambda x: int(x.size),
        example("2x3x7x8"),
        "definition: one addition an element",
        gradient=fused("expand", "dy", attrs=_mean),
    ),
    "upsample2d": OpKind(
        upsample_outputs,
        no_flop,
        example("2x3x4x5", scale=(2, 3)),
        "definition: copies (nearest neighbour)",
        gradient=fused("upsample2d_grad", "dy"),
        autocast="wide",
    ),
    "upsample2d_grad": OpKind(
        upsample_grad_outputs,
        lambda grad, **_: int(grad.size),
        example("2x3x8x15", scale=(2, 3)),
        "definition: one addition an element",
    ),
    "resize2d": OpKind(
        resize_outputs,
        lambda x, size, mode, **_: RESIZES[mode] * resize_outputs(x, size, mode)[0].size,
        example("2x3x4x5", size=(6, 7), mode="bilinear", align_corners=False),
        "definition: a multiply-add for each of 4 or 16 neighbours; the nearest is copied",
        gradient=fused(
            "resize2d_grad", "dy", attrs=lambda b: {**b.attrs, "size": b.specs[0].shape[2:]}
        ),
        autocast="wide",
    ),
    "resize2d_grad": OpKind(
        resize_outputs,
        lambda grad, size, mode, **_: (RESIZES[mode] or 1) * grad.size,
        example("2x3x6x7", size=(4, 5), mode="bilinear", align_corners=False),
        "derivative of resize2d: as many multiply-adds; of the nearest one addition an element",
    ),
}
