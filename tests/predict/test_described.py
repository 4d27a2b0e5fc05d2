"""Networks of which only sums are known, by hand."""

from dataclasses import replace

import pytest

from steptime import catalog
from steptime.calibration.mapping import plain_case
from steptime.core.errors import InputError
from steptime.core.hardware import Device
from steptime.predict.calibrated.method import price
from steptime.predict.described import KINDS, described

CONSTANTS = {name: one.value for name, one in catalog.priors("gpu").items()} | {
    "described.share": 0.5,
    "described.infer_passes": 8.0,
    "described.train_passes": 30.0,
    "described.fused_attention": 0.5,
    "described.compiled": 0.25,
    "stream.share_gddr": 1.0,
}
DEVICE = Device(
    "plain", "gpu", {"float16": 1e12, "float32": 5e11}, 1e9, "by hand", constants=CONSTANTS
)


def test_arithmetic_and_traffic_follow_one_another():
    network, weights = described(1e9, 1e6, 0, batch=8)
    assert (network.flop, network.bytes) == (16e9, 16e6)
    assert price(network, DEVICE).value == pytest.approx(16e9 / 0.5e12 + 8 * 16e6 / 1e9)
    assert weights.bytes == 0


def test_training_computes_three_times_as_much_and_moves_more():
    network, weights = described(1e9, 1e6, 1e3, batch=8, phase="train", dtype="float32")
    assert (network.flop, network.bytes, weights.bytes) == (48e9, 32e6, 32e3)
    assert price(network, DEVICE).value == pytest.approx(48e9 / 0.25e12 + 30 * 32e6 / 1e9)


def test_words_change_how_often_activations_move():
    network, _ = described(1e9, 1e6, 0, batch=8, attention="fused", compiled=True)
    (last, _) = described(
        1e9, 1e6, 0, batch=8, attention="fused", compiled=True, channels_last=True
    )
    assert network == last  # a compiler lays channels last in any case
    assert network.kind in KINDS
    moved = 8 * 0.5 * 0.25 * 16e6 / 1e9
    assert price(network, DEVICE).value == pytest.approx(16e9 / 0.5e12 + moved)


def test_every_kind_has_its_constants():
    known = {name: one.value for name, one in catalog.priors("gpu").items()}
    device = replace(DEVICE, constants=known)
    network, _ = described(1e9, 1e6, 0, batch=8)
    assert all(price(network._replace(kind=kind), device).value > 0 for kind in KINDS)


def test_what_is_no_network_is_refused():
    with pytest.raises(InputError, match="above 0"):
        described(0, 1e6, 0, batch=8)
    with pytest.raises(InputError, match="phase"):
        described(1e9, 1e6, 0, batch=8, phase="test")
    with pytest.raises(InputError, match="attention"):
        described(1e9, 1e6, 0, batch=8, attention="flash")


def test_a_row_of_a_table_may_be_such_a_network():
    attrs = {"macs": 4e9, "activations": 11e6, "parameters": 25e6, "batch": 256}
    row = {"kind": "described", "attrs": attrs, "dtype": "float16", "seconds": 0.1, "device": "t4"}
    case = plain_case({**row, "condition": "step"})
    assert case.kernels == described(4e9, 11e6, 25e6, 256, "float16")
    with pytest.raises(InputError, match="macs"):
        plain_case({**row, "attrs": {"batch": 256}})
