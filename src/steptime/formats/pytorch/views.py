"""ATen ops that move, cut, join or repeat elements, onto `formats/lowering.py`."""

import math
from collections.abc import Callable, Mapping
from typing import Any

from steptime.formats import elements as el
from steptime.formats import windows
from steptime.formats.pytorch.walk import Call, Const, Handler, Result, Value, held_as, listed
from steptime.formats.tensors import is_float
from steptime.network.ops.table import broadcast_shape, require

END = 2**62
PADDING = {"replicate": "edge", "replication": "edge", "reflection": "reflect"}


def _cast(c: Call) -> Result:
    x, dtype = c.x(), held_as(c.dtype)
    if not dtype and is_float(c.b, x):  # the workload says in which type it computes
        return x
    return c.do(el.cast, x, dtype or c.b.precision.weights)


def _detach(c: Call) -> Result:
    """Return a view without a gradient; in inference, and of what has none, the tensor itself."""
    x = c.first
    return c.do(el.op, "detach", x) if c.b.training and is_float(c.b, x) else x


def _view(c: Call) -> Result:
    before = c.walk.told(c.node.args["self"])
    return c.do(el.reshape, c.x(), c.walk.batches.view_shape(before, c.b.shape(c.x()), c.shape))


def _squeeze(c: Call) -> Result:
    """Return a tensor without axes of size 1; an open batch stays, also where it is 1."""
    axes, shape, source = c.get("dim"), c.b.shape(c.x()), c.node.args["self"]
    told = c.walk.told(source) if axes is not None else shape
    is_open = [not isinstance(size, int) for size in c.walk.program.specs[source].sizes]
    rank = len(shape)
    chosen = range(rank) if axes is None else [axis % max(1, rank) for axis in listed(axes)]
    return c.do(
        el.reshape,
        c.x(),
        [n for i, n in enumerate(shape) if i not in chosen or told[i] != 1 or is_open[i]],
    )


def _expand(c: Call) -> Result:
    return c.do(el.expand, c.x(), c.widened(c.b.shape(c.x()), c.shape))


def _order(c: Call) -> list[int]:
    order = list(range(len(c.shape)))
    if c.node.op == "permute":
        return [axis % len(order) for axis in c["dims"]]
    if len(order) > 1:
        i, j = c.get("dim0", c.get("axis0", 0)), c.get("dim1", c.get("axis1", 1))
        order[i], order[j] = order[j], order[i]
    return order


def _movedim(c: Call) -> Result:
    rank = len(c.shape)
    source, target = ([i % rank for i in listed(c[name])] for name in ("source", "destination"))
    rest = iter(i for i in range(rank) if i not in source)
    order = [source[target.index(i)] if i in target else next(rest) for i in range(rank)]
    return c.do(el.transpose, c.x(), order)


def _slice(c: Call) -> Result:
    axis, start, stop = c.get("dim", 0), c.get("start", 0), c.get("end", END)
    if c.node.op == "narrow":
        stop = start + c["length"]
    if c.shape[axis] == 0:  # nothing, which concatenations leave out
        return Const(c.shape, c.dtype, c.name)
    if c.walk.batches.differ and (start, stop) == (0, c.walk.told(c.node.args["self"])[axis]):
        stop = END
    return el.slice_(c.b, c.x(), axis, start, stop, c.name, c.get("step", 1))


def _put(c: Call, part: Value, axis: int, start: int, stop: int) -> Value:
    """Return the first operand of a call with `part` in place of what a slice takes of it."""
    x, new = c.x(), c.walk.tensor(part)
    size = c.b.shape(x)[axis]
    first, last, _ = slice(start, stop).indices(size)
    if (first, last) == (0, size):
        return new
    ends = [one for one in ((0, first), (last, size)) if one[0] < one[1]]
    whole = [c.do(el.slice_, x, axis, *one, at="/rest") for one in ends]
    whole.insert(int(first > 0), new)
    return c.do(el.concat, whole, axis, at="/put")


def _put_slice(c: Call, part: Value) -> Value:
    start, step = c.get("start", 0), c.get("step", 1)
    stop = start + c["length"] if c.node.op == "narrow" else c.get("end", END)
    require(step == 1, f"it writes to every place of {step}")
    return _put(c, part, c.get("dim", 0), start, stop)


def _put_select(c: Call, part: Value) -> Value:
    shape, axis = c.walk.shape(c["self"]), c.get("dim", 0)
    axis %= len(shape)
    index = c["index"] % shape[axis]
    one = (*shape[:axis], 1, *shape[axis + 1 :])
    new = c.do(el.reshape, c.walk.tensor(part), one, at="/put")
    return _put(c, new, axis, index, index + 1)


def _put_back(c: Call, part: Value) -> Value:
    return c.do(el.reshape, c.walk.tensor(part), c.walk.shape(c["self"]), at="/put")


