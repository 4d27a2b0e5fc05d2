"""Writes the general op kinds as ONNX nodes: elementwise functions, reductions, moves."""

from collections.abc import Sequence

from steptime.core.toml_files import read_packaged_toml
from steptime.formats.export.onnx_nodes import TYPES, Function, Nodes, Write, single_node_writer
from steptime.network.ops.elementwise import promote_types
from steptime.network.ops.norm import EPSILON

BEFORE_FIRST = -(1 << 63)  # the end of a slice that goes backwards through the first element


def _write_with_number(kind: str, number: float) -> Function:
    """Return a function that writes a node of `x` and a number, in this order."""
    return lambda nodes, x: nodes.add(
        kind, x, nodes.constant_number(number, nodes.output_spec.dtype)
    )


def _write_floor_divide(nodes: Nodes, x: str, y: str) -> str:
    """Write the quotient rounded down: integers as float64, which holds them up to 2^53."""
    if "float" in nodes.output_spec.dtype:
        return nodes.add("Floor", nodes.add("Div", x, y))
    float_x = nodes.add("Cast", x, to=TYPES["float64"])
    float_y = nodes.add("Cast", y, to=TYPES["float64"])
    quotient = nodes.add("Floor", nodes.add("Div", float_x, float_y))
    return nodes.add("Cast", quotient, to=TYPES[nodes.output_spec.dtype])


def _write_mod(nodes: Nodes, x: str, y: str) -> str:
    """Write the remainder, which has the sign of the divisor."""
    if "float" not in nodes.output_spec.dtype:
        return nodes.add("Mod", x, y)
    multiple = nodes.add("Mul", _write_floor_divide(nodes, x, y), y)
    return nodes.add("Sub", x, multiple)


def _write_clamp(nodes: Nodes, x: str, low: float, high: float) -> str:
    dtype = nodes.output_spec.dtype
    return nodes.add(
        "Clip", x, nodes.constant_number(low, dtype), nodes.constant_number(high, dtype)
    )


def _write_with_alpha(kind: str, default: float) -> Function:
    """Return a function that writes an activation whose scalar is ONNX's `alpha`."""

    def write(nodes: Nodes, x: str, scalar: float | None = None) -> str:
        return nodes.add(kind, x, alpha=float(default if scalar is None else scalar))

    return write


FUNCTIONS: dict[str, Function] = {
    **{
        function: single_node_writer(name)
        for function, name in read_packaged_toml("onnx.toml")["functions"].items()
    },
    "rsqrt": lambda nodes, x: nodes.add("Reciprocal", nodes.add("Sqrt", x)),
    "log1p": lambda nodes, x: nodes.add("Log", _write_with_number("Add", 1.0)(nodes, x)),
    "expm1": lambda nodes, x: _write_with_number("Sub", 1.0)(nodes, nodes.add("Exp", x)),
    "clamp": _write_clamp,
    "leaky_relu": _write_with_alpha("LeakyRelu", 0.01),
    "elu": _write_with_alpha("Elu", 1.0),
    "hard_sigmoid": single_node_writer("HardSigmoid", alpha=1 / 6, beta=0.5),
    "log_sigmoid": lambda nodes, x: nodes.add("Neg", nodes.add("Softplus", nodes.add("Neg", x))),
    "mod": _write_mod,
    "floor_divide": _write_floor_divide,
    "ne": lambda nodes, x, y: nodes.add("Not", nodes.add("Equal", x, y)),
}
_LOGICAL = ("and", "or", "xor", "logical_not")
_EXTREME_OF_TRUTH = {"any": "max", "all": "min"}  # ONNX's reduction of truth values
_FUNCTIONS_WITH_PARAMETER = ("leaky_relu", "elu")  # their scalar is a parameter, not an operand


def write_pointwise(
    nodes: Nodes,
    *inputs: str,
    function: str,
    scalar: float | None = None,
    scalar_place: int = -1,
    **limits: float,
) -> str:
    """Write a function of elements; operands of several types are cast to one."""
    write_function = FUNCTIONS[function]
    dtype = _operand_dtype(nodes, function, inputs)
    operands = list(inputs)
    for index, name in enumerate(inputs):
        is_condition = function == "where" and index == 0
        has_other_type = nodes.tensors[name].dtype != dtype
        if has_other_type and not is_condition:
            operands[index] = nodes.add("Cast", name, to=TYPES[dtype])
    if function in _FUNCTIONS_WITH_PARAMETER:
        return write_function(nodes, *operands, scalar=scalar)
    if scalar is not None:  # `x - 2`: the number is an operand, by default the last
        scalar_index = scalar_place % (len(operands) + 1)
        operands.insert(scalar_index, nodes.constant_number(scalar, dtype))
    return write_function(nodes, *operands, **limits)


