"""Importing and the table as a user sees them."""

from __future__ import annotations

import csv
import fcntl
import io
import json
import threading
from pathlib import Path
from typing import Any

import pytest

import synthetic
from psc_log_text import psc_log
from steptime.analysis.device_row import DEVICE_COLUMNS
from steptime.build import make_workload, read_model
from steptime.cli.main import run
from steptime.core.copying import replace
from steptime.core.workload import Plan
from steptime.questions.import_ import import_
from steptime.records import store
from steptime.records.readers import read_path
from steptime.records.record import Quantity, Record, RecordMethod
from steptime.reports.charts import draw
from told import device_bars, device_rows, row_of


@pytest.fixture
def logs(tmp_path):
    folder = tmp_path / "logs"
    (folder / "old").mkdir(parents=True)
    for name, text in {
        "2018-06-05-k80:1:local": psc_log(1, local=True),
        "old/2018-06-05-k80:1:local": psc_log(1, local=True),
        "2018-06-05-k80:2:scratch": psc_log(2, gpus=2, step_s=None),
        "README": "of no format\n",
    }.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def _json(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert run([*words]) == 0
    return json.loads(capsys.readouterr().out)


def test_two_imports_of_one_source_at_once_write_it_once(logs, tmp_path, monkeypatch):
    """The second comes when the first has looked what is there, and has written nothing yet."""
    out, arrived = tmp_path / "out", threading.Event()
    load, flock, second = store.load, fcntl.flock, []

    def beside() -> None:
        try:
            second.append(import_([logs], out=out).to_dict())
        finally:
            arrived.set()

    def told(descriptor: int, operation: int) -> None:
        if threading.current_thread() is other:
            arrived.set()
        flock(descriptor, operation)

    def loaded(*folder: Any, **options: Any) -> list[Record]:
        found = load(*folder, **options)
        if threading.current_thread() is not other:
            other.start()
            arrived.wait()
        return found

    other = threading.Thread(target=beside)
    monkeypatch.setattr(fcntl, "flock", told)
    monkeypatch.setattr(store, "load", loaded)
    first = import_([logs], out=out).to_dict()
    other.join()
    assert (first["records"], second[0]["records"], second[0]["skipped_records"]) == (3, 0, 3)
    assert len(load(out, pytest.fail)) == 3
    assert {one.suffix for one in out.iterdir()} == {".jsonl"}


def test_importing_twice_adds_nothing(logs, tmp_path, capsys):
    out = str(tmp_path / "out")
    first = _json(capsys, "import", str(logs), "--out", out, "--json")
    assert first == {
        "out": out,
        "files": 4,
        "records": 3,
        "skipped_records": 0,
        "rows": [{"format": "psc-log", "files": 3}],
        "unread": [
            {"file": "README", "line": None,
             "reason": "no known format: begins with 'of no format'"}
        ],
        "duplicates": [
            {"file": "2018-06-05-k80:1:local", "duplicate_of": "old/2018-06-05-k80:1:local"}
        ],
        "headline": [f"3 records of 4 files written to {out}"],
        "notes": [
            "1 file with the content of another (duplicate_of)",
            "not read: README: no known format: begins with 'of no format'",
        ],
    }  # fmt: skip
    before = sorted(path.name for path in Path(out).iterdir())
    (logs / "2018-06-06-k80:1").write_text(psc_log(3), encoding="utf-8")
    again = _json(capsys, "import", str(logs), "--out", out, "--json")
    assert (again["records"], again["skipped_records"]) == (1, 3)
    assert run(["import", str(logs), "--out", out]) == 0
    printed = capsys.readouterr()
    assert printed.out.splitlines() == [
        " format   files",
        " psc-log      4",
        f"0 records of 5 files written to {out}",
    ]
    assert printed.err.splitlines() == [
        "note: 4 records there already, not written again",
        "note: 1 file with the content of another (duplicate_of)",
        "note: not read: README: no known format: begins with 'of no format'",
    ]
    assert len(list(Path(out).iterdir())) == len(before) + 1
    assert len(store.load(Path(out), pytest.fail)) == 4


def test_a_handful_of_what_is_not_read_is_shown(logs, tmp_path, capsys):
    for number in range(20):
        (logs / f"x{number}").write_text("x", encoding="utf-8")
    assert run(["import", str(logs), "--out", str(tmp_path / "out")]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 10
    assert lines[-1] == "note: not read: 13 more, all in --json"


def test_forms_of_the_table(logs, tmp_path, capsys):
    out = str(tmp_path / "out")
    assert run(["import", str(logs), "--out", out]) == 0
    capsys.readouterr()
    rows = _json(capsys, "analyse", "table", out, "--format", "json")["rows"]
    assert [row["status"] for row in rows] == ["ok", "ok", "failed"]
    assert list(rows[0]) == list(DEVICE_COLUMNS)
    assert run(["analyse", "table", out, "--format", "csv"]) == 0
    read = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert list(read[0]) == list(DEVICE_COLUMNS)
    assert [row["mean_speed"] for row in read] == ["5000.0", "5000.0", ""]
    assert read[0]["staged_from"] == "$LOCAL"
    for form, start in (("markdown", "| mean_speed | "), ("text", " mean_speed")):
        assert run(["analyse", "table", out, "--format", form]) == 0
        assert capsys.readouterr().out.startswith(start)


def test_the_table_of_measurements_is_by_the_formulas_of_the_seed():
    record = synthetic.measured(synthetic.workloads()[0])
    (row,) = device_rows([record, *synthetic.predicted(record.workload)])
    told = row_of(record)
    assert row["mean_speed"] == row["mean_speed_corrected"] == told["examples_per_s"]
    assert row["speed_uncertainty"] == told["examples_uncertainty_per_s"]
    assert row["Speed_Jitter"] == told["examples_jitter_per_s"]
    assert row["Mean_Time_Per_Step"] == told["step_s_mean"]
    assert (row["gpu_type"], row["num_gpu"]) == (record.platform, 1)
    assert row["staged_from"] is None
    (bar,) = device_bars([record])
    assert bar["low"] <= bar["speed"] <= bar["high"]
    assert bar["interval"] == "95 %"


def _sweep_of_devices() -> list[Record]:
    """Return measurements of 1, 2 and 4 devices, twice each, from the cluster's disk and a copy."""
    records = []
    for replicas in (1, 2, 4):
        for staging in ({}, {"staging": "local"}):
            for visit in (0, 1):
                options = {"gpu": "v100", "input": "dataset", "strategy": "allreduce", **staging}
                workload = make_workload(read_model("deep_mnist"), batch=64, replicas=replicas)
                samples = tuple(0.01 * (1 + 0.01 * (i % 3) + 0.05 * visit) for i in range(9))
                records.append(
                    Record(
                        "measured",
                        RecordMethod("torch", "2.13.0", options),
                        workload,
                        "v100-sxm2-16gb",
                        {"step_s": Quantity(samples=samples)},
                        env={"round": visit},
                    )
                )
    return records


def test_a_sweep_of_devices_has_its_columns():
    rows = device_rows(_sweep_of_devices())
    assert {(row["num_gpu"], row["staged_from"]) for row in rows} == {
        (number, staged) for number in (1, 2, 4) for staged in ("$LOCAL", "$SCRATCH")
    }
    assert {row["gpu_type"] for row in rows} == {"v100"}
    four = next(row for row in rows if row["num_gpu"] == 4)
    assert four["global_batch"] == 256
    assert four["mean_speed"] == pytest.approx(256 / four["Mean_Time_Per_Step"])


def test_rows_stand_by_number_of_devices_and_staging_however_they_were_recorded():
    records = _sweep_of_devices()
    places = [(number, staged) for number in (1, 2, 4) for staged in ("$LOCAL", "$SCRATCH")]
    for mixed in (records, records[::-1], records[1::2] + records[::2]):
        rows = device_rows(mixed)
        assert [(row["num_gpu"], row["staged_from"]) for row in rows[::2]] == places
    assert rows[0]["prefetch"] is None


def test_bars_show_every_run():
    spec = draw("devices", _sweep_of_devices())
    text = json.dumps(spec)
    assert text.count('"run": "2 of 2"') >= 6
    assert "allreduce" in text
    assert any("95 % interval" in line for line in spec["title"]["subtitle"])


def _mixed() -> list[Record]:
    """Return 12 measurements of one network and batch that differ in all that is not the place."""
    found = []
    for method in ("torch", "numpy"):
        for phase, optimizer in (("train", "sgd"), ("train", "adam"), ("infer", "sgd")):
            for options in ({}, {"input": "dataset", "staging": "local"}, {"threads": 2}):
                workload = make_workload(
                    read_model("deep_mnist"), batch=64, phase=phase, optimizer=optimizer
                )
                step = Quantity(samples=(0.01, 0.011, 0.012))
                plain = {"threads": 1, "runs": len(found)}
                made = RecordMethod(method, "1", {**plain, **options})
                found.append(Record("measured", made, workload, "t4", {"step_s": step}))
    return found


def _ways(spec: dict[str, Any]) -> set[str]:
    return {row["how"] for row in spec["data"]["values"]}


def test_what_was_measured_otherwise_is_another_bar():
    spec = draw("devices", _mixed())
    assert json.dumps(spec).count('"run": "1 of 1"') == 18
    texts = {way.removesuffix(", batch 64") for way in _ways(spec)}
    assert {"train, sgd, torch, threads 1", "infer, numpy, threads 2"} <= texts
    assert "train, adam, numpy, threads 1" in texts  # the shape tells $LOCAL from no file
    assert not any("dataset" in text for text in texts)
    assert not any("float32" in text or "runs" in text for text in texts)


def test_a_row_of_bars_bears_the_name_of_its_network_alone():
    other = make_workload(read_model("fc:layers=2,nodes=64"), batch=64, phase="infer")
    spec = draw("devices", [*_mixed(), synthetic.measured(other)])
    rows = spec["data"]["values"]
    assert {row["network"] for row in rows} == {"deep_mnist", "fc"}
    assert {row["panel"].partition("|")[0] for row in rows} == {"deep_mnist", "fc"}


def test_other_numbers_of_replicas_are_other_bars():
    some = _sweep_of_devices()[-1]
    options = {**some.method.options, "device_count": 8}
    held = replace(some, method=replace(some.method, options=options))
    eight = replace(held, workload=replace(held.workload, plan=Plan(data=8)))
    sixteen = replace(held, workload=replace(held.workload, plan=Plan(data=16)))
    texts = _ways(draw("devices", [held, eight, sixteen]))
    ways = {text.removesuffix(", batch 64 each") for text in texts}
    assert ways == {"allreduce, 4 of them work", "allreduce", "allreduce, 16 replicas"}


def test_columns_that_differ_are_in_the_table(tmp_path, capsys):
    with store.open_writer(tmp_path / "out") as writer:
        writer.append_all(_mixed())
    rows = _json(capsys, "analyse", "table", str(tmp_path / "out"), "--format", "json")["rows"]
    seen = {(r["method"], r["phase"], r["optimizer"], r["input"], r["loaders"]) for r in rows}
    assert ("torch", "train", "adam", "dataset", 0) in seen
    assert ("numpy", "infer", "none", "device", None) in seen
    for form in ("text", "markdown"):
        assert run(["analyse", "table", str(tmp_path / "out"), "--format", form]) == 0
        (head, *_) = capsys.readouterr().out.splitlines()
        assert {"phase", "optimizer", "method", "input", "loaders"} <= set(head.split())
    with store.open_writer(tmp_path / "one") as writer:
        writer.append_all(_mixed()[:1])
    assert run(["analyse", "table", str(tmp_path / "one")]) == 0
    printed = capsys.readouterr()
    assert not {"phase", "optimizer", "method", "input", "loaders"} & set(printed.out.split())
    assert printed.out.endswith("1 row\n")


def test_a_table_without_rows_is_no_empty_folder(tmp_path, capsys):
    (tmp_path / "t.csv").write_text("a,b\n", encoding="utf-8")
    (tmp_path / "none").mkdir()
    (tmp_path / "m.toml").write_text(
        'name = "m"\nsource = "s"\nmodel = "deep_mnist"\nplatform = "t4"\nbatch = "{a}"\n'
        'quantities = {step_s = {column = "b"}}\n',
        encoding="utf-8",
    )
    for name, said in (
        ("t.csv", "no row fits the mapping; line 1, 'a,b', names the columns"),
        ("none", "an empty folder"),
    ):
        words = ["import", str(tmp_path / name), "--mapping", str(tmp_path / "m.toml")]
        assert run([*words, "--out", str(tmp_path / "out")]) == 2
        assert said in capsys.readouterr().err


def test_one_strategy_is_one_group_of_bars(tmp_path):
    for gpus in (1, 2, 4):
        text = psc_log(
            gpus, gpus=gpus, program="CNN_MNIST_INDEPENDENT.py", placed=tuple(range(gpus)),
            step_s=0.1, speed=5120.0,
        )  # fmt: skip
        (tmp_path / f"slurm-{gpus}.out").write_text(text, encoding="utf-8")
    spec = draw("devices", read_path(tmp_path).records)
    (way,) = _ways(spec)
    assert way == "independent, batch 512 each"
    assert {row["devices"] for row in spec["data"]["values"]} == {1, 2, 4}


def test_many_networks_are_drawn_in_part():
    records = [
        synthetic.measured(make_workload(read_model(f"fc:layers=4,nodes={32 + i}"), batch=64))
        for i in range(80)
    ]
    spec = draw("devices", records)
    assert "Not shown: 20 more; --model chooses." in spec["title"]["subtitle"]
    assert len({row["panel"] for row in spec["data"]["values"]}) == 60


def test_several_paths_are_one_import_and_a_path_twice_is_one(logs, tmp_path, capsys):
    files = [str(logs / "2018-06-05-k80:1:local"), str(logs / "2018-06-05-k80:2:scratch")]
    out = str(tmp_path / "out")
    found = _json(capsys, "import", *files, files[0], "--out", out, "--json")
    assert (found["files"], found["records"], found["duplicates"]) == (2, 2, [])
    found = _json(capsys, "import", str(logs), *files, "--out", out, "--json")
    assert found["skipped_records"] + found["records"] == 5
    assert run(["import", *files, str(tmp_path / "absent"), "--out", out]) == 2
    assert "absent: no such file or folder" in capsys.readouterr().err
