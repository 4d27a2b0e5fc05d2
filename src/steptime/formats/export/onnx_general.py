"""How ONNX says the general op kinds: functions of elements by name, reductions, moves."""

from collections.abc import Sequence

from steptime.core.toml_files import packaged
from steptime.formats.export.onnx_nodes import TYPES, Function, Nodes, Write, node
from steptime.network.ops.elementwise import promote_types
from steptime.network.ops.norm import EPSILON

BEFORE_FIRST = -(1 << 63)  # the end of a slice that goes backwards through the first element


def _with_number(kind: str, number: float) -> Function:
    """Return a function that writes a node of `x` and a number, in this order."""
    return lambda b, x: b.add(kind, x, b.number(number, b.output.dtype))


def _write_floor_divide(b: Nodes, x: str, y: str) -> str:
    """Write the quotient rounded down: integers as float64, which holds them up to 2^53."""
    if "float" in b.output.dtype:
        return b.add("Floor", b.add("Div", x, y))
    float_x = b.add("Cast", x, to=TYPES["float64"])
    float_y = b.add("Cast", y, to=TYPES["float64"])
    quotient = b.add("Floor", b.add("Div", float_x, float_y))
    return b.add("Cast", quotient, to=TYPES[b.output.dtype])


def _write_mod(b: Nodes, x: str, y: str) -> str:
    """Write the remainder, which has the sign of the divisor."""
    if "float" not in b.output.dtype:
        return b.add("Mod", x, y)
    multiple = b.add("Mul", _write_floor_divide(b, x, y), y)
    return b.add("Sub", x, multiple)


def _write_clamp(b: Nodes, x: str, low: float, high: float) -> str:
    dtype = b.output.dtype
    return b.add("Clip", x, b.number(low, dtype), b.number(high, dtype))


def _with_alpha(kind: str, default: float) -> Function:
    """Return a function that writes an activation whose scalar is ONNX's `alpha`."""

    def write(b: Nodes, x: str, scalar: float | None = None) -> str:
        return b.add(kind, x, alpha=float(default if scalar is None else scalar))

    return write


FUNCTIONS: dict[str, Function] = {
    **{function: node(name) for function, name in packaged("onnx.toml")["functions"].items()},
    "rsqrt": lambda b, x: b.add("Reciprocal", b.add("Sqrt", x)),
    "log1p": lambda b, x: b.add("Log", _with_number("Add", 1.0)(b, x)),
    "expm1": lambda b, x: _with_number("Sub", 1.0)(b, b.add("Exp", x)),
    "clamp": _write_clamp,
    "leaky_relu": _with_alpha("LeakyRelu", 0.01),
    "elu": _with_alpha("Elu", 1.0),
    "hard_sigmoid": node("HardSigmoid", alpha=1 / 6, beta=0.5),
    "log_sigmoid": lambda b, x: b.add("Neg", b.add("Softplus", b.add("Neg", x))),
    "mod": _write_mod,
    "floor_divide": _write_floor_divide,
    "ne": lambda b, x, y: b.add("Not", b.add("Equal", x, y)),
}
_LOGICAL = ("and", "or", "xor", "logical_not")
_EXTREME_OF_TRUTH = {"any": "max", "all": "min"}  # ONNX's reduction of truth values
_WITH_PARAMETER = ("leaky_relu", "elu")  # their scalar is a parameter, not an operand


def write_pointwise(
    b: Nodes,
    *inputs: str,
    function: str,
    scalar: float | None = None,
    scalar_place: int = -1,
    **limits: float,
) -> str:
    """Write a function of elements; operands of several types are cast to one."""
    write_function = FUNCTIONS[function]
    dtype = _operand_dtype(b, function, inputs)
    operands = list(inputs)
    for place, name in enumerate(inputs):
        is_condition = function == "where" and place == 0
        has_other_type = b.tensors[name].dtype != dtype
        if has_other_type and not is_condition:
            operands[place] = b.add("Cast", name, to=TYPES[dtype])
    if function in _WITH_PARAMETER:
        return write_function(b, *operands, scalar=scalar)
    if scalar is not None:
        place_from_front = scalar_place % (len(operands) + 1)
        operands.insert(place_from_front, b.number(scalar, dtype))
    return write_function(b, *operands, **limits)


