"""Paleo's rules: FLOP and bytes of each layer in the forward pass and in the gradients.

Source: Qi, Sparks, Talwalkar, ICLR 2017, and the behaviour of its public code, faults included:
a gradient of a convolution is the convolution of a dilated tensor, whose holes save FLOP only in
the filter gradient. Elements have 4 bytes; shapes are channels last.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod
from typing import NamedTuple

from steptime.core.errors import InputError
from steptime.core.graph import Part
from steptime.paleo.layers import Layer
from steptime.prediction.kernel import Settings

Pair = tuple[int, int]
ALGORITHMS = ("gemm", "fft", "fft-tiling")
TILE = 32
FLOAT_BYTES = 4
COMPLEX_BYTES = 2 * FLOAT_BYTES


@dataclass(frozen=True)
class PaleoSettings(Settings):
    """Settings with the `faults` of Paleo that are kept, and the `algorithm` of convolutions."""

    faults: frozenset[str] = frozenset()
    algorithm: str = "gemm"


def settings_of(settings: Settings) -> PaleoSettings:
    """Return settings with Paleo's fields; those of other methods keep no fault."""
    return settings if isinstance(settings, PaleoSettings) else PaleoSettings(**vars(settings))


class Cost(NamedTuple):
    """One kernel as Paleo counts it: FLOP, and the bytes of each tensor that it moves."""

    flop: float
    tensors: tuple[float, ...]


Costs = tuple[Cost, ...]


@dataclass(frozen=True)
class Convolution:
    """A convolution `[n, h, w, c]`, filter `[kh, kw, c_filter, c_out]`, padding a side.

    `input_hole_share` and `filter_hole_share` are the shares of zeros that dilation put into input
    and filter.
    """

    images: int
    size: Pair
    channels: int
    kernel: Pair
    filter_channels: int
    filters: int
    strides: Pair
    padding: Pair
    input_hole_share: float = 0.0
    filter_hole_share: float = 0.0


def update(parameters: int) -> Cost:
    """Return Paleo's kernel of plain SGD: read weights and gradients, write weights."""
    size = float(FLOAT_BYTES * parameters)
    return Cost(2.0 * parameters, (size, size, size))


def _pool_costs(layer: Layer, _: str) -> Costs:
    return (Cost(2 * prod(layer.kernel) * prod(layer.outputs), _input_and_output_bytes(layer)),)


def _dropout_costs(layer: Layer, _: str) -> Costs:
    return (Cost(prod(layer.inputs), _input_and_output_bytes(layer)),)


def _input_and_output_bytes(layer: Layer) -> tuple[int, int]:
    return FLOAT_BYTES * prod(layer.inputs), FLOAT_BYTES * prod(layer.outputs)


def _convolution_costs(layer: Layer, algorithm: str) -> Costs:
    return _kernel_costs(_convolution(layer), _convolved_size(layer), layer, algorithm)


def _data_gradient_costs(layer: Layer, algorithm: str) -> Costs:
    """Return the costs of the gradient of a layer's input by an algorithm."""
    convolution = _convolution(layer)
    return _kernel_costs(
        _data_gradient(convolution, _convolved_size(layer), layer),
        convolution.size,
        layer,
        algorithm,
    )


def _weight_gradient_costs(layer: Layer, algorithm: str) -> Costs:
    convolution = _convolution(layer)
    weights = _filter_gradient(convolution, _convolved_size(layer), layer)
    return _kernel_costs(weights, convolution.kernel, layer, algorithm)


def _deconvolution_weight_costs(layer: Layer, algorithm: str) -> Costs:
    convolution = _convolution(layer)
    data_gradient = _data_gradient(convolution, _convolved_size(layer), layer)
    weights = _filter_gradient(
        data_gradient, convolution.size, layer, data_gradient.input_hole_share
    )
    return _kernel_costs(weights, convolution.kernel, layer, algorithm)


def _exact_convolution_cost(layer: Layer) -> Cost:
    return _gemm_cost(replace(_convolution(layer), padding=(0, 0)), _convolved_size(layer))


