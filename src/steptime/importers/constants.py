"""Small arrays that exporters leave in a file: shapes, positions, masks, worked out without numpy.

An array of more than `MOST` elements, or whose values are not read, has a shape and no values. What
is made of one has none either, so that a size that follows from it can be refused by name.
"""

import math
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from steptime.ops.table import ShapeError, require

MOST = 16_384
LARGEST = 2**63
Number = int | float


@dataclass(frozen=True)
class Array:
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


def array(values: Iterable[Number], dtype: str = "int64") -> Array:
    """Return a list of numbers as an array of one axis."""
    kept = tuple(values)
    return Array((len(kept),), dtype, kept)


def scalar(value: Number, dtype: str = "int64") -> Array:
    """Return one number as an array without axes."""
    return Array((), dtype, (value,))


def made(shape: Sequence[int], dtype: str, values: Callable[[], Iterable[Number]] | None) -> Array:
    """Return an array of `shape`, with its values if there are at most `MOST`.

    Raises `ShapeError` for a size below 0 or of 2^63 and more, and for such values.
    """
    require(len(shape) <= 16 and all(0 <= n < LARGEST for n in shape), f"an array of {list(shape)}")
    if values is None or math.prod(shape) > MOST:
        return Array(tuple(shape), dtype)
    kept = tuple(values())
    require(all(isinstance(v, float) or -LARGEST <= v < LARGEST for v in kept), "a number >= 2^63")
    return Array(tuple(shape), dtype, kept)


def _strides(shape: Sequence[int]) -> list[int]:
    return [math.prod(shape[i + 1 :]) for i in range(len(shape))]


def _view(x: Array, shape: Sequence[int], strides: Sequence[int], start: int = 0) -> Array:
    """Return the elements of `x` at `start` and the multiples of `strides`."""

    def values() -> Iterable[Number]:
        places = [start]
        for n, stride in zip(shape, strides, strict=True):
            places = [place + i * stride for place in places for i in range(n)]
        return map(x.known().__getitem__, places)

    return made(shape, x.dtype, None if x.values is None else values)


def axis_of(axis: int, rank: int) -> int:
    """Return an axis counted from the front; raises `ShapeError` where there is none."""
    require(-rank <= axis < rank, f"axis {axis} of {rank}")
    return axis % rank


def broadcast(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape that arrays have together, as numpy does; raises `ShapeError` if none."""
    rank = max(map(len, shapes), default=0)
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    out = tuple(next((n for n in sizes if n != 1), 1) for sizes in zip(*padded, strict=True))
    for shape in padded:
        fits = all(n in (1, wanted) for n, wanted in zip(shape, out, strict=True))
        require(fits, f"shapes {[list(s) for s in shapes]} do not fit together")
    return out


def expand(x: Array, shape: tuple[int, ...]) -> Array:
    """Return `x` repeated to `shape`."""
    require(broadcast(x.shape, shape) == shape, f"{list(x.shape)} is not {list(shape)} repeated")
    own = (1,) * (len(shape) - len(x.shape)) + x.shape
    strides = [0 if n == 1 else s for n, s in zip(own, _strides(own), strict=True)]
    return _view(x, shape, strides)


def reshape(x: Array, shape: Sequence[int]) -> Array:
    """Return `x` with another shape of as many elements."""
    require(math.prod(shape) == x.size, f"reshape {list(x.shape)} to {list(shape)}")
    return Array(tuple(shape), x.dtype, x.values)


def transpose(x: Array, order: Sequence[int]) -> Array:
    """Return `x` with its axes in `order`."""
    require(sorted(order) == list(range(len(x.shape))), f"transpose {list(x.shape)} by {order}")
    strides = _strides(x.shape)
    return _view(x, [x.shape[i] for i in order], [strides[i] for i in order])


def window(size: int, start: int, stop: int, step: int) -> tuple[int, int]:
    """Return the first place and the number of places of `start:stop:step`, clipped to `size`."""
    require(step != 0, "a slice of step 0")
    places = range(*slice(start, stop if stop >= -size or step > 0 else None, step).indices(size))
    return places.start, len(places)


def slice_(x: Array, axis: int, start: int, stop: int, step: int = 1) -> Array:
    """Return `x[..., start:stop:step, ...]` along `axis`."""
    axis = axis_of(axis, len(x.shape))
    first, length = window(x.shape[axis], start, stop, step)
    shape, strides = list(x.shape), _strides(x.shape)
    shape[axis], begin = length, first * strides[axis]
    strides[axis] *= step
    return _view(x, shape, strides, begin)


def gather(x: Array, indices: Array, axis: int = 0) -> Array:
    """Return the slices of `x` along `axis` that `indices` name, their axes in the axis' place."""
    axis = axis_of(axis, len(x.shape))
    size, inner = x.shape[axis], math.prod(x.shape[axis + 1 :])
    shape = (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])

    def values() -> Iterable[Number]:
        numbers, places = x.known(), indices.whole("an index")
        require(all(-size <= i < size for i in places), f"an index outside of {size}")
        for outer in range(math.prod(x.shape[:axis])):
            for i in places:
                begin = (outer * size + i % size) * inner
                yield from numbers[begin : begin + inner]

    return made(shape, x.dtype, None if None in (x.values, indices.values) else values)


