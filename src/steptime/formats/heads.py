"""How heads of attention, `[n, heads, length, width]`, are joined, and repeated where shared."""

import math

from steptime.formats.elements import find_producer, op, reshape, transpose
from steptime.network.ops.builder import Builder


def join_heads(b: Builder, x: str, name: str) -> str:
    """Return `[n, h, l, d] -> [n, l, h*d]`."""
    n, heads, length, width = b.shape(x)
    seen = transpose(b, x, (0, 2, 1, 3), f"{name}/transpose")
    return reshape(b, seen, (n, length, heads * width), f"{name}/join")


def split_heads(b: Builder, x: str, heads: int, name: str) -> str:
    """Return `[n, l, h*d] -> [n, h, l, d]`."""
    n, length, width = b.shape(x)
    seen = reshape(b, x, (n, length, heads, width // heads), f"{name}/heads")
    return transpose(b, seen, (0, 2, 1, 3), f"{name}/transpose")


def find_shared_heads(b: Builder, x: str, name: str) -> str:
    """Return `[n, g, m, d]` where `x [n, h, m, d]` repeats each of its heads, else `x`."""
    turned = find_producer(b, x, "transpose")
    axis = 3 if turned and turned.attrs["order"] == (0, 2, 1, 3) else 2
    wide = find_producer(b, turned.inputs[0] if turned and axis == 3 else x, "reshape")
    repeat = find_producer(b, wide.inputs[0] if wide else x, "broadcast", "tile")
    if repeat is None:
        return x
    own, shape = b.shape(repeat.inputs[0]), b.shape(repeat.outputs[0])
    if not wide:  # one head, seen as all of them
        alone = own == (*shape[:1], 1, *shape[2:])
        return repeat.inputs[0] if alone and axis == 2 else x
    wanted = (*own[: axis - 1], math.prod(shape[axis - 1 : axis + 1]), *own[axis + 1 :])
    each = (*own[:axis], shape[axis], *own[axis + 1 :]) if len(own) == 5 else ()
    if own[axis : axis + 1] != (1,) or shape != each or b.shape(wide.outputs[0]) != wanted:
        return x
    once = reshape(b, repeat.inputs[0], (*own[:axis], *own[axis + 1 :]), f"{name}/shared")
    return transpose(b, once, (0, 2, 1, 3), f"{name}/heads") if axis == 3 else once


def repeat_heads(b: Builder, x: str, times: int, name: str) -> str:
    """Return `[n, g, m, d] -> [n, g*times, m, d]`, each head again and again."""
    n, groups, length, width = b.shape(x)
    seen = reshape(b, x, (n, groups, 1, length, width), f"{name}/apart")
    seen = op(b, "tile", seen, name=f"{name}/repeat", times=(1, 1, times, 1, 1))
    return reshape(b, seen, (n, groups * times, length, width), f"{name}/reshape")
