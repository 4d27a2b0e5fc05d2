"""`--sort` and `--top` of whatever answers with rows, in each form."""

from __future__ import annotations

import csv
import io
import json

import pytest

import synthetic
from steptime.cli.main import run
from steptime.records.store import open_writer

LINES = [  # and a column by its key
    ("list devices", "capacity_bytes"),
    ("list links", "bytes_per_s"),
    ("predict fc --device t4,v100 --grid --batch 8,64", "step_s"),
    ("predict fc --device t4 --by-op", "step_s"),
    ("scale fc --device t4 --link aws", "examples_per_s"),
    ("fit fc --device t4", "step_s"),
    ("choose fc --device t4,v100,a100", "cost_total"),
    ("analyse errors {folder}", "median_error_share"),
    ("query 'SELECT * FROM records' --in {folder}", "step_s"),
    ("compare {folder}", "ratio"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("records")
    with open_writer(place) as writer:
        writer.append_all(synthetic.sweep())
    return str(place)


def printed(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert run(words) == 0, words
    return capsys.readouterr().out


def rows_of(text: str) -> list[dict[str, object]]:
    document = json.loads(text)
    if isinstance(document, list):
        return document
    return next(document[key] for key in ("rows", "ops", "pairs") if document.get(key))


@pytest.mark.parametrize(("line", "key"), LINES)
def test_rows_are_sorted_and_cut(line, key, folder, capsys):
    words = [word.format(folder=folder) for word in line.replace("'", "").split()]
    if "query" in line:
        words = ["query", "SELECT * FROM records", "--in", folder]
    every = rows_of(printed([*words, "--json"], capsys))
    known = sorted((row[key] for row in every if row[key] is not None), reverse=True)
    top = rows_of(printed([*words, "--json", "--sort", f"-{key}", "--top", "2"], capsys))
    assert [row[key] for row in top] == known[:2]
    rising = rows_of(printed([*words, "--json", "--sort", key], capsys))
    assert [row[key] for row in rising][: len(known)] == known[::-1]
    assert len(rising) == len(every)
    plain = printed([*words, "--format", "csv", "--sort", f"-{key}", "--top", "2"], capsys)
    told = next(
        rows
        for part in plain.split("\n\n")
        if (rows := list(csv.DictReader(io.StringIO(part)))) and key in rows[0]
    )
    assert [float(row[key]) for row in told] == pytest.approx(known[:2])
    assert printed([*words, "--top", "1"], capsys)


def test_a_column_of_csv_may_be_called_by_its_heading(capsys):
    words = ["predict", "fc", "--grid", "--device", "a100,t4", "--batch", "1..5", "--top", "3"]
    rows = rows_of(printed([*words, "--json", "--sort", "-step"], capsys))
    text = printed([*words, "--format", "csv", "--sort", "-step"], capsys)
    times = [float(row["step_s"]) for row in csv.DictReader(io.StringIO(text))]
    assert times == [row["step_s"] for row in rows] == sorted(times, reverse=True)
    assert len(times) == 3


def test_a_column_may_be_called_by_its_heading(capsys):
    by_key = printed(["list", "devices", "--sort", "-capacity_bytes", "--top", "5"], capsys)
    assert printed(["list", "devices", "--sort", "-Memory", "--top", "5"], capsys) == by_key


@pytest.mark.parametrize(
    ("line", "heading", "key"),
    [
        ("list devices", "Memory", "capacity_bytes"),
        ("fit resnet50 --device a100", "step", "step_s"),
        ("fit resnet50 --device a100", "speed", "examples_per_s"),
    ],
)
def test_a_heading_names_a_column_of_json_too(line, heading, key, capsys):
    words = [*line.split(), "--json", "--sort"]
    assert printed([*words, f"-{heading}"], capsys) == printed([*words, f"-{key}"], capsys)


def test_what_is_unknown_comes_last(capsys):
    for name in ("latency_s", "-latency_s"):
        rows = rows_of(printed(["list", "links", "--json", "--sort", name], capsys))
        unknown = [row["latency_s"] is None for row in rows]
        assert any(unknown)
        assert unknown == sorted(unknown)


def test_csv_of_stacks_has_what_people_see_no_room_for(capsys):
    rows = list(csv.DictReader(io.StringIO(printed(["list", "stacks", "--format", "csv"], capsys))))
    assert {"name", "fuses", "source"} <= set(rows[0])
    assert "fuses" not in printed(["list", "stacks"], capsys)


@pytest.mark.parametrize("kind", ["nodes", "speedup"])
def test_what_has_no_rows_has_no_picture(kind, folder, tmp_path, capsys):
    out = tmp_path / "picture.svg"
    assert run(["analyse", kind, folder, "-o", str(out)]) == 2
    assert "nothing to draw; no" in capsys.readouterr().err
    assert not out.exists()
