"""Small arrays that exporters leave in a file: shapes, positions, masks, worked out.

An array of more than `MOST` elements, or whose values are not read, has a shape and no values. What
is made of one has none either, so that a size that follows from it can be refused by name.
"""

import math
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steptime.network.ops.table import ShapeError, broadcast_shape, require

MOST = 16_384
LARGEST = 2**63
Number = int | float


@dataclass(frozen=True)
class NdArray:
    """An array: `values` in row-major order, None where they are too many or not known."""

    shape: tuple[int, ...]
    dtype: str = "int64"
    values: tuple[Number, ...] | None = None

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def is_float(self) -> bool:
        """Whether the elements are floating-point numbers."""
        return "float" in self.dtype

    def known(self, what: str = "a size") -> tuple[Number, ...]:
        """Return the values; raises `ShapeError` where they are not known."""
        if self.values is None:
            raise ShapeError(f"{what} follows from an array whose values are not known")
        return self.values

    def whole(self, what: str = "a size") -> tuple[int, ...]:
        """Return the values as whole numbers; raises `ShapeError` for others."""
        values = self.known(what)
        require(all(math.isfinite(v) for v in values), f"{what} is not a number")
        return tuple(int(v) for v in values)


def array(values: Iterable[Number], dtype: str = "int64") -> NdArray:
    """Return a list of numbers as an array of one axis."""
    kept = tuple(values)
    return NdArray((len(kept),), dtype, kept)


def scalar(value: Number, dtype: str = "int64") -> NdArray:
    """Return one number as an array without axes."""
    return NdArray((), dtype, (value,))


def made(shape: Sequence[int], dtype: str, values: Callable[[], Any], *of: NdArray) -> NdArray:
    """Return an array of `shape`; its values if those `of` which it is made are, and are few."""
    require(len(shape) <= 16 and all(0 <= n < LARGEST for n in shape), f"an array of {list(shape)}")
    if math.prod(shape) > MOST or any(x.values is None for x in of):
        return NdArray(tuple(shape), dtype)
    found = values()
    kept = tuple(found.ravel().tolist() if isinstance(found, np.ndarray) else found)
    require(all(isinstance(v, float) or -LARGEST <= v < LARGEST for v in kept), "a number >= 2^63")
    return NdArray(tuple(shape), dtype, kept)


def _numbers(x: NdArray) -> NDArray[Any]:
    """Return the elements as Python's numbers, zeros that take no memory if they are not known."""
    if x.values is None:
        return np.broadcast_to(np.zeros((), bool), x.shape)
    return np.array(x.values, object).reshape(x.shape)


def _seen(x: NdArray, view: Callable[[NDArray[Any]], NDArray[Any]]) -> NdArray:
    """Return a view of the elements, known or not."""
    y = view(_numbers(x))
    return made(y.shape, x.dtype, lambda: y, x)


def axis_of(axis: int, rank: int) -> int:
    """Return an axis counted from the front; raises `ShapeError` where there is none."""
    require(-rank <= axis < rank, f"axis {axis} of {rank}")
    return axis % rank


