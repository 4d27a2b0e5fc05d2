"""What Paleo counts for each layer: FLOP and bytes of the forward pass and of the gradients.

Source: Qi, Sparks, Talwalkar, ICLR 2017, and the behaviour of its public code, faults included:
a gradient of a convolution is the convolution of a spread-out tensor, whose holes save FLOP
only in the filter gradient. Elements have 4 bytes unless said otherwise; shapes are channels last.
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
    """Settings, and what is as published: `faults`, and the `algorithm` of convolutions."""

    faults: frozenset[str] = frozenset()
    algorithm: str = "gemm"


def settings_of(settings: Settings) -> PaleoSettings:
    """Return the settings with what is as published, nothing in those of other methods."""
    return settings if isinstance(settings, PaleoSettings) else PaleoSettings(**vars(settings))


class Cost(NamedTuple):
    """One kernel as Paleo counts it: FLOP, and the bytes of each tensor that it moves."""

    flop: float
    tensors: tuple[float, ...]


Costs = tuple[Cost, ...]


@dataclass(frozen=True)
class Convolution:
    """A convolution `[n, h, w, c]`, filter `[kh, kw, c_filter, c_out]`, padding a side.

    `holes_in` and `holes_filter` are the shares of zeros that spreading put into the two.
    """

    images: int
    size: Pair
    channels: int
    kernel: Pair
    filter_channels: int
    filters: int
    strides: Pair
    padding: Pair
    holes_in: float = 0.0
    holes_filter: float = 0.0

    @property
    def output(self) -> Pair:
        """Height and width of the output, `floor((h + 2p - k) / s) + 1`."""
        each = zip(self.size, self.padding, self.kernel, self.strides, strict=True)
        high, wide = ((size + 2 * pad - kernel) // step + 1 for size, pad, kernel, step in each)
        return high, wide


def update(parameters: int) -> Cost:
    """Return Paleo's kernel of plain SGD: read weights and gradients, write weights."""
    size = float(FLOAT_BYTES * parameters)
    return Cost(2.0 * parameters, (size, size, size))


def _pool(layer: Layer, _: str) -> Costs:
    return (Cost(2 * prod(layer.kernel) * prod(layer.outputs), _in_and_out(layer)),)


def _dropout(layer: Layer, _: str) -> Costs:
    return (Cost(prod(layer.inputs), _in_and_out(layer)),)


def _in_and_out(layer: Layer) -> tuple[int, int]:
    return FLOAT_BYTES * prod(layer.inputs), FLOAT_BYTES * prod(layer.outputs)


def _nothing(_: Layer, __: str) -> Costs:
    return ()


def _conv(layer: Layer, algorithm: str) -> Costs:
    return _kernels(_convolution(layer), _narrow(layer), layer, algorithm)


def _conv_data(layer: Layer, algorithm: str) -> Costs:
    shown = _convolution(layer)
    return _kernels(_data_gradient(shown, _narrow(layer), layer), shown.size, layer, algorithm)


def _conv_weights(layer: Layer, algorithm: str) -> Costs:
    shown = _convolution(layer)
    weights = _filter_gradient(shown, _narrow(layer), layer)
    return _kernels(weights, shown.kernel, layer, algorithm)


def _deconv_weights(layer: Layer, algorithm: str) -> Costs:
    shown = _convolution(layer)
    spread = _data_gradient(shown, _narrow(layer), layer)
    weights = _filter_gradient(spread, shown.size, layer, spread.holes_in)
    return _kernels(weights, shown.kernel, layer, algorithm)


def _true_conv(layer: Layer) -> Cost:
    return _gemm(replace(_convolution(layer), padding=(0, 0)), _narrow(layer))


def _narrow(layer: Layer) -> Pair:
    """Return the size of what a convolution makes, of a deconvolution what it reads."""
    return _size(layer.inputs if layer.kind == "deconv" else layer.outputs)


def _inner(layer: Layer, _: str) -> Costs:
    return (_product(layer),)


