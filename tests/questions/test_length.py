"""`--length` gives a sequence model other sequences, in every command that predicts one."""

import json

import pytest

import steptime
from command_lines import command_lines
from every import every
from steptime.cli.main import run
from steptime.core.errors import InputError
from steptime.questions.options import workload_of

ON_A100 = ("--device", "a100")
COMMANDS = {
    "count": (),
    "predict": ON_A100,
    "fit": ON_A100,
    "why": ON_A100,
    "choose": ("--device", "a100,t4"),
    "scale": (*ON_A100, "--link", "ethernet-25", "--replicas", "1,2"),
    "whatif": ("--set", "peak=x2"),
}
NAMED_LENGTH = "gpt2:length=256"


def _answer(capsys, name, model, *options):
    values = ("a100", "--model", model) if name == "whatif" else (model,)
    code = run([name, *values, *COMMANDS[name], *options, "--json"])
    printed = capsys.readouterr()
    assert code == 0, printed.err
    return json.loads(printed.out)


@pytest.mark.slow
@every("name", COMMANDS)
def test_a_length_is_that_of_the_model_text(capsys, name):
    asked = _answer(capsys, name, "gpt2", "--length", "256")
    assert asked == _answer(capsys, name, NAMED_LENGTH)


def test_a_length_has_a_second_name_and_changes_the_answer(capsys):
    asked = _answer(capsys, "predict", "gpt2", "--length", "256")
    assert asked == _answer(capsys, "predict", "gpt2", "--seq-len", "256")
    assert asked != _answer(capsys, "predict", "gpt2")
    named = ("--length", "--seq-len")
    for name in COMMANDS:
        (option,) = (one for one in command_lines()[name] if one.name == "length")
        assert set(named) <= set(option.names), name


@every("name", (*COMMANDS, "plan", "run"))
def test_a_model_without_a_length_says_what_its_inputs_are(capsys, name):
    values = ("a100", "--model", "resnet18") if name == "whatif" else ("resnet18",)
    options = {"plan": ON_A100, "run": ()}.get(name) if name not in COMMANDS else COMMANDS[name]
    assert run([name, *values, *options, "--length", "256"]) == 2
    line = capsys.readouterr().err.strip()
    assert "--length: resnet18 has no length; its inputs are image 64x3x224x224" in line
    assert "\n" not in line


def test_a_grid_and_python_take_a_length_too():
    grid = steptime.predict("gpt2,bert_base", "a100", length=128, all_cells=True)
    assert all("length=128" in row["model"] for row in grid.to_dict()["rows"])
    one = steptime.predict("gpt2", "a100", length=128)
    assert one.step_s == steptime.predict("gpt2:length=128", "a100").step_s


@every(
    ("model", "message"),
    [("gpt2:length=64", "--length 256 contradicts length=64"), (None, "a workload has its own")],
)
def test_two_lengths_are_refused(model, message):
    workload = workload_of("gpt2", None)
    with pytest.raises(InputError, match=message):
        steptime.count(model or workload, length=256)


def test_commands_that_would_fit_keep_the_length(capsys):
    options = ("--device", "rtx-4090", "--dtype", "bfloat16", "--length", "4096")
    assert run(["fit", "llama3_8b", *options, "--json"]) == 0
    commands = json.loads(capsys.readouterr().out)["would_fit"]
    assert commands
    assert all("--length 4096" in command for command in commands)
