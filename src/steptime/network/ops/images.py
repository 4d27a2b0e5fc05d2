"""Convolutions, their transposes and pooling over images and volumes; sizes of images.

Images are `[batch, channels, height, width]`, volumes `[batch, channels, depth, height, width]`.
Attributes have a size for each axis: `stride (h, w)`, `dilation (h, w)`; and `padding (top, bottom,
left, right)`, `groups`.
"""

import math
from dataclasses import replace
from functools import partial
from typing import Any

from steptime.core.graph import TensorSpec
from steptime.core.windows import positions
from steptime.network.ops.table import (
    Back,
    Backward,
    OpKind,
    Products,
    Specs,
    Window,
    example,
    fused,
    matrix_kind,
    require,
    rows_of,
    show,
)

Pair = tuple[int, int]
Sizes = tuple[int, ...]  # one an axis
Sides = tuple[int, ...]  # before and after each axis; () are 0, as sizes of () are 1
_SIDES = {2: "top, bottom, left, right", 3: "front, back, top, bottom, left, right"}


def _axes(x: TensorSpec, what: str) -> int:
    """Return over how many axes something moves: 2 of an image, 3 of a volume."""
    rank = len(x.shape)
    require(rank in (4, 5), f"{what} needs [batch, channels, h, w], not {show(x)}")
    return rank - 2


def _check_channels(x: TensorSpec, w: TensorSpec, groups: int) -> None:
    rank = 2 + _axes(x, "a convolution")
    require(len(w.shape) == rank, f"a convolution needs a filter of rank {rank}, not {show(w)}")
    require(groups >= 1 and w.shape[0] % groups == 0, f"{w.shape[0]} filters in {groups} groups")


def _pairs(sides: Sides) -> list[Pair]:
    """Return what is before and after each axis."""
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
    axes = len(x.shape) - 2
    stride, dilation = stride or (1,) * axes, dilation or (1,) * axes
    sizes = f"stride {stride}, dilation {dilation}"
    require(len(stride) == len(dilation) == axes, f"{sizes}: not one for each of {axes} axes")
    require(min(*stride, *dilation) >= 1, f"{sizes}: below 1")
    padding = padding or (0,) * 2 * axes
    require(len(padding) == 2 * axes, f"padding {padding}: not {_SIDES[axes]}")
    require(
        x.shape[1] == w.shape[1] * groups,
        f"{x.shape[1]} channels do not fit a filter {show(w)} in {groups} groups",
    )
    along = zip(x.shape[2:], w.shape[2:], stride, _pairs(padding), dilation, strict=True)
    made = [positions(*axis) for axis in along]
    require(min(made) >= 1, f"a filter {show(w)} does not fit into {show(x)}")
    return (TensorSpec((x.shape[0], w.shape[0], *made), x.dtype),)