def concat(arrays: Sequence[Array], axis: int) -> Array:
    """Return arrays joined along `axis`."""
    require(bool(arrays), "concat of nothing")
    first = arrays[0]
    axis = axis_of(axis, len(first.shape))
    rest = (*first.shape[:axis], *first.shape[axis + 1 :])
    require(
        all((*x.shape[:axis], *x.shape[axis + 1 :]) == rest for x in arrays),
        f"concat of {[list(x.shape) for x in arrays[:8]]} along axis {axis}",
    )
    shape = (*first.shape[:axis], sum(x.shape[axis] for x in arrays), *first.shape[axis + 1 :])

    def values() -> Iterable[Number]:
        for outer in range(math.prod(first.shape[:axis])):
            for x in arrays:
                length = math.prod(x.shape[axis:])
                yield from x.known()[outer * length : (outer + 1) * length]

    return made(shape, first.dtype, None if any(x.values is None for x in arrays) else values)


def range_(start: Number, stop: Number, step: Number, dtype: str = "int64") -> Array:
    """Return the numbers from `start` below `stop` by `step`."""
    require(step != 0 and all(map(math.isfinite, (start, stop, step))), "a range of step 0")
    length = max(0, math.ceil((stop - start) / step))
    return made((length,), dtype, lambda: (start + i * step for i in range(length)))


def full(shape: Sequence[int], value: Number, dtype: str) -> Array:
    """Return an array of one number."""
    return made(shape, dtype, lambda: (value,) * math.prod(shape))


def _divided(a: Number, b: Number) -> Number:
    if isinstance(a, float) or isinstance(b, float):
        return a / b if b else math.copysign(math.inf, a) if a else math.nan
    require(b != 0, "division by 0")
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def _power(a: Number, b: Number) -> Number:
    require(abs(b) <= 64, f"a power of {b}")
    return a**b if a or b >= 0 else math.inf


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
    "div": _divided,
    "floor_divide": operator.floordiv,
    "pow": _power,
    "round": round,
    "minimum": min,
    "maximum": max,
    "sign": lambda x: (x > 0) - (x < 0),
    "reciprocal": lambda x: _divided(1.0, x),
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


def pointwise(function: str, *arrays: Array) -> Array:
    """Return a row of `FUNCTIONS` or `COMPARISONS` of arrays that are broadcast.

    Names are those of the op kind `pointwise`. The result has the type of the last array, a
    comparison's is bool.
    """
    shape = broadcast(*(x.shape for x in arrays))
    compute = COMPARISONS.get(function) or FUNCTIONS[function]
    dtype = "bool" if function in COMPARISONS else arrays[-1].dtype
    known = all(x.values is not None for x in arrays)
    return made(
        shape,
        dtype,
        (lambda: map(compute, *(expand(x, shape).known() for x in arrays))) if known else None,
    )


def cast(x: Array, dtype: str) -> Array:
    """Return `x` in another type."""
    kind: type = bool if dtype == "bool" else float if "float" in dtype else int
    if kind is int and x.values is not None and not all(map(math.isfinite, x.values)):
        return Array(x.shape, dtype)
    return made(x.shape, dtype, None if x.values is None else lambda: map(kind, x.known()))


def reduce(function: str, x: Array, axes: Iterable[int], keep: bool = False) -> Array:
    """Return a row of `REDUCTIONS` over `axes`, of size 1 if they are kept."""
    gone = sorted({axis_of(axis, len(x.shape)) for axis in axes})
    kept = [i for i in range(len(x.shape)) if i not in gone]
    length = math.prod(x.shape[i] for i in gone)
    require(length > 0, f"{function} over no elements")
    shape = tuple(1 if i in gone else n for i, n in enumerate(x.shape) if keep or i not in gone)
    turned = transpose(x, [*kept, *gone])

    def values() -> Iterable[Number]:
        numbers = turned.known()
        return (REDUCTIONS[function](numbers[i : i + length]) for i in range(0, x.size, length))

    return made(shape, x.dtype, None if turned.values is None else values)


def cumulative_sum(x: Array, axis: int) -> Array:
    """Return the sums of all elements up to each along `axis`."""
    axis = axis_of(axis, len(x.shape))
    stride, block = _strides(x.shape)[axis], math.prod(x.shape[axis:])

    def values() -> Iterable[Number]:
        sums: list[Number] = []
        for i, value in enumerate(x.known()):
            sums.append(value + (sums[i - stride] if i % block >= stride else 0))
        return sums

    return made(x.shape, x.dtype, None if x.values is None else values)


def non_zero(x: Array) -> Array:
    """Return the places of the elements that are not 0, `[axes, number]`."""
    strides = _strides(x.shape)
    found = [i for i, value in enumerate(x.known("the number of places")) if value]
    places = [i // s % n for n, s in zip(x.shape, strides, strict=True) for i in found]
    return made((len(x.shape), len(found)), "int64", lambda: places)
