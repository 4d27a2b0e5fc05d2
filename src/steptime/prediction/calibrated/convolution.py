"""Convolutions on GPUs: products that are never written out, and Winograd's shorter ones.

Implicit products: Chetlur et al. 2014, cuDNN. Winograd: Lavin, Gray 2016, "Fast Algorithms for
Convolutional Neural Networks".
"""

from typing import Any, NamedTuple

import numpy as np

from steptime.core.dtypes import SIZE_BYTES
from steptime.hardware.architectures import has_trait
from steptime.hardware.device import Device
from steptime.prediction.calibrated.form import (
    MULTIPROCESSORS,
    Constants,
    Parts,
    ceil,
    has_matrix_units,
    library_share,
    memory_rate,
    stream_s,
)
from steptime.prediction.calibrated.product import issue_share, operand_loader, time_product
from steptime.prediction.calibrated.tiles import Shape
from steptime.prediction.kernels import Rows, computed_as

CHANNELS = 8  # whose multiple tensor cores need
FEW = 4  # channels of images as they come
TOGETHER = 32  # channels of groups that a kernel computes at once


class ConvShape(NamedTuple):
    """A convolution seen forward, for it and both its gradients.

    `places` are those of the output of the whole batch, `made` and `read` its channels out and in,
    of each of `groups`; the filter has `taps`, of which a stride shares each among `strides`.
    """

    groups: Any
    places: Any
    made: Any
    read: Any
    taps: Any
    strides: Any


def convolution(kernels: Rows, device: Device, constants: Constants) -> Parts:
    """Return the seconds of a convolution or of one of its gradients by its best algorithm."""
    layer = layer_of(kernels.kind, kernels.products[0], kernels.window or (1,) * 4)
    depthwise = (layer.groups > 1) & (layer.made * layer.read == 1)
    if np.all(depthwise):
        return _depthwise(kernels, device, constants)
    dtype = computed_as(kernels, device)
    if kernels.unit == "matrix" and has_matrix_units(device, dtype):
        best = _on_matrix_units(kernels, dtype, layer, device, constants)
    else:
        best = _by_lanes(kernels, layer, device, constants)
        peak = device.peak_flop_per_s[kernels.dtype]
        busy = best.compute_s * peak * constants["convolution.share"]
        best = best._replace(flop=np.minimum(kernels.flop, busy))
    if not np.any(depthwise):
        return best
    return _either(depthwise, _depthwise(kernels, device, constants), best)


def layer_of(kind: str, shape: Shape, window: tuple[Any, ...]) -> ConvShape:
    """Return the layer that a kernel is a pass of, from the product that counts its FLOP."""
    groups, m, n, k = shape
    taps, strides = window[0] * window[1], window[2] * window[3]
    if kind == "conv2d":
        return ConvShape(groups, m, n, k / taps, taps, strides)
    if kind == "conv_transpose2d":
        return ConvShape(groups, m, k, n / taps, taps, strides)
    return ConvShape(groups, k, m, n / taps, taps, strides)


def implicit(kind: str, layer: ConvShape) -> tuple[Any, Any, Any, Any]:
    """Return `(groups, m, n, k)` of the product that is never written out.

    A gradient of the input takes all taps at all its places: no library leaves out those that a
    stride jumps over.
    """
    groups, places, made, read, taps, strides = layer
    if kind == "conv2d":
        return groups, places, made, read * taps
    if kind == "conv_transpose2d":
        return groups, places * strides, read, made * taps
    return groups, np.maximum(made, read * taps), np.minimum(made, read * taps), places


