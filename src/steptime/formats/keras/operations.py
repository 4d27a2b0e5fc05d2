"""Functions of `keras.ops` in a network, as functions `(layer, *tensors) -> tensor`.

Keras stores the keyword arguments of such a function as the settings of a layer.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from steptime.formats import elements, lowering
from steptime.formats.keras.layer import AddCall, KerasLayer, KerasTensor
from steptime.formats.keras.layers import LAYERS, MIN_AXIS, add_merge, make_elementwise_layer
from steptime.formats.tensors import axis_of
from steptime.network.ops.table import require

MAX_PARTS = 4096  # of a split; so many ops are appended


def _add_reduction(function: str, layer: KerasLayer, x: KerasTensor) -> KerasTensor:
    axes = layer.read_int_list("axis")
    return layer.apply(elements.reduce, function, x, axes, keep=layer.read_flag("keepdims"))


def _add_transpose(layer: KerasLayer, x: KerasTensor) -> KerasTensor:
    """Append a transpose; without `axes` it reverses them."""
    reversed_axes = list(range(len(layer.shape(x))))[::-1]
    return layer.apply(elements.transpose, x, layer.read_int_list("axes") or reversed_axes)


def _add_reshape(layer: KerasLayer, x: KerasTensor) -> KerasTensor:
    return layer.apply(elements.reshape, x, layer.read_int_list("newshape") or [])


def _add_axes(layer: KerasLayer, x: KerasTensor) -> KerasTensor:
    for axis in layer.read_int_list("axis") or []:
        x = layer.apply(elements.unsqueeze, x, axis)
    return KerasTensor(layer.to_channels_last(x))


def _remove_axes(layer: KerasLayer, x: KerasTensor) -> KerasTensor:
    """Append a view without some axes, without `axis` all those of size 1."""
    axes = layer.read_int_list("axis")
    if axes is None:
        axes = [axis for axis, size in enumerate(layer.shape(x)) if size == 1]
    return layer.apply(elements.squeeze, x, axes)


def _add_square(layer: KerasLayer, x: KerasTensor) -> KerasTensor:
    return add_merge("mul", layer, x, x)


def _add_matmul(layer: KerasLayer, x: KerasTensor, y: KerasTensor) -> KerasTensor:
    return layer.apply(lowering.matmul, x, y)


def _add_relu6(layer: KerasLayer, x: KerasTensor) -> KerasTensor:
    return layer.apply_activation(x, "relu6", layer.name)


def _stack_tensors(layer: KerasLayer, *tensors: KerasTensor) -> KerasTensor:
    names = [layer.to_channels_last(x) for x in tensors]
    return layer.apply(elements.stack, names, layer.read_int("axis", default=0, minimum=MIN_AXIS))


def split(layer: KerasLayer, x: KerasTensor) -> list[KerasTensor]:
    """Append the parts of a tensor: a number of equal ones, or those between given places."""
    y = layer.to_channels_last(x)
    axis = axis_of(layer.b, y, layer.read_int("axis", default=0, minimum=MIN_AXIS))
    size = layer.b.shape(y)[axis]
    if isinstance(layer.config.get("indices_or_sections"), list):
        part_sizes = _read_cut_sizes(layer, size)
    else:
        part_sizes = _read_equal_sizes(layer, size)
    parts = elements.split(layer.b, y, part_sizes, axis, layer.name)
    return [KerasTensor(part) for part in parts]


def _read_cut_sizes(layer: KerasLayer, size: int) -> list[int]:
    """Return the sizes of the parts of an axis that is cut at listed indices."""
    cuts = layer.read_int_list("indices_or_sections") or []
    require(len(cuts) < MAX_PARTS, f"more than {MAX_PARTS} parts")
    starts, ends = [0, *cuts], [*cuts, size]
    return [end - start for start, end in zip(starts, ends, strict=True)]


def _read_equal_sizes(layer: KerasLayer, size: int) -> list[int]:
    """Return the sizes of a stated number of equal parts of an axis."""
    part_count = layer.read_int("indices_or_sections")
    has_equal_parts = size % part_count == 0
    require(part_count <= MAX_PARTS and has_equal_parts, f"{size} in {part_count} parts")
    return [size // part_count] * part_count


def get_item(layer: KerasLayer, x: KerasTensor, *keys: Any) -> KerasTensor:
    """Append `x[key, ...]` of slices, as Keras serializes them, and whole numbers."""
    y = layer.to_channels_last(x)
    axis = 0
    for key in keys:
        if type(key) is int:  # which removes the axis
            y = elements.select(layer.b, y, axis, key, layer.name)
        else:
            y = _add_slice(layer, y, axis, _read_slice(layer, key))
            axis += 1
    return KerasTensor(y)


def _read_slice(layer: KerasLayer, key: Any) -> slice:
    """Return a slice that Keras serialized; raises `InputError` for other keys."""
    is_slice = isinstance(key, dict) and key.get("class_name") == "__slice__"
    bounds = key.get("config") if is_slice else None
    if not isinstance(bounds, dict):
        raise layer.error("an index that is neither a slice nor a whole number")
    return slice(bounds.get("start"), bounds.get("stop"), bounds.get("step"))


def _add_slice(layer: KerasLayer, x: str, axis: int, stated_slice: slice) -> str:
    """Append a slice of a tensor along one axis."""
    start, stop, step = stated_slice.indices(layer.b.shape(x)[axis])
    require(step > 0, "a slice that goes backwards")
    return elements.slice_(layer.b, x, axis, start, stop, layer.name, step)


_ELEMENTWISE = {  # class in Keras: function of elements
    "Abs": "abs",
    "Absolute": "abs",
    "Cos": "cos",
    "Exp": "exp",
    "Gelu": "gelu",
    "HardSigmoid": "hard_sigmoid",
    "HardSilu": "hard_swish",
    "Log": "log",
    "Negative": "neg",
    "Relu": "relu",
    "Rsqrt": "rsqrt",
    "Sigmoid": "sigmoid",
    "Silu": "silu",
    "Sin": "sin",
    "Softplus": "softplus",
    "Sqrt": "sqrt",
    "Tanh": "tanh",
}
_SHARED_LAYERS = (  # classes of `keras.ops` with the name and the settings of a layer
    *("Add", "Subtract", "Multiply", "Maximum", "Minimum"),
    *("Softmax", "Concatenate"),
)
OPERATIONS: dict[str, AddCall] = {
    **{name: LAYERS[name] for name in _SHARED_LAYERS},
    **{name: make_elementwise_layer(function) for name, function in _ELEMENTWISE.items()},
    "Divide": partial(add_merge, "div"),
    "TrueDivide": partial(add_merge, "div"),
    "Power": partial(add_merge, "pow"),
    "Square": _add_square,
    "Relu6": _add_relu6,
    "Matmul": _add_matmul,
    "Mean": partial(_add_reduction, "mean"),
    "Max": partial(_add_reduction, "max"),
    "Min": partial(_add_reduction, "min"),
    "Sum": partial(_add_reduction, "sum"),
    "Prod": partial(_add_reduction, "prod"),
    "Transpose": _add_transpose,
    "Reshape": _add_reshape,
    "ExpandDims": _add_axes,
    "Squeeze": _remove_axes,
    "Stack": _stack_tensors,
    "Split": split,
    "GetItem": get_item,
}