def _product(layer: Layer) -> Cost:
    """Return X [n, k] W [k, m] -> Y [n, m]; its two gradients have the same three tensors."""
    (n, k), m = layer.inputs, layer.outputs[-1]
    return Cost(2 * n * k * m, (FLOAT_BYTES * n * k, FLOAT_BYTES * k * m, FLOAT_BYTES * n * m))


def _convolution(layer: Layer) -> Convolution:
    """Return the convolution that a layer is; of a deconvolution the one whose transpose it is."""
    wide, narrow = layer.inputs, layer.outputs
    if layer.kind == "deconv":
        wide, narrow = narrow, wide
    images, height, width, channels = wide
    return Convolution(
        images,
        (height, width),
        channels,
        layer.kernel,
        channels // layer.groups,
        narrow[3],
        layer.strides,
        _padding(layer.padding, (height, width), narrow[1:3], layer),
    )


def _padding(padding: str | Pair, size: Pair, output: tuple[int, ...], layer: Layer) -> Pair:
    if not isinstance(padding, str):
        return padding
    if padding == "VALID":
        return (0, 0)
    sides = [
        ((out - 1) * stride + kernel - length) // 2
        for out, stride, kernel, length in zip(
            output, layer.strides, layer.kernel, size, strict=True
        )
    ]
    return (sides[0], sides[1])


def _spread(shown: Convolution, at: Pair) -> tuple[Pair, Pair]:
    """Return the size of the spread-out output gradient and the padding of its convolution."""
    sizes, pads = [], []
    for i in (0, 1):
        size = (at[i] - 1) * shown.strides[i] + 1
        before = shown.kernel[i] - 1 - shown.padding[i]
        after = (shown.size[i] + shown.kernel[i] - 1) - size - before
        sizes.append(size + 1 if abs(before - after) == 1 else size)
        pads.append(min(before, after))
    return (sizes[0], sizes[1]), (pads[0], pads[1])


def _holes(size: Pair, at: Pair) -> float:
    return (prod(size) - prod(at)) / prod(size)


def _data_gradient(shown: Convolution, at: Pair, layer: Layer) -> Convolution:
    """Return the convolution of the spread-out output gradient that makes the input's gradient."""
    size, padding = _spread(shown, at)
    found = Convolution(
        shown.images,
        size,
        shown.filters,
        shown.kernel,
        shown.filters * shown.filter_channels // shown.channels,
        shown.channels,
        (1, 1),
        padding,
        holes_in=_holes(size, at),
    )
    return _checked(found, shown.size, "data", layer)


def _filter_gradient(
    shown: Convolution, at: Pair, layer: Layer, holes: float | None = None
) -> Convolution:
    """Return the convolution of the input with the spread-out output gradient as its filter."""
    size, padding = _spread(shown, at)
    if layer.kind == "conv" and layer.padding == "VALID":
        padding = (0, 0)
    found = Convolution(
        shown.filter_channels,
        shown.size,
        shown.images,
        size,
        shown.images,
        shown.filters,
        (1, 1),
        padding,
        holes_filter=_holes(size, at) if holes is None else holes,
    )
    return _checked(found, shown.kernel, "filter", layer)


def _checked(found: Convolution, wanted: Pair, what: str, layer: Layer) -> Convolution:
    if found.output != tuple(wanted):
        raise InputError(
            f"paleo: layer '{layer.name}': its {what} gradient comes out {list(found.output)}, "
            f"not {list(wanted)}; the original stops here too, method analytic does not"
        )
    return found


def _kernels(shown: Convolution, at: Pair, layer: Layer, algorithm: str) -> Costs:
    """Return a convolution by the algorithm asked for; a 1x1 filter is always a matrix product."""
    if algorithm == "gemm" or layer.kernel == (1, 1):
        return (_gemm(shown, at),)
    return _fourier(shown, at, tiled=algorithm == "fft-tiling")


