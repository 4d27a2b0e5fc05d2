"""Constants of many devices at once, of which one stands on a strange machine."""

from dataclasses import replace

import numpy as np
import pytest

from steptime.calibration.cases import Case, conditions, op_kernels
from steptime.calibration.columns import Columns
from steptime.calibration.fit import constants_of
from steptime.hardware import catalog
from validation.fitting.hierarchy import hierarchical

PRIORS = {**catalog.priors("gpu"), **conditions()}
FREE = ("launch.isolated_s", "stream.share_hbm")


def device(name: str, host_s: float, share: float) -> Columns:
    """Sums on a device whose host takes `host_s` to call one, and whose memory reaches `share`."""
    one = catalog.device(name)
    cases = [
        Case(op_kernels("add", ((2**i, 1000),) * 2, {}, "float32"), one, 1.0, "add", "isolated")
        for i in range(4, 17)
    ]
    constants = constants_of(PRIORS) | dict(zip(FREE, (host_s, share), strict=True))
    seconds = Columns(cases).predict_s(constants)
    return Columns([replace(c, seconds=float(s)) for c, s in zip(cases, seconds, strict=True)])


def test_a_slow_host_is_one_device_s_own():
    names = ("v100-sxm2-16gb", "v100-pcie-32gb", "a100-pcie-40gb", "a100-sxm4-80gb", "h100-sxm5")
    hosts = (25e-6, 25e-6, 25e-6, 25e-6, 75e-6)
    sets = [device(name, host_s, 0.8) for name, host_s in zip(names, hosts, strict=True)]
    weights = [np.full(len(one.cases), 50.0) for one in sets]
    values, spreads = hierarchical(sets, PRIORS, FREE, weights)
    assert values["stream.share_hbm"] == pytest.approx(0.8, rel=0.02)
    assert values["launch.isolated_s"] == pytest.approx(25e-6, rel=0.05)  # the mean is 31e-6
    assert spreads["launch.isolated_s"] >= spreads["stream.share_hbm"]
    others = {name for name in values if values[name] != PRIORS[name].value}
    assert others <= set(FREE)


def test_what_all_devices_share_has_no_spread():
    sets = [device("v100-sxm2-16gb", 30e-6, 0.8), device("a100-pcie-40gb", 30e-6, 0.9)]
    weights = [np.full(len(one.cases), 50.0) for one in sets]
    values, spreads = hierarchical(sets, PRIORS, FREE, weights, shared=("stream.share_hbm",))
    assert spreads["stream.share_hbm"] == 0
    assert 0.8 < values["stream.share_hbm"] < 0.9
