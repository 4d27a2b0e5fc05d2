"""Accelerators as data, process scaling, and the corrected model of one image.

Published totals: Chen and others 2017 (Eyeriss) and Han and others 2016 (EIE).
"""

from __future__ import annotations

import csv
import json
from dataclasses import replace

import pytest

from every import every
from steptime.core.errors import InputError
from steptime.energy.accelerator import estimate, scale_chips
from steptime.energy.accelerators import MeasuredNetwork, accelerator_names, accelerators
from steptime.energy.diagnosis import cross_predictions, layers_per_mac, rival_platforms
from steptime.energy.process import INVERTERS, Process, read_process, scale_factors
from steptime.energy.request import ChipLayer, ChipRequest

EYERISS, EIE = accelerators("eyeriss+eie")
CHIPS = scale_chips((EYERISS, EIE), Process(65), "dennard")
WORD_BYTES = 2  # Eyeriss computes in 16 bits


def _net(name: str) -> MeasuredNetwork:
    return next(net for net in EYERISS.networks if net.name == name)


def _whole(name: str) -> ChipRequest:
    rows = [
        row.name
        for one in (EYERISS, EIE)
        for net in one.networks
        if net.name == name
        for row in net.layers
    ]
    return ChipRequest(name, name, tuple(map(ChipLayer, rows)))


@pytest.mark.parametrize("name", accelerator_names())
def test_every_accelerator_has_a_source_and_whole_rows(name):
    (found,) = accelerators(name)
    assert found.name == name
    assert len(found.source) > 20
    for net in found.networks:
        assert len({row.name for row in net.layers}) == len(net.layers)
        for row in net.layers:
            assert row.batch >= 1
            assert row.latency_s > 0
            assert 0 < row.power_w < 10
            assert row.processing_s is not None
            assert row.processing_s <= row.latency_s


@pytest.mark.parametrize(
    ("name", "latency_ms", "processing_ms", "gmac", "buffer_mb", "dram_mb", "power_mw", "pes"),
    [
        ("AlexNet", 115.3, 103.5, 2.66, 208.5, 15.4, 278, 148),
        ("VGG16", 4309.5, 3755.2, 46.04, 11035.8, 321.1, 236, 158),
    ],
)
def test_tables_add_up_to_their_published_totals(
    name, latency_ms, processing_ms, gmac, buffer_mb, dram_mb, power_mw, pes
):
    rows, total = _net(name).layers, _net(name).total
    assert total is not None
    published = (latency_ms, processing_ms, gmac, buffer_mb, dram_mb)
    columns = ("latency_s", "processing_s", "batch_macs", "buffer_bytes", "dram_bytes")
    units = (1e-3, 1e-3, 1e9, 1e6, 1e6)
    digits = (0.1, 0.1, 0.01, 0.1, 0.1)  # the last one printed: rows and total are rounded to it
    for value, column, unit, digit in zip(published, columns, units, digits, strict=True):
        assert getattr(total, column) == pytest.approx(value * unit)
        added = sum(getattr(row, column) for row in rows) / unit
        assert abs(added - value) <= digit / 2 * (len(rows) + 1), column
    mean_w = sum(row.energy_j for row in rows) / sum(row.latency_s for row in rows)
    assert round(mean_w * 1e3) == round(total.power_w * 1e3) == power_mw
    processing = sum(row.processing_s or 0 for row in rows)
    active = sum((row.active_pes or 0) * (row.processing_s or 0) for row in rows) / processing
    assert round(active) == total.active_pes == pes


def test_layers_of_one_shape_use_as_many_elements():
    rows = {row.name: row for row in _net("VGG16").layers}
    assert {rows[f"CONV5-{i}"].macs for i in (1, 2, 3)} == {14 * 14 * 512 * 3 * 3 * 512}
    assert {rows[f"CONV5-{i}"].active_pes for i in (1, 2, 3)} == {168}


