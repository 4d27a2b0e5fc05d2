"""What somebody sees who comes for the first time: narrow terminals, names, hints, extensions."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from typing import Any

import pytest

import synthetic
from every import every
from steptime.cli.command import make_command
from steptime.cli.main import run
from steptime.core.answer import Answer
from steptime.core.tables.table import Table
from steptime.hardware.catalog import devices
from steptime.questions.run.measured_step import UNKNOWN_PEAK
from steptime.records import store
from steptime.sweeps import progress


def said(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    assert run(list(words)) == code
    return capsys.readouterr().out


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    return json.loads(said(capsys, *words, "--json"))


def on_a_terminal(columns: int, *words: str) -> list[str]:
    """Return the lines that a command prints on a terminal so wide."""
    here, there = pty.openpty()
    fcntl.ioctl(there, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    env = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "LINES")}
    with subprocess.Popen(
        [sys.executable, "-m", "steptime", *words], stdout=there, stderr=subprocess.PIPE, env=env
    ) as process:
        os.close(there)
        printed = b""
        while True:
            try:
                piece = os.read(here, 65536)
            except OSError:  # the other end is closed
                break
            if not piece:
                break
            printed += piece
    os.close(here)
    assert process.returncode == 0
    return printed.decode().replace("\r\n", "\n").splitlines()


def test_devices_take_a_line_each_on_a_narrow_terminal():
    lines = on_a_terminal(80, "list", "devices", "--details")
    rows = [line for line in lines if line.startswith(" ")]
    assert max(map(len, rows)) <= 80
    names = [row.split()[0] for row in rows]
    assert sorted(set(names) - {"name"}) == sorted(
        one.name for one in devices(lambda _: None) if not one.measured
    )


def test_a_prediction_is_not_as_wide_as_its_source():
    lines = on_a_terminal(80, "predict", "resnet50", "--device", "a100", "--by-op")
    assert max(len(line) for line in lines if line.startswith(" ")) <= 80


def test_figures_of_one_paper_stand_apart(capsys):
    first, second = re.split(
        r"^figures of one paper.*$",
        said(capsys, "list", "devices", "--details"),
        flags=re.MULTILINE,
    )
    names = [line.split()[0] for line in second.splitlines() if line.startswith(" ")]
    assert names[1:] == [one.name for one in devices(lambda _: None) if one.datasheet.only_by_name]
    assert len(names) == 1 + 8
    assert " K80 " not in first
    assert " tesla-k80 " in first


def test_a_part_of_a_name_chooses(capsys):
    found = answer(capsys, "list", "devices", "a100 sxm")
    assert [row["name"] for row in found["rows"]] == ["a100-sxm4-40gb", "a100-sxm4-80gb"]
    found = answer(capsys, "list", "models", "llama3")
    assert {"llama3_8b", "llama3_70b"} <= {row["name"] for row in found["rows"]}
    names = [row["name"] for row in found["rows"]]
    assert all("llama3" in name.replace("_", "") for name in names)
    found = answer(capsys, "list", "devices", "RTX 4090")
    assert [row["name"] for row in found["rows"]] == ["rtx-4090", "rtx-4090-d", "rtx-4090-laptop"]
    assert "source" not in said(capsys, "list", "links").splitlines()[1]
    assert "source" in said(capsys, "list", "links", "--sources").splitlines()[1]


def test_list_of_a_name_has_every_number_and_its_source(capsys):
    assert answer(capsys, "list", "RTX 4090 Mobile")["name"] == "rtx-4090-laptop"
    device = answer(capsys, "list", "A100")
    assert (device["name"], device["capacity_bytes"]) == ("a100-sxm4-80gb", 8e10)
    text = said(capsys, "list", "a100")
    assert device["source"].split()[0] in text
    assert re.search(r"capacity_bytes +80 GB", text)
    assert re.search(r"peak_flop_per_s.bfloat16 +312 TFLOP/s", text)
    assert answer(capsys, "list", "infiniband")["bytes_per_s"] > 0
    norm = next(row for row in answer(capsys, "list", "transformer")["rows"]
                if row["name"] == "norm")  # fmt: skip
    assert norm["meaning"]
    assert set(norm["choices"]) >= {"layer", "rms"}
    assert re.search(r"norm +layer +.*rms", said(capsys, "list", "transformer"))
    assert re.search(r"^ *hyperparameters +none$", said(capsys, "list", "alexnet"), re.MULTILINE)


@every(
    ("words", "line"),
    [
        ("count llama_7b --dtype float16", r"peak memory +[\d.]+ GB \(optimizer adam\)"),
        ("predict fc --device t4 --optimizer adam", r"peak memory +[\d.]+ MB \(optimizer adam\)"),
        ("predict fc --grid --device t4", r"peak memory \(sgd\)"),
        (
            "scale llama_7b --device t4 --replicas 1",
            r"out of memory by [\d.]+ GB",
        ),
    ],
)
def test_memory_says_for_which_optimizer(words, line, capsys):
    assert run(words.split()) == 0
    assert re.search(line, "".join(capsys.readouterr()))
    if words.startswith("count"):
        assert "optimizer" not in said(capsys, *words.split(), "--phase", "infer")


def test_an_unknown_peak_says_what_measures_it():
    assert "steptime calibrate" in UNKNOWN_PEAK["probed"]


def test_the_bar_says_a_time_once():
    said = progress.bar(3, 18, "0:39", "fc batch 16: 377.7 us a step", 80)
    assert said == f"[{'#' * 3}{' ' * 17}] 3/18 0:39 left  fc batch 16: 377.7 us a step"
    assert said.count("377.7 us") == 1
    assert len(progress.bar(3, 18, "0:39", "x" * 200, 80)) == 79


COMMAND = """
from steptime.core.answer import Answer, AnswerRow
from steptime.core.tables.table import Column, Table


