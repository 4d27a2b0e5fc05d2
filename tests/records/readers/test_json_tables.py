"""Tables in JSON that are no list of rows: as pandas writes them, by name, and deeper ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from steptime.cli.main import run

ROWS = [{"nodes": 8, "time_ms": 12.5}, {"nodes": 16, "time_ms": 31}]
COLUMNS = {name: [row[name] for row in ROWS] for name in ROWS[0]}
MAPPING = """
source = "me"
model = "fc:layers=4,nodes={nodes}"
batch = "64"
device = "V100"
seconds = "time_ms"
unit = "ms"
"""
REPORT = {
    "session": {"host": "n1"},
    "runs": [{"number": 1, "cases": ROWS[:1]}, {"number": 2, "cases": ROWS[1:]}],
}


def import_json(folder: Path, document: Any, keys: str = "", name: str = "t.json") -> int:
    """Return the exit code of an import."""
    text = document if isinstance(document, str) else json.dumps(document)
    (folder / name).write_text(text)
    (folder / "m.toml").write_text(keys + MAPPING)
    words = ["import", folder / name, "--map", folder / "m.toml", "--out", folder / "out"]
    return run([str(word) for word in words])


def read_steps(folder: Path) -> list[float]:
    """Return the steps that an import wrote [s]."""
    (path,) = (folder / "out").glob("*.jsonl")
    records = [json.loads(line) for line in path.read_text().splitlines()]
    return [record["quantities"]["step_s"]["value"] for record in records]


@pytest.mark.parametrize(
    "document",
    [
        {name: {str(row): cell for row, cell in enumerate(COLUMNS[name])} for name in COLUMNS},
        {name: {"a": COLUMNS[name][0], "b": COLUMNS[name][1]} for name in COLUMNS},
        {"columns": list(COLUMNS), "index": [0, 1], "data": [list(row.values()) for row in ROWS]},
        {str(number): row for number, row in enumerate(ROWS)},
        {"first": ROWS[0], "second": ROWS[1]},
        COLUMNS,
    ],
)
def test_tables_of_pandas_and_rows_by_name_are_read(document, tmp_path):
    assert import_json(tmp_path, document) == 0
    assert read_steps(tmp_path) == [0.0125, 0.031]


def test_the_name_of_a_row_is_a_cell(tmp_path):
    document = {"resnet50": {"time_ms": 12.5}, "resnet18": {"time_ms": 31}}
    (tmp_path / "t.json").write_text(json.dumps(document))
    (tmp_path / "m.toml").write_text(
        MAPPING.replace("fc:layers=4,nodes={nodes}", "{key}"), encoding="utf-8"
    )
    out = tmp_path / "out"
    words = ["import", tmp_path / "t.json", "--map", tmp_path / "m.toml", "--out", out]
    assert run([str(word) for word in words]) == 0
    assert read_steps(tmp_path) == [0.0125, 0.031]


def test_sections_without_numbers_of_their_own_are_one_row(tmp_path):
    document = {"config": {"nodes": 8, "name": "b"}, "report": {"step": {"time_ms": 12.5}}}
    assert import_json(tmp_path, document) == 0
    assert read_steps(tmp_path) == [0.0125]


def test_rows_in_lists_of_lists_are_read_by_their_path(tmp_path, capsys):
    assert import_json(tmp_path, {"report": REPORT}) == 2
    assert "say rows_at = 'report.runs' or rows_at = 'report.runs.cases'" in capsys.readouterr().err
    assert import_json(tmp_path, REPORT, 'rows_at = "runs.cases"\n') == 0
    assert read_steps(tmp_path) == [0.0125, 0.031]


def test_lines_of_json_may_end_in_ndjson(tmp_path):
    lines = "".join(json.dumps(row) + "\n" for row in ROWS)
    assert import_json(tmp_path, lines, name="t.ndjson") == 0
    assert read_steps(tmp_path) == [0.0125, 0.031]
