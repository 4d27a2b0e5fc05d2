"""One vocabulary: every key that a command prints, in every mode, stands in docs/vocabulary.md.

A key of a table whose names are data (`assumed`, hyperparameters, options of a method) is free.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, get_type_hints

import fake_slurm
import pytest

import steptime
from command_lines import command_line_name, command_lines
from own_files import write_files
from places import ROOT
from steptime import api
from steptime.analysis.analyses import ANALYSES, PLOTS
from steptime.cli.main import run
from steptime.core.answer import Answer, answer_kinds, public_keys, structs_of
from steptime.core.registry import load
from steptime.sweeps.cluster import commands

FC = "fc:layers=1,nodes=8,inputs=8,outputs=4"
OF_A_TRAINING = "--examples 1000 --epochs 2 --price 2"
LOAD = "--rate 1 --count 5 --output 4 --tpot 0.1"
LINES = (
    f"predict {FC} --device t4",
    f"predict {FC} --device t4 --by-op",
    f"predict {FC} --device t4 --steps 100 --kwh-price 0.3 --kwh-co2 400",
    f"predict {FC} --device t4 --stack torch-eager,torch-compile",
    f"predict {FC} --device t4,l4 --batch 8,16 --grid",
    f"predict {FC} --device t4,l4 --batch 8,16 --grid --replicas 1,8 --link aws",
    f"predict {FC} --device t4,l4 --batch 8,16 --grid --out cells.csv",
    "predict --in records --device t4",
    "predict gpt2 --device a100 --tokens 1e9",
    f"fit {FC} --device t4",
    f"choose {FC} --device t4,l4",
    f"scale {FC} --device t4 --link aws --replicas 1,4",
    f"scale {FC} --device t4 --link aws --scaling strong --global-batch 512 {OF_A_TRAINING}",
    f"scale {FC} --device t4 --link aws --parallel model --method paleo",
    "plan gpt2 --device h100 --data 16 --link infiniband-ndr",
    "plan gpt2 --device h100 --device-count 2,4 --global-batch 8",
    "plan gpt2 --device h100 --device-count 2 --global-batch 8 --page plans.html",
    "plan gpt2 --device h100 --data 2 --emit megatron",
    "plan resnet18 --device v100 --data 4 --global-batch 64",
    "plan gpt2 --device rtx-3090 --global-batch 4096 --microbatch 4096",
    "serve gpt2 --device h100 --input 64 --running-sequences 2",
    "serve gpt2 --device h100 --input 64 --concurrency 4 --count 20 --output 8",
    f"serve gpt2 --device h100 --input 64 {LOAD}",
    f"serve gpt2 --device h100,l40s --input 64 {LOAD} --search --max-device-count 1",
    f"split {FC} --device t4 --server v100 --link aws --by-op",
    "energy alexnet_v2",
    f"energy {FC} --by-op",
    "energy vgg16 --method fodlam",
    f"systolic {FC} --rows 16,32 --columns 16",
    f"systolic {FC}",
    f"count {FC}",
    f"count {FC} --by-op",
    f"why {FC} --device t4",
    f"why {FC} --device t4 --replicas 8 --link aws",
    f"why {FC} --device K40 --from paleo",
    "why --in records --device t4",
    f"whatif t4 --set peak=x2 --model {FC}",
    f"whatif t4 --set peak=x1..x4x2 --model {FC}",
    f"whatif t4 --upgrade peak=x2,memory_GB_per_s=x2 --model {FC}",
    "doctor",
    "calibrate --of t4 --from rows.jsonl --points 3 --dry-run",
    f"run {FC} --backend null --budget 0.1",
    f"run {FC} --backend null --budget 0.1 --out new",
    "sweep experiment.toml --out swept",
    "sweep experiment.toml --out submitted --launcher slurm --dry-run",
    "sweep experiment.toml --out submitted --launcher slurm",
    *(f"sweep {job} submitted" for job in ("status", "collect", "cancel")),
    "import rows.csv --out imported --map columns.toml",
    "report records --out report.html",
    "compare records",
    "compare records records",
    "evaluate rows.jsonl --method roofline --by kind",
    *(f"list {topic}" for topic in ("models", "devices", "links", "stacks", "methods", "ops")),
    *("list quantities", "list accelerators", "list questions", "list t4", "list resnet50"),
    "query SELECT~count(*)~AS~rows~FROM~records --in records",
    f"convert {FC} --out network.json",
    *(f"analyse {kind} records" for kind in ANALYSES),
    "analyse throughput records --out picture.svg",
)
FREE_ROWS = ("analyse", "query")  # columns are those of records, or of the user's SQL


def _vocabulary() -> dict[str, str]:
    """Return the types of the names of the page, by name."""
    page = (ROOT / "docs/vocabulary.md").read_text("utf-8")
    return dict(re.findall(r"^\| `(\w+)` \| ([^|]*) \|", page, re.MULTILINE))


def _unknown_keys(value: Any, types: dict[str, str], place: str = "") -> Iterator[str]:
    """Yield the places of the keys of a document that the vocabulary lacks."""
    if isinstance(value, dict):
        for key, item in value.items():
            if key not in types:
                yield f"{place}.{key}"
            elif not (isinstance(item, dict) and "table" in types[key]):
                yield from _unknown_keys(item, types, f"{place}.{key}")
    elif isinstance(value, list):
        for item in value:
            yield from _unknown_keys(item, types, f"{place}[]")


@pytest.mark.slow
def test_every_key_of_every_command_in_every_mode_is_in_the_vocabulary(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(commands, "execute", fake_slurm.execute)
    fake_slurm.reset()
    write_files(tmp_path)
    types, faults = _vocabulary(), []
    for line in LINES:
        words = [word.replace("~", " ") for word in line.split()]
        code = run([*words, "--json"])
        printed = capsys.readouterr()
        if code:
            faults.append((line, printed.err))
            continue
        document = json.loads(printed.out)
        if line.startswith(FREE_ROWS):
            document = {key: item for key, item in document.items() if key != "rows"}
        faults += [(line, place) for place in sorted(set(_unknown_keys(document, types)))]
    assert not faults, "\n".join(map(str, faults))


def test_the_lines_are_of_every_command():
    asked = {command_line_name(line.split()) for line in LINES}
    pictures = {f"analyse {kind}" for kind in PLOTS}  # all have one answer
    others = {"data", *api.PROGRAMS}  # `data` needs a data set, programs answer nothing
    assert asked | pictures | others >= command_lines().keys()


def test_names_of_private_fields_stand_in_answers_alone():
    """A row holds no answer and has no private field, so that its plain values are all public."""
    for row in api.QUESTIONS.values():
        for kind in answer_kinds(get_type_hints(load(row.answer))["return"]):
            for struct in structs_of(kind):
                if not issubclass(struct, Answer):
                    assert len(public_keys(struct)) == len(struct.__struct_fields__), struct
                    assert not any(issubclass(part, Answer) for part in structs_of(struct)), struct


def test_an_answer_in_an_answer_shows_no_private_field(capsys):
    stacks = ["torch-eager", "torch-compile"]
    answer = steptime.predict(FC, "t4", stack=",".join(stacks))
    first = steptime.predict(FC, "t4", stack=stacks[0])
    assert answer.to_dict()["rows"][0].keys() == first.to_dict().keys() | {"stack"}
    assert not any(key.startswith("_") for key in answer.to_pandas())
    definitions = api.schema("predict")["output"]["$defs"]
    for name, definition in definitions.items():
        assert not [key for key in definition.get("properties", ()) if key.startswith("_")], name
    assert run(["predict", FC, "--device", "t4", "--stack", ",".join(stacks), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == answer.to_dict()