def conv_products(x: TensorSpec, w: TensorSpec, groups: int = 1, **attrs: Any) -> Products:
    """Return positions by filters over the window, for each group (as if unrolled, im2col)."""
    (out,) = conv_outputs(x, w, groups=groups, **attrs)
    return ((groups, _positions(out), w.shape[0] // groups, math.prod(w.shape[1:])),)


def _positions(spec: TensorSpec) -> int:
    return spec.shape[0] * math.prod(spec.shape[2:])


def gradient(b: Backward) -> tuple[str | None, ...]:
    """dX is the transpose of the op on dY; dW correlates X with dY, of a transpose dY with X."""
    (x, w), attrs, axes = b.op.inputs, b.without("output_size"), len(b.out.shape) - 2
    back, pair, size = f"conv_transpose{axes}d", (x, b.grad), {"output_size": b.specs[0].shape[2:]}
    if b.op.kind == back:
        back, pair, size = f"conv{axes}d", (b.grad, x), {}
    dx = dw = None
    if b.needs[0]:
        dx = b.emit(back, (b.grad, w), "grad_input", **attrs, **size)[0]
    if b.needs[1]:
        kind, kernel = f"conv{axes}d_grad_weight", b.specs[1].shape[2:]
        dw = b.emit(kind, pair, "grad_weight", **attrs, kernel=kernel)[0]
    return dx, dw


def grad_weight_outputs(
    x: TensorSpec, grad: TensorSpec, kernel: Sizes, groups: int = 1, **_: Any
) -> Specs:
    """Return `x [n, c_in, h, w], grad [n, c_out, oh, ow] -> [c_out, c_in/groups, kh, kw]`."""
    return (TensorSpec((grad.shape[1], x.shape[1] // groups, *kernel), x.dtype),)


def grad_weight_products(
    x: TensorSpec, grad: TensorSpec, kernel: Sizes, groups: int = 1, **_: Any
) -> Products:
    """Return filters by window over the positions, for each group."""
    window = x.shape[1] // groups * math.prod(kernel)
    return ((groups, grad.shape[1] // groups, window, _positions(grad)),)


def conv_transpose_outputs(
    x: TensorSpec, w: TensorSpec, output_size: Sizes, groups: int = 1, **how: Any
) -> Specs:
    """Return `x [n, c_in, h, w], w [c_in, c_out/groups, kh, kw] -> [n, c_out, *output_size]`.

    The convolution with these attributes must lead from the output's size back to `x`'s.
    """
    _check_channels(x, w, groups)
    require(x.shape[1] == w.shape[0], f"{x.shape[1]} channels do not fit a filter {show(w)}")
    out = TensorSpec((x.shape[0], w.shape[1] * groups, *output_size), x.dtype)
    (back,) = conv_outputs(out, w, groups=groups, **how)
    require(back.shape == x.shape, f"output size {list(output_size)} does not lead to {show(x)}")
    return (out,)


def conv_transpose_products(x: TensorSpec, w: TensorSpec, groups: int = 1, **_: Any) -> Products:
    """Return positions of `x` by window over its channels, for each group (then summed, col2im)."""
    return ((groups, _positions(x), math.prod(w.shape[1:]), w.shape[0] // groups),)


def _window(kernel: Sizes, stride: Sizes, places: Sizes) -> Window:
    """Return a window over images, that over a volume with its depth as part of the height."""
    each = (kernel, stride or (1,) * len(kernel), places)
    (high, wide), (down, across), (rows, columns) = ((math.prod(n[:-1]), n[-1]) for n in each)
    return high, wide, down, across, rows, columns


def _conv_window(x: TensorSpec, w: TensorSpec, stride: Sizes = (), **how: Any) -> Window:
    return _window(w.shape[2:], stride, conv_outputs(x, w, stride, **how)[0].shape[2:])


def pool_outputs(
    x: TensorSpec, kernel: Sizes, stride: Sizes, padding: Sides = (), ceil: bool = False
) -> Specs:
    """Return `x [n, c, h, w] -> [n, c, oh, ow]`; `ceil` rounds the size up, as Caffe does."""
    axes = _axes(x, "pooling")
    padding = padding or (0,) * 2 * axes
    sound = len(kernel) == len(stride) == axes and len(padding) == 2 * axes
    said = f"a window {list(kernel)} with stride {list(stride)}, padding {list(padding)}"
    require(sound and min(*kernel, *stride) >= 1, said)
    along = zip(x.shape[2:], kernel, stride, _pairs(padding), strict=True)
    made = [positions(*axis, ceil=ceil) for axis in along]
    require(min(made) >= 1, f"a window {list(kernel)} does not fit into {show(x)}")
    return (TensorSpec((*x.shape[:2], *made), x.dtype),)


def _pool_flop(x: TensorSpec, kernel: Sizes, **how: Any) -> int:
    return pool_outputs(x, kernel, **how)[0].size * math.prod(kernel)


def _pool_window(x: TensorSpec, *_: TensorSpec, kernel: Sizes, stride: Sizes, **how: Any) -> Window:
    return _window(kernel, stride, pool_outputs(x, kernel, stride, **how)[0].shape[2:])


def global_pool_outputs(x: TensorSpec) -> Specs:
    """Return `x [n, c, h, w] -> [n, c]`, the mean of each map."""
    require(len(x.shape) == 4, f"pooling needs [batch, channels, h, w], not {show(x)}")
    return (TensorSpec(x.shape[:2], x.dtype),)


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


_IMAGE: dict[str, Any] = {"stride": (2, 1), "padding": (1, 1, 0, 0), "dilation": (1, 2)}
_IMAGE["groups"] = 2
_WINDOW: dict[str, Sizes] = {"kernel": (3, 2), "stride": (2, 2), "padding": (1, 1, 0, 0)}
_pooling = partial(
    OpKind, pool_outputs, _pool_flop, example("2x3x7x8", **_WINDOW), window=_pool_window
)

KINDS = {
    "conv2d": matrix_kind(
        conv_outputs,
        conv_products,
        example("2x4x7x8 6x2x3x2", **_IMAGE),
        "definition: 2 * kernel * c_in/groups * c_out * positions",
        gradient=gradient,
        work="convolution",
        window=_conv_window,
        logits=True,
    ),
    "conv2d_grad_weight": matrix_kind(
        grad_weight_outputs,
        grad_weight_products,
        example("2x4x7x8 2x6x4x6", **_IMAGE, kernel=(3, 2)),
        "definition: as many multiply-adds as forward",
        work="convolution",
        window=lambda x, grad, kernel, stride=(), **_: _window(kernel, stride, grad.shape[2:]),
    ),
    "conv_transpose2d": matrix_kind(
        conv_transpose_outputs,
        conv_transpose_products,
        example("2x6x4x6 6x2x3x2", **_IMAGE, output_size=(7, 8)),
        "definition: the transpose of a convolution, as many multiply-adds",
        gradient=gradient,
        work="convolution",
        window=lambda x, w, stride=(), **_: _window(w.shape[2:], stride, x.shape[2:]),
        logits=True,
    ),
    "max_pool2d": _pooling(
        "definition: one comparison an element of a window",
        saved=lambda x, **how: (pool_outputs(x, **how)[0]._replace(dtype="int64"),),  # as torch's
        always_saves=True,
        back=Back(
            "x dy saved",
            lambda x, grad, places, **_: int(grad.size),
            "definition: one addition an element of the gradient",
            columns={"read": lambda x, grad, places, **_: grad.size_bytes + places.size_bytes},
        ),
    ),
    "avg_pool2d": _pooling(
        "definition: one addition an element of a window, padding counted as zeros",
        back=Back(
            "x dy",
            lambda x, grad, kernel, **_: int(grad.size * math.prod(kernel)),
            "definition: one addition an element of a window",
            columns={"read": lambda x, grad, **_: grad.size_bytes},
        ),
    ),
    "global_avg_pool": OpKind(
        global_pool_outputs,
        lambda x: int(x.size),
        example("2x3x7x8"),
        "definition: one addition an element",
        gradient=fused("expand", "dy", attrs=_mean),
    ),
    "resize2d": OpKind(
        resize_outputs,
        lambda x, size, mode, **_: RESIZES[mode] * resize_outputs(x, size, mode)[0].size,
        example("2x3x4x5", size=(6, 7), mode="bilinear", align_corners=False),
        "definition: a multiply-add for each of 4 or 16 neighbours; the nearest is copied",
        autocast="wide",
        back=Back(
            "dy",
            lambda grad, size, mode, **_: (RESIZES[mode] or 1) * grad.size,
            "derivative of resize2d: as many multiply-adds; of the nearest one addition an element",
            attrs=lambda b: {**b.attrs, "size": b.specs[0].shape[2:]},
            outputs=resize_outputs,
        ),
    ),
}

_DEPTH = {"stride": (1,), "padding": (0, 1), "dilation": (1,), "kernel": (2,), "output_size": (4,)}
_VOLUMES = {  # kinds over volumes, whose rules are those over images, and shapes of their examples
    "conv3d": "2x4x4x7x8 6x2x2x3x2",
    "conv3d_grad_weight": "2x4x4x7x8 2x6x4x4x6",
    "conv_transpose3d": "2x6x4x4x6 6x2x2x3x2",
    "max_pool3d": "2x3x3x7x8",
    "avg_pool3d": "2x3x3x7x8",
}


def _over_volumes(row: OpKind, shapes: str) -> OpKind:
    """Return the row of a kind over images with an example over volumes, a depth of its own."""
    attrs: dict[str, Any] = {**row.example.attrs}
    attrs |= {name: _DEPTH[name] + attrs[name] for name in attrs.keys() & _DEPTH}
    return replace(row, example=example(shapes, **attrs))


KINDS |= {
    kind: _over_volumes(KINDS[kind.replace("3d", "2d")], shapes)
    for kind, shapes in _VOLUMES.items()
}
OVER_VOLUMES = {
    name: name.replace("3d", "2d") for kind in _VOLUMES for name in rows_of(kind, KINDS[kind])
}
"""What kinds over volumes are over images."""