def _operand_dtype(nodes: Nodes, function: str, inputs: Sequence[str]) -> str:
    """Return the type that a function of elements reads: a comparison's is that of its operands."""
    if function in _LOGICAL:
        return "bool"
    if nodes.output_spec.dtype == "bool":
        return promote_types(*(nodes.tensors[name] for name in inputs))
    return nodes.output_spec.dtype


def _write_reduce(
    nodes: Nodes, x: str, function: str, axes: tuple[int, ...], keep: bool = False
) -> str:
    """Write a reduction; `any` and `all` are the maximum and minimum of truth values."""
    if function in ("argmax", "argmin"):
        kind = "ArgMax" if function == "argmax" else "ArgMin"
        return nodes.add(kind, x, axis=axes[0], keepdims=keep)
    operand = x
    # ONNX has no "any" and "all": they are the largest and the smallest truth value
    if function in _EXTREME_OF_TRUTH and nodes.tensors[x].dtype != "bool":
        operand = nodes.add("Cast", x, to=TYPES["bool"])
    onnx_name = _EXTREME_OF_TRUTH.get(function, function)
    kind = f"Reduce{onnx_name.capitalize()}"
    return nodes.add(
        kind, operand, nodes.constant_ints(*axes), keepdims=keep, noop_with_empty_axes=1
    )


def write_pad(
    nodes: Nodes, x: str, pads: tuple[int, ...], mode: str = "constant", value: float = 0.0
) -> str:
    """Write a padding: ONNX has the sizes before all axes, then those after all axes."""
    pads_before = pads[::2]
    pads_after = pads[1::2]
    fill_inputs = (
        [nodes.constant_number(value, nodes.output_spec.dtype)] if mode == "constant" else []
    )
    onnx_mode = "wrap" if mode == "circular" else mode
    return nodes.add(
        "Pad", x, nodes.constant_ints(*pads_before, *pads_after), *fill_inputs, mode=onnx_mode
    )


def _write_topk(nodes: Nodes, x: str, k: int, axis: int, largest: bool = True) -> tuple[str, ...]:
    return nodes.add_with_outputs(
        "TopK", x, nodes.constant_ints(k), output_count=2, axis=axis, largest=largest
    )


def write_flip(nodes: Nodes, x: str, axes: tuple[int, ...]) -> str:
    """Write `x` in the opposite order along `axes`: a slice from the last element, step -1."""
    backwards = nodes.constant_ints(*[-1] * len(axes))
    ends = nodes.constant_ints(*[BEFORE_FIRST] * len(axes))
    return nodes.add("Slice", x, backwards, ends, nodes.constant_ints(*axes), backwards)


_RESIZE_MODES = {"nearest": "nearest", "bilinear": "linear", "bicubic": "cubic"}


def _write_group_norm(nodes: Nodes, *inputs: str, groups: int, instance: bool = False) -> str:
    if instance:
        return nodes.add("InstanceNormalization", *inputs, epsilon=EPSILON)
    return nodes.add("GroupNormalization", *inputs, num_groups=groups, epsilon=EPSILON)


def _write_resize2d(
    nodes: Nodes, x: str, size: tuple[int, int], mode: str, align_corners: bool = False
) -> str:
    """Write a resized image, its pixels where torch has them."""
    transformation = "align_corners" if align_corners else "half_pixel"
    attrs: dict[str, str] = {}
    # torch takes the pixel at the rounded-down position of the corner
    if mode == "nearest":
        transformation = "asymmetric"
        attrs["nearest_mode"] = "floor"
    output_shape = nodes.constant_ints(*nodes.shape(x)[:2], *size)
    region = ""
    scales = ""  # left out: the shape decides
    return nodes.add(
        "Resize",
        x,
        region,
        scales,
        output_shape,
        mode=_RESIZE_MODES[mode],
        coordinate_transformation_mode=transformation,
        **attrs,
        # torch's coefficient of cubic interpolation
        cubic_coeff_a=-0.75,
    )


def _write_cumsum(nodes: Nodes, x: str, axis: int, reverse: bool = False) -> str:
    return nodes.add("CumSum", x, nodes.constant_number(axis, "int64"), reverse=reverse)


KINDS: dict[str, Write] = {
    "pointwise": write_pointwise,
    "reduce": _write_reduce,
    "broadcast": lambda nodes, x, shape: nodes.add("Expand", x, nodes.constant_ints(*shape)),
    "tile": lambda nodes, x, times: nodes.add("Tile", x, nodes.constant_ints(*times)),
    "pad": write_pad,
    "gather": lambda nodes, x, indices, axis: nodes.add("Gather", x, indices, axis=axis),
    "gather_elements": lambda nodes, x, ids, axis: nodes.add("GatherElements", x, ids, axis=axis),
    "topk": _write_topk,
    "cumsum": _write_cumsum,
    "flip": write_flip,
    "resize2d": _write_resize2d,
    "group_norm": _write_group_norm,
}