class Greeting(AnswerRow, frozen=True, kw_only=True):
    who: str
    step_s: float


class Greetings(Answer, frozen=True, kw_only=True):
    rows: tuple[Greeting, ...]

    def tables(self):
        columns = (Column("who"), Column("step_s", "step"))
        return [Table(columns, [row.to_dict() for row in self.rows])]


def hello() -> Greetings:
    '''Say hello.'''
    return Greetings(rows=(Greeting(who="world", step_s=0.002),))
"""


@pytest.mark.slow
def test_a_package_adds_a_command(tmp_path):
    (tmp_path / "hello_steptime.py").write_text(COMMAND)
    entry = tmp_path / "hello_steptime-1.dist-info"
    entry.mkdir()
    (entry / "METADATA").write_text("Metadata-Version: 2.1\nName: hello-steptime\nVersion: 1\n")
    (entry / "entry_points.txt").write_text("""[steptime.commands]
hello = hello_steptime:hello
[steptime.models]
mine = steptime.network.families.fc:FAMILY
[steptime.methods]
bound = steptime.prediction.roofline:METHOD
[steptime.analyses]
misses = steptime.analysis.errors:ANALYSIS
[steptime.plots]
peaks = steptime.reports.charts.memory:chart
""")
    paths = [str(tmp_path), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}

    def ask(*words: str) -> str:
        command = [sys.executable, "-m", "steptime", *words]
        return subprocess.run(command, capture_output=True, text=True, check=True, env=env).stdout

    assert json.loads(ask("hello", "--json")) == {"rows": [{"who": "world", "step_s": 0.002}]}
    assert ask("hello") == " who    step\n world  2 ms\n"
    assert ask("hello", "--format", "csv") == "who,step_s\nworld,0.002\n"
    assert re.search(r"^  hello +Say hello\.$", ask("--help"), re.MULTILINE)
    predicted = [json.loads(ask("predict", model, "--device", "t4", "--method", method, "--json"))
                 for model, method in (("mine", "bound"), ("fc", "roofline"))]  # fmt: skip
    assert predicted[0]["step_s"] == predicted[1]["step_s"]
    assert predicted[0]["method"] == "bound"
    kinds = ask("analyse", "--help")
    assert re.search(r"^  misses +Print how far predictions are", kinds, re.MULTILINE)
    with store.open_writer(tmp_path / "results") as writer:
        writer.append_all(synthetic.sweep())
    folder = str(tmp_path / "results")
    assert json.loads(ask("analyse", "misses", folder, "--json")) == json.loads(
        ask("analyse", "errors", folder, "--json")
    )
    drawn = ask("analyse", "peaks", folder, "-o", str(tmp_path / "peaks.svg"), "--json")
    assert json.loads(drawn)["plot"] == "peaks"
    for topic, name in (("models", "mine"), ("methods", "bound")):
        assert [row["name"] for row in json.loads(ask("list", topic, name, "--json"))["rows"]] == [
            name
        ]


class Done(Answer, frozen=True, kw_only=True):
    """An answer of a note alone."""

    notes: tuple[str, ...]

    def tables(self) -> list[Table]:
        return []


@pytest.mark.parametrize("terminal", [True, False])
def test_what_takes_long_gives_a_sign_of_life_on_a_terminal(terminal, monkeypatch, capsys):
    class Due:
        """A timer whose time is up at once."""

        daemon = False

        def __init__(self, _: float, show: Callable[[], None]) -> None:
            self.show = show

        def start(self) -> None:
            self.show()

        def cancel(self) -> None:
            pass

        def join(self) -> None:
            pass

    def slow() -> Done:
        """Say how long it takes."""
        return Done(notes=("done",))

    monkeypatch.setattr("threading.Timer", Due)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    monkeypatch.setenv("TERM", "xterm")
    assert make_command(slow)(json=False, form="text") == 0
    drawn, _, printed = capsys.readouterr().err.rpartition("\x1b[2K")
    assert printed == "note: done\n"  # the line before is erased
    assert ("slow: say how long it takes ..." in drawn) is terminal
