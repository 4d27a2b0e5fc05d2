import sys

import numpy as np
import pytest

from places import ROOT
from steptime.calibration.cases import Case, op_kernels
from steptime.catalog import device

sys.path.insert(0, str(ROOT / "scripts"))

from fitting.intervals import Off, constants_of, coverage, widths

CASE = Case(op_kernels("relu", ((8, 8),), {}, "float32"), device("t4"), 1.0, "relu", "repeated")


def rows(middles, spread):
    """Rows of devices around middles of their own."""
    around = np.linspace(-spread, spread, 101)
    return [
        Off(f"gpu{i}", "stream", CASE, middle + one)
        for i, middle in enumerate(middles)
        for one in around
    ]


def test_own_is_the_spread_around_the_middle_of_a_device():
    own, shared, devices, count = widths(rows([0.0, 0.0, 0.0], 0.5))["stream"]
    assert own == pytest.approx(0.4, abs=0.01)  # the middle 80 % of -0.5 to 0.5
    assert shared == 0.03  # the least that is written
    assert (devices, count) == (3, 303)


def test_shared_is_the_spread_of_devices_with_students_factor():
    _, shared, _, _ = widths(rows([0.2, -0.2, 0.2, -0.2], 0.0))["stream"]
    assert shared == pytest.approx(1.533 * 0.2, abs=1e-3)  # t of 90 % with 4 degrees
    made = constants_of(widths(rows([0.2, -0.2], 0.1)))
    assert {"interval.stream_own", "interval.stream_shared", "interval.all_own"} <= set(made)


def test_a_device_is_covered_by_what_the_others_say():
    found = {name: share for name, group, share, *_ in coverage(rows([0, 0, 2], 0.1)) if group}
    assert found["gpu2"] == 0.0  # the others say nothing of a device like this
    assert found["gpu0"] == 1.0
