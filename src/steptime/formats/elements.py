"""How formats of networks lower functions of elements, reductions and moves (see `lowering`)."""

import math
from collections.abc import Sequence

from steptime.core.graph import Attr, Op
from steptime.formats.composed import COMPOSED, REDUCED
from steptime.network.layers import dense
from steptime.network.layers.blocks import ACTIVATIONS
from steptime.network.ops import OPS
from steptime.network.ops.builder import Builder
from steptime.network.ops.elementwise import FUNCTIONS, function_of
from steptime.network.ops.execution import BIAS_AXES
from steptime.network.ops.table import require

Operand = str | float
OF_THEIR_OWN = ("relu", "sigmoid", "tanh", "gelu", "silu", *ACTIVATIONS)
OF_WHOLE_NUMBERS = (  # pointwise functions that make whole numbers of them
    *("neg", "abs", "sign", "add", "sub", "mul", "maximum", "minimum", "mod", "floor_divide"),
    *("where", "clamp", "eq", "ne", "lt", "le", "gt", "ge", "and", "or", "xor", "logical_not"),
)
UNARY = (  # functions of one operand, whatever they are counted as
    *(name for name, row in FUNCTIONS.items() if len(row.gradients) == 1),
    *OF_THEIR_OWN,
    *(name for name in COMPOSED if name not in ("lerp", "swiglu")),
)
PRODUCTS = ("matmul", *BIAS_AXES)
LARGEST_FLOAT = {"float16": 65504.0, "bfloat16": 3.3895e38, "float32": 3.4028e38}


def is_float(b: Builder, x: str) -> bool:
    """Whether a tensor holds floating numbers, real or complex."""
    return b.tensors[x].is_floating


def free_name(b: Builder, name: str) -> str:
    """Return `name`, or with a number after it where it is taken in the open scopes."""
    found, i = name, 1
    while b.full_path(found) in b.tensors:
        found, i = f"{name}_{i}", i + 1 if i < 9 else i + len(b.tensors)  # of many, soon a free one
    return found


def op(b: Builder, kind: str, *inputs: str, name: str, **attrs: Attr) -> str:
    """Append an op under a name that is free, and return its first output."""
    return b.append(b.full_path(free_name(b, name)), kind, inputs, **attrs)[0]


def made_by(b: Builder, x: str, *kinds: str) -> Op | None:
    """Return the op that makes a tensor, if it is of one of `kinds` (or any, without them)."""
    found = b.made_by.get(x)
    return found if found and (not kinds or found.kind in kinds) else None


def is_kept(b: Builder, x: str) -> bool:
    """Whether a tensor is a weight or a buffer, or a view of one."""
    maker = b.made_by.get(x)
    while maker and OPS[maker.kind].storage == "view":
        x = maker.inputs[0]
        maker = b.made_by.get(x)
    return maker is None and x not in b.inputs


def axis_of(b: Builder, x: str, axis: int) -> int:
    """Return an axis counted from the first; `ShapeError` for one that is not there."""
    rank = len(b.shape(x))
    require(-max(rank, 1) <= axis < max(rank, 1), f"axis {axis} of {list(b.shape(x))}")
    return axis % max(rank, 1)


def reshape(b: Builder, x: str, shape: Sequence[int], name: str) -> str:
    """Return `x` seen with another shape, of which one size may be -1; views are joined."""
    size, known = b.tensors[x].size, math.prod(n for n in shape if n != -1)
    rest = size // known if known else 0
    wanted = tuple(rest if n == -1 else n for n in shape)
    before = made_by(b, x, "reshape", "flatten")
    if before and wanted != b.shape(x):
        x = before.inputs[0]
    return x if b.shape(x) == wanted else op(b, "reshape", x, name=name, shape=wanted)


def squeeze(b: Builder, x: str, axes: Sequence[int], name: str) -> str:
    """Return `x` without `axes`, all of size 1."""
    shape, gone = b.shape(x), {axis_of(b, x, axis) for axis in axes}
    require(all(shape[i] == 1 for i in gone), f"squeeze of {list(shape)} along {sorted(gone)}")
    return reshape(b, x, [n for i, n in enumerate(shape) if i not in gone], name)


def unsqueeze(b: Builder, x: str, axis: int, name: str) -> str:
    """Return `x` with a new axis of size 1, which is `axis` then."""
    shape = list(b.shape(x))
    shape.insert(axis % (len(shape) + 1), 1)
    return reshape(b, x, shape, name)


