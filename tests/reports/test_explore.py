"""The page to explore: one file, nothing fetched, all that is asked for, whole or not at all."""

from __future__ import annotations

import base64
import gzip
import json
import re
from array import array
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from steptime.cli.main import run
from steptime.core.progress import listening
from steptime.hardware import catalog
from steptime.hardware.prices import offers
from steptime.network.families import FAMILIES, ZOO
from steptime.prediction.analytic import METHOD
from steptime.prediction.collectives import COLLECTIVES, GROUP, Fabric, fabric_of
from steptime.prediction.step_model import StepModel
from steptime.reports.explore_data import (
    BATCHES,
    METHODS,
    REPLICAS,
    coefficients,
    exported,
    group_of,
)

LAYERS = {
    "data": {"parents": [], "type": "Input", "tensor": [8, 4, 4, 3]},
    "fc": {"parents": ["data"], "type": "InnerProduct", "num_outputs": 10},
    "softmax": {"parents": ["fc"], "type": "Softmax", "num_classes": 10},
}


class Page(HTMLParser):
    """Tags with their attributes, the text of each script and style, and JSON by its id."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.json: dict[str, str] = {}
        self._open: dict[str, str | None] | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._open = dict(attrs) if tag in ("script", "style") else None

    def handle_endtag(self, tag: str) -> None:
        if tag in ("script", "style"):
            self._open = None

    def handle_data(self, data: str) -> None:
        if self._open is None:
            return
        if self._open.get("type") == "application/json":
            name = str(self._open["id"])
            self.json[name] = self.json.get(name, "") + data
        else:
            self.scripts.append(data)


def explored(folder: Path, *arguments: str) -> tuple[str, dict[str, Any]]:
    """Return the text of a page and the data in it."""
    path = folder / "explore.html"
    assert run(["explore", "-o", str(path), *arguments]) == 0
    text = path.read_text()
    data: dict[str, Any] = json.loads(gzip.decompress(base64.b64decode(Page(text).json["data"])))
    return text, data


def names(data: dict[str, Any], kind: str) -> list[str]:
    return [one["name"] for one in data[kind]]


def network_file(path: Path, layers: dict[str, Any]) -> str:
    path.write_text(json.dumps({"name": "small", "layers": layers}))
    return str(path)


@pytest.mark.slow
def test_by_default_every_network_device_and_link_is_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    few = {"calibrated": [("bfloat16-mixed", "adam")], "paleo": [("float32", "sgd")]}
    monkeypatch.setattr("steptime.reports.explore_data.METHODS", few)
    text, data = explored(tmp_path, "--json")
    document = json.loads(capsys.readouterr().out)
    assert set(document) == {"path", "models", "devices", "links", "left_out"}
    assert names(data, "models") == document["models"] == [*ZOO, *FAMILIES]
    assert names(data, "devices") == document["devices"]
    assert {"h100-sxm5", "b200-sxm", "rtx-4090", "mi300x"} < {*document["devices"]}
    shown = [catalog.device(name) for name in document["devices"]]
    assert all(one.kind != "cpu" and not one.only_by_name for one in shown)
    named = {*catalog.aliases().values(), *(offer.device for offer in offers())}
    assert {one.name for one in shown} <= named
    assert [name.lower() for name in document["links"]] == catalog.link_names()
    assert names(data, "links") == document["links"]
    assert len(text) < 1_500_000  # of which Vega is 0.4 MB; with all types and optimizers 2.1 MB
    for one in document["left_out"]:
        assert set(one) == {"model", "method", "reason"}
        model = next(model for model in data["models"] if model["name"] == one["model"])
        assert one["method"] not in model["steps"]
        assert model["left_out"][one["method"]] == one["reason"]
    start = data["start"]
    opened = ("device", "dtype", "optimizer", "replicas", "price")
    assert [start[name] for name in opened] == ["h100-sxm5", "bfloat16-mixed", "adam", "8", ""]


def test_devices_stand_by_maker_and_the_newest_first() -> None:
    asked = ("CPU_I7", "v100-sxm2-16gb", "tpu-v5p", "h100-sxm5", "epyc-7742", "mi300x", "rtx-4090")
    found = exported(["nin"], {name: catalog.device(name) for name in asked}, [], {})
    assert [(one["group"], one["name"]) for one in found["devices"]] == [
        ("NVIDIA data centre", "h100-sxm5"),
        ("NVIDIA data centre", "v100-sxm2-16gb"),
        ("NVIDIA GeForce and workstation", "rtx-4090"),
        ("AMD", "mi300x"),
        ("Google TPU", "tpu-v5p"),
        ("CPU", "epyc-7742"),
        ("Paleo's own figures", "CPU_I7"),
    ]
    assert group_of(catalog.device("gaudi3")) == "Others"


def test_the_page_is_one_file_and_fetches_nothing(tmp_path: Path) -> None:
    text, _ = explored(tmp_path, "--models", "deep_mnist", "--devices", "K80")
    page = Page(text)
    assert [path.name for path in tmp_path.iterdir()] == ["explore.html"]
    for tag, attrs in page.tags:
        assert "src" not in attrs, tag
        assert attrs.get("href", "data:,") == "data:,", tag
        assert not any(name.startswith("on") for name in attrs), tag
    policy = next(a["content"] for _, a in page.tags if a.get("http-equiv"))
    assert policy is not None
    assert policy.startswith("default-src 'none'; ")
    ours = [code for code in page.scripts if len(code) < 100_000]  # the policy holds Vega
    assert len(ours) == len(page.scripts) - 1
    found = re.findall(
        r"url\(|@import|fetch\(|XMLHttpRequest|import\(|eval\(|https?:", "".join(ours)
    )
    assert found == []


def test_only_what_is_asked_for_is_there_and_the_first_choice_is_of_it(tmp_path: Path) -> None:
    own = network_file(tmp_path / "<b>small.json", LAYERS)
    models = f"fc:layers=4,nodes=64,{own},deep_mnist"
    text, data = explored(tmp_path, "--models", models, "--devices", "k80,V100")
    assert names(data, "models") == ["fc:layers=4,nodes=64", own, "deep_mnist"]
    assert names(data, "devices") == ["v100-sxm2-16gb", "K80"]
    assert data["aliases"] == {"V100": "v100-sxm2-16gb"}
    assert data["start"]["network"] == "fc:layers=4,nodes=64"
    assert data["start"]["device"] == "v100-sxm2-16gb"
    assert "<b>" not in text


def cell(found: dict[str, Any], method: str, name: str, device: int = 0) -> list[float]:
    """Return the times of a cell: those of forward, of backward, and of the update."""
    planes, count = found["times"], found["numbers"]
    numbers = array("f", bytes(planes[(at % 4) * count + at // 4] for at in range(4 * count)))
    table = found["models"][0]["steps"][method][name]
    start, update = table["at"][device], table["update"][device]
    return [*numbers[start : start + 2 * len(BATCHES)], numbers[update]]


def test_times_are_those_of_the_step_model_at_every_listed_batch(tmp_path: Path) -> None:
    device = catalog.device("V100")
    found = exported(["deep_mnist"], {"V100": device}, [], {})
    for method, cells in METHODS.items():
        for dtype, optimizer in cells:
            name = f"{dtype} {optimizer}"
            table = found["models"][0]["steps"][method][name]
            if dtype.startswith("bfloat16"):
                assert table["at"] == [-1]  # V100 has no peak for it
                continue
            model = StepModel("deep_mnist", device, None, method, None, dtype, optimizer)
            times = cell(found, method, name)
            for place, batch in enumerate(BATCHES):
                timeline = model.timeline(batch)
                assert times[place] == pytest.approx(timeline.forward_s, rel=6.2e-5)
                assert times[len(BATCHES) + place] == pytest.approx(timeline.backward_s, rel=6.2e-5)
            assert times[-1] == pytest.approx(model.timeline(1).update_s, rel=6.2e-5)
            assert 0 <= table["best"][0] < len(BATCHES)
            assert table["gradient_bytes"] == model.gradient_bytes
            assert table["parameters"] == model.parameters
            memory = found["models"][0]["memory"][name]
            assert memory[6] == model.predict(64).peak_memory_bytes


def test_both_16_bit_types_are_one_where_their_peaks_are() -> None:
    asked = {name: catalog.device(name) for name in ("A100", "P100")}
    found = exported(["nin"], asked, [], {})
    cells = found["models"][0]["steps"]["analytic"]
    places = [cells[f"{dtype} adam"]["at"] for dtype in ("bfloat16-mixed", "float16-mixed")]
    assert places[0][0] == places[1][0] >= 0
    assert [device["name"] for device in found["devices"]][1] == "p100-pcie-16gb"
    assert (places[0][1], places[1][1] >= 0) == (-1, True)
    model = StepModel("nin", "A100", None, "analytic", None, "float16-mixed", "adam")
    assert cell(found, "analytic", "float16-mixed adam")[6] == pytest.approx(
        model.timeline(64).forward_s, rel=6.2e-5
    )


def test_an_exchange_is_coefficients_by_hand() -> None:
    ring = COLLECTIVES["ring"]
    # 6 messages of a quarter; three quarters are added up, each byte 3 times moved
    assert coefficients(ring, 4, (False, 8, 1, 1), METHOD.links) == [6, 0, 2.25, 1.5, 0]
    # two nodes of two: 2 messages cross, all go at the pace of the slowest link
    assert coefficients(ring, 4, (True, 2, 1, 1), METHOD.links) == [2, 4, 2.25, 1.5, 0, 0, 1.5]


@pytest.mark.parametrize("name", COLLECTIVES)
def test_coefficients_give_every_exchange(name: str) -> None:
    between, inside = catalog.link("infiniband-hdr"), catalog.link("nvlink-3")
    between, inside = replace(between, latency_s=3e-6), replace(inside, latency_s=1e-6)
    size, memory = 1e8, 2e12
    for layout in ((False, GROUP, 1, 1), (True, 8, 1, 4), (True, 4, 8, 1), (False, 2, 4, 2)):
        has_inside, per_node, links, servers = layout
        fabric = Fabric(between, inside if has_inside else None, per_node, links, servers)
        for n in REPLICAS:
            far, near, added, *moved = coefficients(COLLECTIVES[name], n, layout, METHOD.links)
            slowest = max(
                a / between.bytes_per_s + b / inside.bytes_per_s
                for a, b in zip(moved[::2], moved[1::2], strict=True)
            )
            ours = far * 3e-6 + near * 1e-6 + size * slowest / 0.8 + size * added / memory
            exact = COLLECTIVES[name](size, n, fabric_of(fabric, 0.8, memory))
            assert ours == pytest.approx(exact, rel=1e-12), (layout, n)


def test_a_collective_of_another_form_is_refused() -> None:
    with pytest.raises(ValueError, match="neither a sum nor the slowest"):
        coefficients(
            lambda size, n, fabric: (
                size * (fabric.between.bytes_per_s**-2 + fabric.inside_message_s(1.0))
            ),
            4,
            (True, 2, 1, 1),
            METHOD.links,
        )


def test_what_only_one_method_can_predict_is_left_out_of_the_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, data = explored(tmp_path, "--models", "alexnet", "--devices", "K80")
    assert list(data["models"][0]["steps"]) == ["calibrated", "analytic"]
    assert data["left_out"][0]["method"] == "paleo"
    assert "left out: alexnet with paleo: paleo: layer 'conv1/" in capsys.readouterr().err


def test_what_is_being_computed_is_told() -> None:
    told: list[tuple[str, int, int]] = []
    with listening(lambda *one: told.append(one)):
        exported(["nin", "fc"], {"K80": catalog.device("K80")}, [], {})
    assert told == [("nin", 1, 2), ("fc", 2, 2)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--models", "resnet51"], "unknown model 'resnet51'"),
        (["--models", "nin,nin"], "'nin' is given twice"),
        (["--models", "nin,,vgg16"], "'nin,,vgg16' has an empty name"),
        (["--models", "fc:layers=4,batch=3"], "the batch is chosen in the page, leave it out"),
        (["--models", "no/such.json"], "no/such.json"),
        (["--devices", "K8O"], "unknown device 'K8O'; did you mean 'k80'?"),
        (["--devices", "V100,v100-sxm2-16gb"], "'v100-sxm2-16gb' is given twice"),
        (["--devices", ""], "unknown device ''"),
        (["-o", "explore.txt"], "explore.txt: the page is one .html file, not '.txt'"),
        (["-o", "no/such/explore.html"], "is in a folder that does not exist"),
    ],
)
def test_bad_input_is_one_line_and_leaves_no_file(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    known = [] if "--models" in arguments else ["--models", "deep_mnist"]
    assert run(["explore", *known, *arguments]) == 2
    answer = capsys.readouterr()
    assert answer.out == ""
    assert answer.err.count("\n") == 1
    assert message in answer.err
    assert list(tmp_path.iterdir()) == []


def test_a_page_is_written_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "explore.html"
    path.write_text("the page before")

    def full(self: Path, content: bytes) -> int:
        raise OSError(28, "No space left on device", str(self))

    monkeypatch.setattr(Path, "write_bytes", full)
    assert run(["explore", "--models", "deep_mnist", "--devices", "K80", "-o", str(path)]) == 1
    assert "No space left on device" in capsys.readouterr().err
    assert path.read_text() == "the page before"
    assert [one.name for one in tmp_path.iterdir()] == ["explore.html"]
