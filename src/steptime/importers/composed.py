"""Functions of elements that have no row of their own and are written out in others that have."""

import math
from collections.abc import Callable, Mapping
from typing import Any

from steptime.importers import elements
from steptime.importers.elements import Operand
from steptime.ops.builder import Builder

Apply = Callable[..., str]  # a function's name and its operands -> what it makes
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


def pointwise(b: Builder, function: str, *operands: Operand, name: str, **how: Any) -> str:
    """Return a function of single elements, written out where it has no row of its own.

    `how` is the parameter of `elu` or `leaky_relu`, or `low` and `high` of `clamp`.
    """
    if function not in COMPOSED:
        return elements.pointwise(b, function, *operands, name=name, **how)
    return COMPOSED[function](lambda f, *x: pointwise(b, f, *x, name=name), *operands)