def stack(b: Builder, tensors: Sequence[str], axis: int, name: str) -> str:
    """Return tensors joined along a new axis."""
    seen = [unsqueeze(b, x, axis, f"{name}/{i}") for i, x in enumerate(tensors)]
    return concat(b, seen, axis, name)


def with_axes(b: Builder, x: str) -> str:
    """Return `[..., width]` where `x [rows, width]` is a view of that, else `x`."""
    before = made_by(b, x, "reshape", "flatten")
    shape = b.shape(before.inputs[0]) if before else ()
    fits = before and len(shape) > 2 == len(b.shape(x)) and shape[-1] == b.shape(x)[-1]
    fits = fits and shape[0] != b.shape(x)[0]  # as where one of several tokens is taken
    return before.inputs[0] if before and fits else x


def transpose(b: Builder, x: str, order: Sequence[int], name: str) -> str:
    """Return `x` with its axes in `order`; two transposes that undo each other are none."""
    order = tuple(axis_of(b, x, i) for i in order)
    before = made_by(b, x, "transpose")
    if before:
        first = before.attrs["order"]
        if isinstance(first, tuple):
            x, order = before.inputs[0], tuple(first[i] for i in order)
    same = order == tuple(range(len(b.shape(x))))
    return x if same else op(b, "transpose", x, name=name, order=order)


def expand(b: Builder, x: str, shape: Sequence[int], name: str) -> str:
    """Return `x` seen with the shape that it broadcasts to; -1 keeps a size."""
    lead = len(shape) - len(b.shape(x))
    wanted = tuple(b.shape(x)[i - lead] if n == -1 else n for i, n in enumerate(shape))
    return x if b.shape(x) == wanted else op(b, "broadcast", x, name=name, shape=wanted)


def cast(b: Builder, x: str, dtype: str, name: str) -> str:
    """Return `x` in another element type."""
    return x if b.tensors[x].dtype == dtype else op(b, "cast", x, name=name, dtype=dtype)


def slice_(b: Builder, x: str, axis: int, start: int, stop: int, name: str, step: int = 1) -> str:
    """Return `x[start:stop:step]` along `axis` by Python's rules: from the end, cut off."""
    axis = axis_of(b, x, axis)
    require(step != 0, f"{name}: a slice with step 0")
    first, last, step = slice(start, stop, step).indices(b.shape(x)[axis])
    if step < 0:
        count = len(range(first, last, step))
        x = op(b, "flip", x, name=f"{name}/flip", axes=(axis,))
        first, step = b.shape(x)[axis] - 1 - first, -step
        last = first + (count - 1) * step + 1
    if (first, last, step) == (0, b.shape(x)[axis], 1):
        return x
    strides = {"step": step} if step != 1 else {}
    return op(b, "slice", x, name=name, axis=axis, start=first, stop=last, **strides)


def split(b: Builder, x: str, sizes: Sequence[int], axis: int, name: str) -> list[str]:
    """Return parts of `x` of these sizes along `axis`."""
    axis = axis_of(b, x, axis)
    whole = b.shape(x)[axis]
    require(sum(sizes) == whole, f"{name}: parts {list(sizes)} of {whole}")
    if len(sizes) == 1:
        return [x]
    return list(
        b.append(b.full_path(free_name(b, name)), "split", (x,), axis=axis, sizes=tuple(sizes))
    )


def select(b: Builder, x: str, axis: int, index: int, name: str) -> str:
    """Return `x` at one index of `axis`, which goes."""
    axis = axis_of(b, x, axis)
    n, shape = b.shape(x)[axis], b.shape(x)
    require(-n <= index < n, f"{name}: index {index} of {n}")
    part = slice_(b, x, axis, index % n, index % n + 1, name)
    return reshape(b, part, (*shape[:axis], *shape[axis + 1 :]), f"{name}/reshape")


def concat(b: Builder, tensors: Sequence[str], axis: int, name: str) -> str:
    """Return tensors joined along `axis`; one alone is itself."""
    require(bool(tensors), f"{name}: nothing to join")
    axis = axis_of(b, tensors[0], axis)
    return tensors[0] if len(tensors) == 1 else op(b, "concat", *tensors, name=name, axis=axis)


