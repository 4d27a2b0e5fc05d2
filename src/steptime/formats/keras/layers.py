"""Layers of Keras that are no convolution, norm or sequence: `(layer, *tensors) -> tensor`.

`LAYERS` has the layers of all modules but `sequences`. To add a layer, write a function and a row
of `LAYERS` in the module that fits, or of `operations.OPERATIONS` for a function of `keras.ops`.
"""

from __future__ import annotations

import math
import re
from functools import partial
from typing import NamedTuple

from steptime.core.errors import shorten
from steptime.formats import elements, lowering
from steptime.formats.keras import convolutions, norms
from steptime.formats.keras.layer import AddLayer, KerasLayer, KerasTensor, channels_first_axis
from steptime.formats.tensors import is_float
from steptime.network.ops.table import require


def add_dense(layer: KerasLayer, x: KerasTensor) -> KerasTensor:
    """Append a linear layer over the last axis, with a bias and an activation."""
    units = layer.read_int("units")
    kernel = layer.add_weight("kernel", units, layer.shape(x)[-1])
    bias = layer.add_optional_weight("use_bias", "bias", units)
    return layer.apply_configured_activation(layer.apply(lowering.linear, x, kernel, bias=bias))


MIN_AXIS = -8  # of a setting: no tensor has more axes
MAX_INVERSE_LENGTH = 1e7  # 1 / epsilon of `keras.ops.normalize`: zeros stay zeros


class _LinearEquation(NamedTuple):
    """An einsum equation of a linear layer, such as `abc,cde->abde`.

    Attributes:
        lead: the letters of the axes that stay, `ab`.
        inner: the letters of the axes that end the input and are summed over, `c`.
        outer: the letters of the new axes, `de`.
    """

    lead: str
    inner: str
    outer: str


def _read_equation(layer: KerasLayer, rank: int) -> _LinearEquation:
    """Return the equation of a layer whose input has `rank` axes."""
    text = layer.config.get("equation")
    match = re.fullmatch(r"([a-z]+),([a-z]+)->([a-z]+)", str(text))
    # in `abc,cde->abde`, `ab` is the lead, `c` is inner and `de` is outer
    input_axes, kernel_axes, output_axes = match.groups() if match else ("", "", "")
    inner = "".join(letter for letter in input_axes if letter not in output_axes)
    outer = "".join(letter for letter in output_axes if letter not in input_axes)
    lead = input_axes.removesuffix(inner)
    has_linear_output = bool(inner and outer) and output_axes == lead + outer
    has_linear_kernel = sorted(kernel_axes) == sorted(inner + outer)
    if not has_linear_output or not has_linear_kernel or len(input_axes) != rank:
        raise layer.error(f"equation {shorten(text)} is not of a linear layer")
    return _LinearEquation(lead, inner, outer)


def _read_outer_sizes(layer: KerasLayer, equation: _LinearEquation) -> list[int]:
    """Return the sizes of the new axes, which end the setting `output_shape`."""
    output_shape = layer.config.get("output_shape") or []
    if not isinstance(output_shape, list):
        output_shape = [output_shape]
    axis_count = len(equation.outer)
    outer_sizes = output_shape[len(output_shape) - axis_count :]
    are_sizes = all(type(size) is int and size >= 1 for size in outer_sizes)
    if len(outer_sizes) != axis_count or not are_sizes:
        end = f"output_shape ends with {axis_count} whole numbers"
        raise layer.error(f"{end}, not {shorten(outer_sizes)}")
    return outer_sizes


def add_einsum_dense(layer: KerasLayer, x: KerasTensor) -> KerasTensor:
    """Append a linear layer that an einsum equation describes."""
    y = layer.to_channels_last(x)
    shape = layer.b.shape(y)
    equation = _read_equation(layer, len(shape))
    outer_sizes = _read_outer_sizes(layer, equation)
    lead_count = len(equation.lead)
    lead_shape, inner_sizes = shape[:lead_count], shape[lead_count:]
    rows_shape = (*lead_shape, math.prod(inner_sizes))
    has_bias = _has_einsum_bias(layer, equation)
    product = _add_einsum_product(layer, y, rows_shape, math.prod(outer_sizes), has_bias)
    output_shape = (*lead_shape, *outer_sizes)
    output = layer.apply(elements.reshape, product, output_shape, suffix="/shape")
    return layer.apply_configured_activation(output)


def _has_einsum_bias(layer: KerasLayer, equation: _LinearEquation) -> bool:
    """Return whether a layer has a bias; refuses one along other than the new axes."""
    bias_axes = layer.config.get("bias_axes")
    if bias_axes and bias_axes != equation.outer:
        choice = f"known is {equation.outer!r}, the new axes"
        raise layer.error(f"bias_axes {shorten(bias_axes)}: {choice}")
    return bool(bias_axes)


