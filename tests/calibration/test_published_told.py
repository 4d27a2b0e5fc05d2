"""Some rows of a published table calibrate their device and stack; the others are scored."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from steptime.calibration.published import tables_in
from steptime.calibration.published_errors import evaluate_tables
from steptime.cli.main import run

HEAD = (
    "model,device,devices,sequence,micro_batch,global_batch,precision,mixed_precision,sharding,"
    "recompute,step_s"
)
SIZES = (("mpt-1b", 16), ("mpt-3b", 16), ("mpt-7b", 8), ("mpt-13b", 4), ("mpt-30b", 2))


def table(path: Path, seconds: list[float]) -> Path:
    asked = [(model, batch, length) for model, batch in SIZES for length in (1024, 2048)]
    lines = [
        f"{model},h100_80gb,8,{length},{batch},{16 * batch},amp_bf16,DEFAULT,FULL_SHARD,full,{took}"
        for (model, batch, length), took in zip(asked, seconds, strict=True)
    ]
    path.write_text("\n".join([HEAD, *lines, ""]), "utf-8")
    return path


def test_a_device_that_is_a_fifth_slower_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = table(tmp_path / "rows.csv", [1.0] * 10)
    told = evaluate_tables(tables_in([path])[0], "calibrated").document
    table(path, [1.2 * one["predicted"] for one in told["cases"]])
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
    assert made["calibration"]["errors"]["step"]["mape"] < 0.04
    words = f"plan llama3_8b --device {made['device']} --data 8 --zero 3 --stack fsdp-2023 --json"
    assert run(words.split()) == 0
    slower = json.loads(capsys.readouterr().out)
    assert run(words.replace("-calibrated", "").split()) == 0
    shipped = json.loads(capsys.readouterr().out)
    assert slower["step_s"] == pytest.approx(1.2 * shipped["step_s"], rel=0.05)
    assert not slower["notes"]
    widths = [(one["high"] - one["low"]) / one["predicted"] for one in told["cases"]]
    assert row["width"] < min(widths)