def _by_lanes(kernels: Rows, layer: ConvShape, device: Device, constants: Constants) -> Parts:
    """Return the seconds of the quickest algorithm in plain float32."""
    size = SIZE_BYTES[kernels.dtype]
    gap = constants["launch.gap_s"] * kernels.launches
    if kernels.channels_last:  # turned around each way, but for what is a product as it is
        turned = 1 - (layer.taps == 1) * (layer.strides == 1)
        gap = gap + turned * _turning_s(layer, size, device, constants)
    moving = stream_s(kernels.bytes, device, constants)
    weights = kernels.kind == "conv2d_grad_weight"
    shape = implicit(kernels.kind, layer)
    issue = 1.0 if computed_as(kernels, device) == "tf32" else issue_share(device, constants)
    arithmetic = _direct_s(device, constants, kernels.dtype, shape, weights) / issue
    best = Parts(arithmetic, moving, gap)
    if kernels.kind == "conv_transpose2d":
        unrolled = layer.groups * layer.places * layer.read * layer.taps
        shape = layer.groups, layer.places, layer.read * layer.taps, layer.made
        arithmetic = _direct_s(device, constants, kernels.dtype, shape) / issue
        moved = kernels.bytes + 2 * size * unrolled * (layer.taps > 1)
        best = _quicker(True, Parts(arithmetic, stream_s(moved, device, constants), gap), best)
    old = has_trait(device, "kepler")
    is_dilated = bool(kernels.figures)  # of which no library has a kernel of Winograd's
    if kernels.window is None or kernels.dtype != "float32" or old or is_dilated:
        return best
    height, width = kernels.window[:2]
    fits = (height == 3) & (width == 3) & (layer.strides == 1)
    if not np.any(fits):
        return best
    if not weights:
        arithmetic = _fused_s(kernels, layer, device, constants) / issue
        best = _quicker(fits, Parts(arithmetic, moving, gap), best)
    return _quicker(fits, _in_three(kernels, layer, gap, device, constants), best)


def _direct_s(
    device: Device,
    constants: Constants,
    dtype: str,
    shape: Shape,
    splits: bool = False,
) -> Any:
    """Return the seconds of arithmetic of a product whose operands are gathered from images.

    Parts of a contraction that is split are written and summed up.
    """
    groups, m, n, k = shape
    units = device.multiprocessors or MULTIPROCESSORS
    rate = device.peak_flop_per_s[dtype] * constants["convolution.share"]
    rate = rate * library_share(device, constants)
    if has_trait(device, "kepler"):
        rate = rate * constants["product.kepler"]
    if splits:
        rate = rate * constants["convolution.weights"]
    ramp = constants["convolution.ramp"]
    side = constants["convolution.block_side"]  # places of a block of threads, and filters at most
    filters = (side / np.array((1, 2, 4))).reshape(-1, *[1] * np.ndim(groups * m * n * k))
    each = 2.0 * side * filters * units / rate  # seconds of a wave and one k
    blocks = groups * ceil(m, side) * ceil(n, filters)
    found = ceil(blocks, units) * each * (k + ramp)
    if splits and np.min(blocks) <= units / 2:  # else none is split
        parts = np.minimum(
            np.floor(units / blocks), np.floor(k / constants["convolution.least_part"])
        )
        parts = np.maximum(1.0, parts)
        summed = 4.0 * (parts + 1) * groups * m * n / memory_rate(device, constants)
        split = ceil(blocks * parts, units) * each * (ceil(k, parts) + ramp) + summed
        found = np.minimum(found, split)
    return found.min(axis=0)


def _turning_s(layer: ConvShape, size: float, device: Device, constants: Constants) -> Any:
    """Return the seconds of turning both images of a layer from one layout into another.

    A multiprocessor turns so many bytes a second; few channels do not fill what it moves at once.
    An image of one channel is the same in both.
    """
    places, elements = _turned(layer)
    few = constants["convolution.turned_channels"]
    return 2 * size * (elements + few * places) * _turning_byte_s(device, constants)


def _turning_byte_s(device: Device, constants: Constants) -> Any:
    """Return the seconds in which a byte that is read and written comes into another layout.

    None do where a compiler lays out images for the whole of a step, as those of accelerators.
    """
    if device.kind != "gpu":
        return 0.0
    units = device.multiprocessors or MULTIPROCESSORS
    own_s = 1 / (units * constants["convolution.turned_bytes_per_s"])
    return own_s + 1 / memory_rate(device, constants)


