"""Shapes of convolutions: the layer behind each of its passes, and the matrix product of a pass."""

from typing import Any, NamedTuple

import numpy as np

from steptime.prediction.calibrated.tiles import Shape


class ConvShape(NamedTuple):
    """A convolution as its forward pass has it; the same for both gradients.

    Attributes:
        groups: number of groups.
        positions: output positions of the whole batch.
        outputs: output channels of a group.
        inputs: input channels of a group.
        taps: elements of the filter.
        strides: product of the strides.
    """

    groups: Any
    positions: Any
    outputs: Any
    inputs: Any
    taps: Any
    strides: Any


def find_layer(kind: str, shape: Shape, window: tuple[Any, ...]) -> ConvShape:
    """Return the layer of which a kernel is a pass, from the product that counts its FLOP."""
    groups, m, n, k = shape
    height, width, row_stride, column_stride, *_ = window
    taps = height * width
    # Which side of the product is which depends on the pass.
    if kind == "conv2d":
        positions, outputs, inputs_and_taps = m, n, k
    elif kind == "conv_transpose2d":  # the gradient of the input: a product over the outputs
        positions, inputs_and_taps, outputs = m, n, k
    else:  # the gradient of the weights: a product over the positions
        outputs, inputs_and_taps, positions = m, n, k
    strides = row_stride * column_stride
    return ConvShape(groups, positions, outputs, inputs_and_taps / taps, taps, strides)


def implicit_product(kind: str, layer: ConvShape) -> Shape:
    """Return the shape `(groups, m, n, k)` of the implicit matrix product of a pass.

    A gradient of the input computes all taps at all its positions: no library skips the taps that a
    stride jumps over.
    """
    groups, positions, outputs, inputs, taps, strides = layer
    if kind == "conv2d":
        return groups, positions, outputs, inputs * taps
    if kind == "conv_transpose2d":  # the gradient of the input: an output for each of its pixels
        return groups, positions * strides, inputs, outputs * taps
    filter_size = inputs * taps  # the gradient of the weights sums over the positions
    # The library may transpose the result: which side is which plays no part.
    longer, shorter = np.maximum(outputs, filter_size), np.minimum(outputs, filter_size)
    return groups, longer, shorter, positions
