"""Convolutions by hand: the implicit product, algorithms, arrays as numbers."""

from dataclasses import replace

import numpy as np
import pytest

from steptime import catalog
from steptime.calibration.cases import Case, op_kernels
from steptime.calibration.columns import Columns
from steptime.predict.calibrated.convolution import implicit
from steptime.predict.calibrated.method import calibrated_device, price
from steptime.predict.kernel import Kernel, Settings

V100 = calibrated_device(catalog.device("V100"), "float32", Settings())
K40 = calibrated_device(catalog.device("tesla-k40"), "float32", Settings())


def convolved(
    kind: str = "conv2d",
    batch: int = 8,
    channels: int = 64,
    filters: int = 128,
    side: int = 28,
    taps: int = 3,
    stride: int = 1,
) -> Kernel:
    pad, made = taps // 2, (side + 2 * (taps // 2) - taps) // stride + 1
    how = {"stride": (stride, stride), "padding": (pad,) * 4}
    x, grad = (batch, channels, side, side), (batch, filters, made, made)
    w = (filters, channels, taps, taps)
    shapes, more = {
        "conv2d": ((x, w), {}),
        "conv_transpose2d": ((grad, w), {"output_size": (side, side)}),
        "conv2d_grad_weight": ((x, grad), {"kernel": (taps, taps)}),
    }[kind]
    (kernel,) = op_kernels(kind, shapes, how | more, "float32")
    return kernel


def test_the_implicit_product() -> None:
    assert implicit(convolved()) == (1, 8 * 28 * 28, 128, 64 * 9)
    assert implicit(convolved("conv2d_grad_weight")) == (1, 128, 64 * 9, 8 * 28 * 28)
    strided = convolved("conv_transpose2d", stride=2)  # a place has 9 / 4 of the taps
    assert implicit(strided) == (1, 8 * 28 * 28, 64, 128 * 9 / 4)


def test_a_window_knows_its_map() -> None:
    assert convolved(stride=2).window == (3, 3, 2, 2, 14, 14)
    assert convolved("conv_transpose2d", stride=2).window == (3, 3, 2, 2, 14, 14)
    assert convolved("conv2d_grad_weight", stride=2).window == (3, 3, 2, 2, 14, 14)


def test_winograd_does_less_than_counted_but_not_on_kepler_nor_in_half() -> None:
    kernel = convolved(batch=64, channels=256, filters=256)
    counted = kernel.flop / V100.peak_flop_per_s["float32"]
    assert price(kernel, V100).value < 1.25 * counted
    assert price(kernel, K40).value > kernel.flop / K40.peak_flop_per_s["float32"]
    half = kernel._replace(dtype="float16")
    slow = replace(V100, peak_flop_per_s=dict.fromkeys(V100.peak_flop_per_s, 1e12))
    assert price(half, slow).value > kernel.flop / 1e12 > price(kernel, slow).value


@pytest.mark.parametrize("kind", ["conv2d", "conv_transpose2d", "conv2d_grad_weight"])
def test_more_work_takes_longer(kind: str) -> None:
    for grows in ("batch", "channels", "filters", "side"):
        times = [price(convolved(kind, **{grows: 2**i}), V100).value for i in range(3, 9)]
        assert times == sorted(times), grows


def test_arrays_have_the_times_of_numbers() -> None:
    kernels = [
        convolved(kind, batch, channels, taps=taps, stride=stride)
        for kind in ("conv2d", "conv_transpose2d", "conv2d_grad_weight")
        for batch, channels, taps, stride in ((1, 3, 7, 2), (32, 64, 3, 1), (4, 512, 1, 2))
    ]
    cases = [Case((one,), V100, 1.0, one.kind, "repeated") for one in kernels]
    alone = [price(one, V100).value for one in kernels]
    np.testing.assert_allclose(Columns(cases).predicted(V100.constants), alone)