def _add_einsum_product(
    layer: KerasLayer, x: str, rows_shape: tuple[int, ...], fan_out: int, has_bias: bool
) -> KerasTensor:
    """Append a linear layer with `fan_out` outputs for `x`, viewed as `rows_shape`."""
    kernel = layer.add_weight("kernel", fan_out, rows_shape[-1])
    rows = layer.apply(elements.reshape, x, rows_shape, suffix="/rows")
    bias = layer.add_weight("bias", fan_out) if has_bias else ""
    return layer.apply(lowering.linear, rows, kernel, bias=bias)


def add_activation(layer: KerasLayer, x: KerasTensor) -> KerasTensor:
    """Append the activation of an `Activation` layer."""
    return layer.apply_activation(x, layer.config.get("activation"), layer.name)


def add_softmax(layer: KerasLayer, x: KerasTensor) -> KerasTensor:
    """Append a softmax along an axis, by default the last one."""
    return layer.apply_softmax(x, layer.read_int("axis", default=-1, minimum=MIN_AXIS), layer.name)


def add_relu(layer: KerasLayer, x: KerasTensor) -> KerasTensor:
    """Append ReLU, with a slope below 0 or a limit above."""
    has_limit = layer.config.get("max_value") is not None
    slope = layer.read_number("negative_slope")
    if layer.read_number("threshold") or (slope and has_limit):
        raise layer.error("a ReLU with a threshold, or with a slope and a limit")
    if slope:
        return layer.apply_elementwise("leaky_relu", x, parameter=slope)
    if has_limit:
        limit = layer.read_number("max_value")
        return layer.apply_elementwise("clamp", x, low=0.0, high=limit)
    return layer.apply_elementwise("relu", x)


def add_prelu(layer: KerasLayer, x: KerasTensor) -> KerasTensor:
    """Append `max(x, 0) + alpha min(x, 0)` with a trained `alpha`."""
    # a PReLU is max(x, 0) + alpha * min(x, 0)
    _batch, *alpha_shape = layer.shape(x)
    for axis in layer.config.get("shared_axes") or []:  # the batch is axis 0
        alpha_shape[axis - 1] = 1
    alpha = layer.add_weight("alpha", *alpha_shape)
    y = KerasTensor(layer.to_channels_last(x))
    above = layer.apply_elementwise("relu", y, suffix="/above")
    below = layer.apply_elementwise("minimum", y, 0.0, suffix="/below")
    scaled = layer.apply_elementwise("mul", below, alpha, suffix="/slope")
    return layer.apply_elementwise("add", above, scaled.name)


def make_elementwise_layer(function: str, key: str = "", default: float = 0.0) -> AddLayer:
    """Return the `AddLayer` of an elementwise function; `key` is the setting of its parameter."""

    def add_elementwise(layer: KerasLayer, x: KerasTensor) -> KerasTensor:
        parameter = layer.read_number(key, default) if key else None
        return layer.apply_elementwise(function, x, parameter=parameter)

    return add_elementwise


def add_merge(function: str, layer: KerasLayer, *operands: KerasTensor | float) -> KerasTensor:
    """Append an elementwise function of several tensors, or of tensors and numbers."""
    aligned, channels_first = layer.align_layouts(operands)
    require(len(aligned) >= 2, f"{function} of one tensor")
    first, *further = aligned
    merged = first
    for number, operand in enumerate(further, start=1):
        is_last = number == len(further)
        name = layer.name if is_last else f"{layer.name}/{number}"
        merged = elements.pointwise(layer.b, function, merged, operand, name=name)
    return KerasTensor(str(merged), channels_first)


def add_average(layer: KerasLayer, *tensors: KerasTensor) -> KerasTensor:
    """Append the mean of several tensors."""
    total = add_merge("add", layer, *tensors)
    return layer.apply_elementwise("mul", total, 1 / len(tensors), suffix="/mean")


def add_scaled_sum(layer: KerasLayer, x: KerasTensor, y: KerasTensor) -> KerasTensor:
    """Append `x + scale y`, the residual of Inception-ResNet in `keras.applications`."""
    scaled = layer.apply_elementwise("mul", y, layer.read_number("scale", 1.0), suffix="/scale")
    return add_merge("add", layer, x, scaled)


