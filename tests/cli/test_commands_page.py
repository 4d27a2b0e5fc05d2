"""The option tables of docs/commands.md are those of the command line.

STEPTIME_RENEW_GOLDEN=1 pytest tests/cli/test_commands_page.py writes them anew, and the
section of a question or an analysis that has none.
"""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from typing import Any

import pytest
import typer

from command_lines import command_lines
from every import every
from places import ROOT
from steptime.analysis.analyses import ANALYSES, PLOTS, analysis
from steptime.api import PANELS, QUESTIONS
from steptime.cli.main import root_commands, run, tree
from steptime.core import registry

PAGE = ROOT / "docs/commands.md"
TABLE = re.compile(r"^\| option \| means \|\n(?:\|.*\n)+", re.MULTILINE)


PICTURES = [f"analyse {name}" for name in PLOTS]
COMMANDS = [name for name in command_lines() if name not in PICTURES]
"""The commands with a section of their own; pictures share that of `analyse`."""


def _command(name: str) -> Any:
    """Return the command of a section; of `analyse` that of a picture, which are all alike."""
    return command_lines()["analyse memory" if name == "analyse" else name]


def _description(name: str) -> str:
    """Return the text of a new section."""
    kind = name.removeprefix("analyse ")
    is_analysis = name != kind
    text = analysis(kind).about if is_analysis else registry.load(QUESTIONS[name].answer).__doc__
    return inspect.cleandoc(text).replace("\n\n", " ", 1)


def _row(option: Any) -> str:
    names = ", ".join(f"`{name}`" for name in sorted(option.opts, key=len, reverse=True))
    means = option.help.replace("|", "\\|")
    if option.required:
        means = f"Required. {means}"
    elif option.default not in (None, False, "", ()) and "efault" not in means:
        means = f"{means} Default: {option.default}."
    return f"| {names} | {means} |"


def _table(name: str) -> str:
    options = [one for one in _command(name).params if one.opts[0].startswith("-")]
    return "\n".join(["| option | means |", "|---|---|", *map(_row, options), ""])


def _section(text: str, name: str) -> tuple[int, int]:
    start = text.index(f"\n## {name}\n")
    after = text.find("\n## ", start + 1)
    return start, len(text) if after < 0 else after


@every("name", [*COMMANDS, "analyse"])
def test_the_options_of_a_command_are_documented(name):
    text = PAGE.read_text("utf-8")
    if os.environ.get("STEPTIME_RENEW_GOLDEN") and f"\n## {name}\n" not in text:
        _, end = _section(text, COMMANDS[COMMANDS.index(name) - 1])
        text = f"{text[:end]}\n## {name}\n\n{_description(name)}\n\n{_table(name)}{text[end:]}"
    start, end = _section(text, name)
    section = text[start:end]
    if os.environ.get("STEPTIME_RENEW_GOLDEN"):
        new = TABLE.sub(lambda _: _table(name), section, count=1)
        PAGE.write_text(text[:start] + new + text[end:], encoding="utf-8")
        return
    found = TABLE.search(section)
    assert found, f"{name} has no table of options"
    assert found[0] == _table(name), "renew with STEPTIME_RENEW_GOLDEN=1"


def test_the_kinds_of_analyse_are_documented():
    text = PAGE.read_text("utf-8")
    start, end = _section(text, "analyse")
    kinds = tree().get_command(None, "analyse").list_commands(None)
    assert set(kinds) >= {*ANALYSES, *PLOTS}
    assert set(kinds) <= set(re.findall(r"`(\w+)`", text[start:end]))


def test_the_commands_are_documented_in_their_order():
    headings = re.findall(r"^## (.*)$", PAGE.read_text("utf-8"), re.MULTILINE)
    analyses = [f"analyse {name}" for name in ANALYSES]
    questions = [*QUESTIONS]
    after = questions.index("analyse") + 1
    assert headings[1:] == [*questions[:after], *analyses, *questions[after:]]


@pytest.mark.parametrize("line", ["", "analyse", *command_lines()])
def test_help_says_what_a_command_does(line, capsys, monkeypatch):
    monkeypatch.setenv("TERMINAL_WIDTH", "80")
    monkeypatch.setenv("COLUMNS", "80")
    words = line.split()
    assert run([*words, "-h"]) == 0
    short = capsys.readouterr().out
    assert run([*words, "--help"]) == 0
    assert capsys.readouterr().out == short
    assert short.startswith(f"Usage: steptime {line}".rstrip())
    assert max(map(len, short.splitlines())) <= 80
    if line in ("", "analyse"):
        return
    assert "--json" in short
    for parameter in _command(line).params:
        assert parameter.help, parameter.name
        assert parameter.help.endswith("."), parameter.help


def test_the_help_of_analyse_lists_its_kinds(capsys):
    assert run(["analyse"]) == 0
    listed = re.findall(r"^  (\w+) ", capsys.readouterr().out, re.MULTILINE)
    assert set(listed) >= {*ANALYSES, *PLOTS}


def test_the_help_of_sweep_lists_its_commands(capsys):
    assert run(["sweep", "--help"]) == 0
    listed = re.findall(r"^  (sweep \w+) ", capsys.readouterr().out, re.MULTILINE)
    assert listed == ["sweep status", "sweep collect", "sweep cancel"]


