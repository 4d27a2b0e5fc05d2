"""Where to cut a network between two devices, by hand and against all single predictions."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from every import every
from steptime.build import make_workload, read_model
from steptime.cli.main import run
from steptime.hardware.datasheet import Datasheet
from steptime.hardware.device import Device, Link
from steptime.prediction.steps.step_model import StepModel
from steptime.questions.split import Cut, find_cuts

PHONE = Device("phone", "gpu", Datasheet({"float32": 1e9}, 1e9, "made up for this test"))
SERVER = Device("server", "gpu", Datasheet({"float32": 4e9}, 4e9, "made up for this test"))
LINK = Link("wifi", 1e-3, 1e6, "made up for this test")


def found(text: str, link: Link = LINK, name: str = "analytic") -> list[Cut]:
    workload = make_workload(read_model(text), 1, phase="infer")
    here = StepModel(workload, PHONE, method=name)
    return [*find_cuts(here, here.with_device(SERVER), link)]


def test_a_chain_by_hand():
    """3 -> 4 -> 2: before each op crosses what it reads, after the last one nothing."""
    made = found("fc:layers=1,nodes=4,inputs=3,outputs=2")
    assert [cut.after for cut in made] == [
        "", "fc1/linear", "fc1/bias", "fc1/relu", "output/linear", "output/bias",
    ]  # fmt: skip
    assert [cut.crossing_bytes for cut in made] == [12, 16, 16, 16, 8, 0]
    assert [cut.output_bytes for cut in made] == [12, 16, 16, 16, 8, 8]
    assert made[0].transfer_s == pytest.approx(1e-3 + 12e-6)
    assert made[-1].transfer_s == 0
    # bytes bound every op; a product adds its bias before it writes
    elements = [3 + 12 + 4 + 4, 0, 4 + 4, 4 + 8 + 2 + 2, 0]
    for i, cut in enumerate(made):
        assert cut.first_s == pytest.approx(4e-9 * sum(elements[:i]))
        assert cut.second_s == pytest.approx(1e-9 * sum(elements[i:]))
        assert cut.total_s == cut.first_s + cut.transfer_s + cut.second_s
    assert [cut.flop for cut in made] == [0, 24, 28, 32, 48, 50]


def test_what_is_read_later_crosses_too():
    """Inside a residual block the shortcut's input crosses beside the branch."""
    made = {cut.after: cut for cut in found("resnet18")}
    inside = made["group1/block2/conv1/relu"]
    assert inside.crossing_bytes == 2 * inside.output_bytes
    assert made["group1/block2/relu"].crossing_bytes == made["group1/block2/relu"].output_bytes


@every("name", ["analytic", "paleo", "roofline"])
@every("text", ["alexnet_v2", "densenet_cifar", "fc", "gpt2:length=8"])
def test_the_ends_are_the_single_predictions(text, name):
    made = found(text, name=name)
    assert made[0].first_s == made[-1].second_s == 0
    rows = [cut.first_s for cut in made]
    assert rows == sorted(rows)
    assert made[-1].first_s > made[0].second_s
    free = replace(LINK, latency_s=None, bytes_per_s=1e30)
    best = min(found(text, free, name), key=lambda cut: cut.total_s)
    assert best.total_s == pytest.approx(made[0].second_s)  # the faster device does it all


def test_the_command(capsys, tmp_path):
    wire = tmp_path / "wire.toml"
    wire.write_text('name = "wire"\nsource = "-"\nGB_per_s = 0.125\n')  # without a latency
    words = f"split alexnet_v2 --device adreno-640 --server T4 --link {wire} --method analytic"
    assert run([*words.split(), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    every = [cut["total_s"] for cut in document["rows"]]
    assert document["best"]["total_s"] == min(every)
    assert document["rows"][0]["first_s"] == 0
    assert document["rows"][-1]["second_s"] == 0
    assert document["best"]["after"] == "pool2"
    assert document["notes"] == ["wire: its latency is unknown, left out"]
    assert run(words.split()) == 0
    shown, note = capsys.readouterr()
    assert shown.count("best") == 1
    assert "pool2" in shown
    assert note == "note: wire: its latency is unknown, left out\n"
