"""The page to explore: one file, nothing fetched, all that is asked for, whole or not at all."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from steptime import catalog
from steptime.cli.main import run
from steptime.core.errors import InputError
from steptime.models import FAMILIES, ZOO
from steptime.predict.export import exported

LAYERS = {
    "data": {"parents": [], "type": "Input", "tensor": [8, 4, 4, 3]},
    "fc": {"parents": ["data"], "type": "InnerProduct", "num_outputs": 10},
    "softmax": {"parents": ["fc"], "type": "Softmax", "num_classes": 10},
}


class Page(HTMLParser):
    """Tags with their attributes, the text of scripts and styles, and JSON by its id."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.code = ""
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
            self.code += data


def explored(folder: Path, *arguments: str) -> tuple[str, dict[str, Any]]:
    """Give the text of a page and the data in it."""
    path = folder / "explore.html"
    assert run(["explore", "-o", str(path), *arguments]) == 0
    text = path.read_text()
    data: dict[str, Any] = json.loads(Page(text).json["data"])
    return text, data


def names(data: dict[str, Any], kind: str) -> list[str]:
    return [one["name"] for one in data[kind]]


def network_file(path: Path, layers: dict[str, Any]) -> str:
    path.write_text(json.dumps({"name": "small", "layers": layers}))
    return str(path)


@pytest.mark.slow
def test_by_default_every_network_device_and_link_is_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, data = explored(tmp_path, "--json")
    document = json.loads(capsys.readouterr().out)
    assert set(document) == {"path", "models", "devices", "links", "left_out"}
    assert names(data, "models") == document["models"] == [*ZOO, *FAMILIES]
    assert names(data, "devices") == document["devices"]
    assert sorted(document["devices"], key=str.lower) == sorted(
        (device.name for device in catalog.devices()), key=str.lower
    )
    assert [name.lower() for name in document["links"]] == catalog.link_names()
    assert names(data, "links") == document["links"]
    assert len(text) < 1_000_000
    for one in document["left_out"]:
        assert set(one) == {"model", "method", "reason"}
        model = next(model for model in data["models"] if model["name"] == one["model"])
        assert one["method"] not in model["work"]
        assert model["left_out"][one["method"]] == one["reason"]


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
    assert re.findall(r"url\(|@import|fetch\(|XMLHttpRequest|import\(|eval\(", page.code) == []
    assert set(re.findall(r"https?://[^\s\"']+", page.code)) == {"http://www.w3.org/2000/svg"}


def test_only_what_is_asked_for_is_there_and_the_first_choice_is_of_it(tmp_path: Path) -> None:
    own = network_file(tmp_path / "<b>small.json", LAYERS)
    models = f"fc:layers=4,nodes=64,{own},deep_mnist"
    text, data = explored(tmp_path, "--models", models, "--devices", "k80,V100")
    assert names(data, "models") == ["fc:layers=4,nodes=64", own, "deep_mnist"]
    assert names(data, "devices") == ["K80", "v100-sxm2-16gb"]
    assert data["aliases"] == {"V100": "v100-sxm2-16gb"}
    assert data["start"]["network"] == "fc:layers=4,nodes=64"
    assert data["start"]["device"] == "v100-sxm2-16gb"
    assert "<b>" not in text


def test_work_is_lines_in_the_batch(tmp_path: Path) -> None:
    own = network_file(tmp_path / "small.json", LAYERS)
    found = exported([own], {"K80": catalog.device("K80")}, [catalog.link("pcie3")], {})
    work = found["models"][0]["work"]["paleo"]["float32"]
    forward, backward, update = work["parts"]
    inputs, outputs = 4 * 4 * 3, 10
    weights = inputs * outputs
    product = 2 * weights  # FLOP an example
    kernel = [0, product, 0, 4 * inputs, 4 * weights, 0, 0, 4 * outputs]
    assert forward == [[1, kernel]]  # once: FLOP, bytes of the input, the weights, the output
    assert sum(times for times, *_ in backward) == 2  # the gradients of input and weights
    assert all(one[1] == product for _, *group in backward for one in group)
    parameters = weights + outputs
    assert work["parameters"] == parameters
    assert work["gradient_bytes"] == 4 * parameters
    assert update == [[1, [2 * parameters, 0, *(3 * [4 * parameters, 0])]]]
    flop, bytes_per_s, cycle, launch, issue = found["devices"][0]["rates"]["paleo"]["float32"]
    assert (flop, launch, issue) == (5600e9, 0, None)
    assert bytes_per_s == pytest.approx(480 * 2**30)
    assert cycle == pytest.approx(1 / 560e6)
    assert found["links"][0]["bytes_per_s"] == 128e9 / 8


def test_half_the_bytes_are_of_a_half_the_size(tmp_path: Path) -> None:
    own = network_file(tmp_path / "small.json", LAYERS)
    found = exported([own], {"V100": catalog.device("V100")}, [], {})
    assert found["dtypes"] == {
        "float32": "float32",
        "bfloat16": "bfloat16",
        "float16": "bfloat16",
    }
    work = found["models"][0]["work"]["analytic"]
    assert work["float32"]["gradient_bytes"] == 2 * work["bfloat16"]["gradient_bytes"]
    assert set(found["devices"][0]["rates"]["analytic"]) == {"float32", "float16"}


def test_what_only_one_method_can_predict_is_left_out_of_the_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, data = explored(tmp_path, "--models", "alexnet", "--devices", "K80")
    assert list(data["models"][0]["work"]) == ["analytic"]
    assert data["left_out"][0]["method"] == "paleo"
    assert "left out: alexnet with paleo: paleo: layer 'conv1/" in capsys.readouterr().err


def test_a_network_whose_work_is_no_line_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("steptime.predict.export.lines", lambda *_: None)
    with pytest.raises(InputError, match="'nin': its work does not grow in proportion to the"):
        exported(["nin"], {"K80": catalog.device("K80")}, [], {})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--models", "resnet51"], "unknown model 'resnet51'; did you mean 'resnet50'?"),
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
