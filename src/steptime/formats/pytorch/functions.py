"""Lowers ATen ops of elements and reductions to op kinds."""

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

from steptime.core.toml_files import read_packaged_toml
from steptime.formats import elements
from steptime.formats.pytorch.call import Call, Handler, ProgramConstant, Result, Value, as_list
from steptime.network.ops.table import require

NAMES = read_packaged_toml("torch_names.toml")
PRICED_NORM_ORDERS = (1, 2)


def _as_operand(call: Call, value: Value | float) -> str | float:
    """Return a number as it is, a value as the name of its tensor."""
    return value if isinstance(value, int | float) else call.walk.tensor(value)


def _lower_binary(function: str, call: Call) -> Result:
    """Lower a function of two operands, the second times `alpha`."""
    first = _as_operand(call, call["self"])
    second = _as_operand(call, call[call.argument_name("other", "exponent")])
    alpha = call.argument("alpha", 1)
    if alpha != 1 and isinstance(second, str):
        second = call.lower(elements.pointwise, "mul", second, alpha, suffix="/alpha")
    elif alpha != 1:
        second *= alpha  # both are numbers
    # a quotient that is cut towards zero costs as much as one that is floored
    if call.argument("rounding_mode"):
        function = "floor_divide"
    is_commutative = function in {"mul", "add"}
    starts_with_number = not isinstance(first, str)
    if is_commutative and starts_with_number:
        first, second = second, first
    return call.lower(elements.pointwise, function, first, second)


def _lower_reverse_subtract(call: Call) -> Result:
    """Lower `rsub`: the second operand minus `alpha` times the first."""
    subtrahend = _as_operand(call, call["self"])
    minuend = _as_operand(call, call["other"])
    alpha = call.argument("alpha", 1)
    if alpha != 1:
        subtrahend = call.lower(elements.pointwise, "mul", subtrahend, alpha, suffix="/alpha")
    return call.lower(elements.pointwise, "sub", minuend, subtrahend)


def _reduce(function: str, call: Call) -> str:
    """Append a reduction over the axes of `dim`, or over all."""
    axes = as_list(call.argument("dim")) or None
    keep = bool(call.argument("keepdim", False))
    return elements.reduce(call.b, function, call.tensor_in_output_type(), axes, call.name, keep)


def _lower_reduction(function: str, call: Call) -> Result:
    return _reduce(function, call), call.index_output(1)


def _lower_norm(call: Call) -> Result:
    order = call.argument(call.argument_name("p", "ord"), 2)
    require(order in PRICED_NORM_ORDERS, f"a norm of order {order}")
    return _lower_reduction(f"l{int(order)}", call)


def _lower_standard_deviation(call: Call) -> str:
    return call.lower(elements.pointwise, "sqrt", _reduce("variance", call))


def _lower_variance_and_mean(call: Call) -> Result:
    """Lower `var_mean` and `std_mean`."""
    is_deviation = call.node.op == "std_mean"
    spread = _lower_standard_deviation(call) if is_deviation else _reduce("variance", call)
    return [spread, _reduce("mean", call)]


def _lower_extreme(function: str, call: Call) -> Result:
    """Lower `max` or `min`: of two tensors, over all, or over an axis with indices."""
    if call.argument("other") is not None:
        return _lower_binary(f"{function}imum", call)
    values_name, *index_names = call.node.outputs
    if not any(map(call.walk.is_read, index_names)):
        return _lower_reduction(function, call)
    # indices decide what comes behind, so they are computed, as those of `argmax`
    values = _reduce(function, call) if call.walk.is_read(values_name) else None
    return [values, _reduce(f"arg{function}", call)]


def _read_clamp_limits(call: Call) -> tuple[Value | float, Value | float]:
    """Return the lower and the upper limit of a clamp, infinite where there is none."""
    if call.node.op == "relu6":  # whose limits are no arguments
        return 0.0, 6.0
    low = call.argument("min", call.argument("min_val", -math.inf))
    high = call.argument("max", call.argument("max_val", math.inf))
    return low, high


def _lower_clamp(call: Call) -> Result:
    """Lower a clamp between numbers, which may be infinite, or tensors."""
    low, high = _read_clamp_limits(call)
    x = call.tensor()
    if not isinstance(low, int | float):  # a tensor
        x = call.lower(elements.pointwise, "maximum", x, call.walk.tensor(low))
        low = -math.inf
    if not isinstance(high, int | float):  # a tensor
        x = call.lower(elements.pointwise, "minimum", x, call.walk.tensor(high))
        high = math.inf
    is_unlimited = math.isinf(low) and math.isinf(high)
    if is_unlimited:
        return x
    return call.lower(elements.pointwise, "clamp", x, low=float(low), high=float(high))


def _lower_unary(
    function: str, call: Call, parameter_name: str = "", default: float = 0.0
) -> Result:
    """Lower a function of one operand, whose parameter may be an argument."""
    parameter = float(call.argument(parameter_name, default)) if parameter_name else None
    return call.lower(elements.pointwise, function, call.first_tensor, parameter=parameter)