def _operand_dtype(b: Nodes, function: str, inputs: Sequence[str]) -> str:
    """Return the type that a function of elements reads: a comparison's is that of its operands."""
    if function in _LOGICAL:
        return "bool"
    if b.output.dtype == "bool":
        return promote_types(*(b.tensors[name] for name in inputs))
    return b.output.dtype


def _write_reduce(
    b: Nodes, x: str, function: str, axes: tuple[int, ...], keep: bool = False
) -> str:
    """Write a reduction; `any` and `all` are the maximum and minimum of truth values."""
    if function in ("argmax", "argmin"):
        kind = "ArgMax" if function == "argmax" else "ArgMin"
        return b.add(kind, x, axis=axes[0], keepdims=keep)
    operand = x
    if function in _EXTREME_OF_TRUTH and b.tensors[x].dtype != "bool":
        operand = b.add("Cast", x, to=TYPES["bool"])
    onnx_name = _EXTREME_OF_TRUTH.get(function, function)
    kind = f"Reduce{onnx_name.capitalize()}"
    return b.add(kind, operand, b.ints(*axes), keepdims=keep, noop_with_empty_axes=1)


def write_pad(
    b: Nodes, x: str, pads: tuple[int, ...], mode: str = "constant", value: float = 0.0
) -> str:
    """Write a padding: ONNX has the sizes before all axes, then those after all axes."""
    pads_before = pads[::2]
    pads_after = pads[1::2]
    fill = [b.number(value, b.output.dtype)] if mode == "constant" else []
    onnx_mode = "wrap" if mode == "circular" else mode
    return b.add("Pad", x, b.ints(*pads_before, *pads_after), *fill, mode=onnx_mode)


def _write_topk(b: Nodes, x: str, k: int, axis: int, largest: bool = True) -> tuple[str, ...]:
    return b.add_several("TopK", 2, x, b.ints(k), axis=axis, largest=largest)


def write_flip(b: Nodes, x: str, axes: tuple[int, ...]) -> str:
    """Write `x` in the opposite order along `axes`: a slice from the last element, step -1."""
    backwards = b.ints(*[-1] * len(axes))
    ends = b.ints(*[BEFORE_FIRST] * len(axes))
    return b.add("Slice", x, backwards, ends, b.ints(*axes), backwards)


_RESIZE_MODES = {"nearest": "nearest", "bilinear": "linear", "bicubic": "cubic"}


def _write_group_norm(b: Nodes, *inputs: str, groups: int, instance: bool = False) -> str:
    if instance:
        return b.add("InstanceNormalization", *inputs, epsilon=EPSILON)
    return b.add("GroupNormalization", *inputs, num_groups=groups, epsilon=EPSILON)


def _write_resize2d(
    b: Nodes, x: str, size: tuple[int, int], mode: str, align_corners: bool = False
) -> str:
    """Write a resized image, its pixels placed as torch places them."""
    transformation = "align_corners" if align_corners else "half_pixel"
    attrs: dict[str, str] = {}
    if mode == "nearest":
        transformation = "asymmetric"
        attrs["nearest_mode"] = "floor"
    output_shape = b.ints(*b.shape(x)[:2], *size)
    region = ""
    scales = ""  # left out: the shape decides
    return b.add(
        "Resize",
        x,
        region,
        scales,
        output_shape,
        mode=_RESIZE_MODES[mode],
        coordinate_transformation_mode=transformation,
        **attrs,
        cubic_coeff_a=-0.75,
    )


def _write_cumsum(b: Nodes, x: str, axis: int, reverse: bool = False) -> str:
    return b.add("CumSum", x, b.number(axis, "int64"), reverse=reverse)


KINDS: dict[str, Write] = {
    "pointwise": write_pointwise,
    "reduce": _write_reduce,
    "broadcast": lambda b, x, shape: b.add("Expand", x, b.ints(*shape)),
    "tile": lambda b, x, times: b.add("Tile", x, b.ints(*times)),
    "pad": write_pad,
    "gather": lambda b, x, indices, axis: b.add("Gather", x, indices, axis=axis),
    "gather_elements": lambda b, x, ids, axis: b.add("GatherElements", x, ids, axis=axis),
    "topk": _write_topk,
    "cumsum": _write_cumsum,
    "flip": write_flip,
    "resize2d": _write_resize2d,
    "group_norm": _write_group_norm,
}