def add_concatenation(layer: KerasLayer, *tensors: KerasTensor) -> KerasTensor:
    """Append tensors joined along an axis, by default the last one."""
    rank = len(layer.shape(tensors[0]))
    axis = layer.read_int("axis", default=-1, minimum=-rank) % rank
    aligned, channels_first = layer.align_layouts(tensors)
    if channels_first:
        axis = channels_first_axis(axis, rank)
    y = elements.concat(layer.b, [str(x) for x in aligned], axis, layer.name)
    return KerasTensor(y, channels_first)


def add_dot(layer: KerasLayer, x: KerasTensor, y: KerasTensor) -> KerasTensor:
    """Append the products of two tensors along an axis of each, for each example.

    With `normalize` both have length 1 along their axis, so that the products are cosines.
    """
    first = layer.to_channels_last(x)
    second = layer.to_channels_last(y)
    # an axis below 0 is counted from the end
    stated_axes = layer.read_sizes("axes", 2, minimum=MIN_AXIS)
    first_axis = stated_axes[0] % len(layer.b.shape(first))
    second_axis = stated_axes[1] % len(layer.b.shape(second))
    require(first_axis > 0 and second_axis > 0, f"axes {stated_axes} hold the batch")
    if layer.read_flag("normalize"):
        first = _normalize_length(layer, first, first_axis, "/first")
        second = _normalize_length(layer, second, second_axis, "/second")
    return _add_products(
        layer,
        _flatten_around(layer, first, first_axis, "/rows"),
        _flatten_around(layer, second, second_axis, "/columns"),
    )


class _RowsOfExamples(NamedTuple):
    """A tensor as a matrix for each example.

    Attributes:
        matrix: the tensor as `[batch, rows, width]`.
        row_sizes: the axes that are joined in the rows.
    """

    matrix: KerasTensor
    row_sizes: tuple[int, ...]


def _flatten_around(layer: KerasLayer, x: str, axis: int, suffix: str) -> _RowsOfExamples:
    """Append a view of a tensor with `axis` last and all axes behind the batch as rows."""
    shape = layer.b.shape(x)
    row_axes = [row_axis for row_axis in range(1, len(shape)) if row_axis != axis]
    row_sizes = tuple(shape[row_axis] for row_axis in row_axes)
    axis_last = layer.apply(elements.transpose, x, (0, *row_axes, axis), suffix=suffix)
    matrix_shape = (shape[0], math.prod(row_sizes), shape[axis])
    matrix = layer.apply(elements.reshape, axis_last, matrix_shape, suffix=suffix)
    return _RowsOfExamples(matrix, row_sizes)


def _add_products(
    layer: KerasLayer, rows: _RowsOfExamples, columns: _RowsOfExamples
) -> KerasTensor:
    """Append the product of each row of one tensor with each row of another, per example."""
    columns_last = layer.apply(elements.transpose, columns.matrix, (0, 2, 1), suffix="/transpose")
    products = layer.apply(lowering.matmul, rows.matrix, columns_last)
    batch = layer.shape(rows.matrix)[0]
    # the product of two vectors is an axis of one number in Keras
    sizes_of_example = (*rows.row_sizes, *columns.row_sizes) or (1,)
    return layer.apply(elements.reshape, products, (batch, *sizes_of_example), suffix="/shape")


def _normalize_length(layer: KerasLayer, x: str, axis: int, suffix: str) -> str:
    """Append a tensor divided by its length along an axis: `x rsqrt(sum(x^2))`."""
    b = layer.b
    name = f"{layer.name}{suffix}"
    square = elements.pointwise(b, "mul", x, x, name=f"{name}_square")
    total = elements.reduce(b, "sum", square, [axis], f"{name}_sum", keep=True)
    inverse = elements.pointwise(b, "rsqrt", total, name=f"{name}_rsqrt")
    bounded = elements.pointwise(b, "minimum", inverse, MAX_INVERSE_LENGTH, name=f"{name}_bound")
    return elements.pointwise(b, "mul", x, bounded, name=f"{name}_unit")


def add_masking(layer: KerasLayer, x: KerasTensor) -> KerasTensor:
    """Append a product with 0 for the steps that are `mask_value` in all features, else with 1.

    The layers behind it compute all steps in Keras, too; that they skip the masked ones in their
    results is not counted.
    """
    y = KerasTensor(layer.to_channels_last(x))
    mask_value = layer.read_number("mask_value")
    differs = layer.apply_elementwise("ne", y, mask_value, suffix="/differs")
    is_present = layer.apply(elements.reduce, "any", differs, [-1], suffix="/present", keep=True)
    dtype = layer.b.tensors[y.name].dtype
    factor = layer.apply(elements.cast, is_present, dtype, suffix="/factor")
    # layers behind it compute masked steps all the same: only this product is counted
    return layer.apply_elementwise("mul", y, factor.name)


