"""How numpy runs convolutions and pooling over `[batch, channels, height, width]`.

Windows are a strided view of the padded image, so a convolution is one matrix product a group, and
what goes the other way adds each place of the window into the image, one place at a time.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from reference.kinds import Array, Ids, Run

Pair = tuple[int, int]
Sides = tuple[int, int, int, int]
NONE: Sides = (0, 0, 0, 0)
ONE: Pair = (1, 1)


def _padded(x: Array, padding: Sides, value: float = 0.0) -> Array:
    if not any(padding):
        return x
    sides = ((0, 0), (0, 0), padding[:2], padding[2:])
    return np.pad(x, sides, constant_values=value)


def _windows(x: Array, kernel: Pair, stride: Pair, dilation: Pair = ONE) -> Array:
    """Return the view `[n, c, oh, ow, kh, kw]` of a padded image."""
    reach = tuple(dilation[i] * (kernel[i] - 1) + 1 for i in (0, 1))
    view = sliding_window_view(x, reach, (2, 3))
    return view[:, :, :: stride[0], :: stride[1], :: dilation[0], :: dilation[1]]


def _columns(x: Array, kernel: Pair, stride: Pair, dilation: Pair, groups: int) -> Array:
    """Return the windows as rows of one matrix a group, `[g, n*oh*ow, c/g*kh*kw]`."""
    view = _windows(x, kernel, stride, dilation)
    n, c, oh, ow = view.shape[:4]
    view = view.reshape(n, groups, c // groups, oh, ow, *kernel)
    return view.transpose(1, 0, 3, 4, 2, 5, 6).reshape(groups, n * oh * ow, -1)


def _rows(x: Array, groups: int) -> Array:
    """Return an image as one matrix of positions a group, `[g, n*h*w, c/g]`."""
    n, c, h, w = x.shape
    grouped = x.reshape(n, groups, c // groups, h, w).transpose(1, 0, 3, 4, 2)
    return grouped.reshape(groups, n * h * w, c // groups)


def conv2d(
    x: Array,
    w: Array,
    stride: Pair = ONE,
    padding: Sides = NONE,
    dilation: Pair = ONE,
    groups: int = 1,
) -> Array:
    """Return the convolution."""
    image = _padded(x, padding)
    kernel = w.shape[2:]
    sizes = [
        (image.shape[2 + i] - dilation[i] * (kernel[i] - 1) - 1) // stride[i] + 1 for i in (0, 1)
    ]
    columns = _columns(image, kernel, stride, dilation, groups)
    filters = w.reshape(groups, w.shape[0] // groups, -1)
    y = (columns @ filters.mT).reshape(groups, x.shape[0], *sizes, -1)
    return np.ascontiguousarray(y.transpose(1, 0, 4, 2, 3)).reshape(x.shape[0], -1, *sizes)


def conv2d_grad_weight(
    x: Array,
    grad: Array,
    kernel: Pair,
    stride: Pair = ONE,
    padding: Sides = NONE,
    dilation: Pair = ONE,
    groups: int = 1,
) -> Array:
    """Return the windows of `x` times `grad`, summed over positions."""
    n, c = x.shape[:2]
    view = _windows(_padded(x, padding), kernel, stride, dilation)
    view = view[:, :, : grad.shape[2], : grad.shape[3]].reshape(
        n, groups, c // groups, *grad.shape[2:], *kernel
    )
    columns = view.transpose(1, 0, 3, 4, 2, 5, 6).reshape(groups, n * math.prod(grad.shape[2:]), -1)
    product = _rows(grad, groups).mT @ columns
    return product.reshape(grad.shape[1], c // groups, *kernel)


def _places(
    kernel: Pair, stride: Pair, dilation: Pair, count: Pair
) -> Iterator[tuple[int, int, slice, slice]]:
    """Return each place of a window, and where it lies in the image for `count` windows."""
    for i, j in itertools.product(range(kernel[0]), range(kernel[1])):
        rows, columns = (
            slice(at * dilation[k], at * dilation[k] + stride[k] * (count[k] - 1) + 1, stride[k])
            for k, at in ((0, i), (1, j))
        )
        yield i, j, rows, columns


def conv_transpose2d(
    x: Array,
    w: Array,
    output_size: Pair,
    stride: Pair = ONE,
    padding: Sides = NONE,
    dilation: Pair = ONE,
    groups: int = 1,
) -> Array:
    """Return each element's filter, scaled by it, added into the output."""
    n, _, h, width = x.shape
    kernel = w.shape[2:]
    made = _rows(x, groups) @ w.reshape(groups, w.shape[0] // groups, -1)
    made = made.reshape(groups, n, h, width, w.shape[1], *kernel).transpose(1, 0, 4, 2, 3, 5, 6)
    top, bottom, left, right = padding
    size = (output_size[0] + top + bottom, output_size[1] + left + right)
    out = np.zeros((n, groups, w.shape[1], *size), x.dtype)
    for i, j, rows, columns in _places(kernel, stride, dilation, (h, width)):
        out[..., rows, columns] += made[..., i, j]
    whole = out.reshape(n, -1, *size)
    return whole[:, :, top : top + output_size[0], left : left + output_size[1]]


def _pooled_size(x: Array, kernel: Pair, stride: Pair, padding: Sides, ceil: bool) -> Pair:
    """Return the number of windows; with `ceil` one may hang over if it starts before the end."""
    counts = []
    for i in (0, 1):
        before, after = padding[2 * i : 2 * i + 2]
        span = x.shape[2 + i] + before + after - kernel[i]
        count = (-(-span // stride[i]) if ceil else span // stride[i]) + 1
        hangs_free = ceil and (count - 1) * stride[i] >= x.shape[2 + i] + before
        counts.append(count - hangs_free)
    return counts[0], counts[1]


def _filled(
    x: Array, kernel: Pair, stride: Pair, padding: Sides, count: Pair, value: float
) -> Array:
    """Return `x` padded to exactly what `count` windows cover."""
    top, _, left, _ = padding
    reach = [stride[i] * (count[i] - 1) + kernel[i] for i in (0, 1)]
    bottom, right = reach[0] - top - x.shape[2], reach[1] - left - x.shape[3]
    whole = _padded(x, (top, max(0, bottom), left, max(0, right)), value)
    return whole[:, :, : reach[0], : reach[1]]


def max_pool2d(
    x: Array, kernel: Pair, stride: Pair, padding: Sides = NONE, ceil: bool = False
) -> tuple[Array, Ids]:
    """Return the maxima of windows, and the place of each in its map, row * width + column."""
    count = _pooled_size(x, kernel, stride, padding, ceil)
    view = _windows(_filled(x, kernel, stride, padding, count, -np.inf), kernel, stride)
    flat = view.reshape(*view.shape[:4], -1)
    best = flat.argmax(-1)
    y = np.take_along_axis(flat, best[..., None], -1)[..., 0]
    rows = np.arange(count[0])[:, None] * stride[0] - padding[0] + best // kernel[1]
    columns = np.arange(count[1]) * stride[1] - padding[2] + best % kernel[1]
    return y, (rows * x.shape[3] + columns).astype(np.int64)


def max_pool2d_grad(x: Array, grad: Array, places: Ids, **_: object) -> Array:
    """Return zeros with each gradient added at the place of its maximum."""
    maps = x.shape[0] * x.shape[1]
    out = np.zeros((maps, x.shape[2] * x.shape[3]), x.dtype)
    np.add.at(out, (np.arange(maps)[:, None], places.reshape(maps, -1)), grad.reshape(maps, -1))
    return out.reshape(x.shape)


def _window_sizes(x: Array, kernel: Pair, stride: Pair, padding: Sides, count: Pair) -> Array:
    """Return how many elements of the padded map each window holds, `[oh, ow]`."""
    sides = []
    for i in (0, 1):
        starts = np.arange(count[i]) * stride[i]
        end = x.shape[2 + i] + padding[2 * i] + padding[2 * i + 1]
        sides.append(np.minimum(starts + kernel[i], end) - starts)
    return np.outer(sides[0], sides[1]).astype(x.dtype)


def avg_pool2d(
    x: Array, kernel: Pair, stride: Pair, padding: Sides = NONE, ceil: bool = False
) -> Array:
    """Return the means of windows, padding counted as zeros; what lies beyond it is not counted."""
    count = _pooled_size(x, kernel, stride, padding, ceil)
    view = _windows(_filled(x, kernel, stride, padding, count, 0.0), kernel, stride)
    sums: Array = view.sum((-2, -1))
    return sums / _window_sizes(x, kernel, stride, padding, count)


def avg_pool2d_grad(
    x: Array,
    grad: Array,
    kernel: Pair,
    stride: Pair,
    padding: Sides = NONE,
    ceil: bool = False,  # an attribute of the kind: the gradient's shape says it
) -> Array:
    """Return each window's gradient spread evenly over it."""
    count = (grad.shape[2], grad.shape[3])
    share = grad / _window_sizes(x, kernel, stride, padding, count)
    top, _, left, _ = padding
    size = [
        max(x.shape[2 + i] + padding[2 * i], stride[i] * (count[i] - 1) + kernel[i]) for i in (0, 1)
    ]
    out = np.zeros((*x.shape[:2], *size), x.dtype)
    for _i, _j, rows, columns in _places(kernel, stride, ONE, count):
        out[:, :, rows, columns] += share
    return out[:, :, top : top + x.shape[2], left : left + x.shape[3]]


def global_avg_pool(x: Array) -> Array:
    """Return the mean of each map."""
    means: Array = x.mean((2, 3))
    return means


def upsample2d(x: Array, scale: Pair) -> Array:
    """Return each element repeated."""
    return x.repeat(scale[0], 2).repeat(scale[1], 3)


def upsample2d_grad(grad: Array, scale: Pair) -> Array:
    """Return the gradient summed over the copies of each element."""
    n, c, h, w = grad.shape
    parted = grad.reshape(n, c, h // scale[0], scale[0], w // scale[1], scale[1])
    sums: Array = parted.sum((3, 5))
    return sums


RUNS: dict[str, Run] = {
    "conv2d": conv2d,
    "conv2d_grad_weight": conv2d_grad_weight,
    "conv_transpose2d": conv_transpose2d,
    "max_pool2d": max_pool2d,
    "max_pool2d_grad": max_pool2d_grad,
    "avg_pool2d": avg_pool2d,
    "avg_pool2d_grad": avg_pool2d_grad,
    "global_avg_pool": global_avg_pool,
    "upsample2d": upsample2d,
    "upsample2d_grad": upsample2d_grad,
}
