"""Every answer is the same at each call, and the same as text, JSON, CSV, DataFrame and HTML."""

import io
import json
import re
from typing import get_type_hints

import pandas as pd
import pytest

import steptime
from every import every
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


@every("line", [line for line in QUESTIONS if "list" not in line])
def test_csv_is_one_table_of_plain_numbers(line, capsys):
    name, keywords = QUESTIONS[line]
    answer = getattr(steptime, name)(**keywords)
    assert run([*line.split(), "--format", "csv"]) == 0
    table = pd.read_csv(io.StringIO(capsys.readouterr().out))
    rows = answer.to_dict().get("rows")
    if rows is None:
        return
    assert len(table) == len(rows)
    for column in set(table) & set(rows[0]):
        if isinstance(rows[0][column], float):
            assert table[column].tolist() == pytest.approx([row[column] for row in rows])


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
