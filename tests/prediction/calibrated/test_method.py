"""Forms of the method `calibrated`, and the names of their intervals."""

import pytest

from steptime.hardware import catalog
from steptime.prediction.calibrated import cpu
from steptime.prediction.calibrated.method import (
    FORMS,
    GPU,
    calibrated_device,
    form_name,
    form_of,
    price,
)
from steptime.prediction.calibrated.stream import stream
from steptime.prediction.kernel import Kernel, Settings

WORK = {"conv3d": "convolution", "lstm_grad": "recurrent", "delta_rule": "attention"}
OTHERS = {"linear": "product", "experts_grad": "product", "relu": "stream", "update": "stream"}


@pytest.mark.parametrize(("kind", "name"), [*WORK.items(), *OTHERS.items()])
def test_a_kernel_has_the_form_and_the_name_of_its_work_or_unit(kind, name):
    unit = "vector" if name == "stream" else "matrix"
    kernel = Kernel("a", kind, "forward", "float32", unit, 1.0, 1.0)
    card, host, array = map(catalog.device, ("v100-sxm2-16gb", "epyc-7763", "tpu-v3"))
    assert (form_name(kernel, card), form_of(kernel, card)) == (name, GPU[name])
    assert (form_name(kernel, host), form_of(kernel, host)) == (name, cpu.FORMS[name])
    one = "systolic" if unit == "matrix" else name  # arrays know products alone
    assert (form_name(kernel, array), form_of(kernel, array)) == (one, FORMS["tpu"][one])


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
