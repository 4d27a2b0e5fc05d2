import math

import numpy as np
import pytest

from every import every
from steptime.hardware import catalog
from steptime.prediction.calibrated.interval import bounds, interval_name
from steptime.prediction.kernel import Interval
from steptime.prediction.prices import Prices
from steptime.prediction.schedule import total
from steptime.prediction.steps.step_model import StepModel

PARTS = {"interval.all_own": 0.3, "interval.all_shared": 0.4}


def test_own_and_shared_parts_add_as_squares():
    low, high, shared = bounds("product", PARTS)
    assert high == pytest.approx(math.exp(0.5))  # 0.3^2 + 0.4^2 = 0.5^2
    assert low == pytest.approx(math.exp(-0.5))
    assert shared == pytest.approx(0.8)


def test_what_a_datasheet_says_less_of_is_wider():
    old = bounds("product", PARTS, 2.0)
    assert old.high == pytest.approx(math.exp(1.0))
    step = bounds("product", PARTS | {"interval.step": 0.3}, in_step=True)
    assert step.high == pytest.approx(math.exp(math.sqrt(0.3**2 + 0.4**2 + 0.3**2)))
    assert bounds("product", PARTS | {"interval.step": 0.3}).high == pytest.approx(math.exp(0.5))


def test_a_form_has_its_own_width_and_a_calibrated_device_its_own_ends():
    own = {"interval.product_own": 0.06, "interval.product_shared": 0.08}
    assert bounds("product", PARTS | own).high == pytest.approx(math.exp(0.1))
    ends = {"interval.product_low": -0.2, "interval.product_high": 0.1, "interval.together": 0.5}
    assert bounds("product", PARTS | own | ends) == pytest.approx(
        (math.exp(-0.2), math.exp(0.1), 0.5)
    )


WIDE = {"interval.product_own": 0.1, "interval.product_shared": 0.1}
WIDER = {"interval.convolution_own": 0.3, "interval.convolution_shared": 0.4}


def test_a_form_without_rows_is_as_wide_as_the_widest_neighbour():
    known = PARTS | WIDE | WIDER | {"interval.host_own": 9.0, "interval.host_shared": 9.0}
    assert bounds("attention", known).high == pytest.approx(math.exp(0.5))
    assert bounds("attention", PARTS | WIDE).high == pytest.approx(math.exp(math.sqrt(0.02)))
    ends = {"interval.all_low": -0.2, "interval.all_high": 0.1, "interval.together": 0.5}
    assert bounds("attention", known | ends).high == pytest.approx(math.exp(0.1))  # calibrated
    assert interval_name("attention", known) == "convolution"
    assert interval_name("host", known) == "host"
    assert interval_name("attention", PARTS) == "all"  # of a CPU


@every(
    ("model", "device", "name"),
    [
        ("resnet18", "h100", ""),
        ("gpt2", "h100", "attention"),
        ("rnn", "v100", "recurrent"),
        ("rnn", "p100-pcie-16gb", ""),
        ("gpt2", "epyc-7b12", ""),  # one interval stands for all of its kernels
    ],
)
def test_what_was_not_measured_on_its_like_is_said_and_extrapolated(model, device, name):
    one = StepModel(model, device, method="calibrated")
    said = f"not measured on {one.device.name} or its like: {name};"
    assert any(note.startswith(said) for note in one.remarks(2)) == bool(name)
    assert one.timeline(2).is_extrapolated == bool(name)


def test_shared_parts_of_a_sum_add_up_and_own_ones_as_squares():
    one = Interval(1.0, 0.5, 1.5, shared=0.6)  # 0.3 s shared, 0.4 s own
    other = Interval(2.0, 1.5, 2.5, shared=0.6)
    found = total([one, other])
    half = math.sqrt(0.6**2 + 0.4**2 + 0.4**2)
    assert found.high == pytest.approx(3 + half)
    assert found.low == pytest.approx(3 - half)
    assert found.shared == pytest.approx(0.6 / half)


def test_a_kernel_that_comes_twice_is_off_twice():
    one = Interval(1.0, 0.5, 1.5, shared=0.6)
    twice = Prices.from_intervals([one, one]).sum_correlated(np.array([0, 0]), 1).total()
    assert twice.high == pytest.approx(2 + math.hypot(0.6, 0.8))


def test_what_is_shared_whole_adds_as_before():
    assert total([Interval(1.0, 0.7, 1.1), Interval(2.0, 1.8, 2.6)])[:3] == (3.0, 2.5, 3.7)
    bound = Interval(1.0, 1.0)
    assert total([bound, bound])[:3] == (2.0, 2.0, None)


def test_a_step_that_waits_for_its_host_is_further_off_than_one_that_does_not():
    model = StepModel("resnet50", catalog.device("a100"), method="calibrated")
    waiting, busy = (model.timeline(batch) for batch in (2, 256))
    assert busy.low_s < busy.step_s < busy.high_s
    widths = [math.log(times.high_s / times.low_s) for times in (waiting, busy)]
    assert widths[0] > 1.5 * widths[1]
