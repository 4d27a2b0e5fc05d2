"""Convolutions on GPUs: products that are never written out, and Winograd's shorter ones.

Implicit products: Chetlur et al. 2014, cuDNN. Winograd: Lavin, Gray 2016, "Fast Algorithms for
Convolutional Neural Networks".
"""

from typing import Any

import numpy as np

from steptime.core.dtypes import SIZE_BYTES
from steptime.hardware.architectures import has_trait
from steptime.hardware.device import Device
from steptime.prediction.calibrated.conv_shape import (
    ConvShape,
    find_layer,
    implicit_product,
    pad_channels,
    vector_flop_ratio,
)
from steptime.prediction.calibrated.form import (
    MULTIPROCESSORS,
    Constants,
    TimeParts,
    ceil,
    has_matrix_units,
    library_share,
    memory_rate,
    stream_s,
    vector_rate,
)
from steptime.prediction.calibrated.image_layouts import pad_channels_s, transpose_images_s
from steptime.prediction.calibrated.product import issue_share, operand_loader, time_product
from steptime.prediction.calibrated.tiles import Shape
from steptime.prediction.kernels import Rows, computed_as

FUSED_BLOCK = 32  # squares, and filters, that a thread block of fused Winograd makes
FUSED_PRODUCTS = 16  # multiplications of F(2x2, 3x3) for 36 of the direct convolution
UNFUSED_PRODUCTS = 36  # multiplications of F(4x4, 3x3), each a matrix product


def convolution(kernels: Rows, device: Device, constants: Constants) -> TimeParts:
    """Return the time of a convolution, or of one of its gradients, by the fastest algorithm."""
    window = kernels.window or (1, 1, 1, 1)  # of one tap, at stride 1
    layer = find_layer(kernels.kind, kernels.products[0], window)
    is_single_channel = layer.outputs * layer.inputs == 1  # of each group
    is_depthwise = (layer.groups > 1) & is_single_channel
    if np.all(is_depthwise):
        return _price_depthwise(kernels, device, constants)
    dtype = computed_as(kernels, device)
    if kernels.unit == "matrix" and has_matrix_units(device, dtype):
        parts = _price_on_matrix_units(kernels, dtype, layer, device, constants)
    else:
        parts = _price_on_vector_units(kernels, layer, device, constants)
        peak = device.datasheet.peak_flop_per_s[kernels.dtype]
        # Winograd's algorithm executes fewer FLOP than are counted.
        executed_flop = parts.compute_s * peak * constants["convolution.share"]
        parts = parts._replace(flop=np.minimum(kernels.flop, executed_flop))
    if not np.any(is_depthwise):
        return parts
    # Arrays may hold both sorts of layers.
    return _select(is_depthwise, _price_depthwise(kernels, device, constants), parts)


def _price_on_vector_units(
    kernels: Rows, layer: ConvShape, device: Device, constants: Constants
) -> TimeParts:
    """Return the time of the fastest algorithm in plain float32."""
    gap_s = constants["launch.gap_s"] * kernels.launches
    if kernels.channels_last:  # transposed on both ways, unless it is a plain product
        is_plain_product = (layer.taps == 1) * (layer.strides == 1)
        transpose_s = transpose_images_s(layer, SIZE_BYTES[kernels.dtype], device, constants)
        gap_s = gap_s + (1 - is_plain_product) * transpose_s
    # Long float32 arithmetic on vector units lacks issue slots (`issue_share`); TF32 does not.
    issued_share = 1.0 if computed_as(kernels, device) == "tf32" else issue_share(device, constants)
    parts = _price_implicit(kernels, layer, gap_s, issued_share, device, constants)
    if kernels.kind == "conv_transpose2d":
        # Each algorithm is priced, and the fastest one that fits is taken, as by the library.
        unrolled = _price_unrolled(kernels, layer, gap_s, issued_share, device, constants)
        parts = _select_faster(fits=True, candidate=unrolled, best=parts)
    is_winograd_size = _is_winograd_size(kernels, layer, device)
    if not np.any(is_winograd_size):
        return parts
    if kernels.kind != "conv2d_grad_weight":
        compute_s = _fused_winograd_s(kernels, layer, device, constants) / issued_share
        fused = TimeParts(compute_s, stream_s(kernels.bytes, device, constants), gap_s)
        parts = _select_faster(is_winograd_size, fused, parts)
    unfused = _price_unfused_winograd(kernels, layer, gap_s, device, constants)
    return _select_faster(is_winograd_size, unfused, parts)


