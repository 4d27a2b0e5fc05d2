"""How numpy runs products, elementwise ops, moves, the loss and the updates, gradients included.

One function a kind, `(inputs..., **attributes) -> array`, or a tuple of arrays: the outputs of the
kind and then what it saves for its gradient. Shapes and attributes are those of the op table.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from steptime.core.errors import shorten
from steptime.measure.contract import UnsupportedError
from steptime.measure.synthetic import (
    ADAM_DECAYS,
    LEARNING_RATE,
    MOMENTUM,
    RMSPROP_DECAY,
    WEIGHT_DECAY,
)
from steptime.measure.synthetic import optimizer_epsilon as _epsilon
from steptime.network.ops.loss import IGNORED_LABEL

Array = npt.NDArray[np.floating[Any]]
Ids = npt.NDArray[np.integer[Any]]
Mask = npt.NDArray[np.bool_]
Run = Callable[..., npt.NDArray[Any] | tuple[npt.NDArray[Any], ...]]


def element_type(name: str) -> np.dtype[Any]:
    """Return numpy's type of a dtype name; raises `UnsupportedError` for one that it has not."""
    try:
        return np.dtype(name)
    except TypeError:
        raise UnsupportedError(f"numpy has no {shorten(name)}") from None


def linear(x: Array, w: Array) -> Array:
    """Return `x W^T`."""
    return x @ w.T


def matmul(
    a: Array, b: Array, transpose_a: bool = False, transpose_b: bool = False, fold: bool = False
) -> Array:
    """Return the product of two (batches of) matrices."""
    if fold:
        a, b = (t.reshape(-1, t.shape[-1]) for t in (a, b))
    return (a.mT if transpose_a else a) @ (b.mT if transpose_b else b)


def bias(x: Array, b: Array, axis: int = -1) -> Array:
    """Return `x` with `b` added along `axis`."""
    return x + b.reshape(-1, *(1,) * (x.ndim - 1 - axis % x.ndim))


def reduce_sum(x: Array, axes: tuple[int, ...], shape: tuple[int, ...]) -> Array:
    """Return `x` summed over `axes`, then seen as `shape`."""
    return np.asarray(x.sum(axes)).reshape(shape)


def mean(x: Array) -> Array:
    """Return the mean of all elements."""
    return np.asarray(x.mean())


def expand(x: Array, shape: tuple[int, ...], scale: float = 1.0) -> Array:
    """Return `x` repeated to `shape` and multiplied by `scale`."""
    scaled = x * x.dtype.type(scale)
    return np.broadcast_to(scaled.reshape(*x.shape, *(1,) * (len(shape) - x.ndim)), shape).copy()


def relu(x: Array) -> Array:
    """Return max(x, 0)."""
    return np.maximum(x, 0)


def relu_grad(y: Array, grad: Array) -> Array:
    """Return the gradient where the output is above 0."""
    return grad * (y > 0)


def sigmoid(x: Array) -> Array:
    """Return 1 / (1 + exp(-x)), by the tangent that cannot overflow."""
    return (1 + np.tanh(x / 2)) / 2


def sigmoid_grad(y: Array, grad: Array) -> Array:
    """Return dy y (1 - y)."""
    return grad * y * (1 - y)


def tanh_grad(y: Array, grad: Array) -> Array:
    """Return dy (1 - y^2)."""
    return grad * (1 - y * y)


def _normal_share(x: Array) -> Array:
    """Return the normal distribution function of `x`, by the standard library: numpy has no erf."""
    scaled = (x.ravel() / math.sqrt(2)).tolist()
    erf = np.fromiter(map(math.erf, scaled), np.float64, x.size)
    return ((1 + erf) / 2).reshape(x.shape).astype(x.dtype)


def gelu(x: Array, tanh: bool = False) -> Array:
    """Return x Phi(x), or its form by a `tanh`."""
    return x * (1 + np.tanh(_inner(x))) / 2 if tanh else x * _normal_share(x)


