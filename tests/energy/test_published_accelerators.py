"""Published chips as data, against what their papers conclude from the same tables.

Sources: Han and others 2016 (EIE), tables IV and V; Jouppi and others 2017 (TPU v1); Shao and
others 2019 (Simba). What the tables by layer show is in test_accelerator.py.
"""

from __future__ import annotations

import json

import pytest

from every import every
from steptime.cli.main import run
from steptime.energy.accelerators import accelerators, designs
from steptime.energy.diagnosis import rival_platforms

(EIE,) = accelerators("eie")
DESIGNS = {one.name: one for one in designs()}


def _figures(name: str, quantity: str) -> dict[str, float]:
    return {one.workload: one.value for one in DESIGNS[name].figures if one.quantity == quantity}


@every("design", DESIGNS.values(), ids=lambda one: one.name)
def test_every_design_has_a_source_and_something_to_show(design):
    assert len(design.source) > 20
    assert 3 < design.process_nm < 200
    assert design.networks or design.figures
    assert all(one.value > 0 for one in design.figures)
    keys = [(one.workload, one.batch, one.quantity) for one in design.figures]
    assert len(set(keys)) == len(keys)
    for value in (design.clock_hz, design.area_mm2, design.power_w):
        assert value is None or value > 0


def test_designs_without_tables_by_layer_are_no_chips_to_estimate_with(capsys):
    assert run(["energy", "fc", "--accelerator", "simba"]) == 2
    assert "unknown accelerator 'simba'" in capsys.readouterr().err


def test_frames_per_second_stated_for_eie_are_those_of_its_rows():
    layers = next(net.layers for net in EIE.networks if net.name == "AlexNet")
    stated = _figures("eie", "examples_per_s")["AlexNet FC6 to FC8"]
    assert stated == pytest.approx(1 / sum(row.latency_s for row in layers), rel=0.02)


def test_times_are_those_of_the_reference(shared):
    """Its table is the bare text of a page: every number must be there, a few glued to words."""
    text = (shared / "fodlam/data/eie-raw.csv").read_text(encoding="utf-8")
    assert len(EIE.rivals) == 3 * 2 * 2
    for rival in EIE.rivals:
        assert len(rival.latencies_s) == 9
        for value in rival.latencies_s:
            assert f"{value * 1e6:.1f}".removesuffix(".0") in text


def test_dense_weights_in_batches_favour_the_gpu():
    (gpu,) = (
        row
        for row in rival_platforms(EIE)
        if (row.platform, row.weights, row.batch) == ("geforce-titan-x", "dense", 64)
    )
    assert gpu.latency_ratio < 1


@every("platform", ["core-i7-5930k", "geforce-titan-x", "tegra-k1", "eie"])
def test_matrix_times_vector_is_the_second_layer_of_alexnet(platform):
    """Table V says 162, 4115, 173 and 81,967 frames a second; FC7 is the second row of table IV."""
    fc7_s = {
        rival.name: rival.latencies_s[1]
        for rival in EIE.rivals
        if (rival.weights, rival.batch) == ("dense", 1)
    } | {"eie": EIE.networks[0].layers[1].latency_s}
    stated = _figures(platform, "examples_per_s")["matrix times vector"]
    assert 1 / fc7_s[platform] == pytest.approx(stated, rel=0.003)


@every(
    ("name", "per_joule", "per_mm2"),
    [
        ("core-i7-5930k", 2.22, 0.46),
        ("geforce-titan-x", 25.9, 6.85),
        ("tegra-k1", 33.9, None),
        ("a-eye", 3.43, None),
        ("dadiannao", 9_263, 2_185),
        ("truenorth", 10_839, 4.63),
        ("eie", 138_927, 2_009),
        ("eie-256pe", 180_606, 6_681),
    ],
)
def test_efficiencies_of_table_v(name, per_joule, per_mm2):
    """The paper's own quotients; TrueNorth's 0.18 W has two digits."""
    design, per_second = DESIGNS[name], _figures(name, "examples_per_s")["matrix times vector"]
    assert design.power_w is not None
    assert per_second / design.power_w == pytest.approx(per_joule, rel=0.025)
    if per_mm2 is None:
        assert design.area_mm2 is None
    else:
        assert design.area_mm2 is not None
        assert per_second / design.area_mm2 == pytest.approx(per_mm2, rel=0.012)


def test_tpu_v1_and_its_six_workloads():
    found = _figures("tpu-v1", "op_per_s")
    peak = found.pop("peak")
    assert {name: value / 1e12 for name, value in found.items()} == pytest.approx(
        {"MLP0": 12.3, "MLP1": 9.7, "LSTM0": 3.7, "LSTM1": 2.8, "CNN0": 86.0, "CNN1": 14.1}
    )
    # 256 x 256 multiply-adds of two operations a cycle
    assert DESIGNS["tpu-v1"].clock_hz == 700e6
    assert peak == pytest.approx(256 * 256 * 2 * 700e6, rel=0.01)
    assert all(value < peak for value in found.values())


def test_simba_is_published_in_agreeing_numbers():
    assert 1 / _figures("simba", "latency_s")["ResNet-50 on 36 chiplets"] == pytest.approx(
        _figures("simba", "examples_per_s")["ResNet-50 on 36 chiplets"], rel=0.01
    )


def test_listed(capsys):
    assert run(["list", "accelerators", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
    assert set(rows) == set(DESIGNS)
    assert rows["eyeriss"]["networks"] == ["AlexNet", "VGG16"]
    assert rows["tpu-v1"]["published"][1] == {
        "workload": "MLP0",
        "batch": None,
        "quantity": "op_per_s",
        "value": pytest.approx(12.3e12),
    }
    assert run(["list", "accelerators"]) == 0
    text = capsys.readouterr().out
    assert "MLP0 12.3 Top/s" in text
    assert "sparse MobileNet 1,470.6 examples/s" in text
