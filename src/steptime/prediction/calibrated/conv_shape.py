"""Shapes of convolutions: the layer behind each of its passes, and the matrix product of a pass."""

from typing import Any, NamedTuple

import numpy as np

from steptime.prediction.calibrated.form import ceil
from steptime.prediction.calibrated.tiles import Shape

CHANNEL_MULTIPLE = 8  # of which tensor cores need channels to be
MAX_IMAGE_CHANNELS = 4  # of an image that enters a network; first layers have kernels of their own
GROUP_BLOCK = 32  # channels of groups that a kernel computes at once


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


def count_copied_elements(layer: ConvShape) -> Any:
    """Return the elements of images whose channels have to be padded for tensor cores.

    Images that enter a network, with few channels, have kernels of their own.
    """
    # Conditions are multiplied, since they may be arrays.
    # Images that enter a network, with few channels, have kernels that need no padding.
    pads_inputs = (layer.inputs > MAX_IMAGE_CHANNELS) * (layer.inputs % CHANNEL_MULTIPLE > 0)
    pads_outputs = layer.outputs % CHANNEL_MULTIPLE > 0
    copied_inputs = layer.strides * (layer.inputs * pads_inputs)  # at each input position
    copied_outputs = layer.outputs * pads_outputs
    is_ungrouped = layer.groups == 1
    return is_ungrouped * layer.positions * (copied_inputs + copied_outputs)


def vector_flop_ratio(layer: ConvShape) -> Any:
    """Return the FLOP on vector units for each counted one, in a gradient of groups; else 0.

    With channels last cuDNN has fast kernels for 32 groups at once of 4 to 32 equal channels; for
    other groups it computes blocks of 32 channels on vector units.
    """
    groups, _, outputs, inputs, *_ = layer
    # Conditions are multiplied, since they may be arrays.
    has_fast_kernel = (
        (groups % GROUP_BLOCK == 0)
        * (outputs == inputs)
        * (inputs >= MAX_IMAGE_CHANNELS)
        * (inputs <= GROUP_BLOCK)
    )
    widest = np.maximum(outputs, inputs)
    # Blocks of 32 channels are computed, whatever part of them the group has.
    padding_ratio = ceil(widest, GROUP_BLOCK) * GROUP_BLOCK / widest
    return (groups > 1) * (1 - has_fast_kernel) * padding_ratio


def pad_channels(kind: str, layer: ConvShape) -> Shape:
    """Return the implicit product of a layer whose channels are padded for tensor cores."""
    padded_layer = layer._replace(
        outputs=CHANNEL_MULTIPLE * ceil(layer.outputs, CHANNEL_MULTIPLE),
        inputs=CHANNEL_MULTIPLE * ceil(layer.inputs, CHANNEL_MULTIPLE),
    )
    groups, m, n, k = implicit_product(kind, padded_layer)
    # The narrower side of a group's product lies along the rows of tiles, which it may not fill.
    is_grouped = groups > 1
    row_count = np.where(is_grouped, np.minimum(m, n), m)
    column_count = np.where(is_grouped, np.maximum(m, n), n)
    return groups, row_count, column_count, k
