"""Predictions of all networks of a folder: own and published ones, once each."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from steptime.build import make_workload, read_model
from steptime.cli.main import run
from steptime.records import store
from steptime.records.record import Quantity, Record, RecordMethod

FC = "fc:layers=1,nodes=64,inputs=32,outputs=8"


def told(origin: str, batch: int, platform: str = "t4", step_s: float = 1e-3) -> Record:
    workload = make_workload(read_model(FC), batch)
    return Record(
        origin, RecordMethod("others", "1"), workload, platform, {"step_s": Quantity(step_s)}
    )


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "records"
    with store.open_writer(path) as writer:
        writer.append_all([
            told("published", 8), told("published", 8, step_s=2e-3), told("measured", 16),
            told("published", 4, platform="a machine of theirs"),
        ])  # fmt: skip
    return path


def predicted(folder: Path) -> list[tuple[int, str, str]]:
    return sorted(
        (r.workload.batch_per_replica, r.platform, r.method.name)
        for r in store.load(folder, pytest.fail)
        if r.origin == "predicted" and not r.scope
    )


def test_each_step_is_predicted_once_on_its_own_device(folder, capsys):
    words = ["predict", "--in", str(folder), "--method", "analytic", "--json"]
    assert run(words) == 0
    first = json.loads(capsys.readouterr().out)
    assert (first["added"], first["present"]) == (2, 0)
    unknown = "no device file has the name of platform 'a machine of theirs'"
    assert first["refused"] == [{"reason": unknown, "steps": 1}]
    assert predicted(folder) == [(8, "t4", "analytic"), (16, "t4", "analytic")]
    assert run(words) == 0
    again = json.loads(capsys.readouterr().out)
    assert (again["added"], again["present"]) == (0, 2)
    assert run([*words[:-2], "roofline", "--by-op"]) == 0
    assert "2 predictions written" in capsys.readouterr().out
    assert len(predicted(folder)) == 4


def test_a_price_of_ones_own_predicts_a_folder(folder, tmp_path):
    (tmp_path / "mine.py").write_text("def model(kernel, device):\n    return 1.0\n")
    method = f"{tmp_path}/mine.py:model"
    assert run(["predict", "--in", str(folder), "--method", method]) == 0
    assert predicted(folder) == [(8, "t4", method), (16, "t4", method)]


def test_ops_come_beside_a_step_that_is_there(folder, capsys):
    def ops() -> int:
        return sum(bool(record.scope) for record in store.load(folder, pytest.fail))

    words = ["predict", "--in", str(folder), "--method", "analytic"]
    assert run(words) == 0
    steps, before = predicted(folder), ops()
    assert run([*words, "--by-op"]) == 0
    assert "2 predictions written" in capsys.readouterr().out.splitlines()[-1]
    added = ops()
    assert added > before
    assert predicted(folder) == steps
    assert run([*words, "--by-op"]) == 0
    assert "0 predictions written" in capsys.readouterr().out
    assert ops() == added


def test_what_a_kill_left_of_the_ops_of_a_step_is_not_predicted_again(folder):
    words = ["predict", "--in", str(folder), "--method", "analytic", "--by-op"]
    assert run(words) == 0
    last = max(folder.glob("*.jsonl"))
    whole = last.read_text().splitlines()
    last.write_text("\n".join(whole[:-3]) + "\n" + whole[-3][:99])  # its step and two ops are gone
    assert run(words) == 0
    records = store.load(folder, lambda _: None)
    parts = [(store.final_key(one), one.scope) for one in records if one.origin == "predicted"]
    assert len(parts) == len({*parts}) == len(whole)


def test_on_devices_that_are_named(folder, capsys):
    assert run(["predict", "--in", str(folder), "--device", "t4,RTX 4090"]) == 0
    assert "6 predictions written" in capsys.readouterr().out
    assert {platform for _, platform, _ in predicted(folder)} == {"t4", "rtx-4090"}
    assert run(["predict", "--in", str(folder), "--device", "tpu-v2"]) == 0
    said = capsys.readouterr()
    assert "0 predictions written" in said.out
    assert "3 not predicted: device 'tpu-v2': no peak is known for float32" in said.err


def test_what_reads_the_folder_sees_published_beside_predicted(folder, capsys):
    assert run(["compare", str(folder)]) == 0
    assert "nothing to compare" in capsys.readouterr().err
    assert run(["predict", "--in", str(folder), "--method", "analytic"]) == 0
    capsys.readouterr()
    assert run(["compare", str(folder), "--json"]) == 0
    pairs = json.loads(capsys.readouterr().out)["rows"]
    assert [pair["b"]["value"] for pair in pairs] == [1.5e-3, 1e-3]  # the median of repeats
    assert all(pair["ratio"] == pair["b"]["value"] / pair["a"]["value"] for pair in pairs)
    assert run(["analyse", "results", str(folder), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert {row["measured_s"] for row in rows} == {1.5e-3, 1e-3}
    assert all(row["peak_fraction"] > 0 for row in rows if row["predicted_by"])
    for picture in ("predicted", "roofline"):
        target = folder.parent / f"{picture}.svg"
        assert run(["analyse", picture, str(folder), "-o", str(target)]) == 0
        assert target.stat().st_size > 1000


def test_replicas_need_a_link(tmp_path, capsys):
    from steptime.core.copying import replace
    from steptime.core.workload import Plan

    two = replace(told("measured", 8).workload, plan=Plan(data=2))
    with store.open_writer(tmp_path) as writer:
        writer.append(replace(told("measured", 8), workload=two))
    assert run(["predict", "--in", str(tmp_path)]) == 0
    assert "1 not predicted: 2 replicas need a link" in capsys.readouterr().err
    assert run(["predict", "--in", str(tmp_path), "--link", "ethernet-25"]) == 0
    assert "1 prediction written" in capsys.readouterr().out