def add_reshape(layer: KerasLayer, x: KerasTensor) -> KerasTensor:
    """Append a view with the shape `target_shape` behind the batch."""
    target = layer.config.get("target_shape")
    if not isinstance(target, list) or any(type(size) is not int for size in target):
        raise layer.error(f"target_shape is a list of whole numbers, not {target}")
    return layer.apply(elements.reshape, x, (layer.shape(x)[0], *target))


def add_flatten(layer: KerasLayer, x: KerasTensor) -> KerasTensor:
    """Append a view with one axis behind the batch."""
    return layer.apply(elements.reshape, x, (layer.shape(x)[0], -1))


def add_permutation(layer: KerasLayer, x: KerasTensor) -> KerasTensor:
    """Append a transpose; `dims` counts the axes behind the batch from 1."""
    dims = layer.read_sizes("dims", len(layer.shape(x)) - 1)
    return layer.apply(elements.transpose, x, (0, *dims))


def add_repetition(layer: KerasLayer, x: KerasTensor) -> KerasTensor:
    """Append a tensor `[batch, width]` repeated as `[batch, n, width]`."""
    batch, width = layer.b.shape(x.name)
    row = layer.apply(elements.reshape, x.name, (batch, 1, width), suffix="/row")
    return layer.apply(elements.append_op, "tile", row, times=(1, layer.read_int("n"), 1))


def add_dropout(layer: KerasLayer, x: KerasTensor) -> KerasTensor:
    """Append dropout of the share `rate` in training."""
    # `StochasticDepth` of keras.applications states a `drop_path_rate`
    rate = layer.read_number("rate", layer.read_number("drop_path_rate"))
    return KerasTensor(lowering.dropout(layer.b, x.name, rate, layer.name), x.is_channels_first)


def pass_input(_layer: KerasLayer, x: KerasTensor) -> KerasTensor:
    """Return the input of a layer that does nothing."""
    return x


def add_augmentation(layer: KerasLayer, x: KerasTensor) -> KerasTensor:
    """Return the input, which the layer varies in training only; its cost is not modelled."""
    if layer.b.training:
        raise layer.error("it varies its input in training, which is not counted: --phase infer")
    return x


def add_embedding(layer: KerasLayer, x: KerasTensor) -> KerasTensor:
    """Append the rows of a trained table at the ids of `x`."""
    ids = layer.to_channels_last(x)
    if is_float(layer.b, ids):
        ids = elements.cast(layer.b, ids, "int64", f"{layer.name}/ids")
    row_count, width = layer.read_int("input_dim"), layer.read_int("output_dim")
    table = layer.add_weight("embeddings", row_count, width)
    return layer.apply(elements.embedding, ids, table)


AUGMENTATIONS = (
    *("RandomBrightness", "RandomContrast", "RandomCrop", "RandomFlip", "RandomHue"),
    *("RandomRotation", "RandomSaturation", "RandomTranslation", "RandomZoom", "GaussianNoise"),
)
DROPOUTS = (
    *("Dropout", "SpatialDropout1D", "SpatialDropout2D", "SpatialDropout3D"),
    *("GaussianDropout", "AlphaDropout", "StochasticDepth"),
)
LAYERS: dict[str, AddLayer] = {
    **convolutions.LAYERS,
    **norms.LAYERS,
    "Dense": add_dense,
    "EinsumDense": add_einsum_dense,
    "Dot": add_dot,
    "Embedding": add_embedding,
    "Masking": add_masking,
    "Activation": add_activation,
    "ReLU": add_relu,
    "LeakyReLU": make_elementwise_layer("leaky_relu", key="negative_slope", default=0.3),
    "PReLU": add_prelu,
    "ELU": make_elementwise_layer("elu", key="alpha", default=1.0),
    "Softmax": add_softmax,
    "Add": partial(add_merge, "add"),
    "Subtract": partial(add_merge, "sub"),
    "Multiply": partial(add_merge, "mul"),
    "Maximum": partial(add_merge, "maximum"),
    "Minimum": partial(add_merge, "minimum"),
    "Average": add_average,
    "CustomScaleLayer": add_scaled_sum,
    "Concatenate": add_concatenation,
    "Reshape": add_reshape,
    "Flatten": add_flatten,
    "Permute": add_permutation,
    "RepeatVector": add_repetition,
    "ActivityRegularization": pass_input,
    "Identity": pass_input,
    **dict.fromkeys(DROPOUTS, add_dropout),
    **dict.fromkeys(AUGMENTATIONS, add_augmentation),
}
