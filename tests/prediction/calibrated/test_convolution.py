"""Convolutions by hand: the implicit_product product, algorithms, arrays as numbers."""

from dataclasses import replace

import pytest

import steptime
from every import every
from steptime.calibration.cases import op_kernels
from steptime.core.graph import Attr
from steptime.hardware import catalog
from steptime.hardware.device import Device
from steptime.prediction.calibrated.convolution import convolution, find_layer, implicit_product
from steptime.prediction.calibrated.method import calibrated_device, price
from steptime.prediction.calibrated.product import time_product
from steptime.prediction.kernel import Kernel, Settings

V100 = calibrated_device(catalog.device("V100"), "float32", Settings())
A100 = calibrated_device(catalog.device("A100"), "float32", Settings())
K40 = calibrated_device(catalog.device("tesla-k40"), "float32", Settings())


KINDS = ("conv2d", "conv_transpose2d", "conv2d_grad_weight")


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


def test_the_implicit_product():
    for kind in KINDS:
        one = convolved(kind, stride=2)
        layer = find_layer(kind, one.products[0], one.window or ())
        assert layer == (1, 8 * 14 * 14, 128, 64, 9, 4)
    assert implicit_product("conv2d", layer) == (1, 8 * 14 * 14, 128, 64 * 9)
    assert implicit_product("conv_transpose2d", layer) == (1, 8 * 28 * 28, 64, 128 * 9)
    assert implicit_product("conv2d_grad_weight", layer) == (1, 64 * 9, 128, 8 * 14 * 14)


def test_arithmetic_of_a_layer_by_hand():
    device = replace(
        V100.with_figures(multiprocessors=10, peak_flop_per_s={"float32": 1e12}),
        constants={**V100.constants, "convolution.share": 0.5, "convolution.ramp": 50.0},
    )
    kernel = convolved(batch=2, channels=10, filters=40, side=32, taps=1)
    parts = convolution(kernel, device, device.constants)
    # 16 blocks of 128 places by 64 filters in 2 waves; one wave and k: 2 * 128 * 64 * 10 / 5e11 s
    assert parts.compute_s == pytest.approx(2 * (10 + 50) * 2 * 128 * 64 * 10 / 5e11)
    # float32 in a stack that leaves channels last turns both images, of 1 x 1 none
    last = convolution(kernel._replace(channels_last=True), device, device.constants)
    assert last == parts


def test_images_are_turned_where_the_layout_is_not_the_kernels():
    def gap_s(kernel: Kernel, device: Device) -> float:
        return float(convolution(kernel, device, device.constants).gap_s)

    kernel = convolved(stride=2)
    last = kernel._replace(channels_last=True)
    half, half_last = (one._replace(dtype="float16") for one in (kernel, last))
    assert gap_s(last, V100) > gap_s(kernel, V100)
    assert gap_s(half, V100) > gap_s(half_last, V100)
    assert gap_s(half, K40) == gap_s(kernel, K40)  # no tensor cores


def test_gradients_are_turned_more_often_than_what_is_made_forward():
    constants = A100.constants | {
        "convolution.matrix_turned": 0.25,
        "convolution.gradients_turned": 1.0,
    }
    kernel = convolved("conv_transpose2d")._replace(dtype="float16")
    still = convolution(kernel._replace(channels_last=True), A100, constants).gap_s
    turned = convolution(kernel, A100, constants).gap_s - still
    forward = convolution(convolved()._replace(dtype="float16"), A100, constants).gap_s
    assert forward - still == pytest.approx(turned / 4)


def test_newer_matrix_units_run_kernels_of_those_before():
    """Hopper's run Ampere's at a share of the peak, and turn all images around."""
    h100 = calibrated_device(catalog.device("H100"), "float16", Settings())
    kernel = convolved()._replace(dtype="float16")

    def parts(device: Device, **changed: float) -> tuple[float, float]:
        constants = device.constants | {f"convolution.{name}": n for name, n in changed.items()}
        found = convolution(kernel, device, constants)
        return float(found.compute_s), float(found.gap_s)

    fast, slow = parts(h100, new_share=1.0), parts(h100, new_share=0.5)
    assert slow[0] == pytest.approx(2 * fast[0])
    still, half, whole = (parts(h100, new_turned=share)[1] for share in (0.0, 0.5, 1.0))
    assert whole - half == pytest.approx(half - still)
    assert half > still
    assert parts(A100) == parts(A100, new_share=0.5, new_turned=0.0)


def test_schedulers_that_issue_one_instruction_slow_convolutions_too():
    """128 lanes of a multiprocessor leave no turn for what is no arithmetic; 64 do."""
    h100 = calibrated_device(catalog.device("H100"), "float32", Settings())
    for taps, times in ((1, 2.0), (3, 1.465)):  # a product; Winograd's, by parts
        kernel = convolved(taps=taps, batch=512)._replace(tf32=False)
        for device, slower in ((h100, times), (V100, 1.0)):
            whole, half = (
                convolution(kernel, device, device.constants | {"product.issue": one})
                for one in (1.0, 0.5)
            )
            whole_s, half_s = (one.compute_s + one.gap_s for one in (whole, half))
            assert half_s == pytest.approx(slower * whole_s, rel=0.02)


def test_channels_last_that_are_no_multiple_of_8_are_copied():
    def gap_s(**sizes: int) -> float:
        kernel = convolved(**sizes)._replace(dtype="float16", channels_last=True)
        return float(convolution(kernel, A100, A100.constants).gap_s)

    places, rate = (
        8 * 28 * 28,
        A100.datasheet.memory_bytes_per_s * A100.constants["stream.share_hbm"],
    )
    copied = 2 * 2 * places * (60 + 124) / rate + A100.constants["stream.latency_s"]
    assert gap_s(channels=60, filters=124) - gap_s() == pytest.approx(copied, rel=0.1)
    assert gap_s(channels=3) == gap_s()  # of a first layer


