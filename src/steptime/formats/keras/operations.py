"""Functions of `keras.ops` in a network: `(layer, *values) -> value`, attributes as settings."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from steptime.formats import elements, lowering
from steptime.formats.keras.layer import KerasLayer, Value
from steptime.formats.keras.layers import LAYERS, function_of, merge
from steptime.network.ops.table import require

MOST_PARTS = 4096


def _whole_list(at: KerasLayer, key: str) -> list[int] | None:
    """Return whole numbers, one alone as a list, None where nothing is said."""
    said: Any = at.config.get(key)
    found: Any = [said] if type(said) is int else said
    whole = isinstance(found, list) and all(type(one) is int for one in found)
    if found is not None and not whole:
        raise at.refuse(f"{key} is whole numbers, not {said}")
    return found  # type: ignore[no-any-return]


def _reduction(function: str, at: KerasLayer, x: Value) -> Value:
    axes = _whole_list(at, "axis")
    return at.do(elements.reduce, function, x, axes, keep=at.flag("keepdims"))


def _transpose(at: KerasLayer, x: Value) -> Value:
    order = _whole_list(at, "axes") or list(range(len(at.shape(x))))[::-1]
    return at.do(elements.transpose, x, order)


def _expand_dims(at: KerasLayer, x: Value) -> Value:
    for axis in _whole_list(at, "axis") or []:
        x = at.do(elements.unsqueeze, x, axis)
    return Value(at.last(x))


def _squeeze(at: KerasLayer, x: Value) -> Value:
    axes, every = _whole_list(at, "axis"), [i for i, n in enumerate(at.shape(x)) if n == 1]
    return at.do(elements.squeeze, x, every if axes is None else axes)


def split(at: KerasLayer, x: Value) -> list[Value]:
    """Return parts of equal size, or those between places."""
    y, axis = at.last(x), elements.axis_of(at.b, at.last(x), at.whole("axis", 0, -8))
    size, said = at.b.shape(y)[axis], at.config.get("indices_or_sections")
    if isinstance(said, list):
        require(len(said) < MOST_PARTS, f"more than {MOST_PARTS} parts")
        ends = [*(_whole_list(at, "indices_or_sections") or []), size]
        sizes = [end - start for start, end in zip([0, *ends], ends, strict=False)]
    else:
        count = at.whole("indices_or_sections")
        require(count <= MOST_PARTS and size % count == 0, f"{size} in {count} parts")
        sizes = [size // count] * count
    return [Value(one) for one in elements.split(at.b, y, sizes, axis, at.name)]


def get_item(at: KerasLayer, x: Value, *keys: Any) -> Value:
    """Return `x[key, ...]` of slices and whole numbers."""
    y, axis = at.last(x), 0
    for key in keys:
        if type(key) is int:
            y = elements.select(at.b, y, axis, key, at.name)
            continue
        config = key.get("config") if isinstance(key, dict) else None
        if not isinstance(config, dict) or key.get("class_name") != "__slice__":
            raise at.refuse("an index that is neither a slice nor a whole number")
        start, stop, step = (config.get(word) for word in ("start", "stop", "step"))
        size = at.b.shape(y)[axis]
        first, last, each = slice(start, stop, step).indices(size)
        require(each > 0, "a slice that goes backwards")
        y = elements.slice_(at.b, y, axis, first, last, at.name, each)
        axis += 1
    return Value(y)


_FUNCTIONS = "relu sigmoid tanh gelu silu softplus exp log sqrt abs sin cos rsqrt hard_sigmoid"
OPERATIONS: dict[str, Callable[..., Value | list[Value]]] = {
    **{name: LAYERS[name] for name in ("Add", "Subtract", "Multiply", "Maximum", "Minimum")},
    **dict.fromkeys(("Divide", "TrueDivide"), partial(merge, "div")),
    "Power": partial(merge, "pow"),
    "Square": lambda at, x: merge("mul", at, x, x),
    "Matmul": lambda at, x, y: at.do(lowering.matmul, x, y),
    **{name.title().replace("_", ""): function_of(name) for name in _FUNCTIONS.split()},
    "Absolute": function_of("abs"),
    "Negative": function_of("neg"),
    "HardSilu": function_of("hard_swish"),
    "Relu6": lambda at, x: at.activated(x, "relu6", at.name),
    **{name: LAYERS[name] for name in ("Softmax", "Concatenate")},
    **{name.title(): partial(_reduction, name) for name in ("mean", "max", "min", "sum", "prod")},
    "Transpose": _transpose,
    "Reshape": lambda at, x: at.do(elements.reshape, x, _whole_list(at, "newshape") or []),
    "ExpandDims": _expand_dims,
    "Squeeze": _squeeze,
    "Stack": lambda at, *values: at.do(
        elements.stack, [*map(at.last, values)], at.whole("axis", 0, -8)
    ),
    "Split": split,
    "GetItem": get_item,
}