def broadcast(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape that arrays have together, as numpy does; raises `ShapeError` if none."""
    found = broadcast_shape(*shapes)
    require(found is not None, f"shapes {[list(s) for s in shapes]} do not fit together")
    return found or ()


def expand(x: NdArray, shape: tuple[int, ...]) -> NdArray:
    """Return `x` repeated to `shape`."""
    require(broadcast(x.shape, shape) == shape, f"{list(x.shape)} is not {list(shape)} repeated")
    return _seen(x, lambda a: np.broadcast_to(a, shape))


def reshape(x: NdArray, shape: Sequence[int]) -> NdArray:
    """Return `x` with another shape of as many elements."""
    require(math.prod(shape) == x.size, f"reshape {list(x.shape)} to {list(shape)}")
    return NdArray(tuple(shape), x.dtype, x.values)


def transpose(x: NdArray, order: Sequence[int]) -> NdArray:
    """Return `x` with its axes in `order`."""
    require(sorted(order) == list(range(len(x.shape))), f"transpose {list(x.shape)} by {order}")
    return _seen(x, lambda a: a.transpose(order))


def window(size: int, start: int, stop: int, step: int) -> tuple[int, int]:
    """Return the first place and the number of places of `start:stop:step`, clipped to `size`."""
    require(step != 0, "a slice of step 0")
    places = range(*slice(start, stop if stop >= -size or step > 0 else None, step).indices(size))
    return places.start, len(places)


def slice_(x: NdArray, axis: int, start: int, stop: int, step: int = 1) -> NdArray:
    """Return `x[..., start:stop:step, ...]` along `axis`."""
    axis = axis_of(axis, len(x.shape))
    first, length = window(x.shape[axis], start, stop, step)
    last = first + length * step
    part = slice(first, None if last < 0 else last, step) if length else slice(0)
    return _seen(x, lambda a: a[(slice(None),) * axis + (part,)])


def gather(x: NdArray, indices: NdArray, axis: int = 0) -> NdArray:
    """Return the slices of `x` along `axis` that `indices` name, their axes in the axis' place."""
    axis = axis_of(axis, len(x.shape))
    size, shape = x.shape[axis], (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])

    def values() -> NDArray[Any]:
        places = np.reshape(indices.whole("an index"), indices.shape).astype(int)
        require(bool(np.all((-size <= places) & (places < size))), f"an index outside of {size}")
        return np.asarray(np.take(_numbers(x), places, axis), object)  # one of a row is bare

    return made(shape, x.dtype, values, x, indices)


def gather_nd(x: NdArray, indices: NdArray) -> NdArray:
    """Return the parts of `x` that the rows of `indices` name by their first axes."""

    def values() -> NDArray[Any]:
        places = tuple(np.moveaxis(_numbers(indices).astype(int), -1, 0))
        return np.asarray(_numbers(x)[places], object)

    shape = (*indices.shape[:-1], *x.shape[indices.shape[-1] :])
    return made(shape, x.dtype, values, x, indices)


def tile(x: NdArray, times: Sequence[int]) -> NdArray:
    """Return `x` repeated so many times along each axis."""
    shape = [n * t for n, t in zip(x.shape, times, strict=True)]
    return made(shape, x.dtype, lambda: np.tile(_numbers(x), times), x)


def concat(arrays: Sequence[NdArray], axis: int) -> NdArray:
    """Return arrays joined along `axis`."""
    require(bool(arrays), "concat of nothing")
    first = arrays[0]
    axis = axis_of(axis, len(first.shape))
    rest = {(*x.shape[:axis], *x.shape[axis + 1 :]) for x in arrays}
    shapes = [list(x.shape) for x in arrays[:8]]
    require(len(rest) == 1, f"concat of {shapes} along axis {axis}")
    shape = (*first.shape[:axis], sum(x.shape[axis] for x in arrays), *first.shape[axis + 1 :])
    return made(shape, first.dtype, lambda: np.concatenate([*map(_numbers, arrays)], axis), *arrays)


def triangle(x: NdArray, offset: int, upper: bool) -> NdArray:
    """Return `x` with 0 below, or above, a diagonal of its last two axes."""
    cut = np.triu if upper else np.tril
    return made(x.shape, x.dtype, lambda: cut(_numbers(x), offset), x)


def range_(start: Number, stop: Number, step: Number, dtype: str = "int64") -> NdArray:
    """Return the numbers from `start` below `stop` by `step`."""
    require(step != 0 and all(map(math.isfinite, (start, stop, step))), "a range of step 0")
    length = max(0, math.ceil((stop - start) / step))
    return made((length,), dtype, lambda: (start + i * step for i in range(length)))


def full(shape: Sequence[int], value: Number, dtype: str) -> NdArray:
    """Return an array of one number."""
    return made(shape, dtype, lambda: (value,) * math.prod(shape))


