"""One mapping file serves `import`, `evaluate` and `calibrate`, however it is written."""

import json
import tarfile

import pytest

from steptime.cli.main import run
from steptime.hardware import catalog
from steptime.records import store

TABLE = "net;gpu;n;ms per step\nresnet50;T4;32;95\nvgg16;T4;16;110\n"
TIMES = """
name = "ours"
device = "{gpu}"
model = "{net}"
batch = "n"
seconds = "ms_per_step"
unit = "ms"
condition = "step"
"""
QUANTITIES = """
name = "ours"
source = "a table"
model = "{net}"
platform = "{gpu}"
batch = "{n}"
[quantities]
step_s = {column = "ms per step", scale = 1e-3}
"""
FORMULAS = """
device = "{gpu}"
model = "{net}"
batch = "n"
quantities = {step_s = "ms_per_step / 1000"}
status = [{where = "ms_per_step == 0", status = "oom"}]
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setenv("STEPTIME_HOME", str(tmp_path / "home"))
    (tmp_path / "t.csv").write_text(TABLE)
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("option", "text"), [("--map", TIMES), ("--mapping", QUANTITIES), ("--map", FORMULAS)]
)
def test_a_mapping_file_works_in_all_commands(option, text, place, capsys):
    table, file, out = place / "t.csv", place / "m.toml", place / "records"
    file.write_text(text)
    assert run(["import", str(table), option, str(file), "--out", str(out)]) == 0
    capsys.readouterr()
    assert run(["evaluate", str(table), option, str(file), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["rows"][0]["cases"] == 2
    assert {one["place"] for one in found["worst"]} == {"t.csv:2", "t.csv:3"}
    assert run(["calibrate", "--from", str(table), option, str(file)]) == 0
    assert catalog.device("t4-calibrated").calibration.table["points"] == 2
    steps = {
        (one.workload.model, one.workload.batch_per_replica): one.quantities["step_s"].value
        for one in store.load(out, print)
    }
    assert steps == {("resnet50", 32): pytest.approx(0.095), ("vgg16", 16): pytest.approx(0.11)}


@pytest.mark.parametrize("command", ["import", "evaluate", "calibrate"])
def test_a_fault_of_a_mapping_is_the_same_line_everywhere(command, place, capsys):
    (place / "m.toml").write_text(FORMULAS.replace("batch", "bacth"))
    words = ["--from"] if command == "calibrate" else []
    words += [str(place / "t.csv"), "--map", str(place / "m.toml")]
    words += ["--out", str(place / "out")] if command == "import" else []
    assert run([command, *words]) == 2
    said = f"{place}/m.toml: unknown key 'bacth'; did you mean 'batch'?"
    assert capsys.readouterr().err.splitlines()[-1].endswith(said)


def test_tables_of_a_folder_or_an_archive_are_found_by_name(place, capsys):
    (place / "m.toml").write_text(QUANTITIES)
    (place / "folder").mkdir()
    (place / "t.csv").rename(place / "folder/t.csv")
    (place / "folder/notes.md").write_text("none")
    with tarfile.open(place / "t.tar.gz", "w:gz") as archive:
        archive.add(place / "folder", "folder")
    for path in ("folder", "t.tar.gz"):
        assert run(["evaluate", str(place / path), "--map", str(place / "m.toml"), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["rows"][0]["cases"] == 2


def test_a_row_that_is_none_is_counted_and_the_others_are_scored(place, capsys):
    (place / "m.toml").write_text(TIMES)
    (place / "t.csv").write_text(TABLE + "resnet50;T4;32\n")
    words = ["evaluate", str(place / "t.csv"), "--map", str(place / "m.toml"), "--json"]
    assert run(words) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["rows"][0]["cases"] == 2
    assert [one["cause"] for one in found["unasked"]] == ["3 cells under 4 columns"]
    assert run([*words, "--strict"]) == 2
    assert "t.csv:4: 3 cells under 4 columns" in capsys.readouterr().err


def test_an_op_is_no_step_and_is_said_so(tmp_path, capsys):
    (tmp_path / "t.csv").write_text("m,gpu,s\n64,V100,1e-5\n")
    (tmp_path / "m.toml").write_text(
        'device = "{gpu}"\nkind = "matmul"\nshapes = [["m", 64], [64, 64]]\nseconds = "s"\n'
    )
    words = ["import", str(tmp_path / "t.csv"), "--map", str(tmp_path / "m.toml")]
    assert run([*words, "--out", str(tmp_path / "out")]) == 2
    assert "no step of a network" in capsys.readouterr().err