@pytest.mark.parametrize(("name", "batch"), [("AlexNet", 4), ("VGG16", 3)])
def test_the_tables_are_of_a_batch(name, batch):
    for row in _net(name).layers:
        assert row.batch == batch
        assert row.batch_macs is not None
        assert row.macs is not None
        assert row.batch_macs / row.macs == pytest.approx(batch, rel=0.005)


@pytest.mark.parametrize(
    ("name", "latency_s", "energy_j", "frames_per_s", "dram_per_mac"),
    [("AlexNet", 0.0289, 8.11e-3, 34.7, 0.0029), ("VGG16", 1.4365, 0.3388, 0.70, 0.0035)],
)
def test_one_image(name, latency_s, energy_j, frames_per_s, dram_per_mac):
    sums = estimate(_whole(name), CHIPS).sums()
    assert sums["total"]["latency_s"] == pytest.approx(latency_s, rel=0.01)
    assert sums["total"]["energy_j"] == pytest.approx(energy_j, rel=0.01)
    assert sums["total"]["energy_low_j"] is None
    convolutions_s = sums["conv"]["latency_s"]
    assert convolutions_s is not None
    assert 1 / convolutions_s == pytest.approx(frames_per_s, rel=0.01)
    total = _net(name).total
    assert total is not None
    assert total.dram_bytes is not None
    assert total.batch_macs is not None
    accesses = total.dram_bytes / WORD_BYTES
    assert accesses / total.batch_macs == pytest.approx(dram_per_mac, rel=0.02)


def test_eie_runs_18800_alexnets_a_second():
    alexnet = EIE.networks[0]
    assert 1 / sum(row.latency_s for row in alexnet.layers) == pytest.approx(1.88e4, rel=0.02)


@pytest.mark.parametrize(
    ("platform", "slower", "energy"),
    [("core-i7-5930k", 189, 24_000), ("geforce-titan-x", 13, 3_400)],
)
def test_eie_beside_cpu_and_gpu(platform, slower, energy):
    dense_singles = {
        row.platform: row
        for row in rival_platforms(EIE)
        if (row.weights, row.batch) == ("dense", 1)
    }
    rival = dense_singles[platform]
    assert rival.latency_ratio == pytest.approx(slower, rel=0.05)
    assert rival.energy_ratio == pytest.approx(energy, rel=0.05)


def test_any_other_layer_costs_its_multiply_adds():
    layers = (
        ChipLayer("a", "conv2d", 1000),
        ChipLayer("b", "linear", 10),
        ChipLayer("c", "attention", 7),
    )
    found = estimate(ChipRequest("mine", "", layers), CHIPS)
    assert [one.name for one in found.not_covered] == ["c"]
    conv, fc = found.layers
    # AlexNet a batch of 4, VGG-16 a batch of 3, both convolutions of one image
    seconds, macs = 0.1153 / 4 + 4.3094 / 3, 665_784_864 + 15_346_630_656
    assert conv.latency_s == pytest.approx(1000 * seconds / macs, rel=1e-9)
    # AlexNet's CONV5 is the fastest a multiply-add, VGG's CONV1-1 the slowest
    assert conv.latency_low_s == pytest.approx(1000 * 10.5e-3 / 4 / 74_760_192)
    assert conv.latency_high_s == pytest.approx(1000 * 76.2e-3 / 3 / 86_704_128)
    assert conv.energy_high_j == pytest.approx(1000 * 76.2e-3 * 0.247 / 3 / 86_704_128)
    micro = 30.3 + 12.2 + 9.9 + 34.4 + 8.7 + 8.4
    macs = 37_748_736 + 102_760_448 + 2 * (16_777_216 + 4_096_000)
    assert fc.latency_s == pytest.approx(10 * micro * 1e-6 * 65 / 45 / macs, rel=1e-9)
    sums = found.sums()
    assert sums["total"]["energy_j"] == pytest.approx(conv.energy_j + fc.energy_j)
    low, high = sums["total"]["energy_low_j"], sums["total"]["energy_high_j"]
    assert low is not None
    assert high is not None
    assert low < conv.energy_j + fc.energy_j < high