def _inner(x: Array) -> Array:
    root = x.dtype.type(math.sqrt(2 / math.pi))
    return root * (x + x.dtype.type(0.044715) * x * x * x)


def gelu_grad(x: Array, grad: Array, tanh: bool = False) -> Array:
    """Return dy (Phi(x) + x phi(x)), or the derivative of the form by a `tanh`."""
    if tanh:
        t = np.tanh(_inner(x))
        slope = math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * x * x)
        return grad * ((1 + t) / 2 + x / 2 * (1 - t * t) * slope).astype(x.dtype)
    density = np.exp(-x * x / 2) * x.dtype.type(1 / math.sqrt(2 * math.pi))
    return grad * (_normal_share(x) + x * density)


def silu(x: Array, beta: float = 1.0) -> Array:
    """Return x sigmoid(beta x)."""
    return x * sigmoid(x.dtype.type(beta) * x)


def silu_grad(x: Array, grad: Array, beta: float = 1.0) -> Array:
    """Return dy s (1 + beta x (1 - s)), where s is the sigmoid of beta x."""
    scaled = x.dtype.type(beta) * x
    s = sigmoid(scaled)
    return grad * s * (1 + scaled * (1 - s))


def maximum_grad(a: Array, b: Array, grad: Array) -> tuple[Array, Array]:
    """Return dy to the larger of two, half of it to each where they are equal."""
    share = ((a > b) + 0.5 * (a == b)).astype(grad.dtype)
    return grad * share, grad * (1 - share)


def _slopes(slope: Array, x: Array) -> Array:
    return slope.reshape(-1, *(1,) * (x.ndim - 2))


def prelu(x: Array, slope: Array) -> Array:
    """Return x, times the slope of its channel where it is below 0."""
    return np.where(x > 0, x, x * _slopes(slope, x))


def prelu_grad(x: Array, slope: Array, grad: Array) -> tuple[Array, Array]:
    """Return the gradients of input and slopes."""
    dx = np.where(x > 0, grad, grad * _slopes(slope, x))
    below = np.where(x > 0, 0, grad * x)
    axes = None if slope.size == 1 else (0, *range(2, x.ndim))
    return dx, np.asarray(below.sum(axes)).reshape(slope.shape).astype(slope.dtype)


def softmax(x: Array) -> Array:
    """Return the softmax over the last axis."""
    e = np.exp(x - x.max(-1, keepdims=True))
    share: Array = e / e.sum(-1, keepdims=True)
    return share


def softmax_grad(y: Array, grad: Array) -> Array:
    """Return y (dy - sum(y dy))."""
    dx: Array = y * (grad - (y * grad).sum(-1, keepdims=True))
    return dx


def dropout(x: Array, p: float, rng: np.random.Generator) -> tuple[Array, Mask]:
    """Return `x` with a share `p` dropped and the rest scaled, and the mask of what stays."""
    mask = rng.random(x.shape) >= p
    return dropout_grad(x, mask, p), mask


def dropout_grad(grad: Array, mask: Mask, p: float) -> Array:
    """Return the gradient under the mask, scaled."""
    return grad * mask * grad.dtype.type(1 / (1 - p))


def cast(x: Array, dtype: str) -> Array:
    """Return `x` in another element type."""
    return x.astype(element_type(dtype))


def concat(*arrays: Array, axis: int) -> Array:
    """Return the arrays joined along `axis`."""
    return np.concatenate(arrays, axis)


def reshape(x: Array, shape: tuple[int, ...]) -> Array:
    """Return `x` with another shape."""
    return x.reshape(shape)


def flatten(x: Array) -> Array:
    """Return `x [n, ...] -> [n, product of the rest]`."""
    return x.reshape(x.shape[0], math.prod(x.shape[1:]))


def transpose(x: Array, order: tuple[int, ...]) -> Array:
    """Return `x` with its axes in `order`."""
    return x.transpose(order)


