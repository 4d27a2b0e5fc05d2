"""ONNX's operators that move, join, cut and make tensors, onto the shared lowering."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from onnx import TensorProto

from steptime.formats import elements, windows
from steptime.formats.onnx.fold import TABLES, Function, Value, axis_of
from steptime.formats.onnx.model import Static
from steptime.formats.onnx.run import Visit
from steptime.formats.onnx.weightless import DTYPES
from steptime.formats.tensors import free_name
from steptime.network.ops.table import ShapeError, broadcast_shape, require

Values = Sequence[Value]


def _reshape(r: Visit, x: Value, *_: Value) -> Value:
    if "shape" not in r.node.attrs:
        return r.reshaped(x, r.out)
    own = r.shape(x)  # before opset 5
    sizes = [own[i] if n == 0 else n for i, n in enumerate(r.node.attrs["shape"])]
    rest = math.prod(own) // max(1, math.prod(n for n in sizes if n != -1))
    return r.reshaped(x, lambda: tuple(rest if n == -1 else n for n in sizes))


def _seen_anew(r: Visit, x: Value, *_: Value) -> Value:
    return r.view(x, "reshape", r.out())


def _transpose(r: Visit, x: Value) -> Value:
    return r.view(x, "transpose", r.attr("perm", tuple(reversed(range(len(r.shape(x)))))))


def _split(r: Visit, x: Value, *_: Value) -> Values:
    axis = r.axis(x)
    parts = [r.out(i)[axis] for i in range(len(r.node.outputs))]
    return r.do(elements.split, x, parts, axis)


def _of_constants(r: Visit, *_: Value) -> Value:
    raise ShapeError("works on numbers that depend on an input")


def _slice(r: Visit, x: Value, *given: Value) -> Value:
    starts, ends, axes, steps = (
        r.whole(given[i] if i < len(given) else None, name)
        for i, name in enumerate(("starts", "ends", "axes", "steps"))
    )
    rank = len(r.shape(x))
    require(starts is not None and ends is not None, "a slice without starts and ends")
    for i, (start, stop) in enumerate(zip(starts or (), ends or (), strict=True)):
        axis, step = axis_of(axes[i] if axes else i, rank), steps[i] if steps else 1
        require(step != 0, "a slice of step 0")
        part = range(r.shape(x)[axis])[start:stop:step]
        require(len(part) > 0, f"a slice {start}:{stop}:{step} of {r.shape(x)[axis]} is empty")
        x = r.do(elements.slice_, x, axis, start, stop, step=step)
    return x


def _gather(r: Visit, x: Value, indices: Value) -> Value:
    axis = r.axis(x)
    if isinstance(indices, Static) and len(r.shape(x)) == 1:
        size, known = math.prod(r.file_shape(r.node.inputs[0]) or r.shape(x)), indices.values
        every = known is None or known.ravel().tolist() == list(range(size))
        if every and math.prod(indices.shape) == size:  # torch's as_strided: all of it, in order
            return r.reshaped(x, lambda: indices.shape)
    index = r.number(indices)
    if index is not None:
        part, shape = r.do(elements.select, x, axis, int(index)), r.shape(x)
        return r.view(part, "reshape", (*shape[:axis], *r.shape(indices), *shape[axis + 1 :]))
    ids = r.tensor(indices)
    if r.spec(ids)[0] not in ("int64", "int32"):
        ids = r.do(elements.cast, ids, "int64", at="/cast")
    return r.do(elements.gather, x, ids, axis)


def _gather_nd(r: Visit, x: Value, indices: Value) -> Value:
    """Return the parts of `x` that rows of indices name: by one index into its first axes."""
    own, at, batch = r.shape(x), r.shape(indices), r.attr("batch_dims", 0)
    depth = at[-1]
    require(batch + depth <= len(own), f"indices {list(at)} of {list(own)}")
    require(batch == 0, "batch_dims of GatherND other than 0")
    merged = (math.prod(own[:depth]), *own[depth:])
    ids = r.b.buffer(free_name(r.b, f"{r.name}/rows"), at[:-1], "int64")
    return r.do(elements.gather, r.view(x, "reshape", merged), ids, 0)


def _expand(r: Visit, x: Value, shape: Value) -> Value:
    own, asked = r.shape(x), r.whole(shape) or ()
    follows = broadcast_shape(own, asked) != r.file_shape(r.node.outputs[0])
    wide = r.widened(own, asked, follows) if len(asked) >= len(own) else asked
    wanted = broadcast_shape(own, wide)
    require(wanted is not None, f"{list(own)} is not {list(asked)} repeated")
    return x if wanted == own else r.do(elements.expand, x, wanted)


def _tile(r: Visit, x: Value, times: Value) -> Value:
    repeats, shape = r.whole(times) or (), r.shape(x)
    require(len(repeats) == len(shape), f"{list(shape)} times {list(repeats)}")
    told = tuple(n * times for n, times in zip(shape, repeats, strict=True))
    wide = r.widened(shape, told, told != r.file_shape(r.node.outputs[0]))
    repeats = tuple(
        new if n == 1 else times for n, times, new in zip(shape, repeats, wide, strict=True)
    )
    if all(n == 1 for n in repeats):
        return x
    return r.do(elements.op, "tile", x, times=repeats)


def _pad(r: Visit, x: Value, pads: Value = None, value: Value = None, axes: Value = None) -> Value:
    rank, given = len(r.shape(x)), r.whole(pads, "pads") or r.whole(None, "paddings") or ()
    which = [axis_of(i, rank) for i in (r.whole(axes) or range(rank))]
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
    return r.constant(part, "int64", derived=True)


def _constant(r: Visit) -> Value:
    value = r.node.attrs.get("value")
    name = r.node.outputs[0] if r.node.outputs else ""
    return replace(value, name=name) if isinstance(value, Static) else r.folded()[0]


def _cast(r: Visit, x: Value, like: Value = None) -> Value:
    dtype = r.spec(like)[0] if like is not None else _type(r.node.attrs.get("to", 1))
    same = r.is_float(x) and "float" in dtype
    if same or isinstance(x, Static):
        return x if same else r.folded()[0]
    require(dtype != "text", "a cast to what is not of numbers")
    return r.do(elements.cast, x, r.b.precision.weights if "float" in dtype else dtype)


def _type(to: int | str) -> str:
    """Return our name of a type, which before opset 6 is a word."""
    word = TensorProto.DataType.Value(to.upper()) if isinstance(to, str) else to
    return DTYPES.get(word, ("text",))[0]


def _trilu(r: Visit, x: Value, *_: Value) -> Value:
    """Return a triangle of `x`, a product with a mask."""
    mask = r.b.buffer(free_name(r.b, f"{r.name}/triangle"), r.shape(x)[-2:])
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
    **dict.fromkeys(("Flatten", "Squeeze", "Unsqueeze"), _seen_anew),
    "Transpose": _transpose,
    "Concat": lambda r, *xs: r.do(elements.concat, [*xs], r.axis(xs[0], 1)),
    "Split": _split,
    "Slice": _slice,
    "Gather": _gather,
    "GatherND": _gather_nd,
    "GatherElements": lambda r, x, at: r.do(elements.op, "gather_elements", x, at, axis=r.axis(x)),
    "Expand": _expand,
    "Tile": _tile,
    "Pad": _pad,
    "Shape": _shape,
    "Size": lambda r, x: r.constant(math.prod(r.shape(x)), "int64", derived=True),
    "Constant": _constant,
    "Col2Im": _columns_to_image,
    "DepthToSpace": _depth_to_space,
    "SpaceToDepth": _space_to_depth,
    **dict.fromkeys(("ConstantOfShape", *TABLES), _of_constants),
    "Trilu": _trilu,
    **dict.fromkeys(("Cast", "CastLike"), _cast),
}
