"""Words of this house that nobody outside of it knows: none of them is on a screen."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import steptime
from places import ROOT
from steptime.cli.commands import COMMANDS
from steptime.cli.main import run
from steptime.core.registry import load

NONE = {  # what is not said: what is said in its place
    r"told apart": "as fast within the error of this prediction",
    r"exchang(?!e_s\b)\w*": "communication, all-reduce",
    r"examples a step": "batch size",
    r"half in\b": "p50",
    r"\d+ % in$": "p90, p99",
    r"waits? for which|waited for$": "exposed",
    r"waiting for (the host|exchanges|communication)": "CPU-bound, exposed communication",
    r"too narrow": "hidden columns (terminal width)",
    r"too much\b": "out of memory by 48.3 GB",
    r"first token|each token$": "TTFT, TPOT",
    r"=bound(ed)? by": "bottleneck",
    r"never seen": "held-out devices",
}
WORDS = re.compile("|".join(rf"(?:\b|(?<==))(?:{one})" for one in NONE), re.IGNORECASE)
SOURCE = Path(steptime.__file__).parent
ELSEWHERE = {  # what no screen shows as it stands
    "measure/backends": "how a number of a record was measured, as records of 0.14 have it",
    "measure/process_group.py": "as above",
    "measure/contract.py": "as above",
    "records/results_sql.py": "SQL",
    "records/readers/sources.py": "an archive that holds too much",
}
NAME = re.compile(r"[\w./-]*")  # of keys, columns and constants


def literals(path: Path) -> Iterator[str]:
    """Yield the texts of a file of Python that people may read: no docstrings, no names."""
    tree = ast.parse(path.read_text("utf-8"))
    hidden = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
        if is_text and id(node) not in hidden and not NAME.fullmatch(node.value):
            yield node.value


FILES = [
    path
    for path in sorted(SOURCE.rglob("*.py"))
    if not any(path.relative_to(SOURCE).as_posix().startswith(one) for one in ELSEWHERE)
]


@pytest.mark.slow
def test_no_text_of_the_code_has_a_word_of_the_house():
    bad = [
        f"{path.relative_to(SOURCE)}: {word[0]!r} in {text[:60]!r}"
        for path in FILES
        for text in literals(path)
        if (word := WORDS.search(text))
    ]
    assert not bad, "\n".join(bad)


@pytest.mark.parametrize("name", COMMANDS)
def test_no_help_has_a_word_of_the_house(name, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "10000")
    assert run([*name.split(), "--help"]) == 0
    assert not WORDS.search(capsys.readouterr().out)


def test_what_questions_mean_has_no_word_of_the_house():
    for target in COMMANDS.values():
        assert not WORDS.search(load(target).__doc__), target


@pytest.mark.parametrize(
    "path", sorted((SOURCE / "reports/templates").glob("*.html")), ids=lambda p: p.name
)
def test_no_page_has_a_word_of_the_house(path):
    assert not WORDS.search(
        re.sub(r"<script.*?</script>", "", path.read_text("utf-8"), flags=re.DOTALL)
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "line",
    [
        "predict resnet50 --device t4",
        "predict resnet50,gpt2 --device t4,a100 --batch 8,4096 --grid --replicas 1,8 --link aws",
        "fit gpt2 --device t4 --batch 4096",
        "choose gpt2 --device t4,a100,h100",
        "scale resnet50 --device v100 --link ethernet-25 --overlap",
        "plan gpt2 --device a100-sxm4-80gb --inside nvlink-3 --device-count 2,4 --global-batch 32",
        "plan llama2_70b --device h100-sxm5",
        "serve llama3_8b --device h100 --rate 2 --count 50 --output 16 --ttft 0.5",
        "serve gpt2 --device h100,l4 --rate 1 --tpot 0.05 --max-device-count 2 --search",
        "why resnet50 --device v100 --replicas 8 --link ethernet-25",
        "whatif v100 --set memory_GB_per_s=x2 --model resnet50,gpt2",
    ],
)
def test_no_answer_has_a_word_of_the_house(line, capsys):
    assert run(line.split()) == 0
    printed = capsys.readouterr()
    assert not WORDS.search(printed.out + printed.err)


def test_the_pages_of_commands_have_no_word_of_the_house():
    for page in (ROOT / "docs/commands.md", *(ROOT / "docs/commands").iterdir()):
        text_by_hand = page.read_text("utf-8").partition("## Options")[0]
        word = WORDS.search(text_by_hand)
        assert not word, (page.name, word)
