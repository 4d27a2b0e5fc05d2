"""The page of `choose`: one file, nothing fetched, its rows are what `scale` answers."""

import json
import re
from typing import Any

import pytest

from page_data import data_of
from steptime.cli.main import run

NETWORKS = "fc:layers=2,nodes=256,resnet50"
WORDS = f"choose {NETWORKS} --device a100,t4 --batch 4,64 --link nvlink-3,ethernet-10"
HOW = "--replicas 1,8 --examples 1000 --epochs 2 --dtype float16 --optimizer adam"


def rows_of(data: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of a page with the values of their axes."""
    columns, axes = data["rows"], data["axes"]
    return [
        {
            name: axes[name][one] if name in axes else one
            for name, one in zip(columns, row, strict=True)
        }
        for row in zip(*columns.values(), strict=True)
    ]


def test_a_row_is_what_scale_answers(tmp_path, capsys):
    page = tmp_path / "page.html"
    assert run([*WORDS.split(), *HOW.split(), "--page", str(page), "--json"]) == 0
    told, data = json.loads(capsys.readouterr().out), data_of(page)
    assert told["model"] == data["axes"]["model"] == ["fc:layers=2,nodes=256", "resnet50"]
    rows = rows_of(data)
    assert told["row_count"] == len(rows) == 2 * 2 * 2 * 2 * (2 + 1)  # and the best of both batches
    wanted = {
        "model": "resnet50", "device": "t4", "batch": "64", "link": "ethernet-10", "replicas": "8",
    }  # fmt: skip
    (row,) = [one for one in rows if wanted.items() <= one.items()]
    command = "scale resnet50 --device t4 --batch 64 --link ethernet-10 --replicas 8"
    command += " --dtype float16"
    assert run([*command.split(), *data["words"], "--json"]) == 0
    (answer,) = json.loads(capsys.readouterr().out)["rows"]
    for name in ("step_s", "low_s", "high_s", "forward_s", "speedup", "examples_per_s"):
        assert row[name] == pytest.approx(answer[name], rel=1e-5)
    assert row["train_h"] == pytest.approx(answer["train_s"] / 3600, rel=1e-5)
    assert row["communication_s"] == pytest.approx(answer["exposed_communication_s"], rel=1e-5)
    text = page.read_text("utf-8")
    assert not re.search(r"""(src|href)=["']?https?:""", text)
    assert page.stat().st_size < 700_000  # most of it Vega


def test_the_best_batch_of_each_device_has_ninety_percent_of_the_best_speed(tmp_path):
    page = tmp_path / "page.html"
    words = "choose resnet50 --device a100,t4,v100 --batch 1,2,4,8,16,32 --link nvlink-3"
    assert run([*words.split(), "--replicas", "1", "--page", str(page)]) == 0
    rows = rows_of(data_of(page))
    for device in {row["device"] for row in rows}:
        own = [row for row in rows if row["device"] == device and row["status"] == "ok"]
        most = max(row["examples_per_s"] for row in own)
        near = [row["examples"] for row in own if row["examples_per_s"] >= 0.9 * most]
        (best,) = [row for row in own if row["batch"] == "best"]
        assert best["examples"] == min(near)


def test_what_does_not_fit_has_no_best_batch(tmp_path):
    page = tmp_path / "page.html"
    words = "choose resnet50 --device t4,a100 --batch 512 --link nvlink-3 --replicas 1,2"
    assert run([*words.split(), "--page", str(page)]) == 0
    rows = rows_of(data_of(page))
    assert {row["status"] for row in rows if row["device"] == "t4"} == {"oom"}
    assert {row["device"] for row in rows if row["batch"] == "best"} == {"a100-sxm4-80gb"}


@pytest.mark.parametrize(
    ("devices", "link"),
    [("rtx-4090", "pcie-4-x16-host"), ("h100,rtx-4090", "nvlink-4"), ("a100,h100,t4", "nvlink-3")],
)
def test_a_page_opens_with_a_link_that_its_device_has(devices, link, tmp_path):
    page = tmp_path / "page.html"
    words = f"choose fc --device {devices} --batch 8 --replicas 1,2 --page {page}"
    assert run(words.split()) == 0
    data = data_of(page)
    assert data["start"]["link"] == link
    assert data["axes"]["link"][-2:] == ["infiniband-ndr", "ethernet-25"]


def test_each_precision_of_a_list_is_a_choice(tmp_path, capsys):
    page = tmp_path / "page.html"
    words = "choose resnet50 --device a100,t4 --batch 8 --link nvlink-3 --replicas 1 --json"
    assert run([*words.split(), "--dtype", "float32,fp16", "--page", str(page)]) == 0
    assert json.loads(capsys.readouterr().out)["dtype"] == ["float32", "fp16"]
    data = data_of(page)
    for row in rows_of(data):
        command = f"scale resnet50 --device {row['device']} --batch 8 --link nvlink-3 --replicas 1"
        assert run([*command.split(), *data["words"], "--dtype", row["dtype"], "--json"]) == 0
        (answer,) = json.loads(capsys.readouterr().out)["rows"]
        assert row["step_s"] == pytest.approx(answer["step_s"], rel=1e-5)
        assert row["precision"] == {"float32": "float32", "fp16": "float16"}[row["dtype"]]
        assert row["needed_bytes"] <= data["usable"][row["device"]]


@pytest.mark.parametrize(
    ("dtypes", "words"),
    [("float32,flot16", "did you mean 'float16'?"), ("float32,float32", "is given twice")],
)
def test_a_wrong_list_of_precisions_is_refused(tmp_path, capsys, dtypes, words):
    page = tmp_path / "page.html"
    assert (
        run(["choose", "resnet50", "--device", "t4", "--dtype", dtypes, "--page", str(page)]) == 2
    )
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert words in error
    assert not page.exists()
