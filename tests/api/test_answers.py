"""Every answer is the same at each call, and the same as text, JSON, CSV, DataFrame and HTML."""

import io
import json
import re
from typing import Any, get_type_hints

import fake_slurm
import pandas as pd
import pytest

import steptime
from every import every
from own_files import write_files
from places import ROOT
from steptime import api
from steptime.cli.main import run
from steptime.core.answer import (
    Answer,
    answer_kinds,
    document_of,
    field_texts,
    public_fields,
    structs_of,
)
from steptime.core.registry import load
from steptime.questions.data import DataAnswer, DataFile
from steptime.sweeps.cluster import commands

SMALL = "fc:layers=1,nodes=8,inputs=8,outputs=4"
QUESTIONS = {  # a command line: the same question in Python
    f"predict {SMALL} --device t4 --batch 8": (
        "predict",
        {"model": SMALL, "device": "t4", "batch": 8},
    ),
    f"predict {SMALL} --device t4,l4 --batch 8,16 --grid": (
        "predict",
        {"model": SMALL, "device": ["t4", "l4"], "batch": [8, 16], "all_cells": True},
    ),
    f"fit {SMALL} --device t4 --batch 8": ("fit", {"model": SMALL, "device": "t4", "batch": 8}),
    f"split {SMALL} --device t4 --server v100 --link aws": (
        "split",
        {"model": SMALL, "device": "t4", "server": "v100", "link": "aws"},
    ),
    f"systolic {SMALL} --rows 16,32 --columns 16": (
        "systolic",
        {"model": SMALL, "rows": [16, 32], "columns_": 16},
    ),
    "list links": ("list", {"topic": "links"}),
    f"choose {SMALL} --device t4,l4": ("choose", {"model": SMALL, "device": ["t4", "l4"]}),
    f"count {SMALL} --batch 8": ("count", {"model": SMALL, "batch": 8}),
    f"scale {SMALL} --device t4 --link aws --replicas 1,4": (
        "scale",
        {"model": SMALL, "device": "t4", "link": "aws", "replicas": [1, 4]},
    ),
    f"why {SMALL} --device t4 --batch 8": ("why", {"model": SMALL, "device": "t4", "batch": 8}),
    f"whatif t4 --set peak=x2 --model {SMALL}": (
        "whatif",
        {"device": "t4", "set_": {"peak": "x2"}, "model": SMALL},
    ),
    f"energy {SMALL}": ("energy_", {"network": SMALL}),
    "plan gpt2 --device h100 --inside nvlink-4 --data 2 --global-batch 4": (
        "plan",
        {"model": "gpt2", "device": "h100", "inside": "nvlink-4", "data": 2, "global_batch": 4},
    ),
    "serve llama3_8b --device h100 --running-sequences 2": (
        "serve",
        {"model": "llama3_8b", "device": "h100", "running_sequences": 2},
    ),
}


