"""Writes to views: `x[:, 3] = y` changes `x`. Each function rebuilds the base of a written view."""

from collections.abc import Callable, Mapping

from steptime.formats import elements
from steptime.formats.opaque import append_opaque
from steptime.formats.pytorch.call import Call, Value
from steptime.formats.pytorch.opaque import TABLE

TO_END = 2**62  # the stop of a slice that goes to the end of its axis


def axis_order(call: Call) -> list[int]:
    """Return the order in which a permute or a transpose puts the axes of its input."""
    rank = len(call.shape)
    if call.node.op == "permute":
        return [axis % rank for axis in call["dims"]]
    order = list(range(rank))
    if rank > 1:  # `t` states no axes
        first = call.argument("dim0", call.argument("axis0", 0))
        second = call.argument("dim1", call.argument("axis1", 1))
        order[first], order[second] = order[second], order[first]
    return order


def _replace_range(call: Call, part: Value, axis: int, start: int, stop: int) -> Value:
    """Replace the range of an axis of `self` by `part`: a concatenation with what is around it."""
    x = call.tensor()
    new_part = call.walk.tensor(part)
    size = call.b.shape(x)[axis]
    first, end, _ = slice(start, stop).indices(size)
    replaces_all = first == 0 and end == size
    if replaces_all:
        return new_part
    pieces = [new_part]
    if first > 0:
        before = call.lower(elements.slice_, x, axis, start=0, stop=first, suffix="/rest")
        pieces.insert(0, before)
    if end < size:
        after = call.lower(elements.slice_, x, axis, start=end, stop=size, suffix="/rest")
        pieces.append(after)
    return call.lower(elements.concat, pieces, axis, suffix="/put")


def write_slice(call: Call, part: Value) -> Value:
    """Rebuild the base of a slice from what was written there."""
    start = call.argument("start", 0)
    stop = call.argument("end", TO_END)
    if call.node.op == "narrow":
        stop = start + call["length"]
    step = call.argument("step", 1)
    if step != 1:
        return _write_strided(call, part)
    return _replace_range(call, part, call.argument("dim", 0), start, stop)


def _write_strided(call: Call, part: Value) -> Value:
    """Rebuild the base of a slice of every second place, say: one op that writes all of it."""
    x = call.tensor()
    tensors = (x, call.walk.tensor(part))
    name = f"{call.name}/put"
    (rebuilt,) = append_opaque(call.b, TABLE, "slice_scatter", name, tensors, [call.b.tensors[x]])
    return rebuilt


def write_index(call: Call, part: Value) -> Value:
    """Rebuild the base of a `select` from what was written there."""
    shape = call.walk.shape(call["self"])
    axis = call.argument("dim", 0) % len(shape)
    index = call["index"] % shape[axis]
    slice_shape = (*shape[:axis], 1, *shape[axis + 1 :])
    new_slice = call.lower(elements.reshape, call.walk.tensor(part), slice_shape, suffix="/put")
    return _replace_range(call, new_slice, axis, index, index + 1)


def _write_reshaped(call: Call, part: Value) -> Value:
    """Rebuild the base of a reshape: the new value in the base's shape."""
    base_shape = call.walk.shape(call["self"])
    return call.lower(elements.reshape, call.walk.tensor(part), base_shape, suffix="/put")


def _write_permuted(call: Call, part: Value) -> Value:
    """Rebuild the base of a permutation: the new value with its axes in the base's order."""
    order = axis_order(call)
    inverse_order = [order.index(i) for i in range(len(order))]
    return call.lower(elements.transpose, call.walk.tensor(part), inverse_order, suffix="/put")


_RESHAPES = (
    *("view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze"),
    *("alias", "detach", "view_as"),
)
WRITES: Mapping[str, Callable[[Call, Value], Value]] = {
    **dict.fromkeys(("slice", "narrow"), write_slice),
    **dict.fromkeys(_RESHAPES, _write_reshaped),
    **dict.fromkeys(("permute", "transpose", "t"), _write_permuted),
    "select": write_index,
}
"""The new value of a view's base, by the op of the view: of the view's call and its new value."""
