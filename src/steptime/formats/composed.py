"""Functions of elements, and reductions, that are written out in others that have a kind."""

import math
from collections.abc import Callable, Mapping

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
REDUCED: Mapping[str, Callable[..., str]] = {  # of functions `f`, and reductions: `r` keeps axes
    "l1": lambda f, r, last, x: last("sum", f("abs", x)),
    "l2": lambda f, r, last, x: f("sqrt", last("sum", f("mul", x, x))),
    "sum_square": lambda f, r, last, x: last("sum", f("mul", x, x)),
    "variance": lambda f, r, last, x: last("mean", f("square", f("sub", x, r("mean", x)))),
    "logsum": lambda f, r, last, x: f("log", last("sum", x)),
    "logsumexp": lambda f, r, last, x: _logsumexp(f, r, x, r("max", x)),
}


def _logsumexp(f: Apply, r: Apply, x: str, most: str) -> str:
    return f("add", f("log", r("sum", f("exp", f("sub", x, most)))), most)
