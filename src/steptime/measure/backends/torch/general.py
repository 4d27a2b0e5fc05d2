"""How PyTorch runs the general kinds: functions of elements by name, reductions, moves."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


def _larger(a: Any, b: Any) -> Tensor:
    """Return the larger of two, one of which may be a number."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return torch.maximum(a, b)
    return a.clamp(min=b) if isinstance(a, Tensor) else torch.clamp(b, min=a)


def _smaller(a: Any, b: Any) -> Tensor:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return torch.minimum(a, b)
    return a.clamp(max=b) if isinstance(a, Tensor) else torch.clamp(b, max=a)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: getattr(torch, name) for name in (
        "neg", "abs", "exp", "log", "sqrt", "rsqrt", "reciprocal", "sin", "cos", "erf", "log1p",
        "expm1", "floor", "ceil", "round", "sign", "logical_not", "isnan", "where",
    )},
    "clamp": lambda x, low, high: x.clamp(low, high),
    "leaky_relu": functional.leaky_relu,
    "elu": functional.elu,
    "selu": functional.selu,
    "hard_sigmoid": functional.hardsigmoid,
    "hard_swish": functional.hardswish,
    "softsign": functional.softsign,
    "softplus": functional.softplus,
    "log_sigmoid": functional.logsigmoid,
    "mish": functional.mish,
    "div": operator.truediv,
    "maximum": _larger,
    "minimum": _smaller,
    "floor_divide": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "and": operator.and_,
    "or": operator.or_,
    **{name: getattr(operator, name) for name in (
        "add", "sub", "mul", "pow", "mod", "eq", "ne", "lt", "le", "gt", "ge", "xor",
    )},
}  # fmt: skip


def pointwise(
    *tensors: Tensor,
    function: str,
    scalar: float | None = None,
    scalar_place: int = -1,
    **limits: float,
) -> Tensor:
    """Return a function of elements; a number is one of its operands."""
    operands: list[Any] = list(tensors)
    if scalar is not None:
        operands.insert(scalar_place % (len(operands) + 1), scalar)
    made: Tensor = FUNCTIONS[function](*operands, **limits)
    return made


def _prod(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
    for axis in sorted(axes, reverse=True):
        x = x.prod(axis, keep)
    return x


REDUCTIONS: dict[str, Callable[[Tensor, tuple[int, ...], bool], Tensor]] = {
    "sum": torch.sum,
    "mean": torch.mean,
    "max": torch.amax,
    "min": torch.amin,
    "prod": _prod,
    "argmax": lambda x, axes, keep: x.argmax(axes[0], keep),
    "argmin": lambda x, axes, keep: x.argmin(axes[0], keep),
    "any": torch.any,
    "all": torch.all,
}


def reduce(x: Tensor, function: str, axes: tuple[int, ...], keep: bool = False) -> Tensor:
    """Return `x` reduced over `axes`."""
    return REDUCTIONS[function](x, axes, keep)


def pad(x: Tensor, pads: tuple[int, ...], mode: str = "constant", value: float = 0.0) -> Tensor:
    """Return `x` padded; torch names the last axis first."""
    pairs = [n for i in reversed(range(x.dim())) for n in pads[2 * i : 2 * i + 2]]
    if mode == "constant":
        return functional.pad(x, pairs, value=value)
    return functional.pad(x, pairs[:-4], "replicate" if mode == "edge" else mode)


def gather(x: Tensor, indices: Tensor, axis: int) -> Tensor:
    """Return the parts of `x` at `indices` along `axis`."""
    picked = x.index_select(axis, indices.flatten())
    return picked.reshape(*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])


def cumsum(x: Tensor, axis: int, reverse: bool = False) -> Tensor:
    """Return running sums along `axis`."""
    return x.flip(axis).cumsum(axis).flip(axis) if reverse else x.cumsum(axis)


def resize2d(x: Tensor, size: tuple[int, int], mode: str, align_corners: bool = False) -> Tensor:
    """Return an image of another size."""
    corners = None if mode == "nearest" else align_corners
    return functional.interpolate(x, size=size, mode=mode, align_corners=corners)


RUNS: dict[str, Callable[..., Any]] = {
    "pointwise": pointwise,
    "reduce": reduce,
    "broadcast": lambda x, shape: x.expand(shape),
    "tile": lambda x, times: x.repeat(times),
    "pad": pad,
    "gather": gather,
    "gather_elements": lambda x, indices, axis: x.gather(axis, indices),
    "topk": lambda x, k, axis, largest=True: tuple(x.topk(k, axis, largest)),
    "cumsum": cumsum,
    "flip": lambda x, axes: x.flip(axes),
    "resize2d": resize2d,
}