def _put_order(c: Call, part: Value) -> Value:
    order = _order(c)
    back = [order.index(i) for i in range(len(order))]
    return c.do(el.transpose, c.walk.tensor(part), back, at="/put")


PUTS: Mapping[str, Callable[[Call, Value], Value]] = {
    **dict.fromkeys(("slice", "narrow"), _put_slice),
    **dict.fromkeys(("view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze"), _put_back),
    **dict.fromkeys(("alias", "detach", "view_as"), _put_back),
    **dict.fromkeys(("permute", "transpose", "t"), _put_order),
    "select": _put_select,
}
"""What a tensor has become by a view of it and what was written there."""


def _split(c: Call) -> Result:
    axis = c.axis(c.get("dim", 0))
    whole, sizes = c.b.shape(c.x())[axis], [c.walk.told(name)[axis] for name in c.node.outputs]
    if sum(sizes) != whole:  # along the batch
        require(whole % len(sizes) == 0, f"parts {sizes} of {whole}")
        sizes = [whole // len(sizes)] * len(sizes)
    return el.split(c.b, c.x(), sizes, axis, c.name)


def _unbind(c: Call) -> Result:
    axis, count = c.get("dim", 0), len(c.node.outputs)
    return [el.select(c.b, c.x(), axis, i, f"{c.name}/{i}") for i in range(count)]


def _cat(c: Call) -> Result:
    parts = [one for one in c["tensors"] if 0 not in c.walk.shape(one)]
    return c.do(el.concat, [*map(c.walk.tensor, parts)], c.get("dim", 0))


def _repeat(c: Call) -> Result:
    times, x = listed(c.get("repeats", c.get("dims"))), c.x()
    times = [1] * (len(c.b.shape(x)) - len(times)) + times
    shape = (*(1,) * (len(times) - len(c.b.shape(x))), *c.b.shape(x))
    x = c.do(el.reshape, x, shape, at="/axes")
    if all(1 in pair for pair in zip(shape, times, strict=True)):
        wanted = [n * t for n, t in zip(shape, times, strict=True)]
        return c.do(el.expand, x, c.widened(shape, wanted))
    return el.op(c.b, "tile", x, name=c.name, times=tuple(times))


def _repeat_interleave(c: Call) -> Result:
    times, axis, shape = c["repeats"], c.get("dim"), c.b.shape(c.x())
    require(isinstance(times, int) and axis is not None, "repeats that are not a number")
    before, after = shape[: axis % len(shape) + 1], shape[axis % len(shape) + 1 :]
    apart = c.do(el.reshape, c.x(), (*before, 1, *after), at="/apart")
    wide = c.do(el.expand, apart, (*before, times, *after), at="/repeat")
    return c.do(el.reshape, wide, (*before[:-1], before[-1] * times, *after))


def _roll(c: Call) -> Result:
    x, axes = c.x(), listed(c.get("dims"))
    require(bool(axes), "a roll of the flattened tensor")
    for axis, shift in zip(axes, listed(c["shifts"]), strict=True):
        size = c.b.shape(x)[axis]
        if cut := -shift % size:
            parts = el.split(c.b, x, [cut, size - cut], axis, c.name)
            x = c.do(el.concat, parts[::-1], axis)
    return x


def _pad(c: Call) -> Result:
    sizes, rank = listed(c.get("pad", c.get("padding"))), len(c.b.shape(c.x()))
    pads = [0] * (2 * rank)
    for i in range(len(sizes) // 2):
        pads[2 * (rank - 1 - i) : 2 * (rank - i)] = sizes[2 * i : 2 * i + 2]
    mode = c.get("mode", "constant")
    if c.node.op not in {"pad", "constant_pad_nd"}:
        mode = c.node.op.partition("_")[0]
    return el.pad(c.b, c.x(), pads, c.name, PADDING.get(mode, mode), float(c.get("value", 0.0)))


def _index(c: Call) -> Result:
    x, given = c.x(), c["indices"]
    axes = [i for i, one in enumerate(given) if one is not None]
    require(axes == list(range(axes[0], axes[-1] + 1)), "indices of axes that do not lie together")
    types = [
        one.dtype if isinstance(one, Const) else c.b.tensors[one].dtype for one in given if one
    ]
    require("bool" not in types, "the places of a mask: how many there are depends on values")
    if len(axes) == 1:
        return c.do(el.gather, x, c.walk.tensor(given[axes[0]]), axes[0])
    shape, first, last = c.b.shape(x), axes[0], axes[-1] + 1
    flat = (*shape[:first], math.prod(shape[first:last]), *shape[last:])
    places = broadcast_shape(*(c.walk.shape(one) for one in given if one))
    require(places is not None, "indices whose shapes do not broadcast")
    at = c.walk.tensor(Const(places or (), "int64", f"{c.name}/places"))
    return c.do(el.gather, el.reshape(c.b, x, flat, f"{c.name}/axes"), at, first)


def _pixel_shuffle(c: Call) -> Result:
    r: Any = c.get("upscale_factor", c.get("downscale_factor"))
    n, channels, height, width = c.b.shape(c.x())
    apart, order = (n, channels // (r * r), r, r, height, width), (0, 1, 4, 2, 5, 3)
    if c.node.op == "pixel_unshuffle":
        apart, order = (n, channels, height // r, r, width // r, r), (0, 1, 3, 5, 2, 4)
    y = c.do(el.reshape, c.x(), apart, at="/apart")
    y = c.do(el.transpose, y, order, at="/order")
    return c.do(el.reshape, y, (n, *c.shape[1:]))


def _unfold(c: Call) -> Result:
    x, rank = c.x(), len(c.b.shape(c.x()))
    axis = c.axis(c["dimension"])
    y = windows.cut_windows(c.b, x, axis, c["size"], f"{c.name}/windows", c["step"])
    order = [*(i for i in range(rank + 1) if i != axis + 1), axis + 1]
    return c.do(el.transpose, y, order)


def _image_to_columns(c: Call) -> Result:
    sides = [side for size in listed(c["padding"]) for side in (size, size)]
    x = c.do(el.pad, c.x(), (0, 0, 0, 0, *sides), at="/pad")
    return c.do(
        windows.unfold, x, *(listed(c[name]) for name in ("kernel_size", "stride", "dilation"))
    )


def _columns_to_image(c: Call) -> Result:
    size, kernel, stride = (listed(c[name]) for name in ("output_size", "kernel_size", "stride"))
    return c.do(windows.fold, c.x(), size, kernel, stride)


VIEWS: Mapping[str, Handler] = {
    **dict.fromkeys(
        ("alias", "clone", "contiguous", "lift_fresh_copy", "lift_fresh", "lift"), lambda c: c.first
    ),
    "detach": _detach,
    **dict.fromkeys(("to", "_to_copy", "type_as", "float", "bfloat16", "half"), _cast),
    **dict.fromkeys(("view", "reshape", "_unsafe_view", "flatten", "unflatten", "ravel"), _view),
    **dict.fromkeys(("view_as", "reshape_as"), _view),
    **dict.fromkeys(
        ("permute", "transpose", "swapaxes", "t", "numpy_T"),
        lambda c: c.do(el.transpose, c.x(), _order(c)),
    ),
    **dict.fromkeys(("expand", "expand_as"), _expand),
    **dict.fromkeys(("slice", "narrow"), _slice),
    **dict.fromkeys(("split", "split_with_sizes", "chunk", "tensor_split"), _split),
    **dict.fromkeys(("cat", "concat", "concatenate"), _cat),
    **dict.fromkeys(("repeat", "tile"), _repeat),
    "squeeze": _squeeze,
    "unsqueeze": lambda c: c.do(el.unsqueeze, c.x(), c["dim"]),
    "movedim": _movedim,
    "select": lambda c: el.select(c.b, c.x(), c.get("dim", 0), c["index"], c.name),
    "unbind": _unbind,
    "stack": lambda c: c.do(el.stack, [*map(c.walk.tensor, c["tensors"])], c.get("dim", 0)),
}
OTHERS: Mapping[str, Handler] = {
    **dict.fromkeys(
        (
            *("zeros_like", "ones_like", "full_like", "empty_like", "rand_like", "randn_like"),
            *("new_zeros", "new_ones", "new_full", "new_empty", "zero", "fill"),
        ),
        lambda c: Const(c.shape, c.dtype, c.name),
    ),
    **dict.fromkeys(("pad", "constant_pad_nd"), _pad),
    **{f"{kind}_pad{n}d": _pad for kind in ("reflection", "replication") for n in (1, 2)},
    **dict.fromkeys(("pixel_shuffle", "pixel_unshuffle"), _pixel_shuffle),
    "repeat_interleave": _repeat_interleave,
    "roll": _roll,
    "unfold": _unfold,
    "im2col": _image_to_columns,
    "col2im": _columns_to_image,
    "flip": lambda c: c.do(el.op, "flip", c.x(), axes=tuple(map(c.axis, listed(c["dims"])))),
    "copy": lambda c: c.do(el.expand, c.x("src"), c.walk.shape(c["self"])),
    "slice_scatter": lambda c: _put_slice(c, c["src"]),
    "select_scatter": lambda c: _put_select(c, c["src"]),
    "index": _index,
    "index_select": lambda c: c.do(el.gather, c.x(), c.x("index"), c["dim"]),
    "gather": lambda c: c.do(el.op, "gather_elements", c.x(), c.x("index"), axis=c.axis(c["dim"])),
}