def test_gradients_of_groups_leave_tensor_cores_in_channels_last():
    """32 groups at once of 4 to 32 channels have quick kernels; others run 32 by 32 channels."""

    def compute_s(groups: int, channels: int, last: bool = True, forward: bool = False) -> float:
        x, w = (64, groups * channels, 14, 14), (groups * channels, channels, 3, 3)
        how: dict[str, Attr] = {"padding": (1, 1, 1, 1), "groups": groups}
        if not forward:
            how |= {"output_size": (14, 14)}
        kind = "conv2d" if forward else "conv_transpose2d"
        (kernel,) = op_kernels(kind, (x, w), how, "float16")
        kernel = kernel._replace(channels_last=last)
        return float(convolution(kernel, A100, A100.constants).compute_s)

    def slow_s(groups: int, channels: int) -> float:
        flop = 2 * 64 * 14 * 14 * groups * channels**2 * 9
        return flop / (A100.constants["convolution.groups_share"] * 19.49e12)

    for groups, channels, times in ((2, 112, 8 / 7), (16, 16, 2), (3, 64, 1)):
        more = compute_s(groups, channels) - compute_s(groups, channels, last=False)
        assert more == pytest.approx(times * slow_s(groups, channels), rel=1e-3)
    for groups, channels in ((32, 4), (64, 32), (1, 64)):
        assert compute_s(groups, channels) == compute_s(groups, channels, last=False)
    assert compute_s(3, 64, forward=True) == compute_s(3, 64, last=False, forward=True)


def test_few_filters_of_a_group_lie_along_the_short_side_of_a_tile():
    how = {"padding": (1, 1, 1, 1), "groups": 32}
    (kernel,) = op_kernels("conv2d", ((64, 256, 28, 28), (256, 8, 3, 3)), how, "float16")
    places, device = 64 * 28 * 28, replace(A100, constants={**A100.constants})
    share = device.constants["convolution.matrix_share"]
    found = convolution(kernel, device, device.constants).compute_s * share
    swapped = time_product(device, device.constants, "float16", (32, 8, places, 72))[0]
    assert found == pytest.approx(swapped)
    assert found < time_product(device, device.constants, "float16", (32, places, 8, 72))[0] / 2


def test_float32_runs_as_tf32_where_stack_and_device_do():
    kernel = convolved(batch=64, channels=256, filters=256, stride=2)
    assert kernel.tf32
    exact = price(kernel._replace(tf32=False), A100).value
    assert price(kernel, A100).value < exact / 2
    assert price(kernel, V100) == price(kernel._replace(tf32=False), V100)


def test_a_filter_for_each_channel_is_bound_by_traffic():
    def depthwise(kind: str, shapes: tuple[tuple[int, ...], ...], **more: Attr) -> Kernel:
        how: dict[str, Attr] = {"padding": (1, 1, 1, 1), "groups": 64, **more}
        (kernel,) = op_kernels(kind, shapes, how, "float32")
        return kernel

    x, w = (8, 64, 28, 28), (64, 1, 3, 3)
    for kernel in (
        depthwise("conv2d", (x, w)),
        depthwise("conv_transpose2d", (x, w), output_size=(28, 28)),
        depthwise("conv2d_grad_weight", (x, x), kernel=(3, 3)),
    ):
        parts = convolution(kernel, V100, V100.constants)
        assert parts.memory_s > kernel.bytes / V100.datasheet.memory_bytes_per_s
        assert parts.compute_s < parts.memory_s


def test_a_window_knows_its_map():
    assert convolved(stride=2).window == (3, 3, 2, 2, 14, 14)
    assert convolved("conv_transpose2d", stride=2).window == (3, 3, 2, 2, 14, 14)
    assert convolved("conv2d_grad_weight", stride=2).window == (3, 3, 2, 2, 14, 14)


def test_winograd_does_less_than_counted_but_not_on_kepler_nor_in_half():
    kernel = convolved(batch=64, channels=256, filters=256)
    counted = kernel.flop / V100.datasheet.peak_flop_per_s["float32"]
    assert price(kernel, V100).value < 1.25 * counted
    assert price(kernel, K40).value > kernel.flop / K40.datasheet.peak_flop_per_s["float32"]
    half = kernel._replace(dtype="float16")
    slow = V100.with_figures(peak_flop_per_s=dict.fromkeys(V100.datasheet.peak_flop_per_s, 1e12))
    counted = 0.85 * kernel.flop / 1e12  # devices boost above the clock of their file
    assert price(half, slow).value > counted > price(kernel, slow).value


@every("kind", KINDS)
def test_more_work_takes_longer(kind):
    for grows in ("batch", "channels", "filters", "side"):
        times = [price(convolved(kind, **{grows: 2**i}), V100).value for i in range(3, 9)]
        assert times == sorted(times), grows


@every("pass_", ["forward", "backward"])
def test_dilated_convolutions_never_use_winograd(pass_):
    """Of 3 x 3 taps with as many places: those that lie apart take longer on vector units."""
    shapes = [[32, 128, 28, 28], [128, 128, 3, 3]]
    near, apart = (
        steptime.predict_op(
            "conv2d", shapes, "float32", "v100", {"padding": size, "dilation": size}, pass_=pass_
        ).seconds
        for size in (1, 2)
    )
    assert apart > 1.3 * near