def _is_winograd_size(kernels: Rows, layer: ConvShape, device: Device) -> Any:
    """Return whether convolutions are 3 x 3 at stride 1, for which there are Winograd kernels."""
    if not _has_winograd(kernels, device):
        return False
    height, width, *_ = kernels.window or (1, 1)
    return (height == 3) & (width == 3) & (layer.strides == 1)


def _has_winograd(kernels: Rows, device: Device) -> bool:
    """Return whether a library has Winograd kernels for such convolutions at all.

    There are none for dilated ones, whose spread stands in `figures`.
    """
    is_dilated = bool(kernels.figures)  # the dilation, where it is above 1
    is_old = has_trait(device, "kepler")
    return kernels.window is not None and kernels.dtype == "float32" and not (is_old or is_dilated)


def _price_implicit(
    kernels: Rows,
    layer: ConvShape,
    gap_s: Any,
    issued_share: float,
    device: Device,
    constants: Constants,
) -> TimeParts:
    """Return the time of the implicit matrix product, with a share of the issue slots."""
    shape = implicit_product(kernels.kind, layer)
    is_weight_gradient = kernels.kind == "conv2d_grad_weight"
    direct_s = _direct_s(device, constants, kernels.dtype, shape, is_weight_gradient)
    compute_s = direct_s / issued_share
    return TimeParts(compute_s, stream_s(kernels.bytes, device, constants), gap_s)


def _price_unrolled(
    kernels: Rows,
    layer: ConvShape,
    gap_s: Any,
    issued_share: float,
    device: Device,
    constants: Constants,
) -> TimeParts:
    """Return the time of an input gradient as a product whose result is written and summed up."""
    filter_size = layer.inputs * layer.taps
    shape = (layer.groups, layer.positions, filter_size, layer.outputs)
    compute_s = _direct_s(device, constants, kernels.dtype, shape) / issued_share
    elements = layer.groups * layer.positions * filter_size
    # The unrolled image is written and read again, but for filters of one tap.
    unrolled_bytes = 2 * SIZE_BYTES[kernels.dtype] * elements * (layer.taps > 1)
    return TimeParts(compute_s, stream_s(kernels.bytes + unrolled_bytes, device, constants), gap_s)


def _direct_s(
    device: Device,
    constants: Constants,
    dtype: str,
    shape: Shape,
    is_weight_gradient: bool = False,
) -> Any:
    """Return the arithmetic of a product whose operands are gathered from images.

    Where its contraction can be split, the parts are written to memory and summed.
    """
    groups, m, n, k = shape  # of the forward pass: positions, filters, taps
    multiprocessors = device.datasheet.multiprocessors or MULTIPROCESSORS
    flop_per_s = _direct_flop_per_s(device, constants, dtype, is_weight_gradient)
    block_positions = constants["convolution.block_side"]
    # Candidates on a new first axis: blocks of one, half or a quarter as many filters as positions.
    shape_axes = [1] * np.ndim(groups * m * n * k)
    block_filters = (block_positions / np.array((1, 2, 4))).reshape(-1, *shape_axes)
    wave_s = 2.0 * block_positions * block_filters * multiprocessors / flop_per_s  # a step of k
    blocks = groups * ceil(m, block_positions) * ceil(n, block_filters)
    seconds = ceil(blocks, multiprocessors) * wave_s * (k + constants["convolution.ramp"])
    # Only long sums, over positions, are split: half of the multiprocessors would be idle.
    if is_weight_gradient and np.min(blocks) <= multiprocessors / 2:
        split_s = _split_direct_s(device, constants, shape, blocks, wave_s)
        seconds = np.minimum(seconds, split_s)
    return seconds.min(axis=0)  # by the fastest candidate


def _split_direct_s(
    device: Device, constants: Constants, shape: Shape, blocks: Any, wave_s: Any
) -> Any:
    """Return the seconds of a product whose contraction is split over idle multiprocessors.

    Args:
        device: the device.
        constants: the constants of its calibration.
        shape: groups, m, n and k of the product.
        blocks: thread blocks that cover the result.
        wave_s: seconds of a block on each multiprocessor for one step of the contraction.
    """
    groups, m, n, k = shape
    multiprocessors = device.datasheet.multiprocessors or MULTIPROCESSORS
    parts_by_blocks = np.floor(multiprocessors / blocks)
    parts_by_length = np.floor(k / constants["convolution.least_part"])
    parts = np.maximum(1.0, np.minimum(parts_by_blocks, parts_by_length))
    # Partial sums in float32: each is written, then read, and the result written.
    sum_s = 4.0 * (parts + 1) * groups * m * n / memory_rate(device, constants)
    waves_s = ceil(blocks * parts, multiprocessors) * wave_s
    return waves_s * (ceil(k, parts) + constants["convolution.ramp"]) + sum_s