@pytest.mark.slow
@every("line", QUESTIONS)
def test_an_answer_is_the_same_on_every_surface(line, capsys):
    name, keywords = QUESTIONS[line]
    first, second = (getattr(steptime, name)(**keywords) for _ in range(2))
    assert isinstance(first, Answer)
    document = first.to_dict()
    assert document == first.to_dict() == second.to_dict() == json.loads(first.to_json())
    text = str(first)
    assert str(first) == text == str(second)
    page = first._repr_html_()
    assert first._repr_html_() == page == second._repr_html_()
    assert first.to_pandas().equals(second.to_pandas())
    assert run([*line.split(), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == document
    assert run(line.split()) == 0
    assert capsys.readouterr().out in text
    first.print()
    assert capsys.readouterr().out == text


OF_FILES: dict[str, tuple[str, dict[str, Any]]] = {
    "compare records": ("compare", {"folders": ["records"]}),
    "evaluate rows.jsonl --method roofline": (
        "evaluate",
        {"paths": ["rows.jsonl"], "method": "roofline"},
    ),
    "query SELECT~model,batch~FROM~records --in records": (
        "query",
        {"in_": "records", "sql": "SELECT model,batch FROM records"},
    ),
    f"convert {SMALL} --out network.json": ("convert", {"model": SMALL, "out": "network.json"}),
    "report records --out report.html": ("report", {"folder": "records", "out": "report.html"}),
    "analyse errors records": ("analyse", {"kind": "errors", "folders": "records"}),
    "sweep status swept": ("sweep_status", {"folder": "swept"}),
    "sweep experiment.toml --out done": ("sweep", {"file": "experiment.toml", "out": "done"}),
    "import rows.csv --out imported --map columns.toml": (
        "import_",
        {"paths": ["rows.csv"], "out": "imported", "mapping": "columns.toml"},
    ),
    "sweep collect swept": ("sweep_collect", {"folder": "swept"}),
}
VARYING: dict[str, tuple[str, dict[str, Any]]] = {  # what a machine measures, dates, or finds done
    "sweep cancel swept": ("sweep_cancel", {"folder": "swept"}),
    "calibrate --of t4 --from rows.jsonl --points 3 --dry-run": (
        "calibrate",
        {"of": "t4", "records": "rows.jsonl", "points": 3, "dry_run": True},
    ),
    "doctor": ("doctor", {}),
    f"run {SMALL} --backend null --budget 0.01": (
        "run",
        {"model": SMALL, "backend": "null", "budget": 0.01},
    ),
}


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Go to a folder with records, rows, an experiment and a sweep that a made-up Slurm holds."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(commands, "execute", fake_slurm.execute)
    fake_slurm.reset()
    write_files(tmp_path)
    steptime.sweep("experiment.toml", out="done")
    steptime.sweep("experiment.toml", out="swept", launcher="slurm")
    steptime.import_(["rows.csv"], out="imported", mapping="columns.toml")


def _ask(name: str, keywords: dict[str, Any]) -> Any:
    if name == "analyse":
        return steptime.analyse(keywords["kind"], keywords["folders"])
    return getattr(steptime, name)(**keywords)


def _hold_readings(answer: Any) -> None:
    """Hold that each form of an answer is the same at the second reading, and fits the others."""
    assert isinstance(answer, Answer)
    document = answer.to_dict()
    assert document == answer.to_dict() == json.loads(answer.to_json())
    text, page = str(answer), answer._repr_html_()
    assert text == str(answer) == repr(answer)
    assert page == answer._repr_html_()
    frame = answer.to_pandas()
    assert frame.equals(answer.to_pandas())
    assert len(frame) == (1 if document.get("rows") is None else len(document["rows"]))


@pytest.mark.slow
def test_an_answer_on_files_is_the_same_on_every_surface(files, capsys):
    for line, (name, keywords) in OF_FILES.items():
        first, second = (_ask(name, keywords) for _ in range(2))
        _hold_readings(first)
        capsys.readouterr()
        assert first.to_dict() == second.to_dict(), line
        assert str(first) == str(second), line
        words = [word.replace("~", " ") for word in line.split()]
        assert run([*words, "--json"]) == first.exit_code, line
        assert json.loads(capsys.readouterr().out) == first.to_dict(), line
        assert run(words) == first.exit_code, line
        assert capsys.readouterr().out in str(first), line
        assert run([*words, "--format", "csv"]) == first.exit_code, line
        _hold_csv(capsys.readouterr().out, first)


@pytest.mark.slow
def test_an_answer_that_measures_has_the_same_keys_on_every_surface(files, capsys):
    for line, (name, keywords) in VARYING.items():
        first, second = (_ask(name, keywords) for _ in range(2))
        _hold_readings(first)
        capsys.readouterr()
        assert run([*line.split(), "--json"]) == 0
        document = json.loads(capsys.readouterr().out)
        assert document.keys() == first.to_dict().keys() == second.to_dict().keys()
        assert run([*line.split(), "--format", "csv"]) == 0
        _hold_csv(capsys.readouterr().out, first)


def _data_answer() -> DataAnswer:
    files = (DataFile(file="train-images", sha256="0f"), DataFile(file="train-labels", sha256="1e"))
    return DataAnswer(
        name="mnist",
        out="new",
        source="csv",
        training_examples=60000,
        test_examples=10000,
        rows=files,
        headline=("mnist: 2 files",),
    )


def test_every_public_function_is_asked():
    asked = {name for table in (QUESTIONS, OF_FILES, VARYING) for name, _ in table.values()}
    # `data_` needs a data set; the last test of this file makes its answer
    assert asked == {api.python_name(name) for name in api.QUESTIONS} - {"data_"}


def test_the_answer_of_data_reads_the_same_twice():
    _hold_readings(_data_answer())


def _hold_csv(text: str, answer: Any) -> None:
    """Hold that a CSV is one table with a row for each of the answer, of the same numbers."""
    rows = answer.to_dict().get("rows")
    if not rows:
        return
    table = pd.read_csv(io.StringIO(text))
    assert len(table) == len(rows)
    for column in set(table) & set(rows[0]):
        if isinstance(rows[0][column], float):
            assert table[column].tolist() == pytest.approx(
                [row[column] for row in rows], nan_ok=True
            )


@pytest.mark.slow
@every("line", [line for line in QUESTIONS if "list" not in line])
def test_csv_is_one_table_of_plain_numbers(line, capsys):
    name, keywords = QUESTIONS[line]
    answer = getattr(steptime, name)(**keywords)
    assert run([*line.split(), "--format", "csv"]) == 0
    text = capsys.readouterr().out
    table = pd.read_csv(io.StringIO(text))
    assert len(table) == len(answer.csv_rows())
    _hold_csv(text, answer)


def test_public_fields_have_meanings():
    lacking = []
    for row in api.QUESTIONS.values():
        function = load(row.answer)
        if hasattr(function, "inquiry"):
            continue
        for kind in answer_kinds(get_type_hints(function)["return"]):
            for struct in (kind, *structs_of(kind)):
                texts = field_texts(struct)
                lacking += [
                    f"{struct.__name__}.{name}"
                    for name in public_fields(struct)
                    if not texts.get(name)
                ]
    assert not lacking


def test_private_fields_are_no_part_of_the_document():
    answer = steptime.split(SMALL, "t4", "v100", "aws", by_op=True)
    assert "_by_op" not in document_of(answer)
    assert len(str(answer).splitlines()) == len(answer.rows) + 4


def test_every_key_of_the_golden_answers_is_in_the_vocabulary():
    page = (ROOT / "docs/vocabulary.md").read_text("utf-8")
    kinds = dict(re.findall(r"^\| `(\w+)` \| ([^|]*) \|", page, re.MULTILINE))
    golden = json.loads((ROOT / "tests/golden/golden.json").read_text("utf-8"))
    unknown = set()
    for line, answer in golden.items():
        for path in answer["values"]:
            for name in filter(None, re.split(r"[.#\[\]]+", path)):
                if name not in kinds:
                    unknown.add((line.split()[0], path))
                    break
                if "table" in kinds[name]:  # its keys are data
                    break
    assert not unknown
