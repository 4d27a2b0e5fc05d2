"""The command `query`: any statement that reads is answered in every form."""

from __future__ import annotations

import csv
import io
import json
import signal
import sys

import pytest

import steptime
import synthetic
from steptime.cli.main import run
from steptime.records import tables
from steptime.records.store import open_writer


@pytest.fixture
def folder(tmp_path):
    with open_writer(tmp_path / "records") as writer:
        writer.append_all(synthetic.sweep())
    return tmp_path / "records"


STATEMENTS = [  # its heading and its cell as JSON, CSV and text say them
    ("SELECT status = 'ok' FROM records LIMIT 1", "(status = 'ok')", True, "True", "yes"),
    ("SELECT {'a': 1}", "struct_pack(a := 1)", {"a": 1}, "{'a': 1}", "a=1"),
    pytest.param("SELECT 'x:y'", "'x:y'", "x:y", "x:y", "x:y", marks=pytest.mark.slow),
    ('SELECT 1 AS "a:b"', "a:b", 1, "1", "1"),
    pytest.param('SELECT 2 AS "?a=b"', "?a=b", 2, "2", "2", marks=pytest.mark.slow),
    (
        "SELECT strftime(TIMESTAMP '2026-01-02 14:05:00', '%H:%M') AS at",
        "at",
        "14:05",
        "14:05",
        "14:05",
    ),
]


@pytest.mark.parametrize(("sql", "head", "value", "cell", "shown"), STATEMENTS)
def test_whatever_a_column_is_called_the_answer_comes_in_every_form(
    folder, capsys, *, sql, head, value, cell, shown
):
    def answer(*more: str) -> str:
        assert run(["query", sql, "--in", str(folder), *more]) == 0
        return capsys.readouterr().out

    document = json.loads(answer("--json"))
    assert document["rows"] == [{head: value}]
    assert (document["row_count"], document["path"]) == (1, None)
    assert list(csv.reader(io.StringIO(answer("--format", "csv")))) == [[head], [cell]]
    assert [line.strip() for line in answer().splitlines()] == [head, shown, "1 row"]


def test_a_row_of_all_records_has_their_columns(folder):
    answer = steptime.query(folder, "FROM records")
    names = "origin method status model batch dtype phase optimizer platform scope workload_key"
    assert {*names.split(), "step_s", "layers", "nodes"} <= set(answer.rows[0])
    assert len(answer.rows) == answer.row_count == len(answer.to_pandas())


def test_ctrl_c_while_the_database_ends_ends_the_command(folder, capsys, monkeypatch):
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)  # and so as before at the end
    monkeypatch.setattr(tables, "rmtree", lambda *_, **__: signal.raise_signal(signal.SIGINT))
    assert run(["query", "SELECT 1", "--in", str(folder)]) == 130
    assert capsys.readouterr().err == "steptime: interrupted\n"