def pad(
    b: Builder, x: str, pads: Sequence[int], name: str, mode: str = "constant", value: float = 0.0
) -> str:
    """Return `x` with `pads` (before and after each axis); a negative one cuts."""
    if not any(pads):
        return x
    how: dict[str, Attr] = {"mode": mode} if mode != "constant" else {}
    if value:
        how["value"] = _finite(b, value)
    rank = len(b.shape(x))
    if mode == "constant" or rank > 2:
        return op(b, "pad", x, name=name, pads=tuple(pads), **how)
    lead = (1,) * (3 - rank)
    seen = reshape(b, x, (*lead, *b.shape(x)), f"{name}/axes")
    y = op(b, "pad", seen, name=name, pads=(*(0, 0) * len(lead), *pads), **how)
    return reshape(b, y, b.shape(y)[len(lead) :], f"{name}/reshape")


def _finite(b: Builder, value: float) -> float:
    """Return a number that is finite in the type of the arithmetic: a mask's -inf is the least."""
    most = LARGEST_FLOAT.get(b.precision.compute, 1.7976931348623157e308)
    require(not math.isnan(value), "a constant that is not a number")
    return max(-most, min(most, float(value)))


def _simplify_clamp(
    b: Builder, function: str, operands: tuple[Operand, ...], low: float, high: float
) -> tuple[str, tuple[Operand, ...]]:
    """Return a clamp of one limit as `maximum` or `minimum`, a `maximum` of 0 and floats as ReLU.

    Any other function is returned as it is. The first tensor among the operands decides the type.
    """
    if function == "clamp" and high == math.inf:
        function, operands = "maximum", (*operands, low)
    elif function == "clamp" and low == -math.inf:
        function, operands = "minimum", (*operands, high)
    if function == "maximum" and 0.0 in operands[1:]:
        first = next(operand for operand in operands if isinstance(operand, str))
        if is_float(b, first):
            function = "relu"
    return function, operands


def pointwise(
    b: Builder,
    function: str,
    *operands: Operand,
    name: str,
    parameter: float | None = None,
    low: float = -math.inf,
    high: float = math.inf,
) -> str:
    """Return a function of single elements (`ops.elementwise.FUNCTIONS` and the activations).

    It is written out where it has no row of its own. Operands are tensors or numbers. `parameter`
    is that of `elu` or `leaky_relu`, `low` and `high` the limits of `clamp`.
    """
    if function in COMPOSED:
        return COMPOSED[function](lambda f, *x: pointwise(b, f, *x, name=name), *operands)
    tensors = [x for x in operands if isinstance(x, str)]
    require(bool(tensors), f"{name}: {function} of numbers alone")
    function, operands = _simplify_clamp(b, function, operands, low, high)
    if function in OF_THEIR_OWN:
        kind, how = ACTIVATIONS.get(function, (function, {}))
        return op(b, kind, tensors[0], name=name, **how)
    row = function_of(function)
    require(len(operands) == len(row.gradients), f"{name}: {function} of {len(operands)} operands")
    fractions = [x for x in operands if not isinstance(x, str) and x != int(_finite(b, x))]
    if not any(is_float(b, x) for x in tensors) and (fractions or function not in OF_WHOLE_NUMBERS):
        as_floats = {x: cast(b, x, b.precision.weights, f"{name}/cast") for x in tensors}
        operands = tuple(as_floats[x] if isinstance(x, str) else x for x in operands)
        tensors = list(as_floats.values())
    if len(tensors) == len(operands) == 2:
        found = _dedicated(b, function, tensors[0], tensors[1], name)
        if found:
            return found
    attrs: dict[str, Attr] = {"function": function}
    if function == "clamp":
        attrs |= {"low": _finite(b, low), "high": _finite(b, high)}
    inputs: list[str] = []
    for place, operand in enumerate(operands):
        if isinstance(operand, str):
            inputs.append(operand)
        elif "scalar" in attrs:  # a second number is a tensor of one element
            inputs.append(b.buffer(free_name(b, f"{name}/number"), ()))
        else:
            attrs["scalar"] = _finite(b, operand)
            if place != len(operands) - 1:
                attrs["scalar_place"] = place
    if parameter is not None:
        attrs["scalar"] = _finite(b, parameter)
    return op(b, "pointwise", *inputs, name=name, **attrs)