def _direct_flop_per_s(
    device: Device, constants: Constants, dtype: str, is_weight_gradient: bool
) -> float:
    """Return the rate of thread blocks that are all at work."""
    flop_per_s = device.datasheet.peak_flop_per_s[dtype] * constants["convolution.share"]
    flop_per_s *= library_share(device, constants)
    if has_trait(device, "kepler"):
        flop_per_s *= constants["product.kepler"]
    if is_weight_gradient:
        flop_per_s *= constants["convolution.weights"]
    return flop_per_s


def _square_count(kernels: Rows, layer: ConvShape, side: int) -> Any:
    """Return the squares of `side` by `side` positions that cover all maps of a batch."""
    rows, columns = (kernels.window or (1,) * 6)[4:]
    maps = layer.positions / (rows * columns)
    return maps * ceil(rows, side) * ceil(columns, side)


def _fused_winograd_s(kernels: Rows, layer: ConvShape, device: Device, constants: Constants) -> Any:
    """Return the arithmetic of Winograd's F(2x2, 3x3) in one kernel: 16 products for 36."""
    multiprocessors = device.datasheet.multiprocessors or MULTIPROCESSORS
    peak = device.datasheet.peak_flop_per_s[kernels.dtype]
    if kernels.kind == "conv2d":
        filters, contraction = layer.outputs, layer.inputs
    else:  # the gradient of the input
        filters, contraction = layer.inputs, layer.outputs
    # F(2x2, 3x3): squares of 2 x 2 outputs, 16 products each; a block makes 32 by 32 of them.
    square_blocks = ceil(_square_count(kernels, layer, 2), FUSED_BLOCK)
    blocks = layer.groups * square_blocks * ceil(filters, FUSED_BLOCK)
    block_flop = 2.0 * FUSED_PRODUCTS * FUSED_BLOCK * FUSED_BLOCK
    wave_s = block_flop * multiprocessors / (peak * constants["convolution.fused_share"])
    # A step is a channel here, and a tap of a channel where the ramp is stated.
    ramp_steps = constants["convolution.ramp"] / 9
    return ceil(blocks, multiprocessors) * wave_s * (contraction + ramp_steps)


def _price_unfused_winograd(
    kernels: Rows, layer: ConvShape, gap_s: Any, device: Device, constants: Constants
) -> TimeParts:
    """Return the time of Winograd's F(4x4, 3x3) in three kernels: transform, products, transform.

    The transforms overlap nothing.
    """
    groups, positions, outputs, inputs, *_ = layer
    # F(4x4, 3x3): squares of 4 x 4 outputs, 36 products each.
    squares = _square_count(kernels, layer, 4)
    m, n, k = {
        "conv2d": (squares, outputs, inputs),
        "conv_transpose2d": (squares, inputs, outputs),
        "conv2d_grad_weight": (outputs, inputs, squares),
    }[kernels.kind]
    element_bytes = SIZE_BYTES[kernels.dtype]
    channels = inputs + outputs
    transformed_elements = UNFUSED_PRODUCTS * groups * (squares * channels + inputs * outputs)
    # Both images and the 3 x 3 filters.
    image_elements = groups * (positions * channels + 9 * inputs * outputs)
    transformed_bytes = element_bytes * transformed_elements
    all_bytes = transformed_bytes + element_bytes * image_elements
    transforms_s = stream_s(all_bytes, device, constants) / constants["convolution.transform"]
    products = (UNFUSED_PRODUCTS * groups, m, n, k)
    # Three kernels run one after the other, so that the transforms' seconds count in the gap.
    return TimeParts(
        compute_s=time_product(device, constants, kernels.dtype, products).compute_s,
        memory_s=stream_s(transformed_bytes, device, constants),
        gap_s=gap_s + transforms_s + 3 * constants["launch.gap_s"],
    )