def test_dram_has_a_line_of_its_own():
    found = estimate(_whole("AlexNet"), CHIPS).dram()
    moved = (5.0 + 4.0 + 3.0 + 2.1 + 1.3) * 1e6 / 4  # MB of a batch of 4; EIE's are not known
    assert found["dram_bytes"] == pytest.approx(moved)
    assert found["energy_low_j"] == pytest.approx(moved * 1300e-12 / 8)
    assert found["energy_high_j"] == pytest.approx(moved * 2600e-12 / 8)
    assert found["energy_j"] == pytest.approx(moved * 1950e-12 / 8)
    layers = (ChipLayer("a", "conv2d", 1000), ChipLayer("b", "linear", 10))
    scaled = estimate(ChipRequest("mine", "", layers), CHIPS).dram()
    mean = (15.4e6 / 4 + 321.3e6 / 3) / (665_784_864 + 15_346_630_656)
    assert scaled["dram_bytes"] == pytest.approx(1000 * mean)
    # CONV5-3 and CONV1-1 of VGG-16
    least, most = 5.6e6 / 3 / 462_422_016, 15.4e6 / 3 / 86_704_128
    assert scaled["energy_low_j"] == pytest.approx(1000 * least * 1300e-12 / 8)
    assert scaled["energy_high_j"] == pytest.approx(1000 * most * 2600e-12 / 8)


def test_one_chip_runs_its_own_part():
    only = scale_chips(accelerators("eie"), Process(45), "none")
    found = estimate(
        ChipRequest("mine", "", (ChipLayer("a", "conv2d", 1), ChipLayer("b", "linear", 1))), only
    )
    assert [one.name for one in found.not_covered] == ["a"]
    assert found.supposed_pruned == ("b",)
    assert found.parts == ("fc",)


def test_networks_from_each_other():
    layers = [row for chip in CHIPS for row in layers_per_mac(chip)]
    assert len(layers) == 18 + 6  # NeuralTalk's sizes are not known
    predictions = [row for chip in CHIPS for row in cross_predictions(chip)]
    ratios = {(row.accelerator, row.net): row.latency_ratio for row in predictions}
    alexnet = (0.1153 / 4) / 665_784_864
    vgg = (4.3094 / 3) / 15_346_630_656
    assert ratios["eyeriss", "AlexNet"] == pytest.approx(vgg / alexnet)
    assert ratios["eyeriss", "VGG16"] == pytest.approx(alexnet / vgg)
    assert 2 < vgg / alexnet < 2.3  # what docs/energy.md says: off by a factor of two


@every(
    ("scaling", "time", "energy"),
    [
        ("dennard", 65 / 45, (65 / 45) ** 3),
        ("constant-voltage", 1, 65 / 45),
        ("none", 1, 1),
    ],
)
def test_scaling_from_45_to_65_nm(scaling, time, energy):
    found = scale_factors(scaling, Process(45), Process(65))
    assert found == pytest.approx((time, energy))


def test_the_example_of_stillmaker_and_baas():
    """The authors' corrigendum of their section 4.2.1: 1 pJ at 65 nm, 1.3 V, in 32 nm at 0.9 V."""
    old, new = read_process("65nm@1.3V"), read_process("32nm-hp@0.9V")
    found = scale_factors("stillmaker-baas", old, new)
    assert found.energy == pytest.approx(0.1755, rel=1e-3)