def _dedicated(b: Builder, function: str, x: str, y: str, name: str) -> str | None:
    """Return a sum, product or maximum by the kind of its own, None where that does not fit."""
    if not (is_float(b, x) and is_float(b, y)):
        return None
    if function in ("add", "mul"):
        x, y = sorted((x, y), key=lambda one: (-b.tensors[one].size, is_kept(b, one)))
    long, short = b.shape(x), b.shape(y)
    if function in ("add", "sub", "mul") and short[:1] == (1,) and is_kept(b, y):
        short = short[next((i for i, n in enumerate(short) if n != 1), len(short)) :]
        y = reshape(b, y, short, f"{name}/each")  # a table, the same for every example
    if function == "maximum" and long == short:
        return op(b, function, x, y, name=name)
    if function not in ("add", "sub", "mul"):
        return None
    whole = with_axes(b, x)
    if whole != x and made_by(b, whole, "linear") and short == long[-1:] and function == "add":
        return reshape(b, pointwise(b, "add", whole, y, name=name), long, f"{name}/rows")
    product = made_by(b, x, *PRODUCTS)
    if function == "add" and product and is_kept(b, y):
        axis = 1 if product.kind.startswith("conv") else len(long) - 1
        after = (1,) * (len(long) - axis - 1)
        tail = short[len(short) - 1 - len(after) :]
        if tail == (long[axis], *after) and math.prod(short) == long[axis]:
            bias = reshape(b, y, (long[axis],), f"{name}/vector")
            return op(b, "bias", x, bias, name=name, axis=axis if after else -1)
    fits = short == long[len(long) - len(short) :]
    return op(b, function, x, y, name=name) if fits else None


def where(b: Builder, condition: str, x: Operand, y: Operand, name: str) -> str:
    """Return `x` where the condition holds, else `y`."""
    return pointwise(b, "where", condition, x, y, name=name)


def reduce(
    b: Builder, function: str, x: str, axes: Sequence[int] | None, name: str, keep: bool = False
) -> str:
    """Return `x` reduced over `axes`, all where they are None; norms and the like written out."""
    rank = len(b.shape(x))
    every = tuple(range(rank)) if axes is None else tuple(sorted({axis_of(b, x, i) for i in axes}))
    if not every or rank == 0:
        return x
    if function in REDUCED:
        y = REDUCED[function](
            lambda f, *operands: pointwise(b, f, *operands, name=name),
            lambda f, z: reduce(b, f, z, every, name, True),
            lambda f, z: reduce(b, f, z, every, name, keep),
            x,
        )
        kept = not keep and len(b.shape(y)) == rank
        return squeeze(b, y, every, f"{name}/reshape") if kept else y
    if function == "mean" and rank == 4 and every == (2, 3):
        y = op(b, "global_avg_pool", x, name=name)
        return reshape(b, y, (*b.shape(x)[:2], 1, 1), f"{name}/keep") if keep else y
    if function == "mean" and len(every) == rank and not keep:
        return op(b, "mean", x, name=name)
    return op(b, "reduce", x, name=name, function=function, axes=every, keep=keep)


def gather(b: Builder, x: str, indices: str, axis: int, name: str) -> str:
    """Return the parts of `x` at `indices` along `axis`; the rows of a matrix by `embedding`."""
    axis = axis_of(b, x, axis)
    if len(b.shape(x)) == 2 and axis == 0 and is_float(b, x):
        return embedding(b, indices, x, name)
    return op(b, "gather", x, indices, name=name, axis=axis)


def embedding(b: Builder, ids: str, table: str, name: str, sparse: bool = False) -> str:
    """Return the rows of `table [rows, width]` at `ids [...]`, `-> [..., width]`.

    A `sparse` table has a gradient of the rows that are read alone.

    Places that are constants, the same for every example, are the first rows: no look-up.
    """
    places, count = b.shape(ids), b.tensors[ids].size
    if is_kept(b, ids) and places[-1:] == (count,) and count <= b.shape(table)[0]:
        rows = slice_(b, table, 0, 0, count, f"{name}/rows")
        return reshape(b, rows, (*places, b.shape(table)[1]), name)
    attrs: dict[str, Attr] = {"sparse": True} if sparse else {}
    return op(b, "embedding", ids, table, name=name, **attrs)


def dropout(b: Builder, x: str, p: float, name: str) -> str:
    """Return `x` with a share dropped in training."""
    require(0 <= p < 1, f"{name}: dropout of {p}")
    return dense.dropout(b, x, p, free_name(b, name))


def softmax(b: Builder, x: str, axis: int, name: str, log: bool = False) -> str:
    """Return the softmax over an axis, or its logarithm."""
    rank, axis = len(b.shape(x)), axis_of(b, x, axis)
    order = (*(i for i in range(rank) if i != axis), axis)
    y = op(b, "softmax", transpose(b, x, order, f"{name}/last"), name=name)
    if log:
        y = pointwise(b, "log", y, name=f"{name}/log")
    return transpose(b, y, [order.index(i) for i in range(rank)], f"{name}/back")
