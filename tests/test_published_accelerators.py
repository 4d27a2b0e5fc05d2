"""Published chips as data, against what their papers conclude from the same tables.

Sources: Han and others 2016 (EIE), tables IV and V; Chen and others 2017 (Eyeriss); Stillmaker and
Baas 2017 with its corrigendum; Jouppi and others 2017 (TPU v1).
"""

from __future__ import annotations

import json

import pytest

from steptime.cli.main import run
from steptime.predict.accelerator import chips_at, diagnosis
from steptime.predict.accelerators import Design, accelerators, designs
from steptime.predict.process import Process, factors

EYERISS, EIE = accelerators("eyeriss+eie")
DESIGNS = {one.name: one for one in designs()}


def _figures(name: str, quantity: str) -> dict[str, float]:
    return {one.workload: one.value for one in DESIGNS[name].figures if one.quantity == quantity}


@pytest.mark.parametrize("design", DESIGNS.values(), ids=DESIGNS)
def test_every_design_has_a_source_and_something_to_show(design: Design) -> None:
    assert len(design.source) > 20
    assert 3 < design.process_nm < 200
    assert design.networks or design.figures
    assert all(one.value > 0 for one in design.figures)
    keys = [(one.workload, one.batch, one.quantity) for one in design.figures]
    assert len(set(keys)) == len(keys)
    for value in (design.clock_hz, design.area_mm2, design.power_w):
        assert value is None or value > 0


def test_designs_without_tables_by_layer_are_no_chips_to_estimate_with(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["energy", "fc", "--accelerator", "simba"]) == 2
    assert "unknown accelerator 'simba'" in capsys.readouterr().err


def test_alexnet_frames_per_second_of_eie() -> None:
    layers = next(net.layers for net in EIE.networks if net.name == "AlexNet")
    from_layers = 1 / sum(row.latency_s for row in layers)  # 30.3 + 12.2 + 9.9 us
    assert from_layers == pytest.approx(1.88e4, rel=0.02)
    assert _figures("eie", "examples_per_s")["AlexNet FC6 to FC8"] == 18_800


@pytest.mark.parametrize(("network", "per_second"), [("AlexNet", 34.7), ("VGG16", 0.70)])
def test_frames_per_second_of_eyeriss(network: str, per_second: float) -> None:
    (net,) = (net for net in EYERISS.networks if net.name == network)
    assert net.total is not None
    assert net.total.batch / net.total.latency_s == pytest.approx(per_second, rel=0.01)


@pytest.mark.parametrize(
    ("platform", "slower", "energy"),
    [("core-i7-5930k", 189, 24_000), ("geforce-titan-x", 13, 3_400)],
)
def test_eie_beside_its_rivals_as_published(platform: str, slower: float, energy: float) -> None:
    rows = diagnosis(chips_at([EIE], Process(45), "none"))["rivals"]
    key = {"platform": platform, "weights": "dense", "batch": 1}
    (found,) = (row for row in rows if key.items() <= row.items())
    assert found["latency_ratio"] == pytest.approx(slower, rel=0.05)
    assert found["energy_ratio"] == pytest.approx(energy, rel=0.05)


def test_dense_weights_in_batches_favour_the_gpu() -> None:
    rows = diagnosis(chips_at([EIE], Process(45), "none"))["rivals"]
    (gpu,) = (
        row
        for row in rows
        if (row["platform"], row["weights"], row["batch"]) == ("geforce-titan-x", "dense", 64)
    )
    assert gpu["latency_ratio"] < 1  # type: ignore[operator]


@pytest.mark.parametrize("platform", ["core-i7-5930k", "geforce-titan-x", "tegra-k1", "eie"])
def test_matrix_times_vector_is_the_second_layer_of_alexnet(platform: str) -> None:
    """Table V says 162, 4115, 173 and 81,967 frames a second; FC7 is the second row of table IV."""
    fc7_s = {
        rival.name: rival.latencies_s[1]
        for rival in EIE.rivals
        if (rival.weights, rival.batch) == ("dense", 1)
    } | {"eie": EIE.networks[0].layers[1].latency_s}
    stated = _figures(platform, "examples_per_s")["matrix times vector"]
    assert 1 / fc7_s[platform] == pytest.approx(stated, rel=0.003)


@pytest.mark.parametrize(
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
def test_efficiencies_of_table_v(name: str, per_joule: float, per_mm2: float | None) -> None:
    """The paper's own quotients; TrueNorth's 0.18 W has two digits."""
    design, per_second = DESIGNS[name], _figures(name, "examples_per_s")["matrix times vector"]
    assert design.power_w is not None
    assert per_second / design.power_w == pytest.approx(per_joule, rel=0.025)
    if per_mm2 is None:
        assert design.area_mm2 is None
    else:
        assert design.area_mm2 is not None
        assert per_second / design.area_mm2 == pytest.approx(per_mm2, rel=0.012)


def test_tpu_v1_and_its_six_workloads() -> None:
    found = _figures("tpu-v1", "op_per_s")
    peak = found.pop("peak")
    assert {name: value / 1e12 for name, value in found.items()} == pytest.approx(
        {"MLP0": 12.3, "MLP1": 9.7, "LSTM0": 3.7, "LSTM1": 2.8, "CNN0": 86.0, "CNN1": 14.1}
    )
    # 256 x 256 multiply-adds of two operations a cycle
    assert DESIGNS["tpu-v1"].clock_hz == 700e6
    assert peak == pytest.approx(256 * 256 * 2 * 700e6, rel=0.01)
    assert all(value < peak for value in found.values())


def test_simba_is_published_in_agreeing_numbers() -> None:
    assert 1 / _figures("simba", "latency_s")["ResNet-50 on 36 chiplets"] == pytest.approx(
        _figures("simba", "examples_per_s")["ResNet-50 on 36 chiplets"], rel=0.01
    )


def test_example_of_the_corrigendum() -> None:
    """1 pJ at 65 nm and 1.3 V is 0.1755 pJ at 32 nm HP and 0.9 V."""
    found = factors("stillmaker-baas", Process(65, voltage_v=1.3), Process(32, "hp", voltage_v=0.9))
    assert found.energy * 1.0 == pytest.approx(0.1755, rel=1e-3)


@pytest.mark.parametrize(("volt", "time", "energy"), [(1.1, 1.53, 1.95), (1.0, 1.74, 1.55)])
def test_from_45_to_65_nm(volt: float, time: float, energy: float) -> None:
    found = factors(
        "stillmaker-baas", Process(45, "hp", voltage_v=1.0), Process(65, voltage_v=volt)
    )
    assert found.time == pytest.approx(time, rel=0.004)
    assert found.energy == pytest.approx(energy, rel=0.004)


def test_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["list", "accelerators", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert set(rows) == set(DESIGNS)
    assert rows["eyeriss"]["tables"] == ["AlexNet", "VGG16"]
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