def _gemm(shown: Convolution, at: Pair) -> Cost:
    """Return the kernel of a convolution as a matrix product."""
    dense = 1.0 - shown.holes_filter
    flop = 2.0 * prod(shown.kernel) * shown.filter_channels * prod(at) * shown.filters
    flop *= shown.images * dense
    if shown.holes_in > 0:
        elements = shown.images * prod(shown.size) * shown.channels
        flop += 2.0 * elements * (1.0 - shown.holes_in)
    (height, width), (ph, pw) = shown.size, shown.padding
    read = shown.images * (height + 2 * ph) * (width + 2 * pw) * shown.channels
    weights = prod(shown.kernel) * shown.filter_channels * shown.filters * dense
    written = shown.images * prod(at) * shown.filters
    return Cost(flop, (FLOAT_BYTES * read, FLOAT_BYTES * weights, FLOAT_BYTES * written))


def _fourier(shown: Convolution, at: Pair, tiled: bool) -> Costs:
    """Return the kernels of a convolution by Fourier transforms of the maps, or of 32x32 tiles.

    Paleo's count (after Mathieu, Henaff, LeCun 2013): transform inputs, transform filters, multiply
    point by point, transform back. Holes save nothing; the tiles do not overlap.
    """
    if tiled:
        size, side = TILE * TILE, TILE
        tiles = -(-shown.size[0] // TILE) * -(-shown.size[1] // TILE)
    else:
        padded = [
            max(length + 2 * pad, kernel)
            for length, pad, kernel in zip(shown.size, shown.padding, shown.kernel, strict=True)
        ]
        size, side, tiles = prod(padded), max(padded), 1
    flat = 1 in shown.kernel
    one = _transform_flop(size) / (2 if flat else 1)
    inputs = shown.images * shown.channels
    filters = shown.filter_channels * shown.filters
    outputs = shown.images * shown.filters
    spectrum = COMPLEX_BYTES * filters * (side if flat else size)
    return (
        Cost(
            tiles * inputs * one / 2,
            (FLOAT_BYTES * tiles * inputs * size, COMPLEX_BYTES * tiles * inputs * size),
        ),
        Cost(filters * one / 2, (FLOAT_BYTES * filters * size, spectrum)),
        Cost(
            tiles * 4 * inputs * shown.filters * size,
            (
                COMPLEX_BYTES * tiles * inputs * size,
                tiles * spectrum,
                COMPLEX_BYTES * tiles * outputs * size,
            ),
        ),
        Cost(
            tiles * outputs * one,
            (COMPLEX_BYTES * outputs * size, FLOAT_BYTES * outputs * prod(at)),
        ),
    )


def _transform_flop(size: float) -> float:
    """Return 10 s^2 log2 s of a complex transform, s the side rounded up to a power of two."""
    side = 2.0 ** math.ceil(math.log2(math.sqrt(size)))
    return 10 * side * side * math.log2(side)


def _size(shape: tuple[int, ...]) -> Pair:
    return (shape[1], shape[2])


@dataclass(frozen=True)
class Rule:
    """What Paleo counts for a kind of layer, by an algorithm of convolutions; nothing by default.

    `data_gradient` is that of the layer's input, `weight_gradient` that of its weights. They raise
    `InputError` where the gradient's convolution does not give back the shape of the input, or of
    the filter: the original stops there. `exact` is the true FLOP of the layer's product and its
    three tensors, without padding; a gradient does as much on the same three. `skipped_on_data` is
    the pass that Paleo leaves out if the only parent is the input.
    """

    forward: Callable[[Layer, str], Costs] = _nothing
    data_gradient: Callable[[Layer, str], Costs] = _nothing
    weight_gradient: Callable[[Layer, str], Costs] = _nothing
    exact: Callable[[Layer], Cost | None] = lambda _: None
    skipped_on_data: Part | None = None


NO_RULE = Rule()
RULES = {  # a deconvolution goes forward as the data gradient of the convolution it transposes
    "conv": Rule(_conv, _conv_data, _conv_weights, _true_conv, "backward"),
    "deconv": Rule(_conv_data, _conv, _deconv_weights, _true_conv, "forward"),
    "inner_product": Rule(_inner, _inner, _inner, _product),
    "pool": Rule(_pool, _pool),
    "dropout": Rule(_dropout, _dropout),
}


def rule_of(layer: Layer) -> Rule:
    """Return the rule of a layer's kind; one of no cost for kinds that cost Paleo nothing."""
    return RULES.get(layer.kind, NO_RULE)
