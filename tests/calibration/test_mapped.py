"""One mapping file serves both `evaluate --map` and `import --mapping`, however it is written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from steptime.cli.main import run
from steptime.records import store

TABLE = "net,gpu,n,ms\nresnet50,V100,32,95\nvgg16,V100,16,110\n"
TIMES = """
name = "ours"
device = "{gpu}"
model = "{net}"
batch = "n"
seconds = "ms"
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
step_s = {column = "ms", scale = 1e-3}
"""


@pytest.mark.parametrize("text", [TIMES, QUANTITIES])
def test_a_mapping_file_works_in_both_commands(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table, file, out = tmp_path / "t.csv", tmp_path / "m.toml", tmp_path / "records"
    table.write_text(TABLE)
    file.write_text(text)
    for option in ("--map", "--mapping"):
        assert run(["import", str(table), option, str(file), "--out", str(out)]) == 0
        capsys.readouterr()
        assert run(["evaluate", str(table), option, str(file), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["rows"][0]["cases"] == 2
    steps = {
        (one.workload.model, one.workload.batch_per_replica): one.quantities["step_s"].value
        for one in store.load(out, print)
    }
    assert steps == {("resnet50", 32): pytest.approx(0.095), ("vgg16", 16): pytest.approx(0.11)}


def test_an_op_is_no_step_and_is_said_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "t.csv").write_text("m,gpu,s\n64,V100,1e-5\n")
    (tmp_path / "m.toml").write_text(
        'device = "{gpu}"\nkind = "matmul"\nshapes = [["m", 64], [64, 64]]\nseconds = "s"\n'
    )
    words = ["import", str(tmp_path / "t.csv"), "--map", str(tmp_path / "m.toml")]
    assert run([*words, "--out", str(tmp_path / "out")]) == 2
    assert "no step of a network" in capsys.readouterr().err
