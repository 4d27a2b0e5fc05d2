"""Forms of the method `calibrated`, and the names of their intervals."""

import pytest

from steptime.hardware import catalog
from steptime.prediction.calibrated import cpu
from steptime.prediction.calibrated.method import FORMS, GPU, NAMES, calibrated_device, price
from steptime.prediction.calibrated.stream import stream
from steptime.prediction.kernel import Kernel, Settings


def test_every_form_has_a_name_of_its_own():
    assert set(NAMES) == {form for table in (GPU, *FORMS.values()) for form in table.values()}
    assert {NAMES[form] for form in cpu.FORMS.values()} <= {NAMES[form] for form in GPU.values()}


def test_an_interval_does_not_hang_on_the_name_of_a_function(monkeypatch):
    kernel = Kernel("a", "relu", "forward", "float32", "vector", 1e9, 1e9)
    one, other = (
        calibrated_device(catalog.device(name), "float32", Settings())
        for name in ("a100-sxm4-40gb", "a100-sxm4-80gb")
    )
    before = price(kernel, one)
    monkeypatch.setattr(stream, "__name__", "renamed")
    after = price(kernel, other)
    assert after.low / after.value == pytest.approx(before.low / before.value, rel=1e-12)
    assert after.high / after.value == pytest.approx(before.high / before.value, rel=1e-12)
