"""Elementwise functions and reductions without an op kind, as compositions of others that have one.

A composition gets the functions that append ops to the graph, and tensors:

* `f(name, *operands)` appends an elementwise function;
* `reduce(name, x)` appends a reduction that keeps its axes with size 1;
* `result(name, x)` appends a reduction that keeps its axes only if the composed one does.
"""

import math
from collections.abc import Callable, Mapping

from steptime.formats.tensors import is_float
from steptime.network.ops.builder import Builder

Apply = Callable[..., str]  # (function's name, *operands) -> tensor


def _compose_logsumexp(f: Apply, reduce: Apply, _result: Apply, x: str) -> str:
    """Compose `max(x) + log(sum(exp(x - max(x))))`, which does not overflow."""
    maximum = reduce("max", x)
    exponentials = f("exp", f("sub", x, maximum))
    return f("add", f("log", reduce("sum", exponentials)), maximum)


def _compose_variance(f: Apply, reduce: Apply, result: Apply, x: str) -> str:
    """Compose `mean((x - mean(x))^2)`, the variance of a whole population."""
    difference = f("sub", x, reduce("mean", x))
    return result("mean", f("square", difference))


INTEGER_FUNCTIONS = (  # pointwise functions that keep integers integers
    *("neg", "abs", "sign", "add", "sub", "mul", "maximum", "minimum", "mod", "floor_divide"),
    *("where", "clamp", "eq", "ne", "lt", "le", "gt", "ge", "and", "or", "xor", "logical_not"),
)
COMPOSED: Mapping[str, Callable[..., str]] = {
    "tan": lambda f, x: f("div", f("sin", x), f("cos", x)),
    "sinh": lambda f, x: f("mul", f("sub", f("exp", x), f("exp", f("neg", x))), 0.5),
    "cosh": lambda f, x: f("mul", f("add", f("exp", x), f("exp", f("neg", x))), 0.5),
    "atanh": lambda f, x: f("mul", f("sub", f("log1p", x), f("log1p", f("neg", x))), 0.5),
    "asinh": lambda f, x: f("log", f("add", f("sqrt", f("add", f("mul", x, x), 1.0)), x)),
    "acosh": lambda f, x: f("log", f("add", f("sqrt", f("sub", f("mul", x, x), 1.0)), x)),
    "logit": lambda f, x: f("sub", f("log", x), f("log1p", f("neg", x))),
    "exp2": lambda f, x: f("exp", f("mul", x, math.log(2))),
    "log2": lambda f, x: f("mul", f("log", x), 1 / math.log(2)),
    "log10": lambda f, x: f("mul", f("log", x), 1 / math.log(10)),
    "square": lambda f, x: f("mul", x, x),
    "trunc": lambda f, x: f("mul", f("sign", x), f("floor", f("abs", x))),
    "frac": lambda f, x: f("sub", x, f("trunc", x)),
    "tanhshrink": lambda f, x: f("sub", x, f("tanh", x)),
    "isfinite": lambda f, x: f("logical_not", f("isnan", x)),
    "lerp": lambda f, x, y, share: f("add", x, f("mul", f("sub", y, x), share)),
    "swiglu": lambda f, x, gate: f("mul", f("silu", x), gate),
}
REDUCED: Mapping[str, Callable[..., str]] = {
    "l1": lambda f, reduce, result, x: result("sum", f("abs", x)),
    "l2": lambda f, reduce, result, x: f("sqrt", result("sum", f("mul", x, x))),
    "sum_square": lambda f, reduce, result, x: result("sum", f("mul", x, x)),
    "variance": _compose_variance,
    "logsum": lambda f, reduce, result, x: f("log", result("sum", x)),
    "logsumexp": _compose_logsumexp,
}


def simplify_clamp(
    b: Builder, function: str, operands: tuple[str | float, ...], low: float, high: float
) -> tuple[str, tuple[str | float, ...]]:
    """Return a clamp of one limit as `maximum` or `minimum`, a `maximum` of 0 and floats as ReLU.

    Any other function is returned as it is. The first tensor among the operands decides the type.
    """
    # a clamp with one bound is a maximum or minimum with it, and a maximum with 0 is a ReLU
    simple_function = function
    simple_operands = operands
    is_clamp = function == "clamp"
    if is_clamp and high == math.inf:
        simple_function = "maximum"
        simple_operands = (*operands, low)
    elif is_clamp and low == -math.inf:
        simple_function = "minimum"
        simple_operands = (*operands, high)
    is_at_least_zero = simple_function == "maximum" and 0.0 in simple_operands[1:]
    if is_at_least_zero:
        first_tensor = next(x for x in simple_operands if isinstance(x, str))
        # ReLU is a kind for floats alone
        if is_float(b, first_tensor):
            simple_function = "relu"
    return simple_function, simple_operands
