"""ATen ops of elements and reductions, onto `formats/elements.py`."""

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

from steptime.core.toml_files import packaged
from steptime.formats import elements as el
from steptime.formats.pytorch.call import Call, Handler, ProgramConstant, Result, Value, as_list
from steptime.network.ops.table import require

NAMES = packaged("torch_names.toml")
NORM_ORDERS = (1, 2)


def _operand(call: Call, value: Value | float) -> str | float:
    """Return a number as it is, a value as the name of its tensor."""
    return value if isinstance(value, int | float) else call.walk.tensor(value)


def _binary(function: str, call: Call) -> Result:
    """Lower a function of two operands, the second times `alpha`."""
    first = _operand(call, call["self"])
    second = _operand(call, call[call.argument_name("other", "exponent")])
    alpha = call.argument("alpha", 1)
    if alpha != 1 and isinstance(second, str):
        second = call.lower(el.pointwise, "mul", second, alpha, suffix="/alpha")
    elif alpha != 1:
        second *= alpha
    if call.argument("rounding_mode"):
        function = "floor_divide"
    is_commutative = function in {"mul", "add"}
    if is_commutative and not isinstance(first, str):
        first, second = second, first
    return call.lower(el.pointwise, function, first, second)


def _reverse_subtract(call: Call) -> Result:
    """Lower `rsub`: the second operand minus `alpha` times the first."""
    subtrahend, minuend = _operand(call, call["self"]), _operand(call, call["other"])
    alpha = call.argument("alpha", 1)
    if alpha != 1:
        subtrahend = call.lower(el.pointwise, "mul", subtrahend, alpha, suffix="/alpha")
    return call.lower(el.pointwise, "sub", minuend, subtrahend)


def _reduce(function: str, call: Call) -> str:
    """Append a reduction over the axes of `dim`, or over all."""
    axes = as_list(call.argument("dim")) or None
    keep = bool(call.argument("keepdim", False))
    return el.reduce(call.b, function, call.tensor_in_output_type(), axes, call.name, keep)


def _reduction(function: str, call: Call) -> Result:
    return _reduce(function, call), call.index_output(1)


def _norm(call: Call) -> Result:
    order = call.argument(call.argument_name("p", "ord"), 2)
    require(order in NORM_ORDERS, f"a norm of order {order}")
    return _reduction(f"l{int(order)}", call)


def _standard_deviation(call: Call) -> str:
    return call.lower(el.pointwise, "sqrt", _reduce("variance", call))


def _spread_and_mean(call: Call) -> Result:
    """Lower `var_mean` and `std_mean`."""
    is_deviation = call.node.op == "std_mean"
    spread = _standard_deviation(call) if is_deviation else _reduce("variance", call)
    return [spread, _reduce("mean", call)]


def _extreme(function: str, call: Call) -> Result:
    """Lower `max` or `min`: of two tensors, over all, or over an axis with indices."""
    if call.argument("other") is not None:
        return _binary(f"{function}imum", call)
    return _reduction(function, call)


def _clamp(call: Call) -> Result:
    """Lower a clamp between numbers, which may be infinite, or tensors."""
    default_low, default_high = -math.inf, math.inf
    if call.node.op == "relu6":
        default_low, default_high = 0.0, 6.0
    low = call.argument("min", call.argument("min_val", default_low))
    high = call.argument("max", call.argument("max_val", default_high))
    x = call.tensor()
    if not isinstance(low, int | float):
        x = call.lower(el.pointwise, "maximum", x, call.walk.tensor(low))
        low = -math.inf
    if not isinstance(high, int | float):
        x = call.lower(el.pointwise, "minimum", x, call.walk.tensor(high))
        high = math.inf
    if math.isinf(low) and math.isinf(high):
        return x
    return call.lower(el.pointwise, "clamp", x, low=float(low), high=float(high))


def _unary(function: str, call: Call, argument: str = "", default: float = 0.0) -> Result:
    """Lower a function of one operand, whose parameter may be an argument."""
    parameter = float(call.argument(argument, default)) if argument else None
    return call.lower(el.pointwise, function, call.first_tensor, parameter=parameter)


def _gelu(call: Call) -> Result:
    is_by_tanh = call.argument("approximate") == "tanh"
    return _unary("gelu_tanh" if is_by_tanh else "gelu", call)


def _select_by_condition(call: Call) -> Result:
    condition = call.walk.tensor(call["condition"])
    x, y = _operand(call, call["self"]), _operand(call, call["other"])
    return call.lower(el.select_by_mask, condition, x, y)