def _turned(layer: ConvShape) -> tuple[Any, Any]:
    """Return the places and elements of a layer's images that have more than one channel."""
    read, made = layer.groups * layer.read, layer.groups * layer.made
    before, after = layer.places * layer.strides * (read > 1), layer.places * (made > 1)
    return before + after, before * read + after * made


def _squares(kernels: Rows, layer: ConvShape, side: int) -> Any:
    """Return the squares of `side` by `side` places that cover all maps of a batch."""
    rows, columns = (kernels.window or (1,) * 6)[4:]
    return layer.places / (rows * columns) * ceil(rows, side) * ceil(columns, side)


def _fused_s(kernels: Rows, layer: ConvShape, device: Device, constants: Constants) -> Any:
    """Return the seconds of arithmetic of Winograd's F(2x2, 3x3) in one kernel: 16 for 36.

    A block of threads makes 32 squares of 32 filters.
    """
    units = device.multiprocessors or MULTIPROCESSORS
    rate = device.peak_flop_per_s[kernels.dtype] * constants["convolution.fused_share"]
    forward = kernels.kind == "conv2d"
    n, k = (layer.made, layer.read) if forward else (layer.read, layer.made)
    blocks = layer.groups * ceil(_squares(kernels, layer, 2), 32) * ceil(n, 32)
    each = 2.0 * 16 * 32 * 32 * units / rate
    return ceil(blocks, units) * each * (k + constants["convolution.ramp"] / 9)


def _in_three(
    kernels: Rows, layer: ConvShape, gap: Any, device: Device, constants: Constants
) -> Parts:
    """Return the seconds of Winograd's F(4x4, 3x3) in kernels: transform, 36 products, transform.

    The transforms overlap nothing.
    """
    groups, places, made, read, *_ = layer
    squares = _squares(kernels, layer, 4)
    m, n, k = {
        "conv2d": (squares, made, read),
        "conv_transpose2d": (squares, read, made),
        "conv2d_grad_weight": (made, read, squares),
    }[kernels.kind]
    size = SIZE_BYTES[kernels.dtype]
    inside = 36 * size * groups * (squares * (read + made) + read * made)
    outside = size * groups * (places * (read + made) + 9 * read * made)
    turned = stream_s(inside + outside, device, constants) / constants["convolution.transform"]
    batched = 36 * groups, m, n, k
    return Parts(
        time_product(device, constants, kernels.dtype, batched)[0],
        stream_s(inside, device, constants),
        gap + turned + 3 * constants["launch.gap_s"],
    )


def _on_matrix_units(
    kernels: Rows,
    dtype: str,
    layer: ConvShape,
    device: Device,
    constants: Constants,
) -> Parts:
    """Return the seconds of an implicit product on tensor cores, whose images are channels last.

    Images that are not are turned around on the way in and out, where the quickest kernel asks for
    it: on average `convolution.matrix_turned` of them. Those whose channels are no multiple of 8
    are copied to one that is. In TF32 the forward pass reads and writes images as they lie (cuDNN's
    kernels sm80_xmma_fprop_implicit_gemm_tf32f32_..._nhwckrsc_nchw); its gradients do not
    (..._dgrad_..._nhwckrsc_nhwc, ..._wgrad_..._nhwc). Where tensors are copied to matrix units at
    once, kernels are those of devices before, and take no other layout (`new_share`, `new_turned`).
    """
    newer = operand_loader(device) == "tensor"
    shape = _padded(kernels.kind, layer)
    arithmetic, _ = time_product(device, constants, dtype, shape)
    arithmetic = arithmetic / constants["convolution.matrix_share"]
    arithmetic = arithmetic / (constants["convolution.new_share"] if newer else 1.0)
    arithmetic = np.maximum(arithmetic, kernels.flop / device.peak_flop_per_s[dtype])
    gap = constants["launch.gap_s"] * kernels.launches
    forward = kernels.kind == "conv2d" and kernels.pass_ == "forward"
    if not kernels.channels_last:
        turning = _turning_s(layer, SIZE_BYTES[kernels.dtype], device, constants)
        often = "new_turned" if newer else "matrix_turned"
        share = constants[f"convolution.{often if forward else 'gradients_turned'}"]
        gap = gap + turning * (0.0 if forward and dtype == "tf32" else share)
    else:
        copied = 2 * SIZE_BYTES[kernels.dtype] * _uneven(layer)
        gap = gap + stream_s(copied, device, constants)
        if not forward:
            vector = device.vector_peak("float32") or device.peak_flop_per_s[kernels.dtype]
            slow = _without_matrix_units(layer) * kernels.flop
            arithmetic = arithmetic + slow / (vector * constants["convolution.groups_share"])
    moving = stream_s(kernels.bytes, device, constants)
    return Parts(arithmetic, moving, gap, kernels.flop)


