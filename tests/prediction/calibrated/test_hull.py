"""Devices unlike those that the priors were fitted on, and the width of their intervals."""

from dataclasses import replace
from math import log, sqrt

import pytest

from every import every
from steptime.hardware import catalog
from steptime.hardware.datasheet import Datasheet
from steptime.hardware.device import Device
from steptime.prediction.calibrated.hull import (
    REASONS_OF_UNMEASURED_KIND,
    WIDTH_OF_REASON,
    extrapolation_reasons,
    extrapolation_width,
    is_measured,
)
from steptime.prediction.steps.step_model import StepModel

FITTED_ON = (
    *("tesla-k40", "tesla-k80", "tesla-m60", "titan-x-pascal", "tesla-p4", "p100-pcie-16gb"),
    *("v100-sxm2-16gb", "t4", "a100-pcie-40gb", "a100-sxm4-80gb", "rtx-3090", "a40", "l40s"),
    "h200-sxm",
)
EIGHT = Device("mine", "gpu", Datasheet({"float32": 8e12}, 3e11, "me", memory_bytes=8e9))


@every("name", FITTED_ON)
def test_nothing_of_a_measured_device_is_beyond(name):
    assert extrapolation_reasons(catalog.device(name)) == ()
    assert extrapolation_width(catalog.device(name)) == 0


@every(
    ("name", "words"),
    [
        ("l4", ("5 nm at 72 W",)),  # of those measured the least has 350 W
        ("h100-sxm5", ()),
        ("rtx-5090", ("Blackwell 2.0", "GDDR7")),
        ("mi210", ("AMD", "CDNA 2.0", "6 nm")),
        ("b200-sxm", ("Blackwell", "5 nm at 1000 W")),
        ("tpu-v3", ("no tpu was measured",)),
        ("xeon-platinum-8380", ("Intel", "Ice Lake")),
        ("epyc-9654", ()),
    ],
)
def test_what_is_beyond_is_said_in_words(name, words):
    assert extrapolation_reasons(catalog.device(name)) == words


def test_a_file_of_few_numbers_is_told_what_it_does_not_say():
    (said,) = extrapolation_reasons(EIGHT)
    assert said.startswith("not said: maker, architecture, ")
    assert extrapolation_width(EIGHT) == pytest.approx(WIDTH_OF_REASON * sqrt(7))
    assert extrapolation_width(catalog.device("tpu-v3")) == pytest.approx(
        WIDTH_OF_REASON * sqrt(REASONS_OF_UNMEASURED_KIND)
    )
    calibrated = EIGHT.with_calibration({"intervals": {"all": (-0.1, 0.1)}})
    assert (extrapolation_reasons(calibrated), extrapolation_width(calibrated)) == ((), 0)


def test_a_cpu_whose_file_does_not_say_its_cores_has_those_of_its_peak():
    known = catalog.device("epyc-7b12").with_calibration({})  # 64 x 2.25 GHz x 32
    few = known.with_figures(maker=None, architecture=None, cores=None)
    assert extrapolation_reasons(known) == ()
    assert extrapolation_reasons(few) == ("not said: maker, cores",)
    assert (
        extrapolation_reasons(replace(few, measured={"threads": 64})) == ()
    )  # its ceilings were measured there
    plain, bare = (
        StepModel("resnet18", one, method="calibrated").predict(8) for one in (known, few)
    )
    assert bare.times.step_s == plain.times.step_s
    assert bare.times.high_s >= plain.times.high_s


def test_the_interval_is_wider_and_the_prediction_says_why():
    t4 = catalog.device("t4")
    hot = replace(t4.with_figures(architecture="Rubin", memory_type="HBM5"), name="hot")
    plain, far = (StepModel("resnet18", one, method="calibrated").predict(256) for one in (t4, hot))
    width = [log(one.times.high_s / one.times.low_s) for one in (plain, far)]
    assert width[1] > width[0]
    assert (plain.times.is_extrapolated, far.times.is_extrapolated) == (False, True)
    assert "hot lies beyond what was measured: Rubin; HBM5; the interval is wider" in far.remarks


def test_kernels_may_have_been_measured_on_fewer_devices():
    assert is_measured("recurrent", catalog.device("p100-pcie-16gb"))
    assert not is_measured("recurrent", catalog.device("v100"))
    assert is_measured("product", catalog.device("v100"))
    calibrated = catalog.device("v100").with_calibration({"intervals": {"all": (-0.1, 0.1)}})
    assert is_measured("recurrent", calibrated)
    assert is_measured("recurrent", catalog.device("tpu-v3"))  # of which nothing was
