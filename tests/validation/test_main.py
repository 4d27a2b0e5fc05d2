"""`python -m validation`: tables of others scored, as they are, left out, or under one stack."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from math import exp, log
from typing import Any

import pytest
from published_golden import HELD

from every import every
from places import ROOT
from steptime import serve
from validation.__main__ import main
from validation.layouts import layout_of, questions
from validation.sets import GROUNDS, names

TABLE = HELD[0]
FSDP = (
    "model,device,devices,sequence,micro_batch,global_batch,precision,mixed_precision,sharding,"
    "recompute,step_s\n"
    "mpt-1b,h100_80gb,8,2048,16,256,amp_bf16,DEFAULT,FULL_SHARD,full,2.5\n"
    "mpt-7b,h100_80gb,8,2048,8,128,amp_bf16,DEFAULT,FULL_SHARD,full,6.0\n"
)


def told(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, Any]:
    assert main([*map(str, words), "--json"]) == 0
    return dict(json.loads(capsys.readouterr().out))


def test_it_runs_as_a_module_and_says_what_it_does():
    command = [sys.executable, "-m", "validation", "--help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "vTrain" in done.stdout
    for option in (
        "--left-out",
        "--stack",
        "--sets",
        "--json",
        "--by",
        "--calibrate-with",
        "--out",
    ):
        assert option in done.stdout


def test_people_get_tables(capsys):
    assert main([str(TABLE)]) == 0
    out = capsys.readouterr().out
    for title in ("Errors of predictions", "By block", "Rows that are refused"):
        assert title in out


def test_alone_a_table_is_left_out_with_neutral_constants(tmp_path, capsys):
    table = tmp_path / "rows.csv"
    table.write_text(FSDP, "utf-8")
    before, after = (told(capsys, table, *words)["cases"] for words in ([], ["--left-out"]))
    assert before[0]["stack"] == "fsdp-2023"
    for old, new in zip(before, after, strict=True):
        assert new["predicted"] != pytest.approx(old["predicted"], rel=1e-3)
        width = old["high"] / old["low"]
        assert new["high"] / new["low"] == pytest.approx(width)  # no other row tells it
        own = {key: old[key] for key in ("predicted", "low", "high", "ratio", "parts")}
        assert {**new, **own} == old


def test_a_set_is_left_out_by_the_rows_of_others(tmp_path, capsys):
    table = tmp_path / "rows.csv"
    table.write_text(FSDP, "utf-8")
    alone, beside = (
        told(capsys, *paths, "--left-out")["cases"] for paths in ([table], [table, TABLE])
    )
    assert {row["set"] for row in beside} == {"vTrain", "llm-foundry, H100"}
    assert beside[0]["set"] == alone[0]["set"]
    assert beside[0]["predicted"] == alone[0]["predicted"]  # vTrain's stack shares none of them


def test_what_no_row_told_is_the_same_left_out(tmp_path, capsys):
    table = tmp_path / "models.csv"
    table.write_text(
        "model,layers,hidden,parameters_by_formula,active_by_formula\nllama2_7b,32,4096,6.7e9,6.7e9\n",
        "utf-8",
    )
    assert told(capsys, table, "--left-out")["cases"] == told(capsys, table)["cases"]


@pytest.mark.rare
@pytest.mark.slow  # all stages of the fit are read
def test_ops_are_left_out_by_device(shared, tmp_path, capsys):
    rows = gzip.decompress((shared / "measured/deepbench/rnn.csv.gz").read_bytes()).split(b"\n")
    table = tmp_path / "rows.csv.gz"
    table.write_bytes(gzip.compress(b"\n".join(rows[:12]) + b"\n"))
    words = [table, "--left-out", "--data", shared]
    before, after = told(capsys, table)["cases"], told(capsys, *words)["cases"]
    moved = [
        abs(log(new["predicted"] / old["predicted"]))
        for new, old in zip(after, before, strict=True)
    ]
    assert max(moved) > 0.01
    assert main([str(table), "--left-out", "--data", str(tmp_path / "none")]) == 2
    assert "no folder of reference data" in capsys.readouterr().err


def test_the_constants_are_counted_by_owner_and_by_set(capsys):
    found = told(capsys, "--sets")
    *owners, every = found["owners"]
    assert every["owner"] == "together"
    assert every["constants"] == sum(row["constants"] for row in owners)
    assert all(row["constants"] == sum(row[one] for one in GROUNDS) for row in found["owners"])
    assert {row["set"] for row in found["sets"]} == names()


def test_all_rows_run_under_one_stack(capsys):
    found = told(capsys, TABLE, "--stack", "megatron-2025")
    assert {row["stack"] for row in found["cases"]} == {"megatron-2025"}
    before = told(capsys, TABLE)["cases"]
    off = [
        log(new["predicted"] / old["predicted"])
        for new, old in zip(found["cases"], before, strict=True)
    ]
    assert all(exp(one) < 0.99 for one in off)  # software is faster four years later


def test_some_rows_calibrate_and_the_others_are_scored(capsys):
    [row] = told(capsys, TABLE, "--calibrate-with", "2", "--draws", "2")["calibrated"]
    assert (row["set"], row["stack"], row["points"], row["cases"]) == (
        "vTrain",
        "megatron-2021",
        2,
        1,
    )


@pytest.mark.slow
def test_steps_are_drawn(tmp_path):
    out = tmp_path / "steps.svg"
    assert main([str(TABLE), "--out", str(out)]) == 0
    drawn = out.read_text("utf-8")
    assert "3 cases by calibrated" in drawn
    assert "vTrain" in drawn


@every(
    ("words", "line"),
    [
        (["absent.csv"], "absent.csv: No such file or directory"),
        (["--worst", "-1"], "--worst: must be at least 0, not -1"),
        (["--draws", "0"], "--draws: must be at least 1, not 0"),
        (["--calibrate-with", "0"], "--calibrate-with: must be at least 1, not 0"),
        (["--calibrate-with", "2", "--left-out"], "not with --left-out"),
        (["--left-out", "--method", "analytic"], "--left-out goes with --method calibrated"),
        (["--calibrate-with", "2", "--method", "roofline"], "not with --method roofline"),
        (["--calibrate-with", "3"], "no row is left to check beside 3 of each device"),
        (["--by", "kinds"], "unknown group 'kinds'"),
        (["--method", "peleo"], "unknown method 'peleo'; did you mean 'paleo'?"),
        (["--stack", "megatron-2052"], "unknown stack 'megatron-2052'"),
    ],
)
def test_wrong_input_is_one_line(words, line, capsys):
    tables = [] if words[0].endswith(".csv") else [str(TABLE)]
    assert main([*tables, *words]) == 2
    err = capsys.readouterr().err
    assert line in err
    assert err.count("\n") == 1


def test_a_table_that_no_layout_knows_is_said(tmp_path, capsys):
    table = tmp_path / "rows.csv"
    table.write_text("model,seconds\nx,1\n", "utf-8")
    assert main([str(table)]) == 2
    assert "rows.csv: no table that is known" in capsys.readouterr().err
    assert main([str(table), str(TABLE)]) == 0
    assert "note: " in capsys.readouterr().err


APART = {
    "backend": "vllm", "backend_version": "0.12.0", "model_path": "Qwen/Qwen3-32B",
    "system": "h100_sxm", "precision": "", "mode": "disagg", "isl": 2000, "osl": 200,
    "gemm_quant_mode": "", "batch_size": "", "tp_size": "", "pp_size": "",
    "attention_dp_size": "", "moe_ep_size": "", "prefill_num_workers": 2,
    "prefill_tp_size": 2, "decode_batch_size": 16, "decode_num_workers": 1,
    "decode_tp_size": 4, "decode_pp_size": 1, "decode_attention_dp_size": 1,
    "decode_moe_ep_size": 1, "ttft_ms": 500, "tpot_ms": 12,
}  # fmt: skip


def test_published_servers_with_prompts_apart_are_asked(tmp_path, capsys):
    table = tmp_path / "rows.csv"
    table.write_text(f"{','.join(APART)}\n{','.join(map(str, APART.values()))}\n")
    assert main([str(table), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["unasked"] == []
    assert {case["device_count"] for case in told["cases"]} == {2 * 2 + 4}
    ratios = {case["quantity"]: case["ratio"] for case in told["cases"]}
    how: dict[str, Any] = {"inside": "nvlink-4", "tensor": 4, "stack": "vllm-2025"}
    alone = serve("qwen3_32b", "h100", 16, 2000, 200, **how)
    assert ratios["tpot_s"] * 0.012 == pytest.approx(alone.tpot_s, rel=0.1)


def test_a_published_server_is_of_the_year_of_its_version(tmp_path):
    """vLLM schedules ahead from 0.14 (2026-01) on, and nightly builds are later ones."""
    table = tmp_path / "rows.csv"
    years = {"0.12.0": 2025, "0.14.0": 2026, "1.2.0": 2026, "nightly-1": 2026, "": 2025}
    rows = [{**APART, "backend_version": one}.values() for one in years]
    table.write_text("\n".join(",".join(map(str, row)) for row in (APART, *rows)))
    layout = layout_of(table)
    assert layout is not None
    stacks = [one.texts["stack"] for *_, one in questions(table, layout)]
    assert stacks == [f"vllm-{year}" for year in years.values()]