def _lower_gelu(call: Call) -> Result:
    is_by_tanh = call.argument("approximate") == "tanh"
    return _lower_unary("gelu_tanh" if is_by_tanh else "gelu", call)


def _lower_selection(call: Call) -> Result:
    condition = call.walk.tensor(call["condition"])
    x, y = _as_operand(call, call["self"]), _as_operand(call, call["other"])
    return call.lower(elements.select_by_mask, condition, x, y)


def _lower_masked_fill(call: Call) -> Result:
    fill = _as_operand(call, call["value"])
    return call.lower(elements.select_by_mask, call.tensor("mask"), fill, call.tensor())


def _lower_add_product(call: Call) -> Result:
    """Lower `addcmul` and `addcdiv`: add a product or quotient of two tensors."""
    function = call.node.op.removeprefix("addc")  # `mul` or `div`
    x = call.tensor("tensor1")
    y = call.tensor("tensor2")
    product = call.lower(elements.pointwise, function, x, y, suffix="/product")
    factor = call.argument("value", 1)
    if factor != 1:
        product = call.lower(elements.pointwise, "mul", product, factor, suffix="/value")
    return call.lower(elements.pointwise, "add", call.tensor(), product)


def _lower_threshold(call: Call) -> Result:
    x = call.tensor()
    is_above = call.lower(elements.pointwise, "gt", x, float(call["threshold"]), suffix="/above")
    return call.lower(elements.select_by_mask, is_above, x, float(call["value"]))


def _lower_gated_linear_unit(call: Call) -> Result:
    axis = call.axis(call.argument("dim", -1))
    half_width = call.b.shape(call.tensor())[axis] // 2
    half_widths = [half_width, half_width]
    x, gate = call.lower(elements.split, call.tensor(), half_widths, axis, suffix="/halves")
    gate_share = call.lower(elements.pointwise, "sigmoid", gate, suffix="/gate")
    return call.lower(elements.pointwise, "mul", x, gate_share)


def _lower_triangle(call: Call) -> Result:
    """Lower `tril` and `triu`: a product with a constant mask."""
    x = call.tensor()
    mask = ProgramConstant(call.b.shape(x)[-2:], "float32", f"{call.name}/triangle")
    return call.lower(elements.pointwise, "mul", x, call.walk.tensor(mask))


def _lower_interpolate(call: Call) -> Result:
    operands: list[Any] = [_as_operand(call, call[name]) for name in ("self", "end", "weight")]
    return call.lower(elements.pointwise, "lerp", *operands)


def _lower_outer_product(call: Call) -> Result:
    column = call.lower(elements.reshape, call.tensor(), (-1, 1), suffix="/rows")
    return call.lower(elements.pointwise, "mul", column, call.tensor("vec2"))


def _lower_softmax(call: Call) -> Result:
    return call.lower(elements.softmax, call.tensor_in_output_type(), call["dim"])


def _lower_log_softmax(call: Call) -> Result:
    return call.lower(elements.softmax, call.tensor_in_output_type(), call["dim"], log=True)


def _lower_cumulative_sum(call: Call) -> Result:
    x = call.tensor_in_output_type()
    return call.lower(elements.append_op, "cumsum", x, axis=call.axis(call["dim"]))


FUNCTIONS: Mapping[str, Handler] = {
    **{name: partial(_lower_unary, name) for name in elements.UNARY},
    **{name: partial(_lower_unary, function) for name, function in NAMES["unary"].items()},
    **{name: partial(_lower_binary, function) for name, function in NAMES["binary"].items()},
    **{name: partial(_lower_reduction, function) for name, function in NAMES["reductions"].items()},
    **dict.fromkeys(("linalg_vector_norm", "norm"), _lower_norm),
    "var": partial(_lower_reduction, "variance"),
    "std": _lower_standard_deviation,
    **dict.fromkeys(("var_mean", "std_mean"), _lower_variance_and_mean),
    "max": partial(_lower_extreme, "max"),
    "min": partial(_lower_extreme, "min"),
    "rsub": _lower_reverse_subtract,
    **dict.fromkeys(("clamp", "hardtanh", "clip", "clamp_min", "clamp_max", "relu6"), _lower_clamp),
    "leaky_relu": partial(
        _lower_unary, "leaky_relu", parameter_name="negative_slope", default=0.01
    ),
    "elu": partial(_lower_unary, "elu", parameter_name="alpha", default=1.0),
    "gelu": _lower_gelu,
    "prelu": lambda call: call.lower(
        elements.append_op, "prelu", call.tensor(), call.tensor("weight")
    ),
    "lerp": _lower_interpolate,
    "threshold": _lower_threshold,
    "glu": _lower_gated_linear_unit,
    **dict.fromkeys(("tril", "triu"), _lower_triangle),
    **dict.fromkeys(("outer", "ger"), _lower_outer_product),
    "where": _lower_selection,
    "masked_fill": _lower_masked_fill,
    **dict.fromkeys(("addcmul", "addcdiv"), _lower_add_product),
    **dict.fromkeys(("softmax", "_softmax"), _lower_softmax),
    **dict.fromkeys(("log_softmax", "_log_softmax"), _lower_log_softmax),
    "cumsum": _lower_cumulative_sum,
}