def _uneven(layer: ConvShape) -> Any:
    """Return the elements of a layer's images whose channels tensor cores do not take as they are.

    First layers have kernels of their own.
    """
    read = layer.read * ((layer.read % CHANNELS > 0) * (layer.read > FEW))
    made = layer.made * (layer.made % CHANNELS > 0)
    return (layer.groups == 1) * layer.places * (layer.strides * read + made)


def _without_matrix_units(layer: ConvShape) -> Any:
    """Return FLOP on vector units for each that is counted, of a gradient of groups; 0 for others.

    With channels last cuDNN has quick kernels for 32 groups at once of 4 to 32 channels that make
    as many; what it has for others computes blocks of 32 channels.
    """
    groups, _, made, read, *_ = layer
    quick = (groups % 32 == 0) * (made == read) * (read >= 4) * (read <= TOGETHER)
    widest = np.maximum(made, read)
    return (groups > 1) * (1 - quick) * ceil(widest, TOGETHER) * TOGETHER / widest


def _padded(kind: str, layer: ConvShape) -> Shape:
    """Return the product of a layer whose channels are padded for tensor cores."""
    groups, places, made, read, taps, strides = layer
    made, read = CHANNELS * ceil(made, CHANNELS), CHANNELS * ceil(read, CHANNELS)
    _, m, n, k = implicit(kind, ConvShape(groups, places, made, read, taps, strides))
    short = np.where(groups > 1, np.minimum(m, n), m)  # few filters of a group fill few rows
    return groups, short, m * n / short, k


def _depthwise(kernels: Rows, device: Device, constants: Constants) -> Parts:
    """Return the seconds of a filter for each channel: its traffic, at a poor share of the rate."""
    moving = stream_s(kernels.bytes, device, constants) / constants["convolution.depthwise_share"]
    vector = device.vector_peak(kernels.dtype) or device.peak_flop_per_s[kernels.dtype]
    arithmetic = kernels.flop / (vector * constants["stream.flop_share"])
    return Parts(arithmetic, moving, constants["launch.gap_s"] * kernels.launches, kernels.flop)


def _quicker(fits: Any, one: Parts, other: Parts) -> Parts:
    """Return the parts of what takes less, `other` where `one` does not fit."""
    return _either(fits & (_rough_s(one) < _rough_s(other)), one, other)


def _either(first: Any, one: Parts, other: Parts) -> Parts:
    """Return `one` where `first` is 1, `other` where it is 0."""
    both = zip(one, other, strict=True)
    return Parts(*[None if a is None else np.where(first, a, b) for a, b in both])


def _rough_s(parts: Parts) -> Any:
    """Return about the seconds of parts that overlap but for the gap."""
    both = np.square(np.square(parts.compute_s)) + np.square(np.square(parts.memory_s))
    return np.sqrt(np.sqrt(both)) + parts.gap_s