def _masked_fill(call: Call) -> Result:
    fill = _operand(call, call["value"])
    return call.lower(el.select_by_mask, call.tensor("mask"), fill, call.tensor())


def _add_product(call: Call) -> Result:
    """Lower `addcmul` and `addcdiv`: add a product or quotient of two tensors."""
    function = call.node.op.removeprefix("addc")
    x, y = call.tensor("tensor1"), call.tensor("tensor2")
    product = call.lower(el.pointwise, function, x, y, suffix="/product")
    factor = call.argument("value", 1)
    if factor != 1:
        product = call.lower(el.pointwise, "mul", product, factor, suffix="/value")
    return call.lower(el.pointwise, "add", call.tensor(), product)


def _threshold(call: Call) -> Result:
    x = call.tensor()
    is_above = call.lower(el.pointwise, "gt", x, float(call["threshold"]), suffix="/above")
    return call.lower(el.select_by_mask, is_above, x, float(call["value"]))


def _gated_linear_unit(call: Call) -> Result:
    axis = call.axis(call.argument("dim", -1))
    width = call.b.shape(call.tensor())[axis] // 2
    x, gate = call.lower(el.split, call.tensor(), [width, width], axis, suffix="/halves")
    return call.lower(
        el.pointwise, "mul", x, call.lower(el.pointwise, "sigmoid", gate, suffix="/gate")
    )


def _triangle(call: Call) -> Result:
    """Lower `tril` and `triu`: a product with a constant mask."""
    x = call.tensor()
    mask = ProgramConstant(call.b.shape(x)[-2:], "float32", f"{call.name}/triangle")
    return call.lower(el.pointwise, "mul", x, call.walk.tensor(mask))


def _interpolate(call: Call) -> Result:
    operands: list[Any] = [_operand(call, call[name]) for name in ("self", "end", "weight")]
    return call.lower(el.pointwise, "lerp", *operands)


def _outer_product(call: Call) -> Result:
    column = call.lower(el.reshape, call.tensor(), (-1, 1), suffix="/rows")
    return call.lower(el.pointwise, "mul", column, call.tensor("vec2"))


def _softmax(call: Call) -> Result:
    return call.lower(el.softmax, call.tensor_in_output_type(), call["dim"])


def _log_softmax(call: Call) -> Result:
    return call.lower(el.softmax, call.tensor_in_output_type(), call["dim"], log=True)


def _cumulative_sum(call: Call) -> Result:
    x = call.tensor_in_output_type()
    return call.lower(el.op, "cumsum", x, axis=call.axis(call["dim"]))


FUNCTIONS: Mapping[str, Handler] = {
    **{name: partial(_unary, name) for name in el.UNARY},
    **{name: partial(_unary, function) for name, function in NAMES["unary"].items()},
    **{name: partial(_binary, function) for name, function in NAMES["binary"].items()},
    **{name: partial(_reduction, function) for name, function in NAMES["reductions"].items()},
    **dict.fromkeys(("linalg_vector_norm", "norm"), _norm),
    "var": partial(_reduction, "variance"),
    "std": _standard_deviation,
    **dict.fromkeys(("var_mean", "std_mean"), _spread_and_mean),
    "max": partial(_extreme, "max"),
    "min": partial(_extreme, "min"),
    "rsub": _reverse_subtract,
    **dict.fromkeys(("clamp", "hardtanh", "clip", "clamp_min", "clamp_max", "relu6"), _clamp),
    "leaky_relu": partial(_unary, "leaky_relu", argument="negative_slope", default=0.01),
    "elu": partial(_unary, "elu", argument="alpha", default=1.0),
    "gelu": _gelu,
    "prelu": lambda call: call.lower(el.op, "prelu", call.tensor(), call.tensor("weight")),
    "lerp": _interpolate,
    "threshold": _threshold,
    "glu": _gated_linear_unit,
    **dict.fromkeys(("tril", "triu"), _triangle),
    **dict.fromkeys(("outer", "ger"), _outer_product),
    "where": _select_by_condition,
    "masked_fill": _masked_fill,
    **dict.fromkeys(("addcmul", "addcdiv"), _add_product),
    **dict.fromkeys(("softmax", "_softmax"), _softmax),
    **dict.fromkeys(("log_softmax", "_log_softmax"), _log_softmax),
    "cumsum": _cumulative_sum,
}
