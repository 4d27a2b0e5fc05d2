"""ONNX's operators that move, join, cut and make tensors, onto the shared lowering."""

import math
from collections.abc import Mapping, Sequence

from steptime.core.dtypes import SIZE_BYTES
from steptime.formats import constants, elements, windows
from steptime.formats.constants import NdArray, axis_of
from steptime.formats.onnx.model import DTYPES
from steptime.formats.onnx.run import Visit
from steptime.formats.onnx.values import Function, Static, Value, is_weight
from steptime.network.ops.table import require

Values = Sequence[Value]


def _reshape(r: Visit, x: Value, shape: Value = None) -> Value:
    return r.reshaped(x, r.whole(shape, "shape") or (), bool(r.attr("allowzero", 0)))


def _flatten(r: Visit, x: Value) -> Value:
    shape, axis = r.shape(x), r.attr("axis", 1)
    axis = axis % (len(shape) + 1) if axis >= 0 else axis_of(axis, len(shape))
    return r.view(x, "reshape", (math.prod(shape[:axis]), math.prod(shape[axis:])))


def _transpose(r: Visit, x: Value) -> Value:
    return r.view(x, "transpose", r.attr("perm", tuple(reversed(range(len(r.shape(x)))))))


def _squeeze(r: Visit, x: Value, axes: Value = None) -> Value:
    shape = r.shape(x)
    gone: Sequence[int] | None = r.whole(axes, "axes")
    gone = [i for i, n in enumerate(shape) if n == 1] if gone is None else gone
    places = {axis_of(i, len(shape)) for i in gone}
    return r.view(x, "reshape", [n for i, n in enumerate(shape) if i not in places])


def _unsqueeze(r: Visit, x: Value, axes: Value = None) -> Value:
    new, shape = r.whole(axes, "axes") or (), list(r.shape(x))
    rank = len(shape) + len(new)
    for axis in sorted(axis_of(i, rank) for i in new):
        shape.insert(axis, 1)
    return r.view(x, "reshape", shape)


def _concat(r: Visit, *values: Value) -> Value:
    axis = r.attr("axis", 1)
    if all(isinstance(v, Static) and not is_weight(v) for v in values):
        return r.constant(constants.concat([r.of(v) for v in values], axis), *values)
    tensors = [r.tensor(v) for v in values]
    if axis_of(axis, len(r.shape(values[0]))) != 0:
        tensors = [str(x) for x in r.stretched(tensors, broadcast=False)]
    return r.do(elements.concat, tensors, axis)


