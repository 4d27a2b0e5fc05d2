"""Windows of tensors, for all file formats: cut out (im2col), and added up again."""

import math
from collections.abc import Sequence

from steptime.core.windows import count_positions, tensorflow_padding
from steptime.formats import elements as el
from steptime.formats.tensors import axis_of, free_name
from steptime.network.ops.builder import Builder
from steptime.network.ops.table import require

Sizes = Sequence[int]  # of each axis


def resolve_padding(
    padding: Sizes | str, size: Sizes, kernel: Sizes, stride: Sizes, dilation: Sizes
) -> list[int]:
    """Return the padding before and after each axis, where a file may say it by a word.

    `same` gives outputs of `ceil(size / stride)` with the odd element of padding after,
    `same_lower` with it before; `causal` pads only before, `valid` not at all.
    """
    if not isinstance(padding, str):
        return list(padding)
    sides: list[int] = []
    axes = zip(size, kernel, stride, dilation, strict=True)
    for axis_size, axis_kernel, axis_stride, axis_dilation in axes:
        span = (axis_kernel - 1) * axis_dilation  # from the first element of a window to its last
        smaller, larger = tensorflow_padding(axis_size, span + 1, axis_stride)
        sides_by_word = {
            "same": (smaller, larger),
            "same_lower": (larger, smaller),
            "causal": (span, 0),
            "valid": (0, 0),
        }
        sides += sides_by_word[padding]
    return sides


def cut_windows(
    b: Builder, x: str, axis: int, size: int, name: str, step: int = 1, dilation: int = 1
) -> str:
    """Return `x` with `[count, size]` in place of `axis`: windows that begin `step` apart.

    Windows that do not overlap are a view, windows of one element a slice; others are gathered.
    """
    axis = axis_of(b, x, axis)
    shape = b.shape(x)
    count = count_positions(shape[axis], size, step, dilation=dilation)
    require(min(size, step, dilation, count) >= 1, f"{name}: windows of {size} in {list(shape)}")
    are_tiles = dilation == 1 and size == step
    if are_tiles:  # without a gap or an overlap: only the rest behind the last window is cut off
        elements = el.slice_(b, x, axis, start=0, stop=count * size, name=f"{name}/whole")
    elif size == 1:  # every `step`-th element
        elements = el.slice_(b, x, axis, start=0, stop=shape[axis], name=f"{name}/some", step=step)
    else:  # an element lies in several windows, or in none: no view can say which
        indices = b.buffer(free_name(b, f"{name}/places"), (count, size), "int64")
        return el.append_op(b, "gather", x, indices, name=name, axis=axis)
    windows_shape = (*shape[:axis], count, size, *shape[axis + 1 :])
    return el.reshape(b, elements, windows_shape, name)


def unfold(b: Builder, x: str, kernel: Sizes, stride: Sizes, dilation: Sizes, name: str) -> str:
    """Return the windows of an image that is padded already.

    `[n, c, h, w] -> [n, c*kh*kw, oh*ow]`.
    """
    examples, channels, *_ = b.shape(x)
    height, width = kernel
    row_step, column_step = stride
    row_dilation, column_dilation = dilation
    # [n, c, h, w] -> [n, c, oh, kh, w] -> [n, c, oh, kh, ow, kw] -> [n, c, kh, kw, oh, ow]
    cut_rows = cut_windows(
        b, x, axis=2, size=height, name=f"{name}/rows", step=row_step, dilation=row_dilation
    )
    cut_both = cut_windows(
        b,
        cut_rows,
        axis=4,
        size=width,
        name=f"{name}/columns",
        step=column_step,
        dilation=column_dilation,
    )
    kernel_first = el.transpose(b, cut_both, (0, 1, 3, 5, 2, 4), f"{name}/transpose")
    return el.reshape(b, kernel_first, (examples, channels * height * width, -1), name)


def fold(b: Builder, x: str, size: Sizes, kernel: Sizes, stride: Sizes, name: str) -> str:
    """Return an image of `size`, the sums of its windows `[n, c*kh*kw, count]`.

    Each pixel gathers the elements of all windows that cover it and adds them up. Pixels that fewer
    windows cover gather a padded 0 instead.
    """
    examples, rows, window_count = b.shape(x)
    kernel_size = math.prod(kernel)
    channels = rows // kernel_size
    windows_by_axis = [
        math.ceil(axis_kernel / axis_stride)
        for axis_kernel, axis_stride in zip(kernel, stride, strict=True)
    ]
    max_windows = math.prod(windows_by_axis)  # that cover a pixel
    flat_shape = (examples, channels, kernel_size * window_count)
    flat = el.reshape(b, x, flat_shape, f"{name}/flat")
    # pixels that fewer windows cover gather this last 0 in place of an element
    padded = el.pad(b, flat, (0, 0, 0, 0, 0, 1), f"{name}/nothing")
    indices_shape = (math.prod(size), max_windows)
    indices = b.buffer(free_name(b, f"{name}/places"), indices_shape, "int64")
    parts = el.gather(b, padded, indices, axis=2, name=f"{name}/windows")
    sums = el.reduce(b, "sum", parts, (3,), name)
    return el.reshape(b, sums, (examples, channels, *size), f"{name}/image")
