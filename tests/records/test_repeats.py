"""Rows that differ in nothing but their value are repeats: their median, interval and number."""

from __future__ import annotations

import json
import math

import pytest

import synthetic
from steptime.analysis.results_table import make_results_table
from steptime.calibration import from_rows
from steptime.cli.main import run
from steptime.core.copying import replace
from steptime.core.tables.printers import text
from steptime.core.workload import Workload
from steptime.records import store
from steptime.records.data import Data
from steptime.records.record import Quantity, Record

TIMES_S = (0.010, 0.0101, 0.0099, 0.010, 0.100)
STUDENT_T = 2.776  # of 95 % and 4 degrees of freedom


def _published(value: float, layers: int = 4, **env: object) -> Record:
    record = synthetic.measured(Workload("fc", {"layers": layers}, 64))
    quantities = {"step_s": Quantity(value)}
    return replace(record, origin="published", quantities=quantities, env=env)


REPEATS = [_published(value, source_entry=index) for index, value in enumerate(TIMES_S)]


@pytest.mark.parametrize("records", [REPEATS, REPEATS[::-1]])
def test_a_result_of_five_repeats_is_their_median_in_any_order(records):
    (row,) = Data.from_records(records).results
    assert row["measured_s"] == pytest.approx(0.010)
    assert (row["runs"], row["samples_n"], row["interval"]) == (5, 5, "between-runs")
    assert row["measured_min_s"] == 0.0099
    assert row["examples_per_s"] == pytest.approx(64 / 0.010)
    logs = [math.log(value) for value in TIMES_S]
    mean = sum(logs) / 5
    error = math.sqrt(sum((log - mean) ** 2 for log in logs) / 4 / 5)
    assert row["measured_high_s"] == pytest.approx(math.exp(mean + STUDENT_T * error), rel=1e-3)
    assert row["measured_low_s"] == pytest.approx(math.exp(mean - STUDENT_T * error), rel=1e-3)


def test_people_see_how_many_repeats_there_are():
    lines = text(
        make_results_table(Data.from_records([*REPEATS, _published(0.3, layers=5)]))
    ).splitlines()
    assert "runs" in lines[0]
    assert "10 ms" in lines[1]
    assert lines[1].split()[-3] == "5"


def test_one_stated_value_is_no_repeat_and_keeps_its_own_interval():
    stated = replace(REPEATS[0], quantities={"step_s": Quantity(0.01, low=0.009, high=0.012)})
    (row,) = Data.from_records([stated]).results
    assert (row["measured_low_s"], row["measured_high_s"]) == (0.009, 0.012)
    assert (row["runs"], row["samples_n"], row["interval"]) == (None, 0, None)


def test_the_last_of_several_predictions_counts():
    first = replace(REPEATS[0], origin="predicted")
    (row,) = Data.from_records([first, replace(REPEATS[4], origin="predicted")]).results
    assert row["predicted_s"] == 0.1


def test_a_file_that_is_taken_for_another_adds_no_repeats():
    twice = [replace(one, env={"duplicate_of": "a.csv"}) for one in REPEATS]
    (row,) = Data.from_records([*REPEATS, *twice]).results
    assert row["runs"] == 5


def test_repeats_in_two_folders_are_compared_with_an_interval(tmp_path, capsys):
    for name, factor in (("a", 1.0), ("b", 1.2)):
        values = [value * factor for value in (0.0100, 0.0101, 0.0099, 0.0100, 0.0102)]
        with store.open_writer(tmp_path / name) as writer:
            writer.append_all(_published(value, entry=at) for at, value in enumerate(values))
    assert run(["compare", str(tmp_path / "a"), str(tmp_path / "b")]) == 0
    out = capsys.readouterr().out
    assert "1.2 [" in out
    assert "slower" in out


TABLE = """gpu,layers,nodes,batch,time_ms
V100,4,1024,64,10
V100,4,1024,64,10.1
V100,4,1024,64,9.9
V100,4,1024,64,10
V100,4,1024,64,100
V100,8,1024,64,30
"""
MAPPING = """model = "fc:layers={layers},nodes={nodes}"
batch = "{batch}"
device = "{gpu}"
unit = "ms"
seconds = "time_ms"
"""


@pytest.fixture
def imported(tmp_path):
    (tmp_path / "t.csv").write_text(TABLE)
    (tmp_path / "m.toml").write_text(MAPPING)
    out = tmp_path / "out"
    words = ["import", str(tmp_path / "t.csv"), "--map", str(tmp_path / "m.toml")]
    assert run([*words, "--out", str(out)]) == 0
    return out


def test_every_command_says_the_median_of_imported_repeats(imported, capsys):
    capsys.readouterr()
    sql = "SELECT step_s, runs, samples_n, examples_per_s FROM records WHERE layers = 4"
    commands = {
        "results": ["analyse", "results", str(imported)],
        "query": ["query", sql, "--in", str(imported)],
    }
    rows = {}
    for name, words in commands.items():
        assert run([*words, "--json"]) == 0
        rows[name] = json.loads(capsys.readouterr().out)["rows"][0]
    assert rows["results"]["measured_s"] == pytest.approx(0.010)
    assert (rows["results"]["runs"], rows["results"]["samples_n"]) == (5, 5)
    assert rows["results"]["examples_per_s"] == pytest.approx(6400)
    assert rows["query"]["examples_per_s"] == pytest.approx(6400)
    assert (rows["query"]["runs"], rows["query"]["step_s"]) == (5, pytest.approx(0.010))
    assert run(["report", str(imported), "-o", str(imported / "report.md")]) == 0
    assert "10 ms | 6400 examples/s" in (imported / "report.md").read_text()


def test_calibration_counts_repeated_rows_once(imported, tmp_path, capsys):
    row_set = from_rows._read_rows(
        tmp_path / "t.csv", tmp_path / "t.csv", tmp_path / "m.toml", None
    )
    assert [case.seconds for case in row_set.cases] == pytest.approx([0.010, 0.030])
    row_set = from_rows._read_rows(imported, imported, None, None)
    assert [case.seconds for case in row_set.cases] == pytest.approx([0.010, 0.030])
    assert "6 rows are 2 measurements" in capsys.readouterr().err
