"""The pages of docs/commands, and what help, completion and messages of the commands say.

`scripts/make-commands` writes the options on them, and the pages of keys in docs/keys.
"""

from __future__ import annotations

import os
import re
import runpy
import shlex
import subprocess
import sys

import pytest

from command_lines import Option, command_lines
from every import every
from places import ROOT
from steptime.analysis.analyses import ANALYSES, PLOTS
from steptime.api import PANELS, PROGRAMS, QUESTIONS
from steptime.cli.commands import SHELLS, kind_names, root_commands
from steptime.cli.complete import NAMES_TARGET_BY_PARAMETER
from steptime.cli.main import run
from steptime.cli.panels import PANEL_OF_OPTION, PANEL_OF_PARAMETER
from steptime.cli.panels import PANELS as PANELS_OF_OPTIONS
from steptime.core.registry import load
from steptime.core.signatures.signature import parameters_of

MAKER = runpy.run_path(str(ROOT / "scripts/make-commands"))
PICTURES = [f"analyse {name}" for name in PLOTS]


def _options(name: str) -> tuple[Option, ...]:
    """Return the options of a command; `analyse` has those of a picture, which are all alike."""
    return command_lines()[PICTURES[0] if name == "analyse" else name]


@every("name", MAKER["command_names"]())
def test_a_page_has_the_options_of_its_command(name):
    path = MAKER["page_path"](name)
    assert path.read_text("utf-8") == MAKER["page"](name), "run scripts/make-commands"


@every("name", MAKER["commands_with_keys"]())
def test_a_page_has_the_keys_of_its_command(name):
    path = MAKER["keys_path"](name)
    assert path.read_text("utf-8") == MAKER["keys_page"](name), "run scripts/make-commands"
    assert f"(../keys/{path.name})" in MAKER["page"](name)


def test_every_command_has_a_page_and_a_line_in_the_overview():
    commands = set(MAKER["command_names"]())
    assert commands == {*command_lines(), "analyse"} - set(PICTURES)
    pages = {path.name for path in MAKER["FOLDER"].iterdir()}
    assert pages == {MAKER["page_path"](name).name for name in commands}
    overview = (ROOT / "docs/commands.md").read_text("utf-8")
    linked_pages = set(re.findall(r"\(commands/([\w-]+\.md)\)", overview))
    assert linked_pages == pages
    keys_pages = {path.name for path in MAKER["KEYS_FOLDER"].iterdir()}
    assert keys_pages == {MAKER["keys_path"](name).name for name in MAKER["commands_with_keys"]()}
    assert commands - {*MAKER["commands_with_keys"]()} == {"mcp"}


def test_the_kinds_of_analyse_are_documented():
    kinds = kind_names()
    assert set(kinds) >= {*ANALYSES, *PLOTS}
    text = MAKER["page_path"]("analyse").read_text("utf-8")
    assert set(kinds) <= set(re.findall(r"`(\w+)`", text))


@pytest.mark.parametrize("line", ["", "analyse", *command_lines()])
def test_help_says_what_a_command_does(line, capsys, monkeypatch):
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
    assert ("--json" in short) == (line not in PROGRAMS)
    for option in _options(line):
        assert option.help, option.name
        assert option.help.endswith("."), option.help
        assert option.is_argument or f" {option.names[0]} " in short, option.name


def test_the_help_of_analyse_lists_its_kinds(capsys):
    assert run(["analyse"]) == 0
    listed = re.findall(r"^  (\w+) ", capsys.readouterr().out, re.MULTILINE)
    assert set(listed) >= {*ANALYSES, *PLOTS}


def test_the_help_of_sweep_lists_its_commands(capsys):
    assert run(["sweep", "--help"]) == 0
    commands = capsys.readouterr().out.partition("Commands:\n")[2]
    assert re.findall(r"^  (\w+) ", commands, re.MULTILINE) == ["status", "collect", "cancel"]


