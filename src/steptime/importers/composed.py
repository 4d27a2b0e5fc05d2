"""Functions of elements, and reductions, that are written out in others that have a kind."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from steptime.importers import elements
from steptime.importers.elements import Operand
from steptime.ops.builder import Builder
from steptime.ops.pointwise import FUNCTIONS

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

UNARY = (  # names of functions of one operand, whatever they are counted as
    *(name for name, row in FUNCTIONS.items() if len(row.gradients) == 1),
    *elements.OF_THEIR_OWN,
    *(name for name in COMPOSED if name not in ("lerp", "swiglu")),
)
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


def pointwise(b: Builder, function: str, *operands: Operand, name: str, **how: Any) -> str:
    """Return a function of single elements, written out where it has no row of its own.

    `how` is the parameter of `elu` or `leaky_relu`, or `low` and `high` of `clamp`.
    """
    if function not in COMPOSED:
        return elements.pointwise(b, function, *operands, name=name, **how)
    return COMPOSED[function](lambda f, *x: pointwise(b, f, *x, name=name), *operands)


def reduce(
    b: Builder, function: str, x: str, axes: Sequence[int] | None, name: str, keep: bool = False
) -> str:
    """Return `x` reduced over `axes`, all where they are None; norms and the like written out."""
    rank = len(b.shape(x))
    every = range(rank) if axes is None else axes
    if function not in REDUCED or not every or not rank:
        return elements.reduce(b, function, x, axes, name, keep)
    y = REDUCED[function](
        lambda f, *operands: pointwise(b, f, *operands, name=name),
        lambda f, z: elements.reduce(b, f, z, every, name, True),
        lambda f, z: elements.reduce(b, f, z, every, name, keep),
        x,
    )
    kept = not keep and len(b.shape(y)) == rank
    return elements.squeeze(b, y, every, f"{name}/reshape") if kept else y