def _safely(function: Callable[..., Number]) -> Callable[..., Number]:
    """Return a function that is not a number where it has no value."""

    def value(*x: Number) -> Number:
        try:
            return function(*x)
        except (ValueError, ArithmeticError):
            return math.nan

    return value


_PLAIN: dict[str, Callable[..., Number]] = {
    **{name: getattr(operator, name) for name in ("add", "sub", "mul", "neg", "mod")},
    **{name: getattr(math, name) for name in ("sqrt", "exp", "log", "sin", "cos", "floor", "ceil")},
    "abs": abs,
    "div": lambda a, b: a / b if float in (type(a), type(b)) else int(Fraction(a, b)),
    "floor_divide": operator.floordiv,
    "pow": lambda a, b: a**b if abs(b) <= 64 else math.nan,
    "round": round,
    "minimum": min,
    "maximum": max,
    "sign": lambda x: (x > 0) - (x < 0),
    "reciprocal": lambda x: 1 / x,
    "where": lambda c, a, b: a if c else b,
}
FUNCTIONS = {name: _safely(function) for name, function in _PLAIN.items()}
COMPARISONS: dict[str, Callable[..., bool]] = {
    **{name: getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    "isnan": math.isnan,
    "logical_not": operator.not_,
    "and": lambda a, b: bool(a and b),
    "or": lambda a, b: bool(a or b),
    "xor": lambda a, b: bool(a) != bool(b),
}
REDUCTIONS: dict[str, Callable[[Any], Number]] = {
    "sum": sum,
    "prod": math.prod,
    "max": max,
    "min": min,
    "mean": lambda x: sum(x) / len(x),
    "any": any,
    "all": all,
}


def pointwise(function: str, *arrays: NdArray) -> NdArray:
    """Return a row of `FUNCTIONS` or `COMPARISONS`, by the names of the op kind `pointwise`."""
    shape = broadcast(*(x.shape for x in arrays))
    compute = COMPARISONS.get(function) or FUNCTIONS[function]
    dtype = "bool" if function in COMPARISONS else arrays[-1].dtype
    operands = (np.broadcast_to(_numbers(x), shape).flat for x in arrays)
    return made(shape, dtype, lambda: map(compute, *operands), *arrays)


def cast(x: NdArray, dtype: str) -> NdArray:
    """Return `x` in another type."""
    kind: type = bool if dtype == "bool" else float if "float" in dtype else int
    if kind is int and x.values is not None and not all(map(math.isfinite, x.values)):
        return NdArray(x.shape, dtype)
    return made(x.shape, dtype, lambda: map(kind, x.known()), x)


def reduce(function: str, x: NdArray, axes: Iterable[int], keep: bool = False) -> NdArray:
    """Return a row of `REDUCTIONS` over `axes`, of size 1 if they are kept."""
    gone = sorted({axis_of(axis, len(x.shape)) for axis in axes})
    length = math.prod(x.shape[i] for i in gone)
    require(length > 0, f"{function} over no elements")
    shape = tuple(1 if i in gone else n for i, n in enumerate(x.shape) if keep or i not in gone)

    def values() -> Iterable[Number]:
        rows = np.moveaxis(_numbers(x), gone, range(-len(gone), 0)).reshape(-1, length)
        return map(REDUCTIONS[function], rows.tolist())

    return made(shape, x.dtype, values, x)


def cumulative_sum(x: NdArray, axis: int) -> NdArray:
    """Return the sums of all elements up to each along `axis`."""
    axis = axis_of(axis, len(x.shape))
    return made(x.shape, x.dtype, lambda: _numbers(x).cumsum(axis), x)


def non_zero(x: NdArray) -> NdArray:
    """Return the places of the elements that are not 0, `[axes, number]`."""
    x.known("the number of places")
    places = np.array(np.nonzero(np.atleast_1d(_numbers(x))))
    return made(places.shape, "int64", lambda: places)
