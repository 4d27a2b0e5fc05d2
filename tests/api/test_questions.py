"""What is derived from the table of questions: functions, schemas and types agree with it."""

import ast
import inspect
import json
from pathlib import Path

import pytest

import steptime
from command_lines import command_lines
from every import every
from steptime.api import NAMES, QUESTIONS, python_name, schema
from steptime.cli.command import output_options
from steptime.cli.main import run
from steptime.core.answer import Answer
from steptime.core.errors import InputError
from steptime.core.registry import load
from steptime.core.signatures.signature import REQUIRED, parameters_of
from steptime.hardware import catalog
from steptime.questions.list.topics import LinksAnswer
from steptime.questions.options import workload_of

FUNCTIONS = [python_name(name) for name in QUESTIONS]


@every("name", FUNCTIONS)
def test_a_command_is_a_function_with_types(name):
    function = getattr(steptime, name)
    assert callable(function)
    assert inspect.getdoc(function)
    for one in inspect.signature(function).parameters.values():
        assert one.annotation is not one.empty, one.name


@every("name", [one for one in QUESTIONS if one != "analyse"])
def test_command_function_and_schema_take_the_same(name):
    function = steptime.core.registry.load(QUESTIONS[name].answer)
    parameters = parameters_of(function)
    command = {option.name for option in command_lines()[name]}
    told = schema(name)
    takes = {parameter.name for parameter in parameters}
    assert command == takes | output_options(function).keys()
    assert takes == set(told["properties"])
    required = {parameter.name for parameter in parameters if parameter.default is REQUIRED}
    assert set(told["required"]) == required
    json.dumps(told)


def test_type_checkers_find_what_python_finds():
    tree = ast.parse(Path(steptime.__file__).read_text("utf-8"))
    imported = {
        name.asname: f"{node.module}:{name.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for name in node.names
        if name.asname
    }
    assert imported == NAMES
    assert {*NAMES, "__version__"} == {*steptime.__all__}
    for name, row in QUESTIONS.items():
        assert getattr(steptime, python_name(name)) is load(row.answer)


@pytest.mark.slow
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
        ("choose resnet18 --device t4,l4 --epochs 2", {"device": ["t4", "l4"], "epochs": 2}),
        (
            "plan resnet18 --device v100 --global-batch 64 --device-count 2,4",
            {"device": ["v100"], "global_batch": 64, "device_count": [2, 4]},
        ),
        (
            "plan gpt2 --device h100-sxm5 --inside nvlink-4 --link aws --data 64 "  # noqa: ISC004
            "--level 4:ethernet-25 --tensor 2 --sequence-parallel --option host=slow",
            {
                "device": catalog.device("h100-sxm5"),
                "inside": "nvlink-4",
                "link": "aws",
                "data": 64,
                "level": [(4, "ethernet-25")],
                "sequence_parallel": True,
                "options": {"host": "slow"},
                "tensor": 2,
            },
        ),
        (
            "serve llama3_8b --device h100 --running-sequences 4 --output 8 --prefix 0.3",
            {"device": "h100", "running_sequences": 4, "output": 8, "prefix": 0.3},
        ),
        (
            "serve llama3_8b --device h100 --rate 2 --count 9 --output 4 --tpot 0.05 --search",
            {
                "device": ["h100"],
                "rate": 2,
                "count": 9,
                "output": 4,
                "tpot": 0.05,
                "search": True,
            },
        ),
        (
            "predict resnet18 --device t4,l4 --batch 8,16 --grid",
            {"device": ["t4", "l4"], "batch": [8, 16], "all_cells": True},
        ),
        (
            "predict resnet18 --device t4 --batch 8 --channels-last yes --steps 100",
            {"device": "t4", "batch": 8, "channels_last": True, "steps": 100},
        ),
    ],
)
def test_python_and_command_give_one_answer(line, given, capsys):
    assert run([*line.split(), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    name, model, _ = line.split(maxsplit=2)
    result = getattr(steptime, name)(model, **given)
    assert json.loads(json.dumps(result.to_dict())) == printed
    assert "<table" in result._repr_html_()


ROWS = [
    {"kind": "linear", "shapes": [[8 * k, 256], [256, 256], [256]], "dtype": "float32",
     "device": "t4", "seconds": (20 + k) * 1e-6}
    for k in (1, 8, 64, 256)
]  # fmt: skip


@pytest.mark.parametrize(
    ("line", "given"),
    [
        ("whatif t4 --set peak=x2 --set memory_GB=32 --model resnet18,fc --batch 8",
         {"device": "t4", "set_": {"peak": "x2", "memory_GB": 32}, "model": ["resnet18", "fc"],
          "batch": 8}),
        ("whatif t4 --upgrade peak=x2,launch_us=x0.5 --model fc --batch 8",
         {"device": "t4", "upgrade": ["peak=x2", "launch_us=x0.5"], "model": "fc", "batch": 8}),
        ("calibrate --of t4 --from {rows} --points 3 --dry-run",
         {"of": "t4", "records": "{rows}", "points": 3, "dry_run": True}),
        ("evaluate {rows} --method roofline --by kind",
         {"paths": ["{rows}"], "method": "roofline", "by": ["kind"]}),
    ],
)  # fmt: skip
def test_python_and_command_give_one_answer_to_rows(line, given, tmp_path, capsys):
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, ROWS)))
    assert run([*line.format(rows=path).split(), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    texts = json.loads(json.dumps(given).replace("{rows}", str(path)))
    result = getattr(steptime, line.split(maxsplit=1)[0])(**texts)
    told = json.loads(json.dumps(result.to_dict()))
    for one in (told, printed):
        one.pop("date", None)
    assert told == printed
    assert "<table" in result._repr_html_()


def test_a_misspelt_parameter_is_asked_back():
    with pytest.raises(InputError, match=r"parameter 'bacth'.*did you mean 'batch'"):
        steptime.fit("fc", "t4", bacth=8)


def test_python_takes_what_it_has_in_place_of_names():
    by_name = steptime.fit("resnet18", "t4", batch=8)
    assert isinstance(by_name, Answer)
    assert steptime.fit(workload_of("resnet18", 8), catalog.device("t4")) == by_name
    assert "slow" in str(steptime.fit("fc", "t4", "8", options={"host": "slow"}).assumed)
    with pytest.raises(InputError, match="--latency-us: must be"):
        steptime.scale("fc", "t4", latency_us=-1)


def test_an_answer_is_rows_of_a_frame():
    pandas = pytest.importorskip("pandas")
    found = steptime.list("links")
    assert isinstance(found, LinksAnswer)
    assert isinstance(found.to_pandas(), pandas.DataFrame)
    assert len(found.to_pandas()) == len(found.rows)
    assert len(steptime.fit("fc", "t4").to_pandas()) == len(steptime.fit("fc", "t4").rows)
