"""Mistakes made up for every option of every command: one line, with the option, and exit code 2.

Each option of the table of questions gets no value, an empty one, and those that no option of its
kind takes: words and wrong units for numbers, negatives, unknown names, and near names of choices.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from math import inf
from typing import Any, NamedTuple

import pytest

import synthetic
from steptime.api import QUESTIONS
from steptime.cli import command as command_module
from steptime.cli.main import run
from steptime.core import values
from steptime.core.registry import load
from steptime.core.signatures.signature import QuestionParameter, parameters_of
from steptime.measure.launch import Worker
from steptime.records import store

MODEL = "fc:layers=1,nodes=8"
BASES = {  # a right command line of each command that is shown
    "predict": f"predict {MODEL} --device t4",
    "fit": f"fit {MODEL} --device t4",
    "choose": f"choose {MODEL} --device t4,a100",
    "scale": f"scale {MODEL} --device t4 --link aws --replicas 1,2",
    "plan": "plan gpt2 --device a100",
    "serve": "serve gpt2 --device a100 --input 512",
    "split": f"split {MODEL} --device t4 --server a100 --link ethernet-10",
    "energy": "energy alexnet_v2",
    "systolic": f"systolic {MODEL}",
    "data": "data mnist --out new",
    "sweep status": "sweep status records",
    "sweep collect": "sweep collect records",
    "sweep cancel": "sweep cancel records",
    "convert": f"convert {MODEL} --out new.json",
    "count": f"count {MODEL}",
    "why": f"why {MODEL} --device t4",
    "whatif": f"whatif t4 --model {MODEL} --set memory_GB_per_s=x2",
    "doctor": "doctor",
    "calibrate": "calibrate --backend null",
    "run": f"run {MODEL} --backend null",
    "sweep": "sweep good.toml --out new",
    "import": "import records --out new",
    "report": "report records",
    "compare": "compare records",
    "evaluate": "evaluate records",
    "list": "list devices",
    "query": "query 'SELECT 1' --in records",
}
NO_OPTIONS = {"analyse"}  # a group of commands, whose kinds come from the table of analyses
EXPERIMENT = 'name = "e"\nbackend = "null"\n[[networks]]\nfamily = "fc"\nlayers = 1\nnodes = 8\n'
NUMBERS = ("", "x", "-1", "nan", "5GB")
WRONG_VALUES = {  # values that no option of a kind takes
    values.parse_count: (*NUMBERS, "1.5"),
    values.parse_number: NUMBERS,
    values.parse_duration: NUMBERS,
    values.parse_bytes: ("", "x", "-1", "nan", "5ms"),
    values.parse_price: NUMBERS,
    values.parse_share: NUMBERS,
    values.parse_latency_s: NUMBERS,
}
PARSERS = {  # of options without a parser of their own, by what stands for their value
    "N": values.parse_count,
    "K": values.parse_count,
    "M": values.parse_duration,
    "TIME": values.parse_duration,
    "SIZE": values.parse_bytes,
    "P": values.parse_price,
    "W": values.parse_number,
    "X": values.parse_number,
}
METAVARS_OF_NAMES = {"LINK", "NAME", "WHAT"}
FREE_NAMES = {  # any name is right there, or whether one is right shows only once work begins
    ("calibrate", "--device"),
    ("calibrate", "--of"),
    ("predict", "--from-device"),
    ("import", "--device"),
}
OTHER_WORDS = {  # a backend says what it runs on: 'zzz' is not available to null; there is: cpu
    ("run", "--device"),
}


NEEDED_WORDS = {  # what an option goes with, so that its own value is what is wrong
    ("predict", "--link"): "--grid --replicas 1,2",
    ("choose", "--link"): "--page page.html",
    ("calibrate", "--of"): "--from records",
    ("serve", "--host"): "--stack llama.cpp",
}
EXCLUSIVE = {("run", "--stack"): "--backend null"}  # words of the base line that it stands for
MIN_NAME_LENGTH = 5  # below, one wrong letter may be another name


class Mistake(NamedTuple):
    """A command line that is wrong in one option, and the name that its message must offer."""

    option: str
    words: list[str]
    nearest: str = ""


def _wrong_values(command: str, option: str, parameter: QuestionParameter) -> tuple[str, ...]:
    kind = parameter.kind
    parse = PARSERS.get(kind.metavar)
    if parse in WRONG_VALUES:
        return WRONG_VALUES[parse]
    if (command, option) in FREE_NAMES:
        return ("",)
    if kind.choices:
        return ("", "zzz", f"{kind.choices[0][:-1]}_")
    return ("", "zzz") if kind.metavar in METAVARS_OF_NAMES else ("",)


def _base_words(command: str) -> list[str]:
    parts = re.findall(r"'([^']*)'|([^\s']+)", BASES[command])
    return [quoted or bare for quoted, bare in parts]


def _names_of(parameter: QuestionParameter) -> list[str]:
    """Return the names that a parameter takes: its choices, or those that a shell offers."""
    kind = parameter.kind
    if kind.choices or not kind.completes:
        return list(kind.choices)
    names = load(kind.completes)
    return list(map(str, names() if callable(names) else names))


def _near_names(command: str) -> Iterator[Mistake]:
    """Yield a name with a wrong last letter, and one near no name, for each option with names."""
    for parameter in parameters_of(load(QUESTIONS[command].answer)):
        option, kind = parameter.option, parameter.kind
        names = [name for name in _names_of(parameter) if len(name) >= MIN_NAME_LENGTH]
        if not names or parameter.is_flag or (command, option) in FREE_NAMES | OTHER_WORDS:
            continue
        name = names[0] if kind.choices else max(names, key=len)
        line = " ".join(_base_words(command)).replace(EXCLUSIVE.get((command, option), ""), "")
        words = [*line.split(), *NEEDED_WORDS.get((command, option), "").split()]
        for wrong, nearest in ((f"{name[:-1]}_", name), ("zzzqqq", "")):
            yield Mistake(option, _with_value(command, words, parameter, wrong), nearest)


def _with_value(
    command: str, words: list[str], parameter: QuestionParameter, value: str
) -> list[str]:
    """Return a command line with the value of one parameter, in place of what it had."""
    if parameter.kind.is_argument:
        at = len(command.split())
        return [*words[:at], value, *words[at + 1 :]]
    if parameter.option in words:
        at = words.index(parameter.option)
        words = words[:at] + words[at + 2 :]
    return [*words, parameter.option, value]


def _mistakes(command: str) -> Iterator[Mistake]:
    base = _base_words(command)
    function = load(QUESTIONS[command].answer)
    for parameter in parameters_of(function):
        if parameter.kind.is_argument or parameter.is_flag:
            continue
        option = parameter.option
        line = base
        if option in base:
            at = base.index(option)
            line = base[:at] + base[at + 2 :]
        yield Mistake(option, [*line, option])
        for value in _wrong_values(command, option, parameter):
            yield Mistake(
                option, [*line, *([f"{option}={value}"] if "--" in option else [option, value])]
            )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("generated")
    (root / "good.toml").write_text(EXPERIMENT, encoding="utf-8")
    with store.open_writer(root / "records") as writer:
        for workload in synthetic.workloads()[:2]:
            writer.append(synthetic.measured(workload))
            writer.append(synthetic.predicted(workload)[0])
    return root


def _refuse_to_measure(
    worker: Worker, request: Mapping[str, Any], limit_s: float
) -> dict[str, Any]:
    assert request["do"] == "start", "a wrong command line got to be measured"
    return ASK(worker, request, limit_s)


ASK = Worker.ask


def test_every_command_that_is_shown_has_a_base_line():
    assert BASES.keys() | NO_OPTIONS == {name for name, row in QUESTIONS.items() if row.panel}


@pytest.mark.slow
@pytest.mark.parametrize("command", BASES)
def test_a_generated_mistake_is_one_line_with_the_option(command, folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    monkeypatch.setattr("steptime.measure.launch.Worker.ask", _refuse_to_measure)
    monkeypatch.setattr(command_module, "PATIENCE_S", inf)
    faults = []
    for mistake in _mistakes(command):
        code = run(mistake.words)
        out, err = capsys.readouterr()
        if not _is_right(command, mistake, code, out, err):
            faults.append(f"{' '.join(mistake.words)}: {code} {err}")
    assert not faults, "\n".join(faults)
    assert not (folder / "new").exists()


@pytest.mark.parametrize("command", BASES)
def test_a_name_with_a_wrong_letter_is_answered_by_the_nearest(
    command, folder, monkeypatch, capsys
):
    """And one near no name by what there is, or by where it is listed."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr("steptime.measure.launch.Worker.ask", _refuse_to_measure)
    monkeypatch.setattr(command_module, "PATIENCE_S", inf)
    faults = []
    for mistake in _near_names(command):
        code = run(mistake.words)
        out, err = capsys.readouterr()
        is_one_line = err.startswith("steptime: ") and len(err.splitlines()) == 1
        has_names = mistake.nearest in err if mistake.nearest else OFFERS.search(err)
        if (code, out) != (2, "") or not is_one_line or not has_names:
            faults.append(f"{' '.join(mistake.words)}: {code} {err}")
    assert not faults, "\n".join(faults)


VALUE_IS_MISSING = re.compile("needs a value|an empty value")
OFFERS = re.compile(r"known:|did you mean|steptime list|there is: ")


def _is_right(command: str, mistake: Mistake, code: int, out: str, err: str) -> bool:
    is_one_line = err.startswith("steptime: ") and len(err.splitlines()) == 1
    lacks_value = VALUE_IS_MISSING.search(err)
    has_advice = not lacks_value or bool(re.search(r"; (known: |[^ ;]+: )", err))
    names_option = _names_option(command, mistake.option, err)
    return (code, out) == (2, "") and is_one_line and names_option and has_advice


def _names_option(command: str, option: str, err: str) -> bool:
    """Whether a message has the option, or the kind of thing that its name says: `dtype 'zzz'`."""
    word = option.strip("-")
    words = {option, f"unknown {word}", f"unknown {word.removesuffix('s')}", word.replace("-", " ")}
    return (command, option) in OTHER_WORDS or any(name in err for name in words)
