"""Commands on records take files in place of folders: .jsonl files, and what `import` reads."""

from __future__ import annotations

import gzip
import json

import pytest

import synthetic
from steptime import analyse, compare
from steptime.cli.main import run
from steptime.core.errors import InputError
from steptime.records import store
from steptime.records.record import record_to_line

MAPPING = """model = "fc:layers={layers},nodes={nodes}"
batch = "{batch}"
device = "{gpu}"
unit = "ms"
seconds = "time_ms"
"""
TIMES_MS = (10, 10.1, 9.9, 10, 10.2)


def _write_table(path, factor):
    rows = [f"V100,4,1024,64,{factor * time}" for time in TIMES_MS]
    path.write_text("\n".join(["gpu,layers,nodes,batch,time_ms", *rows, ""]))


@pytest.fixture
def tables(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    _write_table(tmp_path / "a.csv", 1)
    _write_table(tmp_path / "b.csv", 10)
    (tmp_path / "m.toml").write_text(MAPPING)
    return tmp_path


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = "".join(f"{record_to_line(record)}\n" for record in synthetic.sweep())
    (tmp_path / "a.jsonl").write_text(lines)
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "records.jsonl").write_text(lines)
    return tmp_path


def test_two_tables_with_a_mapping_are_compared_and_gated(tables, capsys):
    words = ["compare", "a.csv", "b.csv", "--map", "m.toml", "--json"]
    assert run(words) == 0
    document = json.loads(capsys.readouterr().out)
    (row,) = document["rows"]
    assert (row["a"]["value"], row["b"]["value"]) == (pytest.approx(0.010), pytest.approx(0.100))
    assert (row["a"]["runs"], row["b"]["runs"]) == (5, 5)
    assert row["verdict"] == "slower"
    assert run([*words, "--fail-on", "slower"]) == 3
    assert run(["compare", "a.csv", "a.csv", "--map", "m.toml", "--fail-on", "slower"]) == 0


def test_a_table_is_compared_with_a_folder_of_its_import(tables):
    assert run(["import", "a.csv", "--map", "m.toml", "--out", "folder"]) == 0
    answer = compare(["folder", "b.csv"], mapping="m.toml")
    assert answer.rows[0].ratio == pytest.approx(10)


RUNS_S = {"user": 0.1, "system": 0.1, "min": 0.1, "max": 0.12, "times": [0.1, 0.11, 0.1]}


def test_files_of_a_tool_are_compared_with_a_mapping_of_the_house(tables, capsys):
    for name, mean in (("a.json", 0.1), ("b.json", 0.2)):
        results = [{"command": "x", "mean": mean, **RUNS_S}]
        (tables / name).write_text(json.dumps({"results": results}))
    assert run(["compare", "a.json", "b.json"]) == 2
    assert (
        "import makes no record of it (files of hyperfine say no model" in capsys.readouterr().err
    )
    keys = 'base = "hyperfine"\nmodel = "resnet50"\nbatch = "64"\ndevice = "v100"\n'
    (tables / "hyperfine.toml").write_text(keys)
    answer = compare(["a.json", "b.json"], mapping="hyperfine.toml")
    assert (answer.rows[0].a.runs, answer.rows[0].b.runs) == (3, 3)


def test_json_lines_of_rows_are_a_table_with_a_mapping(tables):
    rows = [{"gpu": "V100", "layers": 4, "nodes": 1024, "batch": 64, "time_ms": 20 * time}
            for time in TIMES_MS]  # fmt: skip
    (tables / "c.jsonl").write_text("\n".join(map(json.dumps, rows)))
    answer = compare(["a.csv", "c.jsonl"], mapping="m.toml")
    assert answer.rows[0].ratio == pytest.approx(20)


def test_files_of_records_are_compared_with_each_other_and_with_folders(files):
    folders = compare(["folder", "folder"])
    for paths in (["a.jsonl", "folder"], ["folder", "b.jsonl.gz"], ["a.jsonl", "b.jsonl.gz"]):
        assert [row.ratio for row in compare(paths).rows] == [row.ratio for row in folders.rows]


@pytest.mark.parametrize("name", ["a.jsonl", "b.jsonl.gz"])
def test_a_file_of_records_is_analysed_and_reported(files, capsys, name):
    answers = []
    for path in (name, "folder"):
        assert run(["analyse", "results", path, "--json"]) == 0
        answers.append(json.loads(capsys.readouterr().out)["rows"])
    assert answers[0] == answers[1]
    assert run(["report", name]) == 0
    assert (files / "report.html").exists()
    assert store.load(files / name, print) == store.load(files / "folder", print)


def test_a_table_with_a_mapping_is_analysed_reported_and_drawn(tables, capsys):
    assert run(["import", "a.csv", "--map", "m.toml", "--out", "folder"]) == 0
    capsys.readouterr()
    answers = []
    for words in (["a.csv", "--map", "m.toml"], ["folder"]):
        assert run(["analyse", "results", *words, "--json"]) == 0
        answers.append(json.loads(capsys.readouterr().out)["rows"])
    assert answers[0] == answers[1]
    assert answers[0][0]["measured_s"] == pytest.approx(0.010)
    assert run(["analyse", "throughput", "a.csv", "--map", "m.toml", "-o", "a.svg"]) == 0
    assert run(["report", "a.csv", "--map", "m.toml"]) == 0
    assert (
        "steptime report a.csv --map m.toml -o report.html" in (tables / "report.html").read_text()
    )


def test_tables_with_a_mapping_have_a_history(tables):
    answer = analyse("history", "a.csv", "b.csv", mapping="m.toml")
    assert [row.folder for row in answer.rows] == ["a.csv", "b.csv"]
    assert answer.rows[1].first_ratio == pytest.approx(10)


def test_a_picture_of_an_unknown_model_names_those_of_the_table(tables, capsys):
    words = ["analyse", "memory", "a.csv", "--map", "m.toml", "--model", "vgg", "-o", "a.svg"]
    assert run(words) == 2
    assert "unknown model 'vgg'; known: fc:layers=4" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["a.csv", "b.csv"], "a.csv: is a file, not a folder of records (no known format"),
        (["a.csv", "absent"], "absent: no such folder of records"),
        (["m.toml"], "m.toml: is a file, not a folder of records"),
    ],
)
def test_a_file_that_is_none_of_these_is_named_with_what_to_do(tables, words, reason):
    with pytest.raises(InputError) as error:
        compare(words)
    assert reason in str(error.value)
    assert run(["analyse", "results", "a.csv"]) == 2


def test_a_mapping_without_a_table_is_refused(files):
    with pytest.raises(InputError, match="--map: says what columns of tables mean"):
        compare(["folder", "a.jsonl"], mapping=files / "m.toml")
