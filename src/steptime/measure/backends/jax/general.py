"""How JAX runs the general kinds: functions of elements by name, reductions, moves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import lax, nn
from jax import numpy as jnp

Array = jax.Array
CUBIC = -0.75  # of bicubic interpolation, as torch

FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: getattr(jnp, name) for name in (
        "abs", "exp", "log", "sqrt", "reciprocal", "sin", "cos", "log1p", "expm1", "floor", "ceil",
        "round", "sign", "logical_not", "isnan", "where", "maximum", "minimum", "floor_divide",
        "mod",
    )},
    "neg": jnp.negative,
    "rsqrt": lax.rsqrt,
    "erf": lax.erf,
    "clamp": lambda x, low, high: jnp.clip(x, min=low, max=high),
    "leaky_relu": nn.leaky_relu,
    "elu": nn.elu,
    "selu": nn.selu,
    "hard_sigmoid": nn.hard_sigmoid,
    "hard_swish": nn.hard_swish,
    "softsign": nn.soft_sign,
    "softplus": nn.softplus,
    "log_sigmoid": nn.log_sigmoid,
    "mish": nn.mish,
    "add": jnp.add,
    "sub": jnp.subtract,
    "mul": jnp.multiply,
    "div": jnp.divide,
    "pow": jnp.power,
    "eq": jnp.equal,
    "ne": jnp.not_equal,
    "lt": jnp.less,
    "le": jnp.less_equal,
    "gt": jnp.greater,
    "ge": jnp.greater_equal,
    "and": jnp.logical_and,
    "or": jnp.logical_or,
    "xor": jnp.logical_xor,
}  # fmt: skip


def pointwise(
    *tensors: Array,
    function: str,
    scalar: float | None = None,
    scalar_place: int = -1,
    **limits: float,
) -> Array:
    """Return a function of elements; a number is one of its operands."""
    operands: list[Any] = list(tensors)
    if scalar is not None:
        operands.insert(scalar_place % (len(operands) + 1), scalar)
    made: Array = FUNCTIONS[function](*operands, **limits)
    return made


def reduce(x: Array, function: str, axes: tuple[int, ...], keep: bool = False) -> Array:
    """Return `x` reduced over `axes`."""
    over = axes[0] if function.startswith("arg") else axes
    made: Array = getattr(jnp, function)(x, axis=over, keepdims=keep)
    return made


MODES = {"reflect": "reflect", "edge": "edge", "circular": "wrap"}


def pad(x: Array, pads: tuple[int, ...], mode: str = "constant", value: float = 0.0) -> Array:
    """Return `x` padded, or cut where pads are negative."""
    pairs = [(pads[2 * i], pads[2 * i + 1]) for i in range(x.ndim)]
    if mode == "constant":
        return lax.pad(x, x.dtype.type(value), [(a, b, 0) for a, b in pairs])
    return jnp.pad(x, pairs, MODES[mode])


def gather_elements(x: Array, indices: Array, axis: int) -> Array:
    """Return the element of `x` at each index along `axis`; other places are its own."""
    own = tuple(slice(None if i == axis else n) for i, n in enumerate(indices.shape))
    return jnp.take_along_axis(x[own], indices, axis)


def topk(x: Array, k: int, axis: int, largest: bool = True) -> tuple[Array, Array]:
    """Return the largest or smallest along `axis`, in order, and their places."""
    last = jnp.moveaxis(x, axis, -1)
    best, places = lax.top_k(last if largest else -last, k)
    moved = (jnp.moveaxis(t, -1, axis) for t in (best if largest else -best, places))
    first, second = moved
    return first, second.astype(jnp.int64)


def _weights(n: int, m: int, mode: str, corners: bool) -> Any:
    """Return the `[m, n]` matrix that makes m elements of n along one axis."""
    out, rows = np.zeros((m, n)), np.arange(m)
    if mode == "nearest":
        out[rows, rows * n // m] = 1
        return out
    at = rows * ((n - 1) / max(1, m - 1)) if corners else (rows + 0.5) * (n / m) - 0.5
    at = np.maximum(at, 0.0) if mode == "bilinear" else at
    for tap in (0, 1) if mode == "bilinear" else (-1, 0, 1, 2):
        place = np.floor(at).astype(int) + tap
        away = abs(at - place)
        near = ((CUBIC + 2) * away - (CUBIC + 3)) * away * away + 1
        far = ((CUBIC * away - 5 * CUBIC) * away + 8 * CUBIC) * away - 4 * CUBIC
        share = 1 - away if mode == "bilinear" else np.where(away <= 1, near, far)
        np.add.at(out, (rows, place.clip(0, n - 1)), share)
    return out


def resize2d(x: Array, size: tuple[int, int], mode: str, align_corners: bool = False) -> Array:
    """Return an image of another size, by a matrix along each axis as `jax.image.resize` does."""
    sides = (_weights(x.shape[2 + i], size[i], mode, align_corners) for i in (0, 1))
    rows, columns = (side.astype(x.dtype) for side in sides)
    return jnp.einsum("ah,nchw,bw->ncab", rows, x, columns)


RUNS: dict[str, Callable[..., Any]] = {
    "pointwise": pointwise,
    "reduce": reduce,
    "broadcast": jnp.broadcast_to,
    "tile": lambda x, times: jnp.tile(x, reps=times),
    "pad": pad,
    "gather": jnp.take,
    "gather_elements": gather_elements,
    "topk": topk,
    "cumsum": lambda x, axis, reverse=False: lax.cumsum(x, axis, reverse=reverse),
    "flip": lambda x, axes: jnp.flip(x, axis=axes),
    "resize2d": resize2d,
}
