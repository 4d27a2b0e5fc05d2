"""The small arrays that exporters leave behind: the same values as numpy's, and bounded."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest

from steptime.formats import constants as c
from steptime.network.ops.table import ShapeError

_X = np.arange(24).reshape(2, 3, 4) - 7
_ROW = np.array([3, -2, 1, 5])


def _of(x: np.ndarray) -> c.NdArray:
    dtype = {"b": "bool", "f": "float64"}.get(x.dtype.kind, "int64")
    return c.NdArray(x.shape, dtype, tuple(x.reshape(-1).tolist()))


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (c.transpose(_of(_X), (2, 0, 1)), _X.transpose(2, 0, 1)),
        (c.slice_(_of(_X), 2, 3, -10, -2), _X[:, :, 3:-10:-2]),
        (c.slice_(_of(_X), 1, -2, 2**62), _X[:, -2:]),
        (c.slice_(_of(_X), 0, 5, 9), _X[5:9]),
        (c.slice_(_of(_X), 0, -100, 2**62, -1), _X[-100 : 2**62 : -1]),
        (c.slice_(_of(_ROW), 0, -1, -(2**62), -1), _ROW[::-1]),
        (c.gather(_of(_ROW), c.scalar(-3)), _ROW[-3]),
        (c.gather_nd(_of(_ROW), c.array([2])), _ROW[2]),
        (c.gather_nd(_of(_X), c.NdArray((2, 1), "int64", (1, 0))), _X[[1, 0]]),
        (c.tile(_of(_X), (1, 2, 3)), np.tile(_X, (1, 2, 3))),
        (c.triangle(_of(_X), 1, upper=False), np.tril(_X, 1)),
        (c.gather(_of(_X), c.array([-1, 0]), 1), _X[:, [-1, 0]]),
        (c.gather(_of(_X), c.scalar(1), 2), _X[:, :, 1]),
        (c.concat([_of(_X), _of(_X)], -2), np.concatenate([_X, _X], 1)),
        (c.expand(_of(_ROW), (2, 3, 4)), np.broadcast_to(_ROW, (2, 3, 4))),
        (c.range_(7, -2, -3), np.arange(7, -2, -3)),
        (c.full((2, 2), 5, "int64"), np.full((2, 2), 5)),
        (c.pointwise("mul", _of(_X), _of(_ROW)), _X * _ROW),
        (c.pointwise("lt", _of(_ROW), _of(_X)), _ROW < _X),
        (c.pointwise("where", _of(_X > 0), _of(_X), _of(_ROW)), np.where(_X > 0, _X, _ROW)),
        (c.pointwise("floor_divide", _of(_X), c.scalar(-2)), _X // -2),
        (c.reduce("sum", _of(_X), (0, -1)), _X.sum((0, 2))),
        (c.reduce("max", _of(_X), (1,), keep=True), _X.max(1, keepdims=True)),
        (c.cumulative_sum(_of(_X), 1), _X.cumsum(1)),
        (c.non_zero(_of(_X * (_X % 3 == 0))), np.array((_X * (_X % 3 == 0)).nonzero())),
        (c.non_zero(c.scalar(3)), np.array([[0]])),
        (c.cast(_of(_X), "bool"), _X.astype(bool)),
        (c.reshape(_of(_X), (6, 4)), _X.reshape(6, 4)),
    ],
)
def test_the_same_values_as_numpy(ours: c.NdArray, theirs: np.ndarray) -> None:
    assert ours.shape == theirs.shape
    assert list(ours.values or ()) == theirs.reshape(-1).tolist()


def test_division_of_integers_rounds_towards_zero() -> None:
    """As in ONNX and C: -7 / 2 is -3."""
    assert c.pointwise("div", c.scalar(-7), c.scalar(2)).values == (-3,)


def test_large_arrays_have_a_shape_and_no_values() -> None:
    before = time.process_time()
    big = c.pointwise("le", c.range_(0, 10**12, 1), c.full((10**6, 1), 3, "int64"))
    assert (big.shape, big.dtype, big.values) == ((10**6, 10**12), "bool", None)
    assert c.gather(big, c.scalar(0)).shape == (10**12,)
    with pytest.raises(ShapeError, match="not known"):
        big.whole()
    assert time.process_time() - before < 20


@pytest.mark.parametrize(
    "made",
    [
        lambda: c.pointwise("mul", c.scalar(2**62), c.scalar(2)),
        lambda: c.full((2**63,), 1, "int64"),
        lambda: c.gather(c.array([1, 2]), c.scalar(2)),
        lambda: c.concat([c.array([1]), c.full((1, 1), 1, "int64")], 0),
        lambda: c.pointwise("add", c.array([1, 2]), c.array([1, 2, 3])),
        lambda: c.range_(0, 1, 0),
        lambda: c.reshape(c.array([1, 2]), (3,)),
        lambda: c.pointwise("mod", c.scalar(1), c.scalar(0)).whole(),
        lambda: c.reduce("max", c.array([]), (0,)),
        lambda: c.slice_(c.array([1]), 1, 0, 1),
        lambda: c.scalar(math.inf, "float32").whole(),
    ],
)
def test_what_has_no_value_is_refused(made: object) -> None:
    with pytest.raises(ShapeError):
        made()  # type: ignore[operator]