def _convolved_size(layer: Layer) -> Pair:
    """Return the output size of a convolution, of a deconvolution the input size."""
    _, height, width, _ = layer.inputs if layer.kind == "deconv" else layer.outputs
    return height, width


def _dense_costs(layer: Layer, _: str) -> Costs:
    return (_dense_cost(layer),)


def _dense_cost(layer: Layer) -> Cost:
    """Return X [n, k] W [k, m] -> Y [n, m]; its two gradients have the same three tensors."""
    (n, k), m = layer.inputs, layer.outputs[-1]
    return Cost(2 * n * k * m, (FLOAT_BYTES * n * k, FLOAT_BYTES * k * m, FLOAT_BYTES * n * m))


def _convolution(layer: Layer) -> Convolution:
    """Return the convolution of a layer; for a deconvolution, the one that it transposes."""
    inputs, outputs = layer.inputs, layer.outputs
    if layer.kind == "deconv":
        # A deconvolution is counted as the convolution that it transposes.
        inputs, outputs = outputs, inputs
    images, height, width, channels = inputs
    return Convolution(
        images=images,
        size=(height, width),
        channels=channels,
        kernel=layer.kernel,
        filter_channels=channels // layer.groups,
        filters=outputs[3],
        strides=layer.strides,
        padding=_padding(layer.padding, (height, width), outputs[1:3], layer),
    )


def _padding(padding: str | Pair, size: Pair, output: tuple[int, ...], layer: Layer) -> Pair:
    """Return the padding before height and width; of `SAME` it covers the output."""
    if not isinstance(padding, str):
        return padding
    if padding == "VALID":
        return (0, 0)
    sides = zip(output, layer.strides, layer.kernel, size, strict=True)
    # "SAME": the padding with which so many positions cover the whole side, half before.
    vertical, horizontal = (
        ((positions - 1) * stride + kernel - length) // 2
        for positions, stride, kernel, length in sides
    )
    return vertical, horizontal


def _dilate(convolution: Convolution, output_size: Pair) -> tuple[Pair, Pair]:
    """Return the size of the dilated output gradient and the padding of its convolution."""
    sizes: list[int] = []
    pads: list[int] = []
    for i in (0, 1):  # height, width
        # Zeros ("holes") between the positions that the stride left out.
        dilated_size = (output_size[i] - 1) * convolution.strides[i] + 1
        padding_before = convolution.kernel[i] - 1 - convolution.padding[i]
        # of which a convolution makes as many positions as the input has
        total_size = convolution.size[i] + convolution.kernel[i] - 1
        padding_after = total_size - dilated_size - padding_before
        # padding that differs by one is evened out by a further row of zeros
        is_uneven = abs(padding_before - padding_after) == 1
        sizes.append(dilated_size + 1 if is_uneven else dilated_size)
        pads.append(min(padding_before, padding_after))
    return (sizes[0], sizes[1]), (pads[0], pads[1])


def _share_of_holes(size: Pair, output_size: Pair) -> float:
    return (prod(size) - prod(output_size)) / prod(size)


def _data_gradient(convolution: Convolution, output_size: Pair, layer: Layer) -> Convolution:
    """Return the convolution of the dilated output gradient that makes the input's gradient."""
    size, padding = _dilate(convolution, output_size)
    # The output gradient, with holes where the stride jumped, is convolved with the filters.
    gradient = Convolution(
        images=convolution.images,
        size=size,
        channels=convolution.filters,
        kernel=convolution.kernel,
        filter_channels=convolution.filters * convolution.filter_channels // convolution.channels,
        filters=convolution.channels,
        strides=(1, 1),
        padding=padding,
        input_hole_share=_share_of_holes(size, output_size),
    )
    return _check_output(gradient, convolution.size, "data", layer)


