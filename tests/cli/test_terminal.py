"""What a command writes for people, and how it ends when it is interrupted."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

import synthetic
from every import every
from steptime.cli import command as command_module
from steptime.cli import printing
from steptime.cli.command import make_command
from steptime.cli.commands import COMMANDS
from steptime.cli.main import run
from steptime.core.copying import replace
from steptime.core.errors import InterruptError
from steptime.core.progress import print_note
from steptime.core.tables.table import Column, Printout, Table
from steptime.core.tables.text_table import text
from steptime.core.units import format_value
from steptime.records.store import open_writer

ESCAPE = "\x1b]0;owned\x07\x1b[2J"


def test_no_text_of_a_record_reaches_the_terminal_with_control_characters(tmp_path, capsys):
    with open_writer(tmp_path) as writer:
        for one in synthetic.sweep(failures=True):
            workload = replace(one.workload, params={**one.workload.params, ESCAPE: ESCAPE})
            writer.append(replace(one, workload=workload, note=ESCAPE, platform=f"p{ESCAPE}"))
    folder = str(tmp_path)
    for words in (
        ["analyse", "table", folder],
        ["analyse", "table", folder, "--format", "csv"],
        ["analyse", "errors", folder],
        ["analyse", "roofline", folder],
        ["query", f"FROM records SELECT note, '{ESCAPE}'", "--in", folder],
        ["query", "FROM records", "--in", folder, "--format", "csv"],
        ["list", f"a100{ESCAPE}"],
    ):
        run(words)
        said = capsys.readouterr()
        assert "owned" in said.out + said.err, words
        assert all(one.isprintable() for one in (said.out + said.err).splitlines()), words


def test_a_note_is_one_line_without_control_characters(capsys):
    print_note(f"a{ESCAPE}b\nc")
    assert capsys.readouterr().err == "a?]0;owned??[2Jb?c\n"


def test_ctrl_c_says_what_is_kept_where_something_is(tmp_path):
    def keeps() -> Printout:
        with open_writer(tmp_path) as writer:
            writer.append(synthetic.sweep()[0])
            raise KeyboardInterrupt

    def keeps_nothing() -> Printout:
        with open_writer(tmp_path):
            raise KeyboardInterrupt

    with pytest.raises(InterruptError, match=f"^1 record kept in {tmp_path}$"):
        make_command(keeps)(json=False, form="text")
    with pytest.raises(InterruptError, match=r"^$"):
        make_command(keeps_nothing)(json=False, form="text")


def test_ctrl_c_is_130_whatever_a_library_makes_of_it(capsys, monkeypatch, tmp_path):
    with open_writer(tmp_path) as writer:
        writer.append_all(synthetic.sweep())

    def interrupted(*_: object) -> None:
        import signal

        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt as error:
            raise RuntimeError("Query interrupted") from error

    assert "query" in COMMANDS
    monkeypatch.setattr("steptime.analysis.query.query", interrupted)
    assert run(["query", "FROM records", "--in", str(tmp_path)]) == 130
    assert capsys.readouterr().err == "steptime: interrupted\n"


@pytest.mark.slow
@every(
    "line",
    [
        "predict resnet18 --device a100 --stack torch-eager,torch-compile",
        "predict resnet18 --grid --device t4,a100 --batch 8 --replicas 1,8 --link ethernet-25",
        "choose resnet18 --device t4,l4,a100 --epochs 2",
        "fit resnet18 --device t4",
        "scale resnet18 --device v100 --link ethernet-25 --replicas 1,4",
        (
            "plan transformer:layers=2 --device h100 --inside nvlink-4 --device-count 2,4 "
            "--global-batch 8"
        ),
        "serve transformer:layers=2 --device h100 --input 64 --output 8",
        "why resnet18 --device t4",
    ],
)
def test_no_terminal_is_too_narrow_for_an_interval(line, monkeypatch):
    answers: list[Printout] = []
    monkeypatch.setattr(command_module, "print_answer", lambda answer, _: answers.append(answer))
    assert run(line.split()) == 0
    every = [*answers[0].tables]
    intervals = [re.findall(r"\[[\d.]+-[\d.]+\]", text(table)) for table in every]
    assert any(intervals)
    for width in (40, 60, 80, 120):
        seen = [re.findall(r"\[[\d.]+-[\d.]+\]", text(table, width)) for table in every]
        assert seen == intervals, width
    lines = [one for table in every for one in text(table, 80).splitlines()]
    assert max(map(len, lines)) <= 80


def on_terminal(monkeypatch: pytest.MonkeyPatch, is_terminal: bool = True) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)


TABLE = Table(
    (Column("device"), Column("step_s", "step", ends=("low_s", "high_s")), Column("verdict")),
    [
        {"device": "a-slower-card", "step_s": 1.0, "low_s": 0.5, "high_s": 2.0, "verdict": "slower",
         "is_extrapolated": True},
        {"device": "b", "step_s": 2.0, "low_s": 1.0, "high_s": 4.0, "verdict": "same",
         "is_extrapolated": False},
    ],
    "c - out of memory by 3 GB",
)  # fmt: skip


def test_what_is_bad_is_red_on_a_terminal_alone(monkeypatch, capsys):
    def printed() -> str:
        printing.print_answer(Printout([], [TABLE]), "text")
        return capsys.readouterr().out

    on_terminal(monkeypatch)
    red = printed()
    assert re.findall("\x1b\\[31m(.*?)\x1b\\[0m", red) == ["out of memory", "~", "slower"]
    for name, value in (("NO_COLOR", "1"), ("TERM", "dumb")):
        on_terminal(monkeypatch)
        monkeypatch.setenv(name, value)
        assert "\x1b" not in printed(), name
    on_terminal(monkeypatch, is_terminal=False)
    plain = printed()
    assert re.sub("\x1b\\[\\d+m", "", red) == plain
    assert "~1 s [0.5-2]" in plain
    assert " 2 s [1-4]" in plain


def test_a_note_that_repeats_is_said_once(capsys):
    printing.print_answer(
        Printout([], (), notes=["one", "two", "one"], before=["two", "two"]), "text"
    )
    assert capsys.readouterr().err.splitlines() == ["two", "one"]


@every(
    ("work", "lines"),
    [
        (
            [(1, 10, 1000), (10, 100, 1000), (11, 110, 1000), (30, 300, 1000)],
            ["100 of 1,000, 1:30 left", "300 of 1,000, 1:10 left"],
        ),
        (
            [(1.9, 200, 2000), (2.1, 400, 2000), (3, 600, 2000), (4.2, 1800, 2000)],
            ["400 of 2,000, 0:08 left", "1,800 of 2,000, 0:00 left"],  # 2.1 s x 1,600 / 400
        ),
        ([(9, 0, 1), (18, 1, 1)], []),  # of one piece there is nothing to say
        ([(80, 0, 12), (83, 1, 12)], ["1 of 12, 0:33 left"]),  # the work before is another's
    ],
)
def test_progress_says_how_long_is_left_once_it_takes_its_time(work, lines, monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr(command_module, "monotonic", lambda: now[0])
    say = command_module.make_progress_printer()
    for now[0], done, total in work:
        say("cells", done, total)
    assert capsys.readouterr().err.splitlines() == [f"cells: {line}" for line in lines]


def test_ctrl_c_while_the_command_is_imported_is_130_without_a_traceback():
    code = """
