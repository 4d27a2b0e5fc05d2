"""How numpy runs convolutions and pooling over `[batch, channels, (depth,) height, width]`.

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
Sizes = tuple[int, ...]  # one an axis
Sides = tuple[int, ...]  # before and after each axis


def _pairs(padding: Sides, axes: int) -> list[Pair]:
    return list(zip(padding[::2], padding[1::2], strict=True)) or [(0, 0)] * axes


def _padded(x: Array, padding: Sides, value: float = 0.0) -> Array:
    if not any(padding):
        return x
    sides = ((0, 0), (0, 0), *_pairs(padding, x.ndim - 2))
    return np.pad(x, sides, constant_values=value)


def _windows(x: Array, kernel: Sizes, stride: Sizes, dilation: Sizes = ()) -> Array:
    """Return the view `[n, c, oh, ow, kh, kw]` of a padded image."""
    dilation = dilation or (1,) * len(kernel)
    reach = tuple(apart * (size - 1) + 1 for apart, size in zip(dilation, kernel, strict=True))
    view = sliding_window_view(x, reach, tuple(range(2, x.ndim)))
    return view[(slice(None), slice(None), *(slice(None, None, n) for n in (*stride, *dilation)))]


def _columns(view: Array, groups: int) -> Array:
    """Return windows as rows of one matrix a group, `[g, n*oh*ow, c/g*kh*kw]`."""
    axes = (view.ndim - 2) // 2
    n, c, *sizes = view.shape
    view = view.reshape(n, groups, c // groups, *sizes)
    places, taps = range(3, 3 + axes), range(3 + axes, 3 + 2 * axes)
    view = view.transpose(1, 0, *places, 2, *taps)
    return view.reshape(groups, n * math.prod(sizes[:axes]), -1)


def _rows(x: Array, groups: int) -> Array:
    """Return an image as one matrix of positions a group, `[g, n*h*w, c/g]`."""
    n, c, *sizes = x.shape
    grouped = x.reshape(n, groups, c // groups, *sizes)
    grouped = grouped.transpose(1, 0, *range(3, grouped.ndim), 2)
    return grouped.reshape(groups, n * math.prod(sizes), c // groups)


def convolution(
    x: Array,
    w: Array,
    stride: Sizes = (),
    padding: Sides = (),
    dilation: Sizes = (),
    groups: int = 1,
) -> Array:
    """Return the convolution."""
    kernel = w.shape[2:]
    view = _windows(_padded(x, padding), kernel, stride or (1,) * len(kernel), dilation)
    sizes = view.shape[2 : 2 + len(kernel)]
    filters = w.reshape(groups, w.shape[0] // groups, -1)
    y = (_columns(view, groups) @ filters.mT).reshape(groups, x.shape[0], *sizes, -1)
    y = y.transpose(1, 0, y.ndim - 1, *range(2, y.ndim - 1))
    return np.ascontiguousarray(y).reshape(x.shape[0], -1, *sizes)


def grad_weight(
    x: Array,
    grad: Array,
    kernel: Sizes,
    stride: Sizes = (),
    padding: Sides = (),
    dilation: Sizes = (),
    groups: int = 1,
) -> Array:
    """Return the windows of `x` times `grad`, summed over positions."""
    view = _windows(_padded(x, padding), kernel, stride or (1,) * len(kernel), dilation)
    view = view[(slice(None), slice(None), *map(slice, grad.shape[2:]))]
    product = _rows(grad, groups).mT @ _columns(view, groups)
    return product.reshape(grad.shape[1], x.shape[1] // groups, *kernel)


def _places(
    kernel: Sizes, stride: Sizes, dilation: Sizes, count: Sizes
) -> Iterator[tuple[Sizes, tuple[slice, ...]]]:
    """Return each place of a window, and where it lies in the image for `count` windows."""
    for place in itertools.product(*map(range, kernel)):
        axes = zip(place, stride, dilation, count, strict=True)
        yield (
            place,
            tuple(
                slice(at * apart, at * apart + step * (n - 1) + 1, step)
                for at, step, apart, n in axes
            ),
        )


def transposed(
    x: Array,
    w: Array,
    output_size: Sizes,
    stride: Sizes = (),
    padding: Sides = (),
    dilation: Sizes = (),
    groups: int = 1,
) -> Array:
    """Return each element's filter, scaled by it, added into the output."""
    n, _, *count = x.shape
    kernel = w.shape[2:]
    axes, ones = len(kernel), (1,) * len(kernel)
    made = _rows(x, groups) @ w.reshape(groups, w.shape[0] // groups, -1)
    made = made.reshape(groups, n, *count, w.shape[1], *kernel)
    order = (1, 0, 2 + axes, *range(2, 2 + axes), *range(3 + axes, 3 + 2 * axes))
    made = made.transpose(order)
    pairs = _pairs(padding, axes)
    size = [wanted + sum(pair) for wanted, pair in zip(output_size, pairs, strict=True)]
    out = np.zeros((n, groups, w.shape[1], *size), x.dtype)
    for place, where in _places(kernel, stride or ones, dilation or ones, tuple(count)):
        out[(..., *where)] += made[(..., *place)]
    inner = (slice(pair[0], pair[0] + n) for pair, n in zip(pairs, output_size, strict=True))
    return out.reshape(n, -1, *size)[(..., *inner)]


def _pooled_size(x: Array, kernel: Sizes, stride: Sizes, padding: Sides, ceil: bool) -> Sizes:
    """Return the number of windows; with `ceil` one may hang over if it starts before the end."""
    counts = []
    for i, (before, after) in enumerate(_pairs(padding, len(kernel))):
        span = x.shape[2 + i] + before + after - kernel[i]
        count = (-(-span // stride[i]) if ceil else span // stride[i]) + 1
        hangs_free = ceil and (count - 1) * stride[i] >= x.shape[2 + i] + before
        counts.append(count - hangs_free)
    return tuple(counts)


def _filled(
    x: Array, kernel: Sizes, stride: Sizes, padding: Sides, count: Sizes, value: float
) -> Array:
    """Return `x` padded to exactly what `count` windows cover."""
    reach = [stride[i] * (count[i] - 1) + kernel[i] for i in range(len(kernel))]
    sides: list[int] = []
    for i, (before, _) in enumerate(_pairs(padding, len(kernel))):
        sides += (before, max(0, reach[i] - before - x.shape[2 + i]))
    return _padded(x, tuple(sides), value)[(..., *map(slice, reach))]


def max_pool(
    x: Array, kernel: Sizes, stride: Sizes, padding: Sides = (), ceil: bool = False
) -> tuple[Array, Ids]:
    """Return the maxima of windows, and the place of each in its map, row * width + column."""
    count = _pooled_size(x, kernel, stride, padding, ceil)
    view = _windows(_filled(x, kernel, stride, padding, count, -np.inf), kernel, stride)
    flat = view.reshape(*view.shape[: x.ndim], -1)
    best = flat.argmax(-1)
    y = np.take_along_axis(flat, best[..., None], -1)[..., 0]
    starts = np.ogrid[tuple(map(slice, count))]
    sides = _pairs(padding, len(kernel))
    inside = np.unravel_index(best, kernel)
    at = [starts[i] * stride[i] - sides[i][0] + inside[i] for i in range(len(kernel))]
    return y, np.ravel_multi_index(at, x.shape[2:]).astype(np.int64)


def max_pool_grad(x: Array, grad: Array, places: Ids, **_: object) -> Array:
    """Return zeros with each gradient added at the place of its maximum."""
    maps = x.shape[0] * x.shape[1]
    out = np.zeros((maps, math.prod(x.shape[2:])), x.dtype)
    np.add.at(out, (np.arange(maps)[:, None], places.reshape(maps, -1)), grad.reshape(maps, -1))
    return out.reshape(x.shape)


def _window_sizes(x: Array, kernel: Sizes, stride: Sizes, padding: Sides, count: Sizes) -> Array:
    """Return how many elements of the padded map each window holds, `[oh, ow]`."""
    sides = []
    for i, pair in enumerate(_pairs(padding, len(kernel))):
        starts = np.arange(count[i]) * stride[i]
        sides.append(np.minimum(starts + kernel[i], x.shape[2 + i] + sum(pair)) - starts)
    sizes: Array = math.prod(np.ix_(*sides)).astype(x.dtype)
    return sizes


def avg_pool(
    x: Array, kernel: Sizes, stride: Sizes, padding: Sides = (), ceil: bool = False
) -> Array:
    """Return the means of windows, padding counted as zeros; what lies beyond it is not counted."""
    count = _pooled_size(x, kernel, stride, padding, ceil)
    view = _windows(_filled(x, kernel, stride, padding, count, 0.0), kernel, stride)
    sums: Array = view.sum(tuple(range(x.ndim, view.ndim)))
    return sums / _window_sizes(x, kernel, stride, padding, count)


def avg_pool_grad(
    x: Array,
    grad: Array,
    kernel: Sizes,
    stride: Sizes,
    padding: Sides = (),
    ceil: bool = False,  # an attribute of the kind: the gradient's shape says it
) -> Array:
    """Return each window's gradient spread evenly over it."""
    count = grad.shape[2:]
    share = grad / _window_sizes(x, kernel, stride, padding, count)
    pairs = _pairs(padding, len(kernel))
    size = [
        max(x.shape[2 + i] + pair[0], stride[i] * (count[i] - 1) + kernel[i])
        for i, pair in enumerate(pairs)
    ]
    out = np.zeros((*x.shape[:2], *size), x.dtype)
    for _, where in _places(kernel, stride, (1,) * len(kernel), count):
        out[(..., *where)] += share
    inner = (slice(pair[0], pair[0] + n) for pair, n in zip(pairs, x.shape[2:], strict=True))
    return out[(..., *inner)]


def global_avg_pool(x: Array) -> Array:
    """Return the mean of each map."""
    means: Array = x.mean((2, 3))
    return means


RUNS: dict[str, Run] = {
    **{
        f"{name}{axes}d{suffix}": run
        for axes in (2, 3)
        for name, suffix, run in (
            ("conv", "", convolution),
            ("conv", "_grad_weight", grad_weight),
            ("conv_transpose", "", transposed),
            ("max_pool", "", max_pool),
            ("max_pool", "_grad", max_pool_grad),
            ("avg_pool", "", avg_pool),
            ("avg_pool", "_grad", avg_pool_grad),
        )
    },
    "global_avg_pool": global_avg_pool,
}