def test_the_version_has_a_short_option(capsys):
    assert run(["-V"]) == run(["--version"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first == second
    assert first.startswith("steptime ")


@pytest.mark.slow
@every("shell", SHELLS)
def test_a_shell_has_a_script_with_commands_and_options(shell, capsys):
    assert run(["--show-completion", shell]) == 0
    script = capsys.readouterr().out
    for word in ("predict", "roofline", "collect", "optimizer", "install-completion"):
        assert word in script, word
    assert "__complete" in script


def test_an_unknown_shell_is_refused(capsys):
    assert run(["--show-completion", "bahs"]) == 2
    assert capsys.readouterr().err == "steptime: unknown shell 'bahs'; did you mean 'bash'?\n"


@every(
    ("line", "names"),
    [
        ("predict resnet18 --device rtx-4090", ["rtx-4090", "rtx-4090-d", "rtx-4090-laptop"]),
        ("choose fc --device t4,H100-p", ["t4,H100-pcie"]),
        ("choose fc --device=t4,H100-p", ["t4,H100-pcie"]),
        ("count resnet10", ["resnet101"]),
        ("fit fc --dtype bfl", ["bfloat16", "bfloat16-mixed"]),
        ("fit fc --dtype bfloat16-", ["bfloat16-mixed"]),
        ("run fc --stack torch-c", ["torch-compile"]),
        ("run fc --device c", ["cpu", "cuda"]),
        ("plan gpt2 --recompute sel", ["selective"]),
        ("scale fc --link nvlink-4", ["nvlink-4"]),
        ("list quan", ["quantities"]),
        ("list devices --format m", ["markdown"]),
        ("predict fc --method pal", ["paleo"]),
        ("count --batch ", []),
    ],
)
def test_a_shell_completes_values(line, names, capsys):
    assert run(["__complete", *line.split(" ")]) == 0
    _, begin, *candidates = capsys.readouterr().out.splitlines()
    assert begin == "\x1fbegin"
    assert candidates == names


@pytest.fixture(scope="module")
def bash(tmp_path_factory):
    """Return a function that completes a line as bash does, with the script of `steptime`."""
    folder = tmp_path_factory.mktemp("shell")
    command = folder / "steptime"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m steptime "$@"\n')
    command.chmod(0o755)
    script = folder / "completion"
    with script.open("w") as file:
        subprocess.run([command, "--show-completion", "bash"], stdout=file, check=True)

    def complete(*words: str) -> list[str]:
        typed = shlex.join(["steptime", *words])
        lines = f". {script}; COMP_WORDS=({typed}); COMP_CWORD={len(words)}; "
        lines += '_steptime; printf "%s\\n" "${COMPREPLY[@]}"'
        environment = os.environ | {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
        shell = subprocess.run(
            ["bash", "-c", lines], capture_output=True, text=True, check=True, env=environment
        )
        assert not shell.stderr
        return shlex.split(shell.stdout)

    return complete


@pytest.mark.slow
@every(
    ("words", "candidates"),
    [
        (["sca"], ["scale"]),
        (["--vers"], ["--version"]),
        (["sweep", "stat"], ["status"]),
        (["analyse", "roo"], ["roofline"]),
        (["count", "--opt"], ["--optimizer"]),
        (["predict", "fc", "--device", "t4,H100-p"], ["t4,H100-pcie"]),
    ],
)
def test_bash_completes_with_the_script(words, candidates, bash):
    assert bash(*words) == candidates


@pytest.mark.slow
def test_completing_a_command_starts_no_command(bash, monkeypatch, tmp_path):
    monkeypatch.setenv("PYTHONHOME", str(tmp_path))  # no Python runs there
    assert set(bash("")) == set(root_commands())
    assert bash("pl") == ["plan"]


@pytest.mark.slow
@every("shell", SHELLS)
def test_completion_is_installed_for_the_shell_that_is_named(shell, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("ZSH", raising=False)
    assert run(["--install-completion", shell]) == 0
    path = capsys.readouterr().out.partition(":")[0]
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert tmp_path / path in files
    assert "__complete" in (tmp_path / path).read_text("utf-8")


def test_the_help_of_all_commands_imports_none():
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "steptime", "--help"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "steptime.questions.plan.question" not in done.stderr
    assert "steptime.cli.command\n" not in done.stderr


def test_a_command_imports_no_other_and_builds_no_help():
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "steptime", "count", "fc"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    for module in ("rich", "steptime.questions.plan.question", "cyclopts.help"):
        assert not re.search(rf" {module}\n", done.stderr), module


@every(
    ("line", "message"),
    [
        ("predict --devce a100", "no such option '--devce'; did you mean '--device'?"),
        ("predict fc --devce=a100", "no such option '--devce'; did you mean '--device'?"),
        ("split fc --devce t4 --link aws", "no such option '--devce'; did you mean '--device'?"),
        ("split fc --devce t4 --link", "no such option '--devce'; did you mean '--device'?"),
        ("count fc --model fc", "no such option '--model'; MODEL needs no option"),
        ("count fc --no-json", "no such option '--no-json'; see --help"),
        ("count fc --batch 1 --batch 2", "option '--batch' is given twice"),
        ("count fc --batch", "option '--batch' needs a value; N: Examples in a step"),
        ("count fc --batch --json", "option '--batch' needs a value; N: Examples in a step"),
        ("count fc --phase", "option '--phase' needs a value; known: train, infer"),
        ("run fc --staging", "option '--staging' needs a value; known: shared, local"),
        (
            "calibrate --server",
            (
                "option '--server' needs a value; NAME=VALUE: With --serving: a setting of the "
                "server that the results lack, as tensor=2; may be repeated"
            ),
        ),
        ("count fc --json=", "option '--json' takes no value"),
        ("count fc fc alexnet", "unexpected argument 'fc alexnet'; see --help"),
        (
            "analyse memory records",
            "missing option '--out' / '-o'; FILE: A .png, .svg, .pdf or .html file",
        ),
        ("sweep stats", "missing option '--out'; DIR: Folder for the records"),
        ("--json count fc", "no such option '--json'; see --help"),
    ],
)
def test_a_wrong_line_is_told_in_our_words(line, message, capsys):
    assert run(line.split()) == 2
    assert capsys.readouterr().err == f"steptime: {message}\n"


@every(
    ("line", "message"),
    [
        ("count", "missing argument 'MODEL'; known: fc, cnn, rnn, "),
        ("fit gpt2 --device", "option '--device' needs a value; known: a10, "),
        ("fit gpt2", "missing option '--device'; known: a10, "),
    ],
)
def test_many_names_are_told_in_part_with_the_command_that_lists_them(line, message, capsys):
    assert run(line.split()) == 2
    error_line = capsys.readouterr().err
    assert error_line.startswith(f"steptime: {message}")
    assert re.search(r"\(\d+ in all: steptime list (models|devices)\)\n$", error_line)


def test_an_empty_value_is_refused_for_what_it_is(capsys):
    for words in (["--optimizer="], ["--optimizer", ""]):
        assert run(["count", "fc", *words]) == 2
        message = "--optimizer: an empty value; leave it out, or give a value; known: sgd, "
        assert message in capsys.readouterr().err
    assert run(["fit", "fc", "--device="]) == 2
    assert "--device: an empty value; give a value; known: a10, " in capsys.readouterr().err


def test_the_names_of_every_parameter_are_found():
    """A shell offers them, and messages on wrong command lines tell them."""
    targets = set(NAMES_TARGET_BY_PARAMETER.values())
    for row in QUESTIONS.values():
        targets |= {parameter.kind.completes for parameter in parameters_of(load(row.answer))}
    for target in targets - {""}:
        names = load(target)
        assert list(names() if callable(names) else names), target


def test_options_of_a_long_help_stand_under_their_panels(capsys):
    assert run(["plan", "--help"]) == 0
    text = capsys.readouterr().out
    headings = ["Arguments", *PANELS_OF_OPTIONS]
    headings.remove("Load")
    headings.remove("Engine")
    assert re.findall(r"^(\S.*):$", text, re.MULTILINE) == headings
    last = text.partition("\nOutput:\n")[2]
    assert re.findall(r"^  (--(?:sort|top|format|json)) ", last, re.MULTILINE) == [
        "--sort", "--top", "--format", "--json",
    ]  # fmt: skip


def test_a_panel_names_parameters_that_there_are():
    names = {option.name for options in command_lines().values() for option in options}
    assert set(PANEL_OF_PARAMETER) <= names
    for command, name in PANEL_OF_OPTION:
        assert name in {option.name for option in command_lines()[command]}, (command, name)


def test_the_list_of_commands_is_one_screen_in_five_panels_and_not_cut(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    assert run(["--help"]) == 0
    text = capsys.readouterr().out
    assert len(text.splitlines()) <= 41
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