def _part(x: Array, axis: int, start: int, stop: int | None, step: int) -> Array:
    places = [slice(None)] * x.ndim
    places[axis] = slice(start, stop, step)
    return x[tuple(places)]


def slice_(x: Array, axis: int, start: int, stop: int, step: int = 1) -> Array:
    """Return a part of `x` along `axis`."""
    return _part(x, axis, start, stop, step).copy()


def split(x: Array, axis: int, sizes: tuple[int, ...]) -> tuple[Array, ...]:
    """Return parts of `x` along `axis`."""
    return tuple(np.split(x, np.cumsum(sizes)[:-1], axis))


def slice_grad(grad: Array, axis: int, start: int, size: int, step: int = 1) -> Array:
    """Return zeros of `size` along `axis` with `grad` in them."""
    shape = list(grad.shape)
    shape[axis] = size
    whole = np.zeros(shape, grad.dtype)
    stop = start + (grad.shape[axis] - 1) * step + 1
    _part(whole, axis, start, stop, step)[...] = grad
    return whole


def cross_entropy(logits: Array, labels: Ids) -> tuple[Array, Array]:
    """Return the mean over labels that are not ignored, and all log-probabilities."""
    shifted = logits - logits.max(-1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    rows, chosen = _chosen(labels)
    picked = log_p.reshape(-1, log_p.shape[-1])[rows, chosen]
    return np.asarray(-picked.mean()), log_p


def _chosen(labels: Ids) -> tuple[Ids, Ids]:
    """Return the rows of the labels that are not ignored, and those labels."""
    flat = labels.ravel()
    (rows,) = np.nonzero(flat != IGNORED_LABEL)
    return rows, flat[rows]


def pick_grad(log_p: Array, labels: Ids, grad: Array) -> Array:
    """Return -dy/n at each label, 0 elsewhere."""
    rows, chosen = _chosen(labels)
    out = np.zeros((labels.size, log_p.shape[-1]), log_p.dtype)
    out[rows, chosen] = -grad / len(rows)
    return out.reshape(log_p.shape)


def log_softmax_grad(log_p: Array, grad: Array) -> Array:
    """Return dy - softmax sum(dy)."""
    dx: Array = grad - np.exp(log_p) * grad.sum(-1, keepdims=True)
    return dx


def sgd(w: Array, grad: Array) -> Array:
    """Return the weight after a step down the gradient."""
    return w - w.dtype.type(LEARNING_RATE) * grad


def momentum(w: Array, v: Array, grad: Array) -> tuple[Array, Array]:
    """Return weight and velocity."""
    v = w.dtype.type(MOMENTUM) * v + grad
    return sgd(w, v), v


def rmsprop(w: Array, square: Array, grad: Array) -> tuple[Array, Array]:
    """Return weight and mean square."""
    kind = w.dtype.type
    square = kind(RMSPROP_DECAY) * square + kind(1 - RMSPROP_DECAY) * grad * grad
    return sgd(w, grad / (np.sqrt(square) + kind(_epsilon(w.dtype.name)))), square


def adam(
    w: Array, first: Array, second: Array, grad: Array, step: int
) -> tuple[Array, Array, Array]:
    """Return weight and both moments after step number `step` (from 1)."""
    kind = w.dtype.type
    a, b = ADAM_DECAYS
    first = kind(a) * first + kind(1 - a) * grad
    second = kind(b) * second + kind(1 - b) * grad * grad
    root = np.sqrt(second) / kind(math.sqrt(1 - b**step)) + kind(_epsilon(w.dtype.name))
    return w - kind(LEARNING_RATE / (1 - a**step)) * first / root, first, second


def adamw(
    w: Array, first: Array, second: Array, grad: Array, step: int
) -> tuple[Array, Array, Array]:
    """Return what adam does of a weight that has decayed."""
    return adam(w * w.dtype.type(1 - LEARNING_RATE * WEIGHT_DECAY), first, second, grad, step)


LION_DECAYS = (0.9, 0.99)  # of the update, and of the mean that is kept
ORTHOGONAL = (3.4445, -4.775, 2.0315)  # of a step of Newton and Schulz (Jordan et al. 2024)
ORTHOGONAL_STEPS = 5


def lion(w: Array, mean: Array, grad: Array) -> tuple[Array, Array]:
    """Return weight and mean of gradients, the weight moved by the sign of a mean."""
    kind = w.dtype.type
    a, b = LION_DECAYS
    update = np.sign(kind(a) * mean + kind(1 - a) * grad)
    w = w * kind(1 - LEARNING_RATE * WEIGHT_DECAY)
    return sgd(w, update), kind(b) * mean + kind(1 - b) * grad


def lamb(
    w: Array, first: Array, second: Array, grad: Array, step: int
) -> tuple[Array, Array, Array]:
    """Return weight and both moments, the step of adam scaled by the norms of both."""
    moved, first, second = adam(w, first, second, grad, step)
    update = w - moved
    ratio = np.linalg.norm(w) / np.linalg.norm(update)
    return sgd(w, update * w.dtype.type(ratio)), first, second


def adafactor(w: Array, rows: Array, columns: Array, grad: Array) -> tuple[Array, Array, Array]:
    """Return weight and the means of rows and columns of squared gradients."""
    kind = w.dtype.type
    keep, add = kind(RMSPROP_DECAY), kind(1 - RMSPROP_DECAY)
    rows = keep * rows + add * (grad * grad).mean(-1)
    columns = keep * columns + add * (grad * grad).mean(-2)
    square = rows[..., :, None] * columns[..., None, :] / rows.mean(-1)[..., None, None]
    return sgd(w, grad / np.sqrt(square)), rows, columns


def muon(w: Array, v: Array, grad: Array) -> tuple[Array, Array]:
    """Return weight and velocity, the weight moved by an orthogonal matrix near the velocity."""
    kind = w.dtype.type
    v = kind(MOMENTUM) * v + grad
    x = v / kind(np.linalg.norm(v))
    x = x.T if x.shape[0] > x.shape[1] else x
    a, b, c = map(kind, ORTHOGONAL)
    for _ in range(ORTHOGONAL_STEPS):
        square = x @ x.T
        x = a * x + (b * square + c * (square @ square)) @ x
    return sgd(w, x if x.shape == w.shape else x.T), v


RUNS: dict[str, Run] = {
    "linear": linear,
    "matmul": matmul,
    "bias": bias,
    "reduce_sum": reduce_sum,
    "mean": mean,
    "expand": expand,
    "relu": relu,
    "relu_grad": relu_grad,
    "sigmoid": sigmoid,
    "sigmoid_grad": sigmoid_grad,
    "tanh": np.tanh,
    "tanh_grad": tanh_grad,
    "gelu": gelu,
    "gelu_grad": gelu_grad,
    "silu": silu,
    "silu_grad": silu_grad,
    "softmax": softmax,
    "softmax_grad": softmax_grad,
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "maximum": np.maximum,
    "maximum_grad": maximum_grad,
    "prelu": prelu,
    "prelu_grad": prelu_grad,
    "dropout": dropout,
    "dropout_grad": dropout_grad,
    "cast": cast,
    "concat": concat,
    "reshape": reshape,
    "flatten": flatten,
    "detach": lambda x: x,
    "transpose": transpose,
    "slice": slice_,
    "split": split,
    "slice_grad": slice_grad,
    "cross_entropy": cross_entropy,
    "pick_grad": pick_grad,
    "log_softmax_grad": log_softmax_grad,
    "sgd": sgd,
    "momentum": momentum,
    "rmsprop": rmsprop,
    "adam": adam,
    "adamw": adamw,
    "lion": lion,
    "lamb": lamb,
    "adafactor": adafactor,
    "muon": muon,
}
ALSO_GIVEN = {
    "dropout": ("rng",),
    "adam": ("step",),
    "adamw": ("step",),
    "lamb": ("step",),
}  # what a kind needs besides inputs
