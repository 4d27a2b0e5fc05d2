"""How numpy runs the general kinds: functions of elements by name, reductions, moves."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from reference.kinds import Array, Ids, Run, _normal_share, sigmoid

SELU_ALPHA, SELU_SCALE = 1.6732632423543772, 1.0507009873554805  # Klambauer et al. 2017
CUBIC = -0.75  # of bicubic interpolation, as torch


def _erf(x: Array) -> Array:
    return 2 * _normal_share(x * math.sqrt(2)) - 1


def _softplus(x: Array) -> Array:
    return np.logaddexp(0, x)


def _mish_slope(x: Array) -> Array:
    t = np.tanh(_softplus(x))
    return t + x * (1 - t * t) * sigmoid(x)


def _selu(x: Array) -> Array:
    return SELU_SCALE * np.where(x > 0, x, SELU_ALPHA * np.expm1(x))


def clip(x: Array, low: float, high: float) -> Array:
    """Return `x` between two limits."""
    return np.clip(x, low, high)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "neg": np.negative,
    "abs": np.abs,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "reciprocal": lambda x: 1 / x,
    "erf": _erf,
    "round": np.round,
    "clamp": clip,
    "leaky_relu": lambda x, slope=0.01: np.where(x > 0, x, slope * x),
    "elu": lambda x, alpha=1.0: np.where(x > 0, x, alpha * np.expm1(x)),
    "selu": _selu,
    "hard_sigmoid": lambda x: np.clip(x + 3, 0, 6) / 6,
    "hard_swish": lambda x: x * np.clip(x + 3, 0, 6) / 6,
    "softsign": lambda x: x / (1 + np.abs(x)),
    "softplus": _softplus,
    "log_sigmoid": lambda x: -_softplus(-x),
    "mish": lambda x: x * np.tanh(_softplus(x)),
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "pow": np.power,
    "mod": np.mod,
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "and": np.logical_and,
    "or": np.logical_or,
    "xor": np.logical_xor,
    **{
        name: getattr(np, name)
        for name in (
            *("exp", "log", "sqrt", "sin", "cos", "log1p", "expm1", "floor", "ceil", "sign"),
            *("logical_not", "isnan", "maximum", "minimum", "floor_divide", "where"),
        )
    },
}


def _of_output(y: Array, function: str) -> Array:
    return {
        "exp": lambda: y,
        "sqrt": lambda: 1 / (2 * y),
        "rsqrt": lambda: -(y**3) / 2,
        "reciprocal": lambda: -y * y,
        "expm1": lambda: y + 1,
    }[function]()


SLOPES: dict[str, Callable[..., Any]] = {  # of functions of one operand, by their input
    "abs": np.sign,
    "log": lambda x: 1 / x,
    "sin": np.cos,
    "cos": lambda x: -np.sin(x),
    "erf": lambda x: 2 / math.sqrt(math.pi) * np.exp(-x * x),
    "log1p": lambda x: 1 / (1 + x),
    "clamp": lambda x, low, high: (x >= low) & (x <= high),
    "leaky_relu": lambda x, slope=0.01: np.where(x > 0, 1, slope),
    "elu": lambda x, alpha=1.0: np.where(x > 0, 1, alpha * np.exp(x)),
    "selu": lambda x: SELU_SCALE * np.where(x > 0, 1, SELU_ALPHA * np.exp(x)),
    "hard_sigmoid": lambda x: (np.abs(x) < 3) / 6,
    "hard_swish": lambda x: np.where(x <= -3, 0, np.where(x >= 3, 1, (2 * x + 3) / 6)),
    "softsign": lambda x: 1 / (1 + np.abs(x)) ** 2,
    "softplus": sigmoid,
    "log_sigmoid": lambda x: sigmoid(-x),
    "mish": _mish_slope,
}


def _operands(
    tensors: tuple[Any, ...], function: str, scalar: float | None, scalar_place: int
) -> list[Any]:
    operands = list(tensors)
    if scalar is not None:
        operands.insert(scalar_place % (len(operands) + 1), scalar)
    return operands


def pointwise(
    *tensors: Array,
    function: str,
    scalar: float | None = None,
    scalar_place: int = -1,
    **limits: float,
) -> Array:
    """Return a function of elements; a number is one of its operands."""
    made: Array = FUNCTIONS[function](*_operands(tensors, function, scalar, scalar_place), **limits)
    return np.asarray(made, made.dtype if made.dtype == bool else tensors[-1].dtype)


def pointwise_grad(
    *tensors: Array,
    function: str,
    operand: int,
    scalar: float | None = None,
    scalar_place: int = -1,
    **limits: float,
) -> Array:
    """Return dy times the derivative; `tensors` are what the table says that it reads, then dy."""
    *read, dy = tensors
    if function in ("exp", "sqrt", "rsqrt", "reciprocal", "expm1"):
        return dy * _of_output(read[0], function)
    if function in ("neg", "sub"):
        return -dy
    if function in SLOPES:
        more = () if scalar is None else (scalar,)
        return (dy * SLOPES[function](*read, *more, **limits)).astype(dy.dtype)
    if function == "where":
        return np.where(read[0], dy, 0) if operand == 1 else np.where(read[0], 0, dy)
    if function == "mul":
        return dy * (read[0] if read else scalar)
    if function == "div":
        (other, *made) = read or (scalar,)
        return dy / other if operand == 0 else -dy * made[0] / other
    return _of_two(dy, read, function, operand, scalar, scalar_place)


def _of_two(
    dy: Array, read: list[Array], function: str, operand: int, scalar: float | None, place: int
) -> Array:
    a, b = _operands(tuple(read), function, scalar, place)
    if function == "pow":
        return dy * b * a ** (b - 1) if operand == 0 else dy * b * np.log(a)
    if function == "mod":
        return -dy * (a // b)
    first = a if function == "maximum" else b
    second = b if function == "maximum" else a
    equal = 1.0 if scalar is not None else 0.5  # a clamp passes all on where it is reached
    share = (first > second) + equal * (first == second)
    return (dy * (share if operand == 0 else 1 - share)).astype(dy.dtype)


REDUCTIONS: dict[str, Callable[..., Any]] = {
    name: getattr(np, name) for name in ("sum", "mean", "max", "min", "prod", "any", "all")
}


def reduce(x: Array, function: str, axes: tuple[int, ...], keep: bool = False) -> Array:
    """Return `x` reduced over `axes`."""
    if function.startswith("arg"):
        return np.asarray(getattr(np, function)(x, axes[0], keepdims=keep))
    return np.asarray(REDUCTIONS[function](x, axis=axes, keepdims=keep))


def reduce_grad(
    *tensors: Array, function: str, axes: tuple[int, ...], shape: tuple[int, ...]
) -> Array:
    """Return dy over what was reduced."""
    kept = [1 if i in axes else n for i, n in enumerate(shape)]
    wide = np.broadcast_to(tensors[-1].reshape(kept), shape)
    if function in ("sum", "mean"):
        count = math.prod(shape) // max(1, tensors[-1].size)
        return wide / count if function == "mean" else wide.copy()
    x, y = tensors[0], tensors[1].reshape(kept)
    if function == "prod":
        return wide * y / x
    equal = x == y
    made: Array = wide * equal / equal.sum(axes, keepdims=True)
    return made


MODES = {"reflect": "reflect", "edge": "edge", "circular": "wrap"}


def pad(x: Array, pads: tuple[int, ...], mode: str = "constant", value: float = 0.0) -> Array:
    """Return `x` padded, or cut where pads are negative."""
    pairs = [(pads[2 * i], pads[2 * i + 1]) for i in range(x.ndim)]
    if mode != "constant":
        return np.pad(x, pairs, MODES[mode])  # type: ignore[call-overload, no-any-return]
    cut = tuple(
        slice(max(0, -before), n - max(0, -after))
        for (before, after), n in zip(pairs, x.shape, strict=True)
    )
    return np.pad(x[cut], [(max(0, a), max(0, b)) for a, b in pairs], constant_values=value)


def pad_grad(grad: Array, pads: tuple[int, ...], mode: str) -> Array:
    """Return dy with the padding added to what it repeats, by the padding of places."""
    shape = tuple(n - pads[2 * i] - pads[2 * i + 1] for i, n in enumerate(grad.shape))
    places = pad(np.arange(math.prod(shape)).reshape(shape), pads, mode)
    out = np.zeros(math.prod(shape), grad.dtype)
    np.add.at(out, places.ravel(), grad.ravel())
    return out.reshape(shape)


def gather(x: Array, indices: Ids, axis: int) -> Array:
    """Return the parts of `x` at `indices`."""
    return np.take(x, indices, axis)


def gather_grad(indices: Ids, grad: Array, axis: int, size: int) -> Array:
    """Return zeros with each part of dy added at its index."""
    rank = indices.ndim
    moved = np.moveaxis(grad, range(axis, axis + rank), range(rank))
    out = np.zeros((size, *moved.shape[rank:]), grad.dtype)
    np.add.at(out, indices, moved)
    return np.moveaxis(out, 0, axis)


def _at(indices: Ids, axis: int) -> tuple[Any, ...]:
    own = np.ogrid[tuple(map(slice, indices.shape))]
    return (*own[:axis], indices, *own[axis + 1 :])


def gather_elements(x: Array, indices: Ids, axis: int) -> Array:
    """Return the element of `x` at each index along `axis`."""
    return x[_at(indices, axis)]


def gather_elements_grad(indices: Ids, grad: Array, axis: int, shape: tuple[int, ...]) -> Array:
    """Return zeros with each element of dy added at its index."""
    out = np.zeros(shape, grad.dtype)
    np.add.at(out, _at(indices, axis), grad)
    return out


def topk(x: Array, k: int, axis: int, largest: bool = True) -> tuple[Array, Ids]:
    """Return the largest or smallest, in order, and their places."""
    places = np.argsort(-x if largest else x, axis, kind="stable").take(range(k), axis)
    return np.take_along_axis(x, places, axis), places


def cumsum(x: Array, axis: int, reverse: bool = False) -> Array:
    """Return running sums along `axis`."""
    return np.flip(np.flip(x, axis).cumsum(axis), axis) if reverse else x.cumsum(axis)


def _weights(n: int, m: int, mode: str, corners: bool) -> Array:
    """Return the `[m, n]` matrix that makes m elements of n along one axis."""
    out = np.zeros((m, n))
    for i in range(m):
        at = (i + 0.5) * n / m - 0.5
        if corners:
            at = i * (n - 1) / (m - 1) if m > 1 else 0.0
        if mode == "nearest":
            out[i, i * n // m] = 1
            continue
        if mode == "bilinear":
            at = max(at, 0.0)
        low = math.floor(at)
        t = at - low
        for place, share in enumerate(
            _shares(t, mode), start=low if mode == "bilinear" else low - 1
        ):
            out[i, min(max(place, 0), n - 1)] += share
    return out


def _shares(t: float, mode: str) -> list[float]:
    if mode == "bilinear":
        return [1 - t, t]

    def near(x: float) -> float:
        return ((CUBIC + 2) * x - (CUBIC + 3)) * x * x + 1

    def far(x: float) -> float:
        return ((CUBIC * x - 5 * CUBIC) * x + 8 * CUBIC) * x - 4 * CUBIC

    return [far(t + 1), near(t), near(1 - t), far(2 - t)]


def resize2d(x: Array, size: tuple[int, int], mode: str, align_corners: bool = False) -> Array:
    """Return an image of another size, by a matrix along each axis."""
    rows, columns = (_weights(x.shape[2 + i], size[i], mode, align_corners) for i in (0, 1))
    return (rows @ x @ columns.T).astype(x.dtype)


def resize2d_grad(
    grad: Array, size: tuple[int, int], mode: str, align_corners: bool = False
) -> Array:
    """Return dy by the transposed matrices."""
    rows, columns = (_weights(size[i], grad.shape[2 + i], mode, align_corners) for i in (0, 1))
    return (rows.T @ grad @ columns).astype(grad.dtype)


def tile(x: Array, times: tuple[int, ...]) -> Array:
    """Return `x` again and again."""
    return np.tile(x, times)


def flip(x: Array, axes: tuple[int, ...]) -> Array:
    """Return `x` in the opposite order along `axes`."""
    return np.flip(x, axes)


RUNS: dict[str, Run] = {
    "pointwise": pointwise,
    "pointwise_grad": pointwise_grad,
    "reduce": reduce,
    "reduce_grad": reduce_grad,
    "broadcast": lambda x, shape: np.broadcast_to(x, shape).copy(),
    "tile": tile,
    "pad": pad,
    "pad_grad": pad_grad,
    "gather": gather,
    "gather_grad": gather_grad,
    "gather_elements": gather_elements,
    "gather_elements_grad": gather_elements_grad,
    "topk": topk,
    "cumsum": cumsum,
    "flip": flip,
    "resize2d": resize2d,
    "resize2d_grad": resize2d_grad,
}
