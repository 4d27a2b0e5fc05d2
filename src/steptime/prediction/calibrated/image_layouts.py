"""The time of bringing images of convolutions into the layout that their kernels need."""

from typing import Any

from steptime.core.dtypes import SIZE_BYTES
from steptime.hardware.device import Device
from steptime.prediction.calibrated.conv_shape import ConvShape, count_copied_elements
from steptime.prediction.calibrated.form import (
    MULTIPROCESSORS,
    Constants,
    memory_rate,
    stream_s,
)
from steptime.prediction.kernels import Rows


def transpose_images_s(
    layer: ConvShape, element_bytes: float, device: Device, constants: Constants
) -> Any:
    """Return the seconds of transposing both images of a layer from one layout to the other.

    A multiprocessor transposes `convolution.turned_bytes_per_s`; few channels do not fill the block
    that it moves at once (`convolution.turned_channels`). An image of one channel is the same in
    both layouts.
    """
    inputs = layer.groups * layer.inputs
    outputs = layer.groups * layer.outputs
    # An image of one channel is the same in both layouts, so that it is not transposed.
    input_positions = layer.positions * layer.strides * (inputs > 1)
    output_positions = layer.positions * (outputs > 1)
    elements = input_positions * inputs + output_positions * outputs
    # Few channels do not fill the block that is moved at once.
    padding = constants["convolution.turned_channels"] * (input_positions + output_positions)
    # Read and written.
    return 2 * element_bytes * (elements + padding) * _transpose_byte_s(device, constants)


def _transpose_byte_s(device: Device, constants: Constants) -> Any:
    """Return the seconds of transposing a byte, which is read and written.

    It is 0 where a compiler chooses the layout of images for a whole step, as on accelerators.
    """
    if device.kind != "gpu":
        return 0.0
    multiprocessors = device.datasheet.multiprocessors or MULTIPROCESSORS
    transpose_s = 1 / (multiprocessors * constants["convolution.turned_bytes_per_s"])
    return transpose_s + 1 / memory_rate(device, constants)


def pad_channels_s(kernels: Rows, layer: ConvShape, device: Device, constants: Constants) -> Any:
    """Return the seconds of copying images whose channels are no multiple of 8.

    They are read and written once more.
    """
    copied_bytes = 2 * SIZE_BYTES[kernels.dtype] * count_copied_elements(layer)
    return stream_s(copied_bytes, device, constants)
