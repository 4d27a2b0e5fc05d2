"""Units of time that headings name, numbers with deviations, and rows that are no repeats."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from steptime.cli.main import run
from steptime.core.expressions.amounts import parse_amount, read_number
from steptime.records.readers.heading_units import find_heading_unit

MAPPING = """
source = "me"
model = "fc:layers=4,nodes={nodes}"
batch = "64"
device = "V100"
"""


def import_table(
    folder: Path, text: str, keys: str, name: str = "t.csv"
) -> tuple[int, list[float]]:
    """Return the exit code of an import, and the steps that it wrote [s]."""
    (folder / name).write_text(text, encoding="utf-8")
    (folder / "m.toml").write_text(MAPPING + keys, encoding="utf-8")
    out = folder / "out"
    words = ["import", folder / name, "--map", folder / "m.toml", "--out", out]
    code = run([str(word) for word in words])
    steps_s = []
    for path in out.glob("*.jsonl"):
        for line in path.read_text().splitlines():
            quantity = json.loads(line)["quantities"].get("step_s", {})
            steps_s.append(quantity.get("value") or quantity.get("samples"))
    return code, steps_s


@pytest.mark.parametrize(
    ("heading", "seconds"),
    [
        ("step time (ms)", 1e-3),
        ("Mean [us]", 1e-6),
        ("latency_ms", 1e-3),
        ("latency_ms_p50", 1e-3),
        ("time_us", 1e-6),
        ("Dauer (\u00b5s)", 1e-6),
        ("ms/step", 1e-3),
        ("ms_per_token", 1e-3),
        ("elapsedMs", 1e-3),
        ("runtime (hours)", 3600),
        ("epoch_minutes", 60),
        ("step_s", None),
        ("time (min)", None),  # may be the minimum
        ("min", None),
        ("steps_per_ms", None),
        ("it/ms", None),
        ("steps", None),
        ("items", None),
        ("columns", None),
        ("mean", None),
    ],
)
def test_a_heading_names_a_unit_of_time(heading, seconds):
    unit = find_heading_unit(heading)
    assert (unit.seconds if unit else None) == seconds


@pytest.mark.parametrize(
    "keys",
    [
        'seconds = "step_time_ms"',
        'seconds = "number(step_time_ms)"',
        "seconds = 'column(\"step time (ms)\")'",
        'quantities = { step_s = "step_time_ms" }',
        'quantities = { step_s = { column = "step time (ms)" } }',
    ],
)
def test_a_column_is_read_in_the_unit_of_its_heading(keys, tmp_path, capsys):
    assert import_table(tmp_path, "nodes,step time (ms)\n8,12.5\n", keys) == (0, [0.0125])
    note = "column 'step time (ms)' is read in ms, as its heading says"
    assert note in capsys.readouterr().err


@pytest.mark.parametrize("formula", ["fwd_ms + bwd_ms", "max(fwd_ms, bwd_ms)", "bwd_ms - fwd_ms"])
def test_a_sum_of_columns_of_one_unit_is_read_in_it(formula, tmp_path, capsys):
    table = "nodes,fwd_ms,bwd_ms\n8,4,16\n"
    code, steps_s = import_table(tmp_path, table, f'seconds = "{formula}"')
    expected = {"+": 0.020, ",": 0.016, "-": 0.012}
    assert (code, steps_s) == (
        0,
        [pytest.approx(next(expected[c] for c in formula if c in expected))],
    )
    assert f"'{formula}' is read in ms" in capsys.readouterr().err


def test_a_stated_unit_counts_and_the_difference_is_said(tmp_path, capsys):
    keys = 'seconds = "time_us"\nunit = "ms"'
    assert import_table(tmp_path, "nodes,time_us\n8,12.5\n", keys) == (0, [0.0125])
    assert "its heading says us" in capsys.readouterr().err


@pytest.mark.parametrize(
    "keys",
    [
        'seconds = "time_ms / 1000"',
        'quantities = { step_s = "time_ms * 1e-3" }',
        'quantities = { step_s = { column = "time_ms", scale = 0.001 } }',
    ],
)
def test_a_formula_and_a_scale_are_read_as_they_stand(keys, tmp_path, capsys):
    assert import_table(tmp_path, "nodes,time_ms\n8,12.5\n", keys) == (0, [0.0125])
    assert "heading" not in capsys.readouterr().err


def test_of_a_number_with_its_deviation_the_number_counts(tmp_path):
    table = "| nodes | Mean [ms] |\n|:---|---:|\n| 8 | 12.5 \u00b1 0.3 |\n| 16 | 31 ms +/- 2 |\n"
    assert import_table(tmp_path, table, 'seconds = "Mean_ms"', "t.txt") == (
        0,
        pytest.approx([0.0125, 0.031]),
    )
    assert parse_amount("12.5 \u00b1 0.3 ms") == parse_amount("12.5 ms")
    assert read_number("12.5\u00b10.3 ms") == 0.0125
    assert parse_amount("12.5 +- 0.3") == parse_amount("12.5")


def test_rows_of_another_configuration_are_said_to_be_pooled(tmp_path, capsys):
    table = "nodes,status,run,time_ms\n8,ok,1,10\n8,ok,2,10\n8,killed,1,20\n"
    code, _ = import_table(tmp_path, table, 'seconds = "time_ms"')
    assert code == 0
    line = "these differ in status, too, which the mapping does not read"
    assert line in capsys.readouterr().err


def test_repeats_alone_are_not_said_to_differ(tmp_path, capsys):
    table = "nodes,run,time_ms\n8,1,10\n8,2,10.1\n"
    assert import_table(tmp_path, table, 'seconds = "time_ms"')[0] == 0
    assert "these differ" not in capsys.readouterr().err


@pytest.mark.parametrize(
    "table",
    [
        "nodes   time_ms\n8          12.5\n16         31\n",
        " nodes | time_ms \n-------+---------\n     8 |    12.5\n    16 |      31\n",
        "| nodes | time_ms |\n|:--|--:|\n| 8 | 12.5 |\n| 16 | 31 |\n",
        "+-------+---------+\n| nodes | time_ms |\n+=======+====+\n| 8 | 12.5 |\n| 16 | 31 |\n",
    ],
)
def test_tables_for_people_are_read_and_their_rules_are_no_rows(table, tmp_path, capsys):
    assert import_table(tmp_path, table, 'seconds = "time_ms"', "t.txt") == (
        0,
        pytest.approx([0.0125, 0.031]),
    )
    assert "not read" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("date", "iso"),
    [
        ("2024-03-01 10:00:00 UTC", "2024-03-01T10:00:00+00:00"),
        ("2024-03-01T10:00:00GMT", "2024-03-01T10:00:00+00:00"),
        ("Mar 1, 2024 10:00 PM", "2024-03-01T22:00:00"),
        ("Mar 1, 2024", "2024-03-01"),
        ("1 Mar 2024", "2024-03-01"),
        ("2024-03-01 10:00:00,123", "2024-03-01T10:00:00"),
    ],
)
def test_dates_as_tools_write_them_are_read(date, iso):
    from steptime.records.readers.dates import read_date

    assert read_date(date) == iso


def test_a_command_that_failed_has_no_time(tmp_path):
    run_of = {"command": "a", "mean": 0.4, "median": 0.4, "min": 0.4, "max": 0.4}
    rows = [
        {**run_of, "user": 0.3, "system": 0.1, "times": [0.4, 0.4], "exit_codes": codes}
        for codes in ([0, 0], [0, 1])
    ]
    rows[1]["command"] = "b"
    (tmp_path / "b.json").write_text(json.dumps({"results": rows}))
    words = ["import", tmp_path / "b.json", "--model", "resnet50", "--batch", "64"]
    out = tmp_path / "out"
    assert run([str(word) for word in (*words, "--device", "v100", "--out", out)]) == 0
    (path,) = out.glob("*.jsonl")
    records = [json.loads(line) for line in path.read_text().splitlines()]
    assert [record["status"] for record in records] == ["ok", "failed"]
    assert records[1]["cause"] == "exit code 1"


def test_an_option_that_replaces_what_rows_say_is_named(tmp_path, capsys):
    (tmp_path / "t.csv").write_text("nodes,time_ms\n8,12.5\n16,31\n")
    (tmp_path / "m.toml").write_text(MAPPING + 'seconds = "time_ms"')
    words = ["import", tmp_path / "t.csv", "--map", tmp_path / "m.toml", "--model", "resnet50"]
    assert run([str(word) for word in (*words, "--out", tmp_path / "out")]) == 0
    note = "--model resnet50 replaces 'fc:layers=4,nodes={nodes}' of the mapping in every row"
    assert note in capsys.readouterr().err


def test_the_runs_of_a_number_without_samples_are_unknown(tmp_path, capsys):
    table = "nodes,time_ms\n8,12.5\n8,12.7\n16,31\n"
    assert import_table(tmp_path, table, 'seconds = "time_ms"')[0] == 0
    capsys.readouterr()
    assert run(["analyse", "results", str(tmp_path / "out"), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["runs"] for row in rows] == [2, None]


def test_minutes_that_may_be_a_minimum_are_said_to_be_read_as_seconds(tmp_path, capsys):
    table = "nodes,time (min)\n8,12.5\n"
    assert import_table(tmp_path, table, 'seconds = "time_min"') == (0, [12.5])
    note = "column 'time (min)' is read in s; if it holds minutes, write (time_min) * 60"
    assert note in capsys.readouterr().err


def test_deviations_may_have_decimal_commas(tmp_path):
    table = "nodes;Zeit [ms]\n8;12,5 \u00b1 0,3\n"
    keys = 'decimal = ","\nseconds = "Zeit_ms"'
    assert import_table(tmp_path, table, keys) == (0, [0.0125])
