"""Networks of which only sums are known, by hand."""

from dataclasses import replace

import pytest

from steptime.calibration.mapping import plain_case
from steptime.core.errors import InputError
from steptime.hardware import catalog
from steptime.hardware.device import Device
from steptime.prediction import cost_model
from steptime.prediction.calibrated.method import price
from steptime.prediction.described import KINDS, Mix, alike, described, mix_of

CONSTANTS = {name: one.value for name, one in catalog.priors("gpu").items()} | {
    "described.share": 0.5,
    "described.grouped": 0.5,
    "described.depthwise": 0.1,
    "described.lanes": 0.01,
    "described.infer_turned": 2.0,
    "described.train_turned": 3.0,
    "described.channels_last": 0.25,
    "described.infer_moved": 1.0,
    "described.train_moved": 1.5,
    "described.copied": 2.0,
    "described.train_depthwise": 3.0,
    "described.op_s": 1e-3,
    "stream.share_gddr": 1.0,
}
DEVICE = Device(
    "plain", "gpu", {"float16": 1e12, "float32": 5e11}, 1e9, "by hand", constants=CONSTANTS
)
MIX = Mix(0.02, 3, 1, 2, 10, 0, 0, 0, 4, 0, 0.7, 0.25, 0.05, lane_macs=0.5, ops=100, activations=1)


@pytest.fixture(autouse=True)
def one_network(monkeypatch, request):
    """The file of mixes holds one network, but in tests that are marked `shipped`."""
    if "shipped" not in request.fixturenames:
        monkeypatch.setattr("steptime.prediction.described._mixes", lambda: {"net_small": MIX})
    mix_of.cache_clear()
    yield
    mix_of.cache_clear()


@pytest.fixture
def shipped():
    """The mixes as they are shipped."""


def test_arithmetic_and_traffic_follow_one_another():
    network, weights = described(1e9, 1e6, 1e8, batch=8, name="net_large")
    assert network.flop == 16e9
    # 0.02 scores an element for each of 10 multiply-adds of a parameter: 1 of 1.2 was written
    written = 16e6 / 1.2
    moved = (2 + 1.2 * 10) * written  # by linear layers, by elementwise ops
    copied = 0.5 * 4 * written
    assert network.bytes == pytest.approx(3 * written + written + moved + copied)
    compute = (0.7 * 16e9 + 0.25 * 16e9 / 0.5) / 0.5e12
    depthwise = 0.05 * 16e9 / (0.1 * 5e11)
    traffic = (2 * 3 * written + written + moved + 2 * copied) / 1e9
    ops = 100 * 1e-3
    assert price(network, DEVICE).value == pytest.approx(compute + traffic + depthwise + ops)
    assert weights.bytes == 8 * 1e8


def test_libraries_of_other_makers_reach_less():
    network, _ = described(1e9, 1e6, 1e8, batch=8, name="net_large")
    amd = CONSTANTS | {"product.amd": 0.8}
    more = price(network, replace(DEVICE, maker="AMD", constants=amd)).value
    compute = (0.7 * 16e9 + 0.25 * 16e9 / 0.5) / 0.5e12
    assert more - price(network, DEVICE).value == pytest.approx(compute / 0.8 - compute)


def test_training_computes_three_times_as_much_and_moves_more():
    network, weights = described(
        1e9, 1e6, 1e8, 8, "float32", "train", name="net_large", channels_last=True
    )
    assert (network.flop, weights.bytes) == (48e9, 32e8)
    written = 32e6 / 1.2
    compute = (0.7 * 48e9 + 0.25 * 48e9 / 0.5) / 0.25e12
    lanes = 0.5 * 32e9 / (0.01 * 5e11)  # of both gradients
    moved = 1.5 * (3 * 2 + 3.5 * 10) * written
    depthwise = 0.05 * 48e9 / (0.1 * 5e11)
    traffic = (0.25 * 9 * written + 3 * 3 * written + moved + 2 * 2.1 * 4 * written) / 1e9
    of_all = compute + lanes + traffic + depthwise + 3 * 100 * 1e-3
    assert price(network, DEVICE).value == pytest.approx(of_all)


def test_scores_move_where_attention_is_plain():
    fused, _ = described(1e9, 1e6, 1e8, batch=8, name="net", attention="fused")
    plain, _ = described(1e9, 1e6, 1e8, batch=8, name="net", attention="plain")
    assert plain.bytes - fused.bytes == pytest.approx(8 * 0.2 * 16e6 / 1.2)


def test_a_compiler_fuses_and_lays_channels_last_in_any_case():
    network, _ = described(1e9, 1e6, 1e8, batch=8, name="net", compiled=True)
    last, _ = described(1e9, 1e6, 1e8, batch=8, name="net", compiled=True, channels_last=True)
    assert network == last
    assert network.kind in KINDS
    assert network.tensors.moved == pytest.approx((2 + 0.6 * 10) * 16e6 / 1.2)
    assert network.tensors.ops == 50