import signal
import sys
signal.signal(signal.SIGINT, signal.default_int_handler)
class Pressed:
    def find_spec(self, name, *_):
        if name == "steptime.cli.main":
            signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Pressed())
from steptime.__main__ import main
main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "steptime: interrupted\n")


def test_ctrl_c_that_python_drops_after_the_work_prints_nothing():
    """In a callback of an object that ends; it changes nothing any more."""
    code = """
import atexit
import signal
import sys
import weakref
def press():
    whole = type("Whole", (), {})()
    kept = weakref.ref(whole, lambda _: signal.raise_signal(signal.SIGINT))
    del whole
atexit.register(press)
sys.argv = ["steptime", "--help"]
from steptime.__main__ import main
main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Predict" in done.stdout


ANSWERS = {  # what answers the question stands first and stays at 80 columns
    (
        "serve llama3_8b --device h100,a100 --input 512 --output 128 --rate 4 --search "
        "--ttft 500ms --tpot 50ms"
    ): ["devices", "cost", "device", "servers", "TTFT", "TPOT"],
    "choose resnet18 --device t4,l4,a100 --epochs 2": ["device", "cost", "best", "training"],
    (
        "scale resnet18 --device v100 --link ethernet-25 --replicas 1,4 --epochs 2 "
        "--examples 1000000 --price 2.5"
    ): ["replicas", "cost", "training", "global"],
}


def _tables(line: str, monkeypatch: pytest.MonkeyPatch) -> list[Table]:
    answers: list[Printout] = []
    monkeypatch.setattr(command_module, "print_answer", lambda answer, _: answers.append(answer))
    assert run(line.split()) == 0
    return [*answers[0].tables]


@pytest.mark.slow
@every(("line", "headings"), ANSWERS.items())
def test_columns_that_answer_the_question_come_first_and_stay(line, headings, monkeypatch):
    table = _tables(line, monkeypatch)[0]
    pipe = text(table)
    assert "\x1b" not in pipe
    for width in (80, 100, 120):
        printed = text(table, width)
        assert "\x1b" not in printed
        lines = [row for row in printed.splitlines() if not row.startswith("steptime ")]
        assert max(map(len, lines)) <= width
        body = lines[len(table.title.splitlines()) :]
        words = [word for row in body[:6] for word in row.split()]
        assert set(headings) <= set(words), width
        costs = re.findall(r"(?<=\s)\d+\.\d\d(?=\s)", pipe)
        assert set(costs) <= set(printed.split()), width


def test_a_long_text_is_wrapped_and_nothing_of_it_cut():
    words = [f"word{i}" for i in range(40)]
    columns = (Column("name"), Column("step_s", "step"), Column("note", "what was found there"))
    table = Table(columns, [{"name": "a", "step_s": 0.5, "note": " ".join(words)}])
    assert text(table).splitlines()[1].split()[3:] == words
    for width in (80, 100, 120):
        lines = text(table, width).splitlines()
        assert max(map(len, lines)) <= width
        assert [word for word in " ".join(lines).split() if word.startswith("word")] == words
        assert " 500 ms " in lines[1]


def test_wide_characters_take_two_columns():
    table = Table(
        (Column("name"), Column("n")), [{"name": "模型", "n": 1}, {"name": "abcd", "n": 2}]
    )
    assert text(table).splitlines()[1:] == [" 模型  1", " abcd  2"]


def test_a_script_and_a_command_are_never_wrapped(monkeypatch, capsys):
    script = "#SBATCH --comment=" + "a b " * 60 + "\nsrun python -m steptime " + "x " * 90 + "\n"
    command = "steptime serve llama3_8b " + "--option value " * 12
    table = replace(TABLE, footnotes=["word " * 40, command.rstrip()])
    on_terminal(monkeypatch)
    monkeypatch.setattr(printing, "terminal_width", lambda: 80)
    printing.print_answer(Printout([], [table], text="words " * 40 + "\n", script=script), "text")
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2:] == script.splitlines()
    assert command.rstrip() in lines
    assert max(len(line) for line in lines[:-2] if not line.startswith("steptime")) <= 80


@pytest.mark.slow
@every(
    ("line", "titles"),
    {
        (
            "serve llama3_8b --device h100 --input 512 --output 128 --rate 1 --search "
            "--ttft 500ms --tpot 50ms --max-device-count 1"
        ): ["tokens/s of a device over tokens/s of a user"],
        "whatif t4 --set memory_GB_per_s=x2 --model resnet18": [
            "ops by what binds them",
            "ops by kind, at the same batch",
        ],
        "list devices --top 3": ["figures of one paper, taken for no other device"],
        ("plan transformer:layers=2 --device h100 --inside nvlink-4 --data 2 --global-batch 8"): [
            "Communication of a device"
        ],
    }.items(),
)
def test_a_table_that_nobody_asked_for_is_behind_an_option(line, titles, monkeypatch):
    main_tables = _tables(line, monkeypatch)
    assert not any(table.is_detail for table in main_tables)
    assert main_tables[-1].footnotes[-1] == f"--details adds: {'; '.join(titles)}"
    tables = _tables(f"{line} --details", monkeypatch)
    assert [table.title for table in tables if table.is_detail] == titles
    assert not any("--details" in note for table in tables for note in table.footnotes)


def test_a_headline_has_a_fact_a_line(monkeypatch, capsys):
    for line in (
        "plan transformer:layers=2 --device h100 --inside nvlink-4 --data 2 --global-batch 8",
        "why resnet18 --device t4",
    ):
        monkeypatch.undo()
        assert run([*line.split(), "--json"]) == 0
        headline = json.loads(capsys.readouterr().out)["headline"]
        assert len(headline) > 2
        assert max(map(len, headline[:3])) <= 80
        assert run(line.split()) == 0
        printed = capsys.readouterr().out.splitlines()
        assert set(headline[:3]) <= set(printed)


def test_hours_are_written_below_two_days():
    assert format_value("train_h", 47.96) == "47.96 h"
    assert format_value("train_h", 48.0) == "2 days"
    assert format_value("train_h", 25000.0) == "1,042 days"
    assert format_value("train_h", 0.0001) == "0.0001 h"