@every(
    ("old", "new", "time", "energy"),
    [
        ("45nm@1.0V", "65nm@1.1V", 1.53, 1.95),
        ("45nm", "65nm", 1.53, 1.95),  # the usual voltages
        ("45nm@1.0V", "65nm@1.0V", 1.74, 1.55),
        ("65nm", "65nm", 1, 1),
        ("45-lp@1.0", "45-lp@1.0", 1, 1),
    ],
)
def test_stillmaker_and_baas(old, new, time, energy):
    found = scale_factors("stillmaker-baas", read_process(old), read_process(new))
    assert found == pytest.approx((time, energy), rel=0.005)


def test_polynomials_by_hand():
    # 65 nm at 1 V: the sums of the coefficients
    delay = -53.3 + 230.4 - 333.9 + 178.6
    energy = 3.755 - 4.398 + 1.975
    old, new = Process(90, voltage_v=1.0), Process(65, voltage_v=1.0)
    at_90 = (-60.34 + 262.5 - 384.2 + 210.9, 4.762 - 4.781 + 2.092)
    found = scale_factors("stillmaker-baas", old, new)
    assert found == pytest.approx((delay / at_90[0], energy / at_90[1]))
    assert len(INVERTERS) == 18


@every(
    ("process", "message"),
    [
        ("33nm@1.0V", "unknown process of stillmaker-baas '33nm@1.0V'"),
        ("32nm", "process '32nm': stillmaker-baas needs its voltage"),
        ("65nm@0.2V", "0.2 V is outside of stillmaker-baas' fit"),
        ("65nm@5V", "5.0 V is outside of stillmaker-baas' fit"),
        ("65nm-hp@1V", "unknown process of stillmaker-baas '65nm-hp@1.0V'"),
    ],
)
def test_what_stillmaker_and_baas_do_not_know(process, message):
    with pytest.raises(InputError, match=message.replace("(", r"\(")):
        scale_factors("stillmaker-baas", Process(45), read_process(process))


@every("text", ["", "nm", "0nm", "65 um", "65nm@", "65nm@0V", "-45nm", "65nm-xp"])
def test_what_is_no_process(text):
    with pytest.raises(InputError, match="is not of the form"):
        read_process(text)


def test_a_chip_of_the_wanted_process_stays_as_it_is():
    (chip,) = scale_chips((replace(EYERISS, voltage_v=0.9),), Process(65), "stillmaker-baas")
    assert chip.scale == (1, 1)


def test_the_tables_are_those_of_the_reference(shared):
    for net, file in (("AlexNet", "eyeriss-alexnet"), ("VGG16", "eyeriss-vgg16")):
        with (shared / f"fodlam/data/{file}.csv").open() as stream:
            published = [[cell.strip(" %") for cell in row] for row in csv.reader(stream)][1:-1]
        rows = _net(net).layers
        assert [row.name for row in rows] == [cells[0] for cells in published]
        for row, (_, *cells) in zip(rows, published, strict=True):
            power, latency, processing, gmac, pes, zeros, buffer, dram = map(float, cells)
            assert (row.power_w, row.latency_s) == pytest.approx((power / 1e3, latency / 1e3))
            assert row.processing_s == pytest.approx(processing / 1e3)
            assert row.batch_macs == pytest.approx(gmac * 1e9)
            assert row.zeros == pytest.approx(zeros / 100)
            assert (row.buffer_bytes, row.dram_bytes) == pytest.approx((buffer * 1e6, dram * 1e6))
            assert row.active_pes == (168 if row.name == "CONV5-1" else pes)  # 163: misread


def test_the_correction_is_that_of_the_reference(shared):
    folder = shared / "fodlam"
    published = json.loads((folder / "per_image_corrected.json").read_text())
    for name, net in (("alexnet", "AlexNet"), ("vgg16", "VGG16")):
        sums = estimate(_whole(net), CHIPS).sums()
        for part, expected in published[name]["per_image_corrected"].items():
            assert sums[part]["energy_j"] == pytest.approx(expected["energy"], rel=1e-12)
            assert sums[part]["latency_s"] == pytest.approx(expected["latency"], rel=1e-12)
