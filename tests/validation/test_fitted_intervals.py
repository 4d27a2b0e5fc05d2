import numpy as np
import pytest

from steptime.calibration.cases import Case, op_kernels
from steptime.hardware.catalog import device
from validation.fitting.intervals import UNTOLD, Off, constants_of, off_of, older, widths

CASE = Case(op_kernels("relu", ((8, 8),), {}, "float32"), device("t4"), 1.0, "relu", "repeated")
OLD = Case(CASE.kernels, device("p100-pcie-16gb"), 1.0, "relu", "repeated")


def rows(middles, spread, case=CASE, group="stream", name="gpu"):
    """Rows of devices around middles of their own."""
    around = np.linspace(-spread, spread, 101)
    return [
        Off(f"{name}{i}", group, case, middle + one)
        for i, middle in enumerate(middles)
        for one in around
    ]


def test_own_is_the_spread_around_the_middle_of_a_device():
    found = widths(rows([0.0, 0.0, 0.0], 0.5))["stream"]
    assert found.own == pytest.approx(0.4, abs=0.01)  # the middle 80 % of -0.5 to 0.5
    assert found.shared == 0.03  # the least that is written
    assert (found.devices, found.rows) == (3, 303)


def test_shared_is_what_is_left_of_all_devices_with_students_factor():
    found = widths(rows([0.2, -0.2, 0.2, -0.2], 0.0))["stream"]
    # t of 90 %, 4 degrees, of one device more than the 4
    assert found.shared == pytest.approx(0.2 * 1.533 / 1.282 * 1.25**0.5, abs=1e-3)
    made = constants_of(rows([0.2, -0.2], 0.1))
    assert {"interval.stream_own", "interval.stream_shared"} <= set(made)


def test_a_device_whose_rows_are_left_out_tells_nothing():
    every = rows([0.0, 0.0, 2.0], 0.1)
    assert constants_of(every, "gpu2")["interval.stream_shared"].value == 0.03
    # (0.08 + 0.08 + 2.06) / 3, less the own 0.08; t of 90 %, 3 degrees, of one more than 3
    shared = (0.74**2 - 0.08**2) ** 0.5 * 1.638 / 1.282 * (4 / 3) ** 0.5
    assert constants_of(every)["interval.stream_shared"].value == pytest.approx(shared, rel=0.02)


def test_kernels_on_old_devices_are_compared_and_made_alike():
    every = rows([0.0, 0.0], 0.2) + rows([0.0, 0.0], 0.4, OLD, name="old")
    assert older(every) == pytest.approx(2.0)
    assert constants_of(every)["interval.stream_own"].value == pytest.approx(0.16, abs=0.01)
    assert older(rows([0.0], 0.2, group="host") + rows([0.0], 0.4, OLD, "host", "old")) == 1.0


def test_steps_and_hosts_of_a_stack_that_nobody_observed_have_widths_of_their_own():
    (stack,) = UNTOLD
    every = rows([0.1, -0.1], 0.1, group=f"step@{stack}") + rows([0.0, 0.0], 0.1)
    own = constants_of(every, stack=stack)
    assert set(own) == {"interval.step"}
    assert "interval.step" not in constants_of(every)


def test_what_a_case_tells_of_is_said_by_how_it_was_measured():
    tiny = Case(CASE.kernels, CASE.device, 1.0, "relu", "isolated")
    step = Case(CASE.kernels * 2, CASE.device, 1.0, "relu", "step")
    from steptime.hardware import catalog

    constants = {name: one.value for name, one in catalog.priors("gpu").items()}
    assert [one.group for one in off_of([CASE, tiny, step], constants)] == [
        "stream",
        "host",
        "host",
    ]
