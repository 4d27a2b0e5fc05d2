"""What is derived from the table of questions: functions, schemas and types agree with it."""

from __future__ import annotations

import ast
import inspect
import json
from pathlib import Path

import pytest

import steptime
from every import every
from steptime.api import NAMES, QUESTIONS, schema
from steptime.cli.main import run, tree
from steptime.core.errors import InputError
from steptime.core.table import Answer, Result
from steptime.hardware import catalog
from steptime.questions.options import workload_of

SHOWN = {("import_" if name == "import" else name): name for name in QUESTIONS
         if QUESTIONS[name].panel}  # fmt: skip


@every("name", SHOWN)
def test_a_shown_command_is_a_function_with_types(name: str) -> None:
    function = getattr(steptime, name)
    assert callable(function)
    assert inspect.getdoc(function)
    for one in inspect.signature(function).parameters.values():
        assert one.annotation is not one.empty, one.name


@every("name", [one for one in QUESTIONS if one != "analyse"])
def test_command_function_and_schema_take_the_same(name: str) -> None:
    asked = steptime.core.registry.load(QUESTIONS[name].answer).inquiry
    command = {one.name for one in tree().get_command(None, name).params}
    told = schema(name)
    assert command - {"form", "json"} == set(asked.signature.parameters) == set(told["properties"])
    positional = asked.signature.parameters.values()
    assert set(told["required"]) == {one.name for one in positional if one.default is one.empty}
    json.dumps(told)


def test_the_stub_has_what_python_finds() -> None:
    stub = ast.parse(Path(steptime.__file__).with_suffix(".pyi").read_text("utf-8"))
    functions = {one.name: one.args for one in stub.body if isinstance(one, ast.FunctionDef)}
    imported = {name.asname for one in stub.body if isinstance(one, ast.ImportFrom)
                for name in one.names if name.asname}  # fmt: skip
    assert imported | set(functions) == set(NAMES)
    for name, arguments in functions.items():
        told = inspect.signature(getattr(steptime, name)).parameters
        every = [one.arg for one in (*arguments.args, *arguments.kwonlyargs)]
        assert every == list(told), f"{name}: stale: run scripts/make-api"


@every(
    ("line", "given"),
    [
        ("fit resnet18 --device t4 --batch 8", {"device": "t4", "batch": 8}),
        ("why resnet18 --device t4 --batch 8", {"device": "t4", "batch": 8}),
        ("predict resnet18 --device t4 --batch 8", {"device": "t4", "batch": 8}),
        ("count resnet18 --batch 8", {"batch": 8}),
        (
            "scale resnet18 --device t4 --replicas 1,4 --link aws --per-node 4",
            {"device": "t4", "replicas": [1, 4], "link": "aws", "per_node": 4},
        ),
        ("choose resnet18 --devices t4,l4 --epochs 2", {"devices": ["t4", "l4"], "epochs": 2}),
    ],
)
def test_python_and_command_give_one_answer(
    line: str, given: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*line.split(), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    result = getattr(steptime, line.split(maxsplit=1)[0])("resnet18", **given)
    assert json.loads(json.dumps(result.to_dict())) == printed
    assert "<table" in result._repr_html_()


def test_python_takes_what_it_has_in_place_of_names() -> None:
    by_name = steptime.fit("resnet18", "t4", batch=8)
    assert isinstance(by_name, Result)
    assert steptime.fit(workload_of("resnet18", 8), catalog.device("t4")) == by_name
    assert "slow" in str(steptime.fit("fc", "t4", "8", option_={"host": "slow"}).assumed)
    with pytest.raises(InputError, match="latency_us: must be"):
        steptime.scale("fc", "t4", latency_us=-1)


def test_an_answer_is_rows_of_a_frame() -> None:
    pandas = pytest.importorskip("pandas")
    found = steptime.list("links")
    assert isinstance(found, Answer)
    assert isinstance(found.to_pandas(), pandas.DataFrame)
    assert len(found.to_pandas()) == len(found.to_dict())
    assert len(steptime.fit("fc", "t4").to_pandas()) == len(steptime.fit("fc", "t4").rows)