def _filter_gradient(
    convolution: Convolution, output_size: Pair, layer: Layer, hole_share: float | None = None
) -> Convolution:
    """Return the convolution of the input with the dilated output gradient as its filter."""
    size, padding = _dilate(convolution, output_size)
    if layer.kind == "conv" and layer.padding == "VALID":  # as in the original, nothing is padded
        padding = (0, 0)
    # The input's channels become images, and its images channels: each channel is convolved with
    # the output gradient of each filter.
    gradient = Convolution(
        images=convolution.filter_channels,
        size=convolution.size,
        channels=convolution.images,
        kernel=size,
        filter_channels=convolution.images,
        filters=convolution.filters,
        strides=(1, 1),
        padding=padding,
        filter_hole_share=_share_of_holes(size, output_size) if hole_share is None else hole_share,
    )
    return _check_output(gradient, convolution.kernel, "filter", layer)


def _check_output(
    gradient: Convolution, expected_size: Pair, label: str, layer: Layer
) -> Convolution:
    """Return the convolution of a gradient; raises `InputError` if its output has another size."""
    sides = zip(gradient.size, gradient.padding, gradient.kernel, gradient.strides, strict=True)
    output = [(size + 2 * pad - kernel) // stride + 1 for size, pad, kernel, stride in sides]
    if output != [*expected_size]:
        raise InputError(
            f"paleo: layer '{layer.name}': its {label} gradient comes out {output}, "
            f"not {list(expected_size)}; the original stops here too, method analytic does not"
        )
    return gradient


def _kernel_costs(
    convolution: Convolution, output_size: Pair, layer: Layer, algorithm: str
) -> Costs:
    """Return the kernels of a convolution by an algorithm; a 1x1 filter is a matrix product."""
    if algorithm == "gemm" or layer.kernel == (1, 1):
        return (_gemm_cost(convolution, output_size),)
    return _fourier_costs(convolution, output_size, tiled=algorithm == "fft-tiling")


def _gemm_cost(convolution: Convolution, output_size: Pair) -> Cost:
    """Return the kernel of a convolution as a matrix product."""
    nonzero_share = 1.0 - convolution.filter_hole_share
    flop = (
        2.0
        * prod(convolution.kernel)
        * convolution.filter_channels
        * prod(output_size)
        * convolution.filters
    )
    flop *= convolution.images * nonzero_share
    # Paleo counts an addition and a product for each element that is no hole, on top.
    if convolution.input_hole_share > 0:
        elements = convolution.images * prod(convolution.size) * convolution.channels
        flop += 2.0 * elements * (1.0 - convolution.input_hole_share)
    height, width = convolution.size
    vertical_padding, horizontal_padding = convolution.padding
    padded_pixels = (height + 2 * vertical_padding) * (width + 2 * horizontal_padding)
    filter_weights = prod(convolution.kernel) * convolution.filter_channels
    element_counts = (
        convolution.images * padded_pixels * convolution.channels,  # input
        filter_weights * convolution.filters * nonzero_share,
        convolution.images * prod(output_size) * convolution.filters,  # output
    )
    input_bytes, weight_bytes, output_bytes = (FLOAT_BYTES * count for count in element_counts)
    return Cost(flop, (input_bytes, weight_bytes, output_bytes))


def _fourier_costs(convolution: Convolution, output_size: Pair, tiled: bool) -> Costs:
    """Return the kernels of a convolution by Fourier transforms of the maps, or of 32x32 tiles.

    Paleo's count (after Mathieu, Henaff, LeCun 2013): transform inputs, transform filters, multiply
    point by point, transform back. Holes save nothing; the tiles do not overlap.
    """
    transform = _tile_transform(convolution) if tiled else _map_transform(convolution)
    tiles, points = transform.tiles, transform.points
    # A filter with a side of 1 needs a transform along one axis alone.
    is_flat_filter = 1 in convolution.kernel
    transform_flop = _transform_flop(points) / (2 if is_flat_filter else 1)
    filter_points = transform.side if is_flat_filter else points
    # Numbers of maps.
    inputs = convolution.images * convolution.channels
    filters = convolution.filter_channels * convolution.filters
    outputs = convolution.images * convolution.filters
    # Bytes of maps, and of their spectra, whose numbers are complex.
    input_bytes = FLOAT_BYTES * tiles * inputs * points
    input_spectrum_bytes = COMPLEX_BYTES * tiles * inputs * points
    filter_bytes = FLOAT_BYTES * filters * points
    filter_spectrum_bytes = COMPLEX_BYTES * filters * filter_points
    tile_spectrum_bytes = COMPLEX_BYTES * outputs * points  # of one tile of each output
    output_bytes = FLOAT_BYTES * outputs * prod(output_size)
    # Four kernels, with the bytes that each reads and writes. Transforms of real numbers take half
    # of the FLOP, a product of complex ones 4; the last transform's bytes are of one tile.
    transform_inputs = Cost(
        tiles * inputs * transform_flop / 2, (input_bytes, input_spectrum_bytes)
    )
    transform_filters = Cost(filters * transform_flop / 2, (filter_bytes, filter_spectrum_bytes))
    multiply_points = Cost(
        tiles * 4 * inputs * convolution.filters * points,
        (input_spectrum_bytes, tiles * filter_spectrum_bytes, tiles * tile_spectrum_bytes),
    )
    transform_back = Cost(tiles * outputs * transform_flop, (tile_spectrum_bytes, output_bytes))
    return transform_inputs, transform_filters, multiply_points, transform_back


class _Transform(NamedTuple):
    """The Fourier transform of a map in `tiles` of so many `points`; `side` is their longer one."""

    tiles: int
    points: int
    side: int


def _tile_transform(convolution: Convolution) -> _Transform:
    """Return the transform of a map in square tiles, which do not overlap."""
    height, width = convolution.size
    tiles = math.ceil(height / TILE) * math.ceil(width / TILE)
    return _Transform(tiles, points=TILE * TILE, side=TILE)


def _map_transform(convolution: Convolution) -> _Transform:
    """Return the transform of a whole map with its padding, at least as large as the filter."""
    lengths = zip(convolution.size, convolution.padding, convolution.kernel, strict=True)
    padded = [max(length + 2 * pad, kernel) for length, pad, kernel in lengths]
    return _Transform(tiles=1, points=prod(padded), side=max(padded))


def _transform_flop(size: float) -> float:
    """Return 10 s^2 log2 s of a complex transform, s the side rounded up to a power of two."""
    side = 2.0 ** math.ceil(math.log2(math.sqrt(size)))
    return 10 * side * side * math.log2(side)


@dataclass(frozen=True)
class Rule:
    """Costs of a kind of layer, by an algorithm of convolutions; none by default.

    `data_gradient` is the gradient of the layer's input, `weight_gradient` that of its weights.
    They raise `InputError` if the gradient's convolution does not have the shape of the input, or
    of the filter: the original stops there. `exact` is the true FLOP of the layer's product with
    its three tensors, without padding; each gradient has the same FLOP and tensors.
    `skipped_for_input` is the pass that Paleo omits if the only parent is the input.
    """

    forward: Callable[[Layer, str], Costs] = lambda *_: ()
    data_gradient: Callable[[Layer, str], Costs] = lambda *_: ()
    weight_gradient: Callable[[Layer, str], Costs] = lambda *_: ()
    exact: Callable[[Layer], Cost | None] = lambda _: None
    skipped_for_input: Part | None = None


NO_RULE = Rule()
RULES = {  # forward, a deconvolution is the data gradient of the convolution that it transposes
    "conv": Rule(
        forward=_convolution_costs,
        data_gradient=_data_gradient_costs,
        weight_gradient=_weight_gradient_costs,
        exact=_exact_convolution_cost,
        skipped_for_input="backward",
    ),
    "deconv": Rule(
        forward=_data_gradient_costs,
        data_gradient=_convolution_costs,
        weight_gradient=_deconvolution_weight_costs,
        exact=_exact_convolution_cost,
        skipped_for_input="forward",
    ),
    "inner_product": Rule(
        forward=_dense_costs,
        data_gradient=_dense_costs,
        weight_gradient=_dense_costs,
        exact=_dense_cost,
    ),
    "pool": Rule(forward=_pool_costs, data_gradient=_pool_costs),
    "dropout": Rule(forward=_dropout_costs, data_gradient=_dropout_costs),
}


def rule_of(layer: Layer) -> Rule:
    """Return the rule of a layer's kind; kinds without a rule cost nothing."""
    return RULES.get(layer.kind, NO_RULE)
