"""Tables of steps of trainings: known by their columns, scored, and some rows calibrate."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from steptime.calibration.plan_errors import evaluate_tables
from steptime.calibration.plan_rows import COLUMNS, resolve_model, tables_in
from steptime.cli.main import run
from steptime.core.errors import InputError

PAPERS = Path(__file__).parents[2] / "docs/examples/papers.csv"
HEAD = ",".join(COLUMNS)
MODEL = '"transformer:layers=30,width=3072,heads=32,vocabulary=51200"'
ROW = f"mine,{MODEL},a100-sxm4-80gb,64,2048,4,512,2,1,1,full,no,float16,megatron-2021,4.0"
PUBLISHED = "model_B,devices,tp,dp,pp,micro_batch,global_batch,sequence,hidden,layers,heads,step_s"
SIZES = (("mpt-1b", 16), ("mpt-3b", 16), ("mpt-7b", 8), ("mpt-13b", 4), ("mpt-30b", 2))


def table(folder: Path, *lines: str, head: str = HEAD) -> Path:
    path = folder / "rows.csv"
    path.write_text("\n".join([head, *lines, ""]), "utf-8")
    return path


def sharded(folder: Path, seconds: list[float]) -> Path:
    asked = [(model, batch, length) for model, batch in SIZES for length in (1024, 2048)]
    lines = [
        f"mine,{model},h100-sxm5,8,{length},{batch},{16 * batch},1,1,1,full,no,bfloat16,fsdp-2023,"
        f"{took},3,8"
        for (model, batch, length), took in zip(asked, seconds, strict=True)
    ]
    return table(folder, *lines, head=f"{HEAD},zero,links_per_node")


def test_a_column_that_a_table_lacks_is_named(tmp_path, capsys):
    path = table(tmp_path, ROW.replace(",no,", ","), head=HEAD.replace("sequence_parallel,", ""))
    assert run(["evaluate", str(path)]) == 2
    assert "rows.csv: columns of steps, without sequence_parallel" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["evaluate"], ["calibrate", "--from"]])
def test_a_table_in_the_columns_of_others_says_what_it_lacks(words, tmp_path, capsys):
    path = table(tmp_path, "3.6,64,2,32,1,4,512,2048,3072,30,32,4.0", head=PUBLISHED)
    assert run([*words, str(path)]) == 2
    err = capsys.readouterr().err
    assert err.startswith("steptime: rows.csv: no column 'seconds'; --map MAP.toml says")
    assert "it lacks set, model, device, device_count, length, microbatch, tensor" in err
    assert err.count("\n") == 1


def test_a_cell_beyond_all_numbers_is_refused(tmp_path, capsys):
    path = table(tmp_path, ROW.replace(",512,", ",1e30,"))
    assert run(["evaluate", str(path)]) == 2
    assert "batch is a whole number of at least 1, not 1e+30" in capsys.readouterr().err


def test_a_row_that_cannot_be_asked_is_counted_with_its_reason(tmp_path, capsys):
    bad = ROW.replace(",2,1,1,full", ",5,1,1,full")
    path = table(tmp_path, ROW, bad, bad, ROW.replace(",no,", ",maybe,"), ROW.replace("4.0", ""))
    assert run(["evaluate", str(path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    [row] = told["rows"]
    assert (row["set"], row["quantity"], row["row_count"], row["cases"]) == ("mine", "step_s", 5, 1)
    assert row["max"] == pytest.approx(abs(told["cases"][0]["ratio"] - 1))
    assert [(one["rows"], one["reason"]) for one in told["unasked"]] == [
        (2, "5 devices of a replica do not divide 64"),
        (1, "sequence_parallel must be yes or no, not 'maybe'"),
        (1, "step_s is no positive number"),
    ]


def test_what_a_table_says_beside_its_columns_is_asked(tmp_path):
    def step_s(head: str, *more: str) -> float:
        path = table(tmp_path, ",".join([ROW, *more]), head=",".join(filter(None, [HEAD, head])))
        (case,) = evaluate_tables(tables_in([path])[0], "calibrated").document["cases"]
        return float(case["predicted"])

    plain = step_s("")
    assert step_s("zero", "") == plain == step_s("note", "anything")
    assert step_s("zero", "3") < plain  # each rank updates its part
    assert step_s("recompute_layers,offload", "2", "none") < plain  # two layers of a stage alone
    assert step_s("link,links_per_node", "infiniband-hdr", "1") > plain


def test_a_folder_and_several_tables_are_read(tmp_path, capsys):
    (tmp_path / "other.csv").write_text("a,b\n1,2\n", "utf-8")
    path = table(tmp_path, ROW)
    assert run(["evaluate", str(tmp_path), str(path), "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["rows"][0]["cases"] == 2
    assert not err
    assert run(["evaluate", str(tmp_path)]) == 0
    assert "other.csv: no table of steps of trainings" in capsys.readouterr().err


@pytest.mark.slow
def test_steps_are_drawn(tmp_path):
    path, out = table(tmp_path, ROW), tmp_path / "steps.svg"
    assert run(["evaluate", str(path), "--out", str(out)]) == 0
    drawn = out.read_text("utf-8")
    assert "1 case by calibrated" in drawn
    assert "mine" in drawn


def test_a_model_is_named_as_tables_do():
    assert resolve_model("LLAMA3_70B") == "llama3_70b"
    assert resolve_model("Qwen3_30B_a3B (tokendrop)") == "qwen3_30b_a3b"
    with pytest.raises(InputError, match="no model is named 'LLAMA9'"):
        resolve_model("LLAMA9")


def test_steps_of_papers_come_near_with_nothing_fitted_to_them():
    told = evaluate_tables([PAPERS], "calibrated").document
    rows = {row["set"]: row for row in told["rows"]}
    assert rows["Korthikanti"]["mape"] < 0.03
    assert rows["SC'21"]["mape"] < 0.06
    assert {row["fits"] for row in rows.values()} == {1.0}


@pytest.mark.rare
def test_a_device_that_is_a_fifth_slower_is_told(tmp_path, capsys, monkeypatch):
    path = sharded(tmp_path, [1.0] * 10)
    told = evaluate_tables([path], "calibrated").document
    sharded(tmp_path, [1.2 * one["predicted"] for one in told["cases"]])
    assert run(["evaluate", str(path), "--calibrate-with", "8", "--draws", "2", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    [row] = told["calibrated"]
    assert (row["device"], row["stack"], row["points"]) == ("h100-sxm5", "fsdp-2023", 8)
    assert row["cases"] == 2  # 10 rows less 8
    assert row["before"] == pytest.approx(1 - 1 / 1.2)
    assert row["mape"] < 0.04
    assert row["spread"][0] <= row["mape"] <= row["spread"][1]
    assert row["coverage"] == 1.0
    monkeypatch.setenv("STEPTIME_HOME", str(tmp_path))
    assert run(["calibrate", "--from", str(path), "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert next(row["mape"] for row in made["rows"] if row["kind"] == "step") < 0.04
    words = f"plan llama3_8b --device {made['device']} --data 8 --zero 3 --stack fsdp-2023 --json"
    assert run(words.split()) == 0
    slower = json.loads(capsys.readouterr().out)
    assert run(words.replace("-calibrated", "").split()) == 0
    shipped = json.loads(capsys.readouterr().out)
    assert slower["step_s"] == pytest.approx(1.2 * shipped["step_s"], rel=0.05)
    assert not slower["notes"]
    widths = [(one["high"] - one["low"]) / one["predicted"] for one in told["cases"]]
    assert row["width"] < min(widths)