def _split(r: Visit, x: Value, sizes: Value = None) -> Values:
    shape = r.shape(x)
    axis = axis_of(r.attr("axis", 0), len(shape))
    parts = r.whole(sizes, "split")
    if parts is None:
        number = r.node.attrs.get("num_outputs") or len(r.node.outputs)
        each = -(-shape[axis] // number)
        parts = tuple(min(each, shape[axis] - i * each) for i in range(number))
    ends = [sum(parts[: i + 1]) for i in range(len(parts))]
    require(sum(parts) == shape[axis], f"parts {list(parts)} of {shape[axis]}")
    if isinstance(x, Static) and not is_weight(x):
        return [
            Static(name, constants.slice_(x.array, axis, end - n, end), derived=x.derived)
            for name, n, end in zip(r.node.outputs, parts, ends, strict=False)
        ]
    return r.do(elements.split, x, parts, axis)


def _scatter(r: Visit, x: Value, indices: Value, updates: Value, *_: Value) -> Value:
    """Return a table with some of its places overwritten; that of anything else is not lowered."""
    table = all(isinstance(v, Static) for v in (x, indices, updates)) and not is_weight(x)
    require(table, "writes to places of a tensor that depends on an input")
    return r.constant(NdArray(r.shape(x), r.of(x).dtype), derived=True)


def _slice(r: Visit, x: Value, *given: Value) -> Value:
    starts, ends, axes, steps = (
        r.whole(given[i] if i < len(given) else None, name)
        for i, name in enumerate(("starts", "ends", "axes", "steps"))
    )
    rank = len(r.shape(x))
    require(starts is not None and ends is not None, "a slice without starts and ends")
    for i, (start, stop) in enumerate(zip(starts or (), ends or (), strict=True)):
        axis, step = axis_of(axes[i] if axes else i, rank), steps[i] if steps else 1
        if isinstance(x, Static) and not is_weight(x):
            x = r.constant(constants.slice_(x.array, axis, start, stop, step), x)
            continue
        size = r.shape(x)[axis]
        first, count = constants.window(size, start, stop, step)
        require(count > 0, f"a slice {start}:{stop}:{step} of {size} leaves nothing")
        last = first + count * step
        # from the end, Python says None for what lies before the first
        x = r.do(elements.slice_, x, axis, first, last if last >= 0 else -size - 1, step=step)
    return x


def _gather(r: Visit, x: Value, indices: Value) -> Value:
    axis = axis_of(r.attr("axis", 0), len(r.shape(x)))
    if isinstance(x, Static) and isinstance(indices, Static) and not is_weight(x):
        return r.constant(constants.gather(x.array, indices.array, axis), x, indices)
    if isinstance(indices, Static) and len(r.shape(x)) == 1:
        size = math.prod(r.old(r.node.inputs[0]) or r.shape(x))
        every = indices.array.values in (None, tuple(range(size)))
        if every and indices.array.size == size:  # torch's as_strided: all of it, in order
            return r.reshaped(x, indices.array.shape)
    if isinstance(indices, Static) and indices.array.size == 1 and indices.array.values:
        index = indices.array.whole()[0]
        part, shape = r.do(elements.select, x, axis, index), r.shape(x)
        return r.view(part, "reshape", (*shape[:axis], *indices.array.shape, *shape[axis + 1 :]))
    ids = r.tensor(indices)
    if r.of(ids).dtype not in ("int64", "int32"):
        ids = r.do(elements.cast, ids, "int64", at="/cast")
    return r.do(elements.gather, x, ids, axis)


def _gather_nd(r: Visit, x: Value, indices: Value) -> Value:
    """Return the parts of `x` that rows of indices name: by one index into its first axes."""
    own, at, batch = r.shape(x), r.shape(indices), r.attr("batch_dims", 0)
    depth = at[-1]
    require(batch + depth <= len(own), f"indices {list(at)} of {list(own)}")
    require(batch == 0, "batch_dims of GatherND other than 0")
    merged = (math.prod(own[:depth]), *own[depth:])
    if isinstance(x, Static) and isinstance(indices, Static) and not is_weight(x):
        return r.constant(constants.gather_nd(x.array, indices.array), x, indices)
    ids = r.b.buffer(elements.free_name(r.b, f"{r.name}/rows"), at[:-1], "int64")
    return r.do(elements.gather, r.view(x, "reshape", merged), ids, 0)


def _expand(r: Visit, x: Value, shape: Value) -> Value:
    own, asked = r.shape(x), r.of(shape).whole()
    if r.before and asked:  # a size that the file says may be that of its batch
        full = (*(1,) * (len(asked) - len(own)), *own)[-len(asked) :]
        asked = tuple(n if m == 1 else m for m, n in zip(full, asked, strict=True))
    wanted = constants.broadcast(own, asked)
    if isinstance(x, Static) and not is_weight(x):
        return r.constant(constants.expand(x.array, wanted), x)
    return x if wanted == own else r.do(elements.expand, x, wanted)


def _tile(r: Visit, x: Value, times: Value) -> Value:
    repeats, shape = r.of(times).whole(), r.shape(x)
    require(len(repeats) == len(shape), f"{list(shape)} times {list(repeats)}")
    if all(n == 1 for n in repeats):
        return x
    if isinstance(x, Static) and not is_weight(x):
        return r.constant(constants.tile(x.array, repeats), x)
    return r.do(elements.op, "tile", x, times=repeats)


def _pad(r: Visit, x: Value, pads: Value = None, value: Value = None, axes: Value = None) -> Value:
    rank, given = len(r.shape(x)), r.whole(pads, "pads") or r.whole(None, "paddings") or ()
    which = [axis_of(i, rank) for i in (r.of(axes).whole() if axes is not None else range(rank))]
    require(len(given) == 2 * len(which), f"{len(given)} pads of {len(which)} axes")
    sides = [0] * (2 * rank)
    for i, axis in enumerate(which):
        sides[2 * axis], sides[2 * axis + 1] = given[i], given[i + len(which)]
    mode = {"wrap": "circular"}.get(r.attr("mode", "constant"), r.attr("mode", "constant"))
    filled = float(r.number(value) or 0.0) if mode == "constant" else 0.0
    return r.do(elements.pad, x, sides, mode=mode, value=filled)


def _shape(r: Visit, x: Value) -> Value:
    shape = r.shape(x)
    part = shape[slice(r.attr("start", 0), r.node.attrs.get("end"))]
    return r.constant(constants.array(part), derived=True)


def _range(r: Visit, *ends: Value) -> Value:
    first, last, step = (r.of(v).known("a range")[0] for v in ends)
    return r.constant(constants.range_(first, last, step, r.of(ends[0]).dtype), derived=True)


def _constant(r: Visit) -> Value:
    attrs = r.node.attrs
    for name, dtype in (("value_float", "float32"), ("value_int", "int64")):
        if name in attrs:
            return r.constant(constants.scalar(attrs[name], dtype))
        if f"{name}s" in attrs:
            return r.constant(constants.array(attrs[f"{name}s"], dtype))
    found = attrs.get("value")
    return r.constant(found if isinstance(found, NdArray) else NdArray((), "text"))


def _constant_of_shape(r: Visit, shape: Value) -> Value:
    given = r.node.attrs.get("value")
    filler = given if isinstance(given, NdArray) else constants.scalar(0.0, "float32")
    sizes, number = r.of(shape).whole(), (filler.values or (0.0,))[0]
    return r.constant(constants.full(sizes, number, filler.dtype), shape)


def _cast(r: Visit, x: Value, like: Value = None) -> Value:
    to = r.node.attrs.get("to", 1)  # before opset 6 a word
    known = to.lower().replace("double", "float") if isinstance(to, str) else DTYPES.get(to, "text")
    dtype = r.of(like).dtype if like is not None else known if isinstance(known, str) else known[0]
    dtype = "float32" if "float" in dtype else dtype if dtype in SIZE_BYTES else "text"
    if isinstance(x, Static):
        if x.array.is_float and "float" in dtype:
            return x
        kept = x.derived or bool(x.array.shape and "float" in dtype)
        return r.constant(constants.cast(x.array, dtype), derived=kept)
    require(dtype != "text", "a cast to what is not of numbers")
    if "float" in dtype and r.of(x).is_float:
        return x
    return r.do(elements.cast, x, r.b.precision.weights if "float" in dtype else dtype)


def _trilu(r: Visit, x: Value, k: Value = None) -> Value:
    """Return a triangle of `x`: a table of a constant, else a product with a mask."""
    if isinstance(x, Static):
        upper, offset = bool(r.attr("upper", 1)), int(r.number(k) or 0)
        return r.constant(constants.triangle(x.array, offset, upper), derived=True)
    mask = r.b.buffer(elements.free_name(r.b, f"{r.name}/triangle"), r.shape(x)[-2:])
    return r.do(elements.pointwise, "mul", x, mask)


def _depth_to_space(r: Visit, x: Value) -> Value:
    n, c, h, w = r.shape(x)
    s = r.attr("blocksize", 1)
    apart, order = ((n, s, s, c // s**2, h, w), (0, 3, 4, 1, 5, 2))
    if r.attr("mode", "DCR") == "CRD":
        apart, order = (n, c // s**2, s, s, h, w), (0, 1, 4, 2, 5, 3)
    turned = r.view(r.view(x, "reshape", apart), "transpose", order)
    return r.view(turned, "reshape", (n, c // s**2, h * s, w * s))


def _space_to_depth(r: Visit, x: Value) -> Value:
    n, c, h, w = r.shape(x)
    s = r.attr("blocksize", 1)
    apart = r.view(x, "reshape", (n, c, h // s, s, w // s, s))
    turned = r.view(apart, "transpose", (0, 3, 5, 1, 2, 4))
    return r.view(turned, "reshape", (n, c * s**2, h // s, w // s))


def _columns_to_image(r: Visit, x: Value, size: Value, kernel: Value) -> Value:
    sizes, block = (r.whole(v) or () for v in (size, kernel))
    strides = r.attr("strides", (1,) * len(sizes))
    require(len(sizes) == 2, f"windows over {len(sizes)} axes: there are kinds for 2")
    return r.do(windows.fold, x, sizes, block, strides)


MOVES: Mapping[str, Function] = {
    "Reshape": _reshape,
    "Flatten": _flatten,
    "Transpose": _transpose,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Concat": _concat,
    "Split": _split,
    "Slice": _slice,
    "Gather": _gather,
    "GatherND": _gather_nd,
    "GatherElements": lambda r, x, at: r.do(
        elements.op, "gather_elements", x, at, axis=axis_of(r.attr("axis", 0), len(r.shape(x)))
    ),
    "Expand": _expand,
    "Tile": _tile,
    "Pad": _pad,
    "Shape": _shape,
    "Size": lambda r, x: r.constant(constants.scalar(r.of(x).size), derived=True),
    "Range": _range,
    "Constant": _constant,
    "ConstantOfShape": _constant_of_shape,
    "NonZero": lambda r, x: r.constant(constants.non_zero(r.of(x)), derived=True),
    "Trilu": _trilu,
    "Col2Im": _columns_to_image,
    "DepthToSpace": _depth_to_space,
    "SpaceToDepth": _space_to_depth,
    **dict.fromkeys(("ScatterND", "ScatterElements", "Scatter"), _scatter),
    **dict.fromkeys(("Cast", "CastLike"), _cast),
}
