"""Predictions of a whole space as records, without a measurement: the same as one by one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from every import every
from steptime.cli.main import run
from steptime.prediction.records import records
from steptime.prediction.steps.step_model import StepModel
from steptime.records import store
from steptime.records.record import Record
from steptime.sweeps.workers import Workers

GRID = "fc:layers=1..2x2,nodes=32..64x2,inputs=16,outputs=8"
FILE = """
name = "space"
measure = false
batch = "2..32x2"
predict = ["t4:float16-mixed", "V100"]

[[networks]]
family = "fc"
layers = [1, 2]
nodes = "32..64x2"
inputs = 16
outputs = 8
"""


def held(folder: Path) -> list[Record]:
    return store.load(folder, pytest.fail)


def same(one: Record) -> bool:
    """Return whether the record is that of a prediction by itself, but for rounding."""
    alone = records(StepModel(one.workload, one.platform))[0]
    assert one.quantities.keys() == alone.quantities.keys()
    for name, quantity in one.quantities.items():
        for end in ("value", "low", "high"):
            wanted = getattr(alone.quantities[name], end)
            near = 1e-9 if end == "value" else 1e-3  # bounds of a grid are a little apart
            close = None if wanted is None else pytest.approx(wanted, rel=near)
            assert getattr(quantity, end) == close, (name, end)
    told = ("origin", "method", "platform", "status", "cause", "note", "scope", "env")
    return all(getattr(one, name) == getattr(alone, name) for name in told)


def test_a_grid_into_a_folder_is_what_predictions_say_one_by_one(tmp_path, capsys):
    out = tmp_path / "o"
    line = ["predict", GRID, "--grid", "--batch", "2..32x2", "--out", str(out), "--json"]
    line += ["--device", "t4:float16-mixed,V100:float32"]
    assert run(line) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["added"], document["present"], document["refused"]) == (4 * 5 * 2, 0, [])
    found = held(out)
    assert len({(r.workload.key, r.platform) for r in found}) == 40
    assert {(r.platform, r.workload.dtype) for r in found} == {
        ("t4", "float16-mixed"), ("v100-sxm2-16gb", "float32"),
    }  # fmt: skip
    assert all(same(one) for one in found)
    assert run(line) == 0
    again = json.loads(capsys.readouterr().out)
    assert (again["added"], again["present"]) == (0, 40)


@pytest.mark.parametrize("model", ["deep_mnist", "transformer:layers=1,width=32,heads=2,length=16"])
def test_any_network_at_few_batches_and_at_many(model, tmp_path):
    for name, batches in (("few", "1,2"), ("many", "1..6")):
        out = tmp_path / name
        line = ["predict", model, "--grid", "--batch", batches, "--device", "t4"]
        assert run([*line, "--out", str(out)]) == 0
        found = held(out)
        assert [one.workload.batch_per_replica for one in found] == (
            [1, 2] if name == "few" else list(range(1, 7))
        )
        assert all(same(one) for one in found)


def test_a_sweep_that_only_predicts_starts_no_worker(tmp_path, monkeypatch, capsys):
    def never(*_: object) -> None:
        raise AssertionError("a worker")

    monkeypatch.setattr(Workers, "key", never)
    monkeypatch.setattr(Workers, "get", never)
    file = tmp_path / "e.toml"
    file.write_text(FILE)
    assert run(["sweep", str(file), "--out", str(tmp_path / "o")]) == 0
    assert "40 predictions written" in capsys.readouterr().out
    found = held(tmp_path / "o")
    assert {r.origin for r in found} == {"predicted"}
    assert all(same(one) for one in found)
    assert run(["sweep", str(file), "--out", str(tmp_path / "o"), "--rounds", "2"]) == 2
    assert "--rounds is for measuring" in capsys.readouterr().err


@every(
    ("measure", "line", "said"),
    [
        ("false", 'predict = "V1000"', "predict: unknown device 'V1000'"),
        ("true", 'predict = "V1000"', "predict: unknown device 'V1000'"),
        ("true", 'predict = "t4:float33"', "predict: unknown dtype 'float33'"),
        ("true", 'predict = "t4"\nlink = "nvlnk"', "link: unknown link 'nvlnk'"),
    ],
)
def test_an_unknown_place_of_predictions_is_said_with_its_file(
    measure, line, said, tmp_path, capsys
):
    file = tmp_path / "e.toml"
    networks = '[[networks]]\nfamily = "fc"\n'
    file.write_text(f'name = "e"\nmeasure = {measure}\n{line}\n{networks}')
    dry = ["--launcher", "slurm", "--dry-run"] if measure == "true" else []
    assert run(["sweep", str(file), "--out", str(tmp_path / "o"), *dry]) == 2
    (told,) = capsys.readouterr().err.splitlines()
    assert f"e.toml: {said}" in told
    assert not (tmp_path / "o").exists()


def test_what_does_not_fit_is_a_failure_or_left_out(tmp_path, capsys):
    file = tmp_path / "e.toml"
    text = FILE.replace("inputs = 16", "inputs = 8000").replace('"2..32x2"', "[2, 16777216]")
    file.write_text(text)
    assert run(["sweep", str(file), "--out", str(tmp_path / "all")]) == 0
    failed = [r for r in held(tmp_path / "all") if r.status != "ok"]
    assert {(r.status, r.cause) for r in failed} == {("oom", "predicted-not-to-fit")}
    assert {r.workload.batch_per_replica for r in failed} == {16777216}
    capsys.readouterr()
    assert run(["analyse", "sensitivity", str(tmp_path / "all"), "--platform", "t4", "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)["summary"]
    assert (summary["quantity"], summary["failed"]) == ("predicted_flop_per_s", 4)
    file.write_text(text.replace("measure", "where = 'fits in memory'\nmeasure"))
    assert run(["sweep", str(file), "--out", str(tmp_path / "fitting")]) == 0
    assert all(r.status == "ok" for r in held(tmp_path / "fitting"))
    assert "not predicted: does not fit in memory" in capsys.readouterr().err


def test_a_device_without_a_peak_for_the_dtype_is_said(tmp_path, capsys):
    line = ["predict", "fc", "--grid", "--batch", "8,16", "--device", "tpu-v2-8,t4"]
    line += ["--dtype", "float32"]
    assert run([*line, "--out", str(tmp_path / "o")]) == 0
    assert "2 not predicted: " in (said := capsys.readouterr().err)
    assert "no peak is known for float32" in said
    assert {r.platform for r in held(tmp_path / "o")} == {"t4"}
