"""How ONNX says the general op kinds: functions of elements by name, reductions, moves."""

from typing import Any

from steptime.core.toml_files import packaged
from steptime.formats.export.onnx_nodes import TYPES, Function, Nodes, Write, node
from steptime.network.ops.elementwise import promote_types
from steptime.network.ops.norm import EPSILON

_FIRST = -(1 << 63)  # before all places, for a slice that goes backwards


def _of(value: float, kind: str) -> Function:
    """Return what writes a node of `x` and a number, in this order."""
    return lambda b, x: b.add(kind, x, b.number(value, b.output.dtype))


def _quotient(b: Nodes, x: str, y: str) -> str:
    """Return the quotient rounded down: whole numbers as floats, which hold up to 2^53."""
    if "float" in b.output.dtype:
        return b.add("Floor", b.add("Div", x, y))
    wide = [b.add("Cast", one, to=TYPES["float64"]) for one in (x, y)]
    return b.add("Cast", b.add("Floor", b.add("Div", *wide)), to=TYPES[b.output.dtype])


def _mod(b: Nodes, x: str, y: str) -> str:
    """Return the remainder, which has the sign of the divisor."""
    if "float" not in b.output.dtype:
        return b.add("Mod", x, y)
    return b.add("Sub", x, b.add("Mul", _quotient(b, x, y), y))


def _clamp(b: Nodes, x: str, low: float, high: float) -> str:
    return b.add("Clip", x, *(b.number(limit, b.output.dtype) for limit in (low, high)))


def _sloped(kind: str, default: float) -> Function:
    return lambda b, x, scalar=None: b.add(
        kind, x, alpha=float(default if scalar is None else scalar)
    )


FUNCTIONS: dict[str, Function] = {
    **{function: node(name) for function, name in packaged("onnx.toml")["functions"].items()},
    "rsqrt": lambda b, x: b.add("Reciprocal", b.add("Sqrt", x)),
    "log1p": lambda b, x: b.add("Log", _of(1.0, "Add")(b, x)),
    "expm1": lambda b, x: _of(1.0, "Sub")(b, b.add("Exp", x)),
    "clamp": _clamp,
    "leaky_relu": _sloped("LeakyRelu", 0.01),
    "elu": _sloped("Elu", 1.0),
    "hard_sigmoid": node("HardSigmoid", alpha=1 / 6, beta=0.5),
    "log_sigmoid": lambda b, x: b.add("Neg", b.add("Softplus", b.add("Neg", x))),
    "mod": _mod,
    "floor_divide": _quotient,
    "ne": lambda b, x, y: b.add("Not", b.add("Equal", x, y)),
}
_OF_TRUTH = ("and", "or", "xor", "logical_not")
_OF_ONE = ("leaky_relu", "elu")  # their scalar is a parameter, not an operand


def pointwise(
    b: Nodes,
    *inputs: str,
    function: str,
    scalar: float | None = None,
    scalar_place: int = -1,
    **limits: float,
) -> str:
    """Return a function of elements; operands of several types are cast to one."""
    write = FUNCTIONS[function]
    specs = [b.tensors[name] for name in inputs]
    dtype = "bool" if function in _OF_TRUTH else b.output.dtype
    if b.output.dtype == "bool" and function not in _OF_TRUTH:
        dtype = promote_types(*specs)
    operands = [
        name
        if spec.dtype == dtype or (function == "where" and i == 0)
        else b.add("Cast", name, to=TYPES[dtype])
        for i, (name, spec) in enumerate(zip(inputs, specs, strict=True))
    ]
    if function in _OF_ONE:
        return write(b, *operands, scalar=scalar)
    if scalar is not None:
        operands.insert(scalar_place % (len(operands) + 1), b.number(scalar, dtype))
    return write(b, *operands, **limits)


def _reduce(b: Nodes, x: str, function: str, axes: tuple[int, ...], keep: bool = False) -> str:
    if function.startswith("arg"):
        kind = {"argmax": "ArgMax", "argmin": "ArgMin"}[function]
        return b.add(kind, x, axis=axes[0], keepdims=keep)
    if function in ("any", "all") and b.tensors[x].dtype != "bool":
        x = b.add("Cast", x, to=TYPES["bool"])
    name = {"any": "max", "all": "min"}.get(function, function)
    how = {"keepdims": keep, "noop_with_empty_axes": 1}
    return b.add(f"Reduce{name.capitalize()}", x, b.ints(*axes), **how)


def pad(b: Nodes, x: str, pads: tuple[int, ...], mode: str = "constant", value: float = 0.0) -> str:
    """Return `x` padded: ONNX says what is before all axes, then what is after."""
    what = [b.number(value, b.output.dtype)] if mode == "constant" else []
    known = "wrap" if mode == "circular" else mode
    return b.add("Pad", x, b.ints(*pads[::2], *pads[1::2]), *what, mode=known)


def _topk(b: Nodes, x: str, k: int, axis: int, largest: bool = True) -> tuple[str, ...]:
    return b.add_several("TopK", 2, x, b.ints(k), axis=axis, largest=largest)


def flip(b: Nodes, x: str, axes: tuple[int, ...]) -> str:
    """Return `x` in the opposite order along `axes`."""
    back, ends = b.ints(*[-1] * len(axes)), b.ints(*[_FIRST] * len(axes))
    return b.add("Slice", x, back, ends, b.ints(*axes), back)


_MODES = {"nearest": "nearest", "bilinear": "linear", "bicubic": "cubic"}


def _group_norm(b: Nodes, *inputs: str, groups: int, instance: bool = False) -> str:
    if instance:
        return b.add("InstanceNormalization", *inputs, epsilon=EPSILON)
    return b.add("GroupNormalization", *inputs, num_groups=groups, epsilon=EPSILON)


def _resize2d(
    b: Nodes, x: str, size: tuple[int, int], mode: str, align_corners: bool = False
) -> str:
    between = "align_corners" if align_corners else "half_pixel"
    how: dict[str, Any] = {"mode": _MODES[mode], "coordinate_transformation_mode": between}
    if mode == "nearest":
        how |= {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    sizes = b.ints(*b.shape(x)[:2], *size)
    return b.add("Resize", x, "", "", sizes, **how, cubic_coeff_a=-0.75)


KINDS: dict[str, Write] = {
    "pointwise": pointwise,
    "reduce": _reduce,
    "broadcast": lambda b, x, shape: b.add("Expand", x, b.ints(*shape)),
    "tile": lambda b, x, times: b.add("Tile", x, b.ints(*times)),
    "pad": pad,
    "gather": lambda b, x, indices, axis: b.add("Gather", x, indices, axis=axis),
    "gather_elements": lambda b, x, at, axis: b.add("GatherElements", x, at, axis=axis),
    "topk": _topk,
    "cumsum": lambda b, x, axis, reverse=False: b.add(
        "CumSum", x, b.number(axis, "int64"), reverse=reverse
    ),
    "flip": flip,
    "resize2d": _resize2d,
    "group_norm": _group_norm,
}