def _price_on_matrix_units(
    kernels: Rows,
    dtype: str,
    layer: ConvShape,
    device: Device,
    constants: Constants,
) -> TimeParts:
    """Return the time of an implicit product on tensor cores, whose images are channels last."""
    is_forward = kernels.kind == "conv2d" and kernels.pass_ == "forward"
    compute_s = _matrix_product_s(kernels, dtype, layer, device, constants)
    if kernels.channels_last:
        layout_s = pad_channels_s(kernels, layer, device, constants)
        if not is_forward:
            compute_s = compute_s + _grouped_gradient_s(kernels, layer, device, constants)
    else:
        transpose_s = transpose_images_s(layer, SIZE_BYTES[kernels.dtype], device, constants)
        layout_s = transpose_s * _transposed_share(dtype, is_forward, device, constants)
    gap_s = constants["launch.gap_s"] * kernels.launches + layout_s
    return TimeParts(compute_s, stream_s(kernels.bytes, device, constants), gap_s, kernels.flop)


def _matrix_product_s(
    kernels: Rows, dtype: str, layer: ConvShape, device: Device, constants: Constants
) -> Any:
    """Return the arithmetic of an implicit product on tensor cores.

    Devices whose matrix units load by copies of tensors still run the kernels of earlier devices
    (`new_share`).
    """
    time = time_product(device, constants, dtype, pad_channels(kernels.kind, layer))
    compute_s = time.compute_s / constants["convolution.matrix_share"]
    if _runs_earlier_kernels(device):
        compute_s = compute_s / constants["convolution.new_share"]
    # Never above the peak for the counted FLOP.
    return np.maximum(compute_s, kernels.flop / device.datasheet.peak_flop_per_s[dtype])


def _grouped_gradient_s(
    kernels: Rows, layer: ConvShape, device: Device, constants: Constants
) -> Any:
    """Return the seconds by which gradients of grouped convolutions run on vector units."""
    datasheet = device.datasheet
    peak = datasheet.vector_peak("float32") or datasheet.peak_flop_per_s[kernels.dtype]
    vector_flop = vector_flop_ratio(layer) * kernels.flop
    return vector_flop / (peak * constants["convolution.groups_share"])


def _runs_earlier_kernels(device: Device) -> bool:
    """Return whether a device runs the convolutions of the devices before it (Hopper and later).

    Its matrix units load by copies of tensors, but kernels of convolutions do not make use of it.
    """
    return operand_loader(device) == "tensor"


def _transposed_share(dtype: str, is_forward: bool, device: Device, constants: Constants) -> float:
    """Return the share of layers with channels first that are transposed, in the mean.

    A layer is transposed if its fastest kernel needs the other layout. In TF32 the forward pass
    reads and writes either layout (cuDNN's kernels
    sm80_xmma_fprop_implicit_gemm_tf32f32_..._nhwckrsc_nchw); its gradients do not
    (..._dgrad_..._nhwckrsc_nhwc, ..._wgrad_..._nhwc).
    """
    if not is_forward:
        return constants["convolution.gradients_turned"]
    if dtype == "tf32":
        return 0.0
    if _runs_earlier_kernels(device):
        return constants["convolution.new_turned"]
    return constants["convolution.matrix_turned"]


def _price_depthwise(kernels: Rows, device: Device, constants: Constants) -> TimeParts:
    """Return the time of one filter a channel: its traffic, at a poor share of the rate."""
    memory_s = stream_s(kernels.bytes, device, constants)
    return TimeParts(
        compute_s=kernels.flop
        / (vector_rate(device, kernels.dtype) * constants["stream.flop_share"]),
        memory_s=memory_s / constants["convolution.depthwise_share"],
        gap_s=constants["launch.gap_s"] * kernels.launches,
        flop=kernels.flop,
    )


def _select_faster(fits: Any, candidate: TimeParts, best: TimeParts) -> TimeParts:
    """Return the candidate where it fits and is faster, else the best so far."""
    return _select(fits & (_approximate_s(candidate) < _approximate_s(best)), candidate, best)


def _select(condition: Any, parts: TimeParts, fallback: TimeParts) -> TimeParts:
    """Return the first parts where the condition holds, else the fallback."""
    pairs = zip(parts, fallback, strict=True)
    return TimeParts(
        *[None if new is None else np.where(condition, new, old) for new, old in pairs]
    )


def _approximate_s(parts: TimeParts) -> Any:
    """Return about the seconds of parts: the norm to the power of 4 of two, and the gap."""
    fourth_powers = np.square(np.square(parts.compute_s)) + np.square(np.square(parts.memory_s))
    return np.sqrt(np.sqrt(fourth_powers)) + parts.gap_s