def test_the_version_has_a_short_option(capsys):
    assert run(["-V"]) == run(["--version"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first == second
    assert first.startswith("steptime ")


@every("shell", ["bash", "zsh", "fish"])
def test_a_shell_has_a_script(shell, monkeypatch, capsys):
    monkeypatch.setenv("_STEPTIME_COMPLETE", f"source_{shell}")
    with pytest.raises(SystemExit) as ended:
        tree()(prog_name="steptime")
    assert not ended.value.code
    assert f"_STEPTIME_COMPLETE=complete_{shell}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("predict resnet18 --device rtx-4090", ["rtx-4090", "rtx-4090-d", "rtx-4090-laptop"]),
        ("choose fc --device t4,H100-p", ["t4,H100-pcie"]),
        ("count resnet10", ["resnet101"]),
        ("fit fc --dtype bfl", ["bfloat16", "bfloat16-mixed"]),
        ("fit fc --dtype bfloat16-", ["bfloat16-mixed"]),
        ("run fc --stack torch-c", ["torch-compile"]),
        ("run fc --device c", ["cpu", "cuda"]),
        ("analyse roo", ["roofline"]),
        ("plan gpt2 --recompute sel", ["selective"]),
        ("scale fc --link nvlink-4", ["nvlink-4"]),
        ("list quan", ["quantities"]),
        ("list devices --format m", ["markdown"]),
        ("predict fc --method pal", ["paleo"]),
    ],
)
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_completes_values(line, offered, shell, monkeypatch, capsys):
    printed = completed(line, shell, monkeypatch, capsys)
    told = re.findall(r'"(.*?)"', printed) if shell == "zsh" else printed.split()
    assert told[: len(offered)] == offered
    assert line.startswith("analyse") or len(told) == len(offered)  # which says what kinds are


@every(("line", "offered"), [("pre", "predict"), ("count --opt", "--optimizer")])
def test_a_shell_completes(line, offered, monkeypatch, capsys):
    for shell in ("bash", "zsh", "fish"):
        assert offered in completed(line, shell, monkeypatch, capsys)


def completed(line: str, shell: str, monkeypatch: Any, capsys: Any) -> str:
    """Return what the command line prints for a shell that asks how a line may go on."""
    words = f"steptime {line}"
    for name, value in {
        "_STEPTIME_COMPLETE": f"complete_{shell}", "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1), "_TYPER_COMPLETE_ARGS": words,
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit):
        tree()(prog_name="steptime")
    return str(capsys.readouterr().out)


@every("shell", ["bash", "zsh", "fish"])
def test_completion_is_installed_for_the_shell_that_is_named(shell, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HOME", str(tmp_path))
    for word in ("--show-completion", "--install-completion"):
        with pytest.raises(SystemExit) as ended:
            run([word, shell])
        assert not ended.value.code
        said = capsys.readouterr().out
        assert ("_STEPTIME_COMPLETE" in said) == word.startswith("--show")
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any(f"complete_{shell}" in path.read_text("utf-8") for path in files)


def test_bash_completes_with_the_script(tmp_path):
    command = tmp_path / "steptime"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m steptime "$@"\n')
    command.chmod(0o755)
    script = (
        'eval "$(steptime --show-completion bash)"; COMP_WORDS=(steptime sca); COMP_CWORD=1; '
        '_steptime_completion steptime; echo "${COMPREPLY[@]}"'
    )
    env = os.environ | {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, check=True, env=env
    )
    assert done.stdout.split() == ["scale"]


def test_completing_a_command_imports_none():
    context = typer.Context(tree(), info_name="steptime")
    found = {one.value: one.help for one in tree().shell_complete(context, "pl")}
    assert found == {"plan": "Predict a language model trained on many devices."}
    assert [one.value for one in tree().shell_complete(context, "--vers")] == ["--version"]
    asked = os.environ | {"_STEPTIME_COMPLETE": "complete_bash", "COMP_WORDS": "steptime "}
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "steptime"],
        capture_output=True, text=True, check=True, env=asked | {"COMP_CWORD": "1"},
    )  # fmt: skip
    assert done.stdout.split() == root_commands()
    assert "steptime.cli.plan" not in done.stderr


def test_the_list_of_commands_is_one_screen_in_five_panels_and_not_cut(monkeypatch, capsys):
    monkeypatch.setenv("TERMINAL_WIDTH", "80")
    monkeypatch.setenv("COLUMNS", "80")
    assert run(["--help"]) == 0
    text = capsys.readouterr().out
    assert len(text.splitlines()) <= 40
    assert max(map(len, text.splitlines())) <= 80
    assert re.findall(r"^(.*):$", text, re.MULTILINE) == [*PANELS]
    assert len(PANELS) == 5
    assert re.findall(r"^  ([a-z]+) ", text, re.MULTILINE) == root_commands()
    assert "..." not in text.partition("\n")[2]


@every(
    ("word", "hint"),
    [
        ("probe", ""),
        ("explain", ""),
        ("quickstart", ""),
        ("show", ""),
        ("explore", ""),
        ("export", ""),
        ("plot", ""),
        ("status", "sweep status"),
        ("collect", "sweep collect"),
        ("cancel", "sweep cancel"),
        ("predcit", "predict"),
        *((name, f"analyse {name}") for name in (*ANALYSES, *PLOTS)),
    ],
)
def test_an_unknown_command_names_the_nearest(word, hint, capsys):
    """No command that was renamed answers by its old name."""
    assert run([word, "results"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"steptime: no such command '{word}'")
    assert not hint or f"did you mean '{hint}'?" in error
    assert len(error.splitlines()) == 1
