"""Method `fodlam` gives what the original prints.

The totals here are those that the original prints for its examples (cucapra/fodlam, November 2017);
the whole of its data is read beside the checkout where it is there.
"""

from __future__ import annotations

import io
import json
import math
from pathlib import Path
from typing import Any

import pytest

from steptime.cli.main import run

CONV = {"AlexNet": ["CONV1", "CONV2", "CONV3", "CONV4", "CONV5"]}
CONV["VGG16"] = [
    f"CONV{block}-{layer}"
    for block, layers in ((1, 2), (2, 2), (3, 3), (4, 3), (5, 3))
    for layer in range(1, layers + 1)
]
FC = ["FC6", "FC7", "FC8"]
ALEXNET_MACS = {  # of one image, by hand: 55*55*96*11*11*3 is CONV1's; two groups in 2, 4 and 5
    "conv1": 105_415_200,
    "conv2": 27 * 27 * 256 * 5 * 5 * 48,
    "conv3": 13 * 13 * 384 * 3 * 3 * 256,
    "conv4": 13 * 13 * 384 * 3 * 3 * 192,
    "conv5": 13 * 13 * 256 * 3 * 3 * 192,
    "fc6": 9216 * 4096,
    "fc7": 4096 * 4096,
    "fc8": 4096 * 1000,
}


def _answer(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert run(["energy", "--method", "fodlam", *words]) == 0
    return json.loads(capsys.readouterr().out)


def _write(path: Path, table: object) -> str:
    path.write_text(json.dumps(table))
    return str(path)


def _caffe(name: str) -> str:
    return "Convolution" if name.startswith("conv") else "InnerProduct"


@pytest.mark.parametrize(
    ("net", "energy_j", "latency_s"),
    [
        ("VGG16", 1.0163500718038407, 4.309474388888889),
        ("AlexNet", 0.0321787720877915, 0.11537568888888888),
    ],
)
def test_the_published_example(net, energy_j, latency_s, tmp_path, capsys):
    config = _write(tmp_path / "c.json", {"net": net, "layers": [*CONV[net], *FC]})
    found = _answer(capsys, config, "--json")
    assert found["total"]["energy"] == pytest.approx(energy_j, rel=1e-9)
    assert found["total"]["latency"] == pytest.approx(latency_s, rel=1e-9)


def test_scaled_from_a_cost_a_multiply_add(tmp_path, capsys):
    rows = [{"name": n, "type": _caffe(n), "macs": m} for n, m in ALEXNET_MACS.items()]
    _write(tmp_path / "net.json", [*rows, {"name": "pool1", "type": "Pooling"}])
    config = _write(tmp_path / "c.json", {"netfile": "net.json", "layers": list(ALEXNET_MACS)})
    found = _answer(capsys, config)
    # all 18 rows of both tables: energy 0.0320856 + 1.0162585 J for 16,012,415,520 multiply-adds
    conv = sum(macs for name, macs in ALEXNET_MACS.items() if name.startswith("conv"))
    assert conv == 665_784_864
    by_hand = conv * (0.0320856 + 1.0162585) / (665_784_864 + 15_346_630_656)
    assert found["conv"]["energy"] == pytest.approx(by_hand, rel=1e-9)
    assert found["total"]["energy"] == pytest.approx(0.04364882535675761, rel=1e-9)
    assert found["total"]["latency"] == pytest.approx(0.1840241552681211, rel=1e-9)


def test_eie_goes_from_45_to_65_nm_by_dennard(tmp_path, capsys):
    config = _write(tmp_path / "c.json", {"net": "vgg-16", "layers": ["fc_6", "FC 7", "fc8"]})
    found = _answer(capsys, config)
    seconds = (34.4 + 8.7 + 8.4) * 1e-6
    s = 65 / 45
    assert found["fc"]["latency"] == pytest.approx(seconds * s, rel=1e-12)
    assert found["fc"]["energy"] == pytest.approx(seconds * 0.59 * s**3, rel=1e-12)
    assert found["conv"] == {"energy": 0.0, "latency": 0.0}
    assert found["total"] == found["fc"]


def test_the_answer_has_the_originals_form_and_reads_standard_input(capsys, monkeypatch):
    text = json.dumps({"net": "AlexNet", "layers": ["CONV1"]})
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    assert run(["energy", "--method", "fodlam"]) == 0
    shown = capsys.readouterr().out
    found = json.loads(shown)
    assert shown == json.dumps(found, indent=2, sort_keys=True) + "\n"
    assert list(found) == ["conv", "fc", "total"]
    assert all(list(sums) == ["energy", "latency"] for sums in found.values())
    assert math.isclose(found["total"]["energy"], 0.332 * 20.9e-3)


def test_what_costs_nothing_is_named(tmp_path, capsys):
    _write(tmp_path / "net.json", [{"name": "pool1", "type": "Pooling"}])
    config = _write(tmp_path / "c.json", {"netfile": "net.json", "layers": ["pool1"]})
    assert run(["energy", config, "--method", "fodlam"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["total"] == {"energy": 0.0, "latency": 0.0}
    assert "not covered by the chips, counted as nothing: Pooling (1)" in printed.err


def test_all_that_the_original_prints(shared, capsys):
    folder = shared / "fodlam"
    outputs = json.loads((folder / "outputs.json").read_text())
    assert len(outputs) == 5
    for name, parts in outputs.items():
        config = str(folder / "config" / f"{name}.json")
        found = _answer(capsys, config, "--nets", str(folder / "nets"))
        assert found.keys() == parts.keys()
        for part, sums in parts.items():
            assert found[part] == pytest.approx(sums, rel=1e-12), (name, part)


def test_all_of_its_configurations_are_read(shared, capsys):
    folder = shared / "fodlam"
    configs = sorted((folder / "config").glob("*.json"))
    assert len(configs) == 9
    for config in configs:
        found = _answer(capsys, str(config), "--nets", str(folder / "nets"))
        assert found["total"]["energy"] > 0
