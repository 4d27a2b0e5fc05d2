"""How formats of networks lower windows of tensors: cut out of them, and added up again."""

import math
from collections.abc import Sequence

from steptime.core.windows import positions, tensorflow_padding
from steptime.formats import elements as el
from steptime.network.ops.builder import Builder
from steptime.network.ops.table import require

Sizes = Sequence[int]  # one an axis


def resolve_padding(
    padding: Sizes | str, size: Sizes, kernel: Sizes, stride: Sizes, dilation: Sizes
) -> list[int]:
    """Return the padding before and after each axis, which a file may say by a word.

    `same` keeps `ceil(size / stride)` with more after than before, `same_lower` with more before;
    `causal` has all of it before, `valid` none.
    """
    if not isinstance(padding, str):
        return list(padding)
    sides: list[int] = []
    for n, k, step, apart in zip(size, kernel, stride, dilation, strict=True):
        span = (k - 1) * apart
        before, after = tensorflow_padding(n, span + 1, step)
        pairs = {"same": (before, after), "same_lower": (after, before), "causal": (span, 0)}
        sides += (0, 0) if padding == "valid" else pairs[padding]
    return sides


def cut_windows(
    b: Builder, x: str, axis: int, size: int, name: str, step: int = 1, dilation: int = 1
) -> str:
    """Return `x` with `[count, size]` in place of `axis`: windows that begin `step` apart."""
    axis, shape = el.axis_of(b, x, axis), b.shape(x)
    count = positions(shape[axis], size, step, dilation=dilation)
    require(min(size, step, dilation, count) >= 1, f"{name}: windows of {size} in {list(shape)}")
    apart = (*shape[:axis], count, size, *shape[axis + 1 :])
    if dilation == 1 and size == step:
        x = el.slice_(b, x, axis, 0, count * size, f"{name}/whole")
    elif size == 1:
        x = el.slice_(b, x, axis, 0, shape[axis], f"{name}/some", step)
    else:
        places = b.buffer(el.free_name(b, f"{name}/places"), (count, size), "int64")
        return el.op(b, "gather", x, places, name=name, axis=axis)
    return el.reshape(b, x, apart, name)


def unfold(b: Builder, x: str, kernel: Sizes, stride: Sizes, dilation: Sizes, name: str) -> str:
    """Return the windows of an image, padded before, `[n, c, h, w] -> [n, c*kh*kw, oh*ow]`."""
    n, c = b.shape(x)[:2]
    for i, suffix in enumerate(("rows", "columns")):
        how = {"step": stride[i], "dilation": dilation[i]}
        x = cut_windows(b, x, 2 + 2 * i, kernel[i], f"{name}/{suffix}", **how)
    x = el.transpose(b, x, (0, 1, 3, 5, 2, 4), f"{name}/transpose")
    return el.reshape(b, x, (n, c * kernel[0] * kernel[1], -1), name)


def fold(b: Builder, x: str, size: Sizes, kernel: Sizes, stride: Sizes, name: str) -> str:
    """Return an image of `size`, the sums of its windows `[n, c*kh*kw, count]`.

    What adds to a pixel is looked up, among it a 0 for nothing.
    """
    n, rows, columns = b.shape(x)
    most = math.prod(-(-k // s) for k, s in zip(kernel, stride, strict=True))
    flat = (n, rows // math.prod(kernel), math.prod(kernel) * columns)
    x = el.pad(b, el.reshape(b, x, flat, f"{name}/flat"), (0, 0, 0, 0, 0, 1), f"{name}/nothing")
    places = b.buffer(el.free_name(b, f"{name}/places"), (math.prod(size), most), "int64")
    parts = el.gather(b, x, places, 2, f"{name}/windows")
    summed = el.reduce(b, "sum", parts, (3,), name)
    return el.reshape(b, summed, (*flat[:2], *size), f"{name}/image")
