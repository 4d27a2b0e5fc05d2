"""Pooling and up-sampling over images `[batch, channels, height, width]`."""

from typing import Any

from steptime.core.graph import TensorSpec
from steptime.core.windows import positions
from steptime.ops.convolution import Pair, Sides
from steptime.ops.table import (
    Backward,
    OpKind,
    Specs,
    Window,
    example,
    fused,
    no_flop,
    require,
    show,
)


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

KINDS = {
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