def test_names_tell_families(shipped):
    own, is_known = mix_of("resnext50_32x4d.c1_in1k")
    # of 14.5e6 in a layer of 4 channels a group, 16 times as many fill tiles; 4, 2 and 1 of wider
    tiles = 3 * 16 + 4 * 4 + 6 * 2 + 3
    assert own.grouped_macs == pytest.approx(tiles * 56**2 * 128 * 4 * 9 / 4.23e9, rel=0.02)
    alike, also_known = mix_of("my_resnext_32x4d")
    assert (is_known, also_known) == (True, True)
    assert 0.1 < alike.grouped_macs < 0.6
    plain, _ = mix_of("resnet50")
    assert (plain.scores, plain.layer_norm) == (
        pytest.approx(0, abs=1e-3),
        pytest.approx(0, abs=0.1),
    )
    assert plain.batch_norm == pytest.approx(1, abs=0.1)  # after each convolution
    vit, _ = mix_of("vit_base_patch16_224")
    assert vit.images < 0.3
    # 12 heads have 12 n^2 scores in a layer that writes 9 * 768 n, for n multiply-adds a parameter
    assert vit.scores == pytest.approx((12 + 768 / 197) / (9 * 768), rel=0.4)


def test_a_name_is_found_however_it_is_written(shipped):
    own = mix_of("vit_base_patch16_224")
    for name in (
        "ViT-Base-Patch16-224",
        "google/vit-base-patch16-224",
        "timm/vit_base_patch16_224.x",
    ):
        assert mix_of(name) == own
    assert alike("timm/resnet50", "timm/vgg16") == 0.0


def test_letters_that_many_names_have_tell_no_family(shipped):
    unknown = mix_of("zzz", activations=0.003)
    assert not unknown[1]
    for name in ("zzz_b", "zzz_s", "zzz_bn", "zzz_b0.in1k"):
        assert mix_of(name, activations=0.003) == unknown
    assert mix_of("zzz_vit")[1]


def test_a_family_that_nobody_knows_is_as_those_that_write_as_much(monkeypatch):
    most = MIX._replace(ops=300, activations=4)
    monkeypatch.setattr("steptime.prediction.described._mixes", lambda: {"net": MIX, "web": most})
    for activations, ops in ((0.001, 100), (0.004, 300), (0.002, 200)):  # in the middle of ln
        mix, is_known = mix_of("zzz", activations=activations)
        assert (mix.lane_macs, is_known) == (0, False)
        assert mix.ops == pytest.approx(ops, abs=5)


def test_a_family_that_nobody_knows_has_a_wider_interval(shipped):
    mix, is_known = mix_of("zzz_qqq", activations=0.003)
    assert not is_known
    assert mix_of("zzz_qqq", attends=True, activations=0.003)[0].scores > mix.scores
    widths = []
    for name in ("zzz_qqq", "resnet50"):
        network, _ = described(4e9, 11e6, 25e6, 256, name=name)
        known = replace(DEVICE, constants={n: c.value for n, c in catalog.priors("gpu").items()})
        found = price(network, known)
        widths.append(found.high / found.low)
    assert widths[0] > widths[1]


def test_every_kind_has_its_constants(shipped):
    known = {name: one.value for name, one in catalog.priors("gpu").items()}
    device = replace(DEVICE, constants=known)
    network, _ = described(1e9, 1e6, 0, batch=8)
    assert all(price(network._replace(kind=kind), device).value > 0 for kind in KINDS)


def test_what_is_no_network_is_refused(shipped):
    with pytest.raises(InputError, match="at least 1"):
        described(0, 1e6, 0, batch=8)
    with pytest.raises(InputError, match="phase"):
        described(1e9, 1e6, 0, batch=8, phase="test")
    for sums in ((1e290, 1e6, 0, 8), (1e9, 1e-320, 0, 8), (1e9, 1e6, 1e-9, 8), (1e9, 1e6, -1, 8)):
        with pytest.raises(
            InputError, match=r"at least 1 and below 2\^63, not"
        ):  # seconds were not a number
            described(*sums)
    with pytest.raises(InputError, match="batch of a network must be a whole number"):
        described(1e9, 1e6, 0, batch=1.5)
    with pytest.raises(InputError, match="channels_last of a network must be yes or no"):
        described(1e9, 1e6, 0, batch=8, channels_last="nchw")
    with pytest.raises(InputError, match="compiled of a network must be yes or no, not 'tune'"):
        described(1e9, 1e6, 0, batch=8, compiled="tune")
    one, two = (described(1e9, 1e6, 0, batch=8, channels_last=said) for said in ("False", "True"))
    assert one == described(1e9, 1e6, 0, batch=8)
    assert two == described(1e9, 1e6, 0, batch=8, channels_last=True) != one
    with pytest.raises(InputError, match="attention"):
        described(1e9, 1e6, 0, batch=8, attention="flash")


def test_a_row_of_a_table_may_be_such_a_network(shipped):
    attrs = {"macs": 4e9, "activations": 11e6, "parameters": 25e6, "batch": 256}
    row = {"kind": "described", "attrs": attrs, "dtype": "float16", "seconds": 0.1, "device": "t4"}
    case = plain_case({**row, "condition": "step"})
    assert case.kernels == described(4e9, 11e6, 25e6, 256, "float16")
    with pytest.raises(InputError, match="macs"):
        plain_case({**row, "attrs": {"batch": 256}})


def test_ten_times_the_arithmetic_takes_longer_on_a_cpu(shipped):
    method = cost_model("calibrated")
    cpu = method.sees(catalog.device("core-i7-4770k"), "float32", method.settings)
    few, many = (
        method.price(described(macs, 11e6, 25e6, 1, "float32")[0], cpu) for macs in (41e9, 410e9)
    )
    # beside 2 x 369e9 FLOP at most at the peak of four cores
    assert many.value - few.value >= 2 * 369e9 / 0.448e12
