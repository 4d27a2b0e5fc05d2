"""Every example and every claim of the documents that a program can check.

Rules for examples in README.md, docs/*.md and docs/tasks/*.md
    ```console   `$ steptime ...` is run in a folder that holds `results` (records of four networks,
                 made here), the folder `examples`, and the ```toml, ```json or ```prototxt block
                 that has the name of the command's file. QUICK commands are run; where output is
                 shown, it must be what is printed if the command is in EXACT (a line `...` stands
                 for any lines),
                 else its lines must begin with the same words. SLOW ones are only parsed by the
                 command line, and run with tiny budgets in the group `framework`, but for
                 `run --demo` (it probes for 20 s), `data` and sweeps of `examples`. What follows
                 `$ make` must be a target.
    ```python    is run; a comment behind a `print` is what it prints, or a ```text block after it.
    ```toml      must be a valid experiment, device, link or network.
    ```json, ```prototxt    must be a network that can be built and trained.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_args, get_type_hints

import numpy as np
import pytest

import clusters
import steptime
import synthetic
from command_lines import command_line_name, command_lines
from places import ROOT
from steptime.analysis.analyses import PLOTS
from steptime.build import build, build_step, choice_of, make_workload, read_model
from steptime.cli import printing
from steptime.cli.commands import build_app
from steptime.cli.main import run
from steptime.core.copying import replace
from steptime.core.graph import freeze_attrs
from steptime.core.units import QUANTITIES
from steptime.hardware.catalog import device
from steptime.hardware.device_file import device_from_table, link_from_table
from steptime.hardware.prices import offers_of
from steptime.measure.contract import Options, make_record_method
from steptime.network.count import count
from steptime.network.families import FAMILIES, family
from steptime.network.ops import OPS, cost_of, outputs_of
from steptime.prediction.records import records
from steptime.prediction.steps.step_model import StepModel
from steptime.records import store
from steptime.records.readers.mapping import mapping_of
from steptime.records.record import Quantity, Record
from steptime.serving.desktop.stack import desktop_stacks
from steptime.sweeps.cells import cells_of
from steptime.sweeps.experiment import AXIS, Experiment, Sample, check_experiment, read_experiment

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
TASKS = [page for page in PAGES if page.parent.name == "tasks"]
COMMAND_PAGES = [page for page in PAGES if page.parent.name == "commands"]
EXACT = (
    "count", "predict", "fit", "choose", "split", "scale", "energy", "list", "why",
    "whatif", "systolic", "report", "plan", "serve",
)  # fmt: skip
SLOW = ("run", "sweep", "calibrate", "data")
COMMANDS = command_lines()
QUICK = (
    *EXACT, "compare", "query", "doctor", "import", "evaluate",
    *(name for name in COMMANDS if name.startswith("analyse ")),
)  # fmt: skip

LONG = re.compile(  # searches of many plans, servers under load, modules that torch reads
    r" plan .*(--device-count \d|\.json)| serve .*--(rate|concurrency)"
    r"| (predict|fit|choose|why) \S+\.py:"
    r"| choose .*--page | fit llama2_7b:length=2048 .*--lora | why bert_base:length=384 "
    r"| choose llama2_7b:length=2048 --device "
    r"|measure_cell|devices=\[|ttft=|max_device_count=|device_count=\[|watch\.wrap|calibrate\(serving"
)

RARE = re.compile(  # each of a kind of which a shorter one is not rare
    r" plan llama3_8b,llama3_70b "
    r"| plan llama3_8b --device a100-sxm4-80gb,h100-sxm5 "
    r"| serve llama3_70b --device h100,h200"
    r"| calibrate --only link"  # the example of replicas measures a link
    r"| run .*--replicas"  # tests/measure/test_replicas.py asks for more of it
    r"| run deep_mnist "  # a smaller network reads the same data set
    r"| serve llama3_8b --device h100,a100 --rate"
)

Example = tuple[str, str, str]  # page, command line, output shown


def _text(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def _blocks(page: Path, language: str) -> list[str]:
    found = re.findall(
        rf"^```{language}\n(.*?)^```", page.read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
    return [str(block) for block in found]


def _examples() -> Iterator[Example]:
    for page in PAGES:
        for block in _blocks(page, "console"):
            for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
                line, _, shown = part.partition("\n")
                yield page.name, line, shown


EXAMPLES = list(_examples())
STEPTIME = [e for e in EXAMPLES if e[1].startswith("steptime ")]


def _name(line: str) -> str:
    """Return the command of a line: one word, or two."""
    return command_line_name(line.split()[1:])


def _of(*names: str) -> list[Any]:
    chosen = [e for e in STEPTIME if _name(e[1]) in names and "--device local" not in e[1]]
    first = {e[1]: e for e in sorted(chosen, key=lambda e: not e[2], reverse=True)}
    once = [e for e in chosen if e[2] or e is first[e[1]]]  # of several, those that show something
    marks = {True: pytest.mark.slow, False: ()}
    return [
        pytest.param(
            *e,
            id=f"{e[0]}: {e[1][:60]}",
            marks=pytest.mark.rare if RARE.search(e[1]) else marks[bool(LONG.search(e[1]))],
        )
        for e in once
    ]


def _measured(text: str, batch: int, step_s: float, platform: str) -> Record:
    """Return a record as a worker makes it: 20 samples, 1 % apart, of a known median."""
    workload = make_workload(read_model(text), batch)
    samples = tuple(step_s * (1 + 0.01 * (i % 3 - 1)) for i in range(20))
    columns = {"run": (0,) * 20, "disturbed": (False,) * 20}
    return Record(
        origin="measured",
        method=make_record_method("torch", "2.13.0", Options(threads=2), 1),
        workload=workload,
        platform=platform,
        quantities={
            "step_s": Quantity(samples=samples, columns=columns),
            "first_step_s": Quantity(2 * step_s),
            "peak_bytes": Quantity(1.1 * count(build_step(workload)).peak_bytes),
        },
        env={"host": "example", "round": 0, "steady": True, "few_samples": False},
        taken_at="2026-01-01T00:00:00+00:00",
    )


def _fill(folder: Path, platform: str = "v100-sxm2-16gb") -> None:
    with store.open_writer(folder) as writer:
        for nodes in (256, 1024):
            for batch in (64, 256):
                text = f"fc:layers=4,nodes={nodes},inputs=2000,outputs=200"
                workload = make_workload(read_model(text), batch)
                found = records(StepModel(workload, device(platform), method="roofline"))
                for record in reversed(found):
                    writer.append(record)
                predicted = found[0].quantities["step_s"].value or 0.0
                writer.append(_measured(text, batch, 1.5 * predicted, platform))


def _fill_cluster(folder: Path) -> None:
    """Write one network as 64 nodes measured it, node17 a fifth slower."""
    with store.open_writer(folder) as writer:
        for number in range(1, 65):
            step_s = 0.01 * (1.2 if number == 17 else 1 + 0.0002 * (number % 5))
            record = _measured("resnet50", 64, step_s, "v100-sxm2-16gb")
            writer.append(replace(record, env={**record.env, "host": f"node{number:02}"}))


def _fill_months(folder: Path) -> None:
    """Write sweeps of 24 networks: two months alike, and a branch with a slower network."""
    sweeps = {"last-month": (5, 1.0), "this-month": (5, 1.0), "main": (2, 1.0), "branch": (2, 1.5)}
    for seed, (name, (runs, slower)) in enumerate(sweeps.items()):
        rng = np.random.default_rng(seed)
        with store.open_writer(folder / name) as writer:
            for number, workload in enumerate(synthetic.workloads()):
                step_s = 0.001 * (number + 1) * (slower if number == 10 else 1.0)
                step = clusters.step(clusters.noise(rng, runs), step_s)
                writer.append(replace(synthetic.measured(workload), quantities={"step_s": step}))


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """Return a folder with what the examples may ask for."""
    folder = tmp_path_factory.mktemp("docs")
    _fill(folder / "results")
    for other in ("tonight", "published"):
        shutil.copytree(folder / "results", folder / other)  # workers share a page's examples
    _fill_cluster(folder / "cluster")
    _fill_months(folder)
    (folder / "networks").mkdir()
    shutil.copytree(ROOT / "examples", folder / "examples")
    (table,) = _blocks(ROOT / "docs/importing.md", "csv")
    (folder / "timings.csv").write_text(table, encoding="utf-8")
    (table,) = _blocks(ROOT / "docs/tasks/acceptance.md", "csv")
    (folder / "references.csv").write_text(table, encoding="utf-8")
    for name, table in zip(
        ("ops", "steps"), _blocks(ROOT / "docs/evaluating.md", "csv"), strict=True
    ):
        (folder / f"{name}.csv").write_text(table, encoding="utf-8")
    return folder


@pytest.fixture
def place(prepared, monkeypatch):
    """Stand in the prepared folder, where modules that torch has read are kept for all examples."""
    monkeypatch.chdir(prepared)
    home = Path(os.environ["STEPTIME_HOME"])
    home.mkdir(parents=True)
    (home / "networks").symlink_to(prepared / "networks")
    return prepared


NAME = {  # language of a block: how its name is read
    "toml": lambda block: tomllib.loads(block).get("name"),
    "json": lambda block: json.loads(block).get("name"),
    "prototxt": lambda block: re.findall(r'^name: "(.*)"', block)[0],
}


def _write_files(page: str, line: str, folder: Path) -> None:
    """Write the block of the documents that has the name of the command's file."""
    for word in shlex.split(line):
        path = folder / re.sub(r"(?<=\.json):.*", "", word)  # a model with settings
        language = path.suffix.removeprefix(".")
        if language in NAME and not path.exists():
            blocks = [block for found in PAGES for block in _blocks(found, language)]
            fits = [b for b in blocks if NAME[language](b) == path.stem]
            assert fits, f"{page} names {word}, and no {language} block has that name"
            path.write_text(fits[0], encoding="utf-8")


def _words(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines() if line.strip()]


def _matches(shown: list[list[str]], printed: list[list[str]]) -> bool:
    """Say whether the lines shown are those printed, `...` standing for any number of lines."""
    if not shown:
        return not printed
    if shown[0] == ["..."]:
        return any(_matches(shown[1:], printed[i:]) for i in range(len(printed) + 1))
    return bool(printed) and shown[0] == printed[0] and _matches(shown[1:], printed[1:])


def _renewed(shown: list[str], printed: list[str]) -> str:
    """Return what is printed with the lines left out that are left out in what was shown.

    Lines between two `...` are those most like them.
    """
    parts = "\n".join(shown).split("\n...")
    first = parts[0].splitlines()
    found = printed[: len(first)]
    for i, part in enumerate(parts[1:], 1):
        lines = part.strip("\n").splitlines()
        if i == len(parts) - 1:
            last = printed[len(printed) - len(lines) :]
        else:
            last = [get_close_matches(line, printed, 1, 0)[0] for line in lines]
        found += ["...", *last]
    return "".join(f"{line}\n" for line in (found if len(parts) > 1 else printed))


def _run_before(page: str, line: str, place: Path) -> None:
    """Run the lines of a page before one that write the folder that it reads, where none is."""
    words = shlex.split(line)
    for earlier in (one for other, one, _ in STEPTIME if other == page and _name(one) in QUICK):
        if earlier == line:
            return
        name = re.search(r"--out (\S+)", earlier)
        if name and name[1] in words and name[1] not in PREPARED and (place, earlier) not in RAN:
            RAN.add((place, earlier))
            _write_files(page, earlier, place)
            assert run(shlex.split(earlier)[1:]) == 0


PREPARED = (
    "results",
    "tonight",
    "published",
    "last-month",
    "this-month",
    "main",
    "branch",
    "cluster",
)
RAN: set[tuple[Path, str]] = set()


@pytest.mark.parametrize(("page", "line", "shown"), _of(*QUICK))
def test_quick_examples_run(page, line, shown, place, capsys, monkeypatch):
    if page in (
        "README.md",
        "tutorial.md",
        *(page.name for page in [*TASKS, *COMMAND_PAGES]),
    ):  # what people see first
        monkeypatch.setattr(printing, "terminal_width", lambda: 80)
    _write_files(page, line, place)
    _run_before(page, line, place)
    capsys.readouterr()
    RAN.add((place, line))
    fails = "--fail-on slow" in line and ("cluster" in line or "main branch" in line)
    fails |= "--expected references.csv" in line
    code = 3 if fails else 0
    assert run(shlex.split(line)[1:]) == code, capsys.readouterr().err
    printed = capsys.readouterr()
    if _name(line) in EXACT:
        if os.environ.get("STEPTIME_RENEW_GOLDEN") and shown:
            path = next(found for found in PAGES if found.name == page)
            text = path.read_text("utf-8")
            before = f"$ {line}\n{shown}"
            assert before in text
            renewed = _renewed(shown.splitlines(), printed.out.splitlines())
            path.write_text(text.replace(before, f"$ {line}\n{renewed}"), encoding="utf-8")
            return
        assert not shown or _matches(_words(shown), _words(printed.out)), (
            f"renew with STEPTIME_RENEW_GOLDEN=1\n{printed.out}"
        )
    elif shown:  # numbers differ from machine to machine, heads of columns do not
        heads = [words[0] for words in _words(printed.out)] + ["..."]
        columns = _words(printed.out)[:2]
        for number, words in enumerate(_words(shown)):
            assert number >= 2 or words in columns or words[0] in heads, printed.out


@pytest.mark.parametrize(("page", "line", "shown"), _of(*SLOW))
def test_slow_examples_are_understood(page, line, shown, place):
    _write_files(page, line, place)
    name = _name(line)
    arguments = shlex.split(line)[1 + len(name.split()) :]
    build_app().parse_args(  # raises for what the command line refuses
        [*name.split(), *arguments], exit_on_error=False, print_error=False
    )
    if name == "sweep":
        file = next(word for word in arguments if word.endswith(".toml"))
        read_experiment(Path(file))


TINY = {
    "run": ["--budget", "0.05", "--runs", "1"],
    "calibrate": ["--minutes", "0.1", "--points", "3", "--threads", "1"],
}


@pytest.fixture
def unhurried(monkeypatch):
    """Let the number of points end a calibration, however busy this machine is; each is short."""
    monkeypatch.setattr("steptime.calibration.here.points_s", lambda _limit_s, _spent_s: 3600.0)
    monkeypatch.setattr("steptime.calibration.session.SHARE_OF_TIME", 1e-5)


def _shortened(words: list[str], tiny: list[str]) -> list[str]:
    """Return a command line with these options in place of its own values for them."""
    line = [*words]
    for option, value in zip(tiny[::2], tiny[1::2], strict=True):
        if option in line:
            line[line.index(option) + 1] = value
        else:
            line += [option, value]
    return line


@pytest.mark.rare
@pytest.mark.framework
def test_the_example_of_replicas_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "examples/replicas.toml").read_text("utf-8")
    quick = re.sub(r"budget_s = .*", "budget_s = 0.02", text).replace("1024", "64")
    for setting, one in (("batch = [64, 256]", "batch = 64"), ("[true, false]", "true")):
        assert setting in quick
        quick = quick.replace(setting, one)
    Path("replicas.toml").write_text(quick, encoding="utf-8")
    for line in (
        "calibrate --only ceilings --threads 1 --minutes 0.05",
        "calibrate --only link --threads 1 --minutes 0.05",
        "sweep replicas.toml --out replicas",
    ):
        assert run(line.split()) == 0, capsys.readouterr().err
    kinds = Counter(record.origin for record in store.load(Path("replicas"), pytest.fail))
    assert kinds["measured"] == kinds["predicted"] > 1


@pytest.mark.slow
@pytest.mark.framework
@pytest.mark.jax
@pytest.mark.onnxruntime
def test_the_example_of_stacks_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "examples/stacks.toml").read_text("utf-8")
    head, *networks = text.split("[[networks]]")
    text = "[[networks]]".join((head, networks[0]))  # tests of the stacks run all families
    for key, value in (("budget_s", "0.02"), ("rounds", "1"), ("phase", '"infer"')):
        text = re.sub(rf"{key} = .*", f"{key} = {value}", text)
    Path("stacks.toml").write_text(text, encoding="utf-8")
    answers = []
    for line in (
        "sweep stacks.toml --out stacks --json",
        "compare stacks --by stack --against torch --json",
    ):
        assert run(line.split()) == 0, capsys.readouterr().err
        answers.append(json.loads(capsys.readouterr().out))
    sweep, comparison = answers
    assert sweep["cells_by_status"] == [{"status": "ok", "cells": 4}]  # a network, 4 stacks
    levels = {row["level"]: row["pairs"] for row in comparison["levels"]}
    assert levels == {"torch-compile": 1, "jax": 1, "onnxruntime": 1}
    assert all(row["verdict"] for row in comparison["rows"])


def _of_pages(*names: str) -> list[Any]:
    """Return the examples but for those of the folder `examples`, which have tests of their own."""
    apart = ("examples/", "--demo")
    return [one for one in _of(*names) if not any(word in one.values[1] for word in apart)]


def _long_examples() -> list[Any]:
    """Return the examples that measure.

    Those that calibrate a device, the longest, are rare, and so are those whose options all stand
    in examples of their command before them.
    """
    examples = []
    seen_options: set[tuple[str, str]] = set()
    for example in _of_pages("run", "sweep", "calibrate"):
        command_name, *arguments = shlex.split(example.values[1])[1:]
        options = {(command_name, word) for word in arguments if word.startswith("--")}
        calibrates = command_name == "calibrate" and not {"link", "--from"} & {*arguments}
        is_rare = RARE.search(example.values[1]) or calibrates or options <= seen_options
        marks = [*example.marks, pytest.mark.rare] if is_rare else example.marks
        if not is_rare:
            seen_options |= options
        examples.append(pytest.param(*example.values, marks=marks, id=example.id))
    return examples


@pytest.mark.slow
@pytest.mark.framework
@pytest.mark.usefixtures("unhurried")
@pytest.mark.parametrize(("page", "line", "shown"), _long_examples())
def test_slow_examples_run(page, line, shown, tmp_path, monkeypatch, request, capsys):
    if "--data mnist" in line:
        (tmp_path / "mnist").symlink_to(request.getfixturevalue("mnist"))
    monkeypatch.chdir(tmp_path)
    _write_files(page, line, tmp_path)
    for file in tmp_path.glob("*.toml"):
        text = file.read_text("utf-8")
        file.write_text(re.sub(r"budget_s = .*", "budget_s = 0.02", text), encoding="utf-8")
    words = shlex.split(line)[1:]
    tiny = TINY.get(words[0], [])
    if "--only" in words:  # medians of few rounds of a link tell nothing beside other tests
        tiny = ["--minutes", "0.14" if "link" in words else "0.05"]
    if "--from" in words:  # nothing is measured
        _fill(tmp_path / words[words.index("--from") + 1])
        tiny = []
    if "--train-steps" in words:
        words[words.index("--train-steps") + 1] = "20"
    assert run(_shortened(words, tiny)) == 0, capsys.readouterr().err
    printed = capsys.readouterr().out
    if words[0] == "run" and shown:
        heads = {row[0] for row in _words(printed)}
        shown_heads = {row[0] for row in _words(shown)} - {"..."}  # lines that the page leaves out
        assert shown_heads <= heads, printed


OTHER_COMMANDS = ("git", "cd", "python3", ".venv/bin/python", "pip", "pipx", "uvx", "pytest")


def test_other_commands_shown_exist():
    targets = set(re.findall(r"^([a-z]+):", _text("Makefile"), re.MULTILINE))
    for page, line, _ in EXAMPLES:
        words = shlex.split(line)
        if words[0] == "make":
            assert set(words[1:]) <= targets, f"{page}: {line}"
        elif words[0] == "steptime":
            assert _name(line) in COMMANDS, f"{page}: {line}"
        else:
            assert words[0] in OTHER_COMMANDS, f"{page}: {line}"


PYTHON = [
    pytest.param(
        page.name,
        block,
        id=f"{page.name}: {i}",
        marks=[
            *([pytest.mark.framework] if re.search("measure_cell|import torch", block) else ()),
            *([pytest.mark.slow] if LONG.search(block) else ()),
        ],
    )
    for page in PAGES
    for i, block in enumerate(_blocks(page, "python"))
]


@pytest.mark.parametrize(("page", "block"), PYTHON)
def test_python_examples(page, block, place):
    stdout = io.StringIO()
    names: dict[str, Any] = {"__name__": page}
    with contextlib.redirect_stdout(stdout):
        exec(compile(block, page, "exec"), names)  # noqa: S102  # our own pages
    beside = re.findall(r"^print\(.*\)  # (.*)$", block, re.MULTILINE)
    if os.environ.get("STEPTIME_RENEW_GOLDEN") and _printed(page, block):
        path = next(found for found in PAGES if found.name == page)
        head, _, tail = path.read_text("utf-8").partition(f"{block}```\n")
        _, _, after = tail.partition("```text\n")[2].partition("```")
        printed = "".join(stdout.getvalue().splitlines(keepends=True)[len(beside) :])
        shown = f"{block}```\n\n```text\n{printed}```{after}"
        path.write_text(head + shown, encoding="utf-8")
        return
    expected = beside + _printed(page, block)
    assert stdout.getvalue().splitlines() == expected
    if "FAMILY" in names:
        values = {name: p.default for name, p in names["FAMILY"].parameters.items()}
        _family_works(names["FAMILY"], values)
    for kind, row in names.get("KINDS", {}).items():
        example = row.example
        assert row.outputs(*example.specs, **example.attrs), kind
        assert row.flop(*example.specs, **example.attrs) > 0, kind


def _printed(page: str, block: str) -> list[str]:
    """Return the lines of the ```text block that follows a ```python block."""
    text = next(found for found in PAGES if found.name == page).read_text("utf-8")
    after = text.partition(f"{block}```\n")[2].lstrip("\n")
    return after.split("```")[1].splitlines()[1:] if after.startswith("```text\n") else []


def _family_works(made: Any, values: dict[str, Any]) -> None:
    from steptime.core.dtypes import precision
    from steptime.network.ops.builder import Builder
    from steptime.network.ops.training import training_graph

    builder = Builder(made.name, precision("float32"), training=True)
    graph = builder.graph(made.build(builder, values, 4))
    assert count(training_graph(graph, "adam")).flop > 0


TOML = [
    pytest.param(page.name, block, id=f"{page.name}: {i}")
    for page in PAGES
    for i, block in enumerate(_blocks(page, "toml"))
]


@pytest.mark.parametrize(("page", "block"), TOML)
def test_toml_examples(page, block):
    table = tomllib.loads(block)
    if "networks" in table:
        assert cells_of(check_experiment(table, page), page)[0]
    elif "peak_TFLOP_per_s" in table:
        assert device_from_table(table, page).datasheet.source
    elif "rows" in table or "quantities" in table:
        assert mapping_of(table, page).rows
    elif "GB_per_s" in table:
        assert link_from_table(table, page).source
    elif "offers" in table:
        assert offers_of(table, page)
    elif "like" in table:  # the recipe of a desktop stack: tests/test_where_to_add.py runs it
        assert table["like"] in desktop_stacks()
    else:
        assert build(make_workload(choice_of(table, page)))


@pytest.mark.parametrize(
    ("language", "block"),
    [(language, b) for page in PAGES for language in NAME for b in _blocks(page, language)
     if language != "toml"],
)  # fmt: skip
def test_networks_of_files(language, block, tmp_path):
    path = tmp_path / f"{NAME[language](block)}.{language}"
    path.write_text(block, encoding="utf-8")
    native = '"steptime_graph"' in block  # which is made for one phase
    for phase in ("infer",) if native else ("train", "infer"):
        assert build_step(make_workload(read_model(str(path)), phase=phase)).ops


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.toml")), ids=lambda p: p.stem)
def test_experiments_to_start_from(path):
    experiment = read_experiment(path)
    assert experiment.name == path.stem
    cells, *_ = cells_of(experiment, path.name)
    assert 10 <= len(cells) <= 100
    assert f"steptime sweep examples/{path.name} --out {path.stem}" in path.read_text("utf-8")
    assert any(path.name in page.read_text("utf-8") for page in PAGES)


def test_the_example_of_paradnn_is_its_whole_grid():
    experiment = read_experiment(ROOT / "examples/paradnn-fc.toml")
    free = experiment.model_copy(update={"where": [], "sample": Sample()})
    from steptime.sweeps.experiment import axes_of

    (axes,) = axes_of(free, "whole")
    sizes = [len(values) for values in axes.values.values() if len(values) > 1]
    assert sorted(sizes) == [4, 5, 6, 9, 9]  # inputs outputs layers nodes batch
    named = {key: axes.values[key] for key in family("fc").parameters}
    whole = {"family": "fc"} | dict.fromkeys(named, "all")
    by_default = experiment.model_copy(update={"networks": [whole], "batch": ["all"]})
    (published,) = axes_of(by_default, "published")
    assert named == {key: published.values[key] for key in named}
    assert axes.values["batch"] == published.values["batch"]


def _section(page: str, title: str) -> str:
    """Return the text from a heading to the next one of its level."""
    found = re.search(
        rf"^## {re.escape(title)}$(.*?)(?=^## |\Z)", _text(page), re.MULTILINE | re.DOTALL
    )
    assert found, f"{page} has no section '{title}'"
    return found[1]


def _table(text: str) -> list[list[str]]:
    """Return the cells of all rows of all tables that begin with a name in backticks."""
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in rows]


def _first_names(text: str) -> list[str]:
    return [name for row in _table(text) for name in re.findall(r"`([^`]+)`", row[0])]


KEYS = {  # command: (arguments, whether its rows are a list)
    "list": "list models",
    "count": "count fc",
    "predict": "predict fc --device t4",
    "fit": "fit fc --device t4",
    "choose": "choose fc --device t4,l4",
    "whatif": "whatif t4 --set peak=x2 --model fc",
    "why": "why fc --device t4",
    "why --from": "why fc --device t4 --from paleo",
    "split": "split fc --device t4 --server v100 --link aws",
    "scale": "scale fc --device t4 --link aws --examples 1000 --price 1",
    "energy": "energy fc",
    "systolic": "systolic fc",
    "doctor": "doctor",
    "import": "import timings.csv --mapping timings.toml --out keys",
    "analyse results": "analyse results results",
    "analyse errors": "analyse errors results",
    "analyse nodes": "analyse nodes results",
    "analyse history": "analyse history results tonight",
    "analyse roofline": "analyse roofline results",
    "analyse breakdown": "analyse breakdown results",
    "analyse sensitivity": "analyse sensitivity results",
    "analyse heatmap": "analyse heatmap results",
    "compare": "compare results",
    "analyse speedup": "analyse speedup results --by batch",
    "query": "query 'FROM records' --in results",
    "query --out": "query --in results -o keys.csv",
    "report": "report results -o keys.html",
    "analyse memory": "analyse memory results -o keys.svg",
}


def _command_page(command: str) -> str:
    """Return the page of a command with the page of its keys."""
    name = command_line_name(command.split())
    page = "analyse" if name.removeprefix("analyse ") in PLOTS else name.replace(" ", "-")
    return _text(f"docs/commands/steptime-{page}.md") + _text(f"docs/keys/{page}-keys.md")


@pytest.mark.parametrize("command", KEYS)
def test_keys_of_json(command, place, capsys):
    _write_files(f"the test of {command}", KEYS[command], place)
    assert run([*shlex.split(KEYS[command]), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    tops = document if isinstance(document, list) else [document]
    named = set(re.findall(r"`(\w+)`", _command_page(command)))
    inner = [
        value[0]
        for key, value in tops[0].items()
        if key in ("ops", "pairs", "steps", "cuts", "rows") and isinstance(value, list) and value
    ]
    quantities = set(re.findall(r"`(\w+)`", _section("docs/counting.md", "The numbers")))
    vocabulary = set(re.findall(r"^\| `(\w+)`", _text("docs/vocabulary.md"), re.MULTILINE))
    known = named | quantities | set(QUANTITIES) | set(family("fc").parameters) | vocabulary
    for table in (tops[0], *inner):
        assert set(table) <= known, set(table) - known


def test_columns_of_the_table(place, capsys):
    from steptime.analysis.device_row import DEVICE_COLUMNS

    assert run(["analyse", "table", "results", "--format", "json"]) == 0
    assert list(json.loads(capsys.readouterr().out)["rows"][0]) == list(DEVICE_COLUMNS)
    assert set(_first_names(_section("docs/importing.md", "The table"))) == set(DEVICE_COLUMNS)


def test_formats_and_keys_of_importing():
    from steptime.records.readers import READERS
    from steptime.records.readers.mapping_keys import Keys

    text = _text("docs/importing.md")
    formats = _first_names(text.partition("| format |")[2].partition("## ")[0])
    assert formats == [*READERS, "csv"]
    keys = _first_names(_section("docs/importing.md", "Any table"))
    keys += _first_names(_section("docs/evaluating.md", "A table of yours"))
    assert set(keys) == {field.alias or name for name, field in Keys.model_fields.items()}


@pytest.mark.parametrize(
    "topic",
    [
        "models",
        "devices",
        "links",
        "stacks",
        "methods",
        "ops",
        "quantities",
        "accelerators",
        "prices",
        "questions",
    ],
)
def test_keys_of_lists(topic, capsys):
    assert run(["list", topic, "--json"]) == 0
    keys = json.loads(capsys.readouterr().out)["rows"][0]
    assert set(keys) <= set(_first_names(_command_page("list")))


def test_keys_of_run_and_sweep(tmp_path):
    from steptime.analysis.measurement import measurement

    record = _measured("fc:layers=1,nodes=8", 4, 0.01, "t4")
    found = measurement(record, 1.0, {"probed": None, "datasheet": None})
    inner = [found[key] for key in ("step_s", "speed", "fraction_of_peak")]
    renamed = {"low": "low_s", "high": "high_s", "remarks": "notes"}
    keys = {renamed.get(key, key) for table in (found, *inner) for key in table}
    assert keys <= set(_first_names(_command_page("run")))
    name, out = tmp_path / "wide.toml", tmp_path / "out"  # a type that nothing here has
    name.write_text(
        'name = "a"\nbackend = "null"\ndtype = "bfloat16"\n[[networks]]\nmodel = "fc"\n'
    )
    document = steptime.sweep(name, out=out).to_dict()
    documented_keys = set(_first_names(_command_page("sweep")))
    assert set(document) | set(document["unsuccessful"][0]) <= documented_keys


def test_every_key_of_slurm_and_every_cause_is_documented():
    from steptime.core.causes import CAUSES
    from steptime.sweeps.resource_request import ResourceRequest

    rows = _table(_section("docs/clusters.md", "Keys of [slurm]"))
    said = [name for row in rows for name in re.findall(r"`(\w+)`", row[0])]
    keys = {field.alias or name: field for name, field in ResourceRequest.model_fields.items()}
    assert sorted(said) == sorted(keys)
    for name, default, _ in rows:
        fields = [keys[key] for key in re.findall(r"`(\w+)`", name)]
        if default.startswith("`") and "," not in name:
            assert [_default(default)] == [field.default for field in fields], name
    causes = _table(_section("docs/sweeps.md", "Why there is no number"))
    assert {row[0].strip("`"): tuple(row[1:]) for row in causes} == {
        name: (cause.meaning, cause.retry) for name, cause in CAUSES.items()
    }


def _default(text: str) -> Any:
    return json.loads(text.strip("`"))


def test_every_key_of_experiments_is_documented_with_its_default():
    rows = {row[0].strip("`"): row for row in _table(_section("docs/sweeps.md", "Keys"))}
    fields = Experiment.model_fields
    assert list(rows) == [field.alias or name for name, field in fields.items()]
    types = get_type_hints(Experiment, include_extras=True)
    for name, field in fields.items():
        _, said, meaning = rows[field.alias or name]
        axis = meaning.startswith("*axis*")
        parts = (types[name], *get_args(types[name]))
        assert axis == any(AXIS in getattr(one, "__metadata__", ()) for one in parts), name
        if field.is_required():
            assert said == "required"
        elif said.startswith("`"):
            default = field.get_default()
            assert _default(said) == (default[0] if axis and default else default), name
    rows = {row[0].strip("`"): row for row in _table(_section("docs/sweeps.md", "Sampling"))}
    assert list(rows) == list(Sample.model_fields)


def test_ranges_of_families_are_those_of_the_code():
    section = _section("docs/sweeps.md", "Networks")
    rows = {row[0].strip("`"): row for row in _table(section)}
    assert list(rows) == list(FAMILIES)
    for name, (_, batch, said) in rows.items():
        found = family(name)
        assert batch.strip("`") == _range(found.batch_sweep)
        for key, parameter in found.parameters.items():
            if parameter.sweep:
                assert f"`{key}` {_range(parameter.sweep)}" in said.replace(" and ", ", "), key
            else:
                assert f"`{key}`" not in said


def _range(values: Any) -> str:
    return values if isinstance(values, str) else ", ".join(map(str, values))


BY_HAND = "fc:layers=1,nodes=3,inputs=4,outputs=2"


def _sum(text: str) -> int:
    """Return the number that arithmetic such as `4 x (2 + 3) = 20` comes to, checked."""
    left, _, right = text.partition(" = ")
    assert re.fullmatch(r"[\d x+()]+", left), text
    value = eval(left.replace("x", "*"))  # noqa: S307  # digits and signs only
    assert value == int(right), text
    return int(value)


def test_the_example_by_hand(capsys):
    assert run(["count", BY_HAND, "--batch", "5", "--by-op", "--json"]) == 0
    counted = json.loads(capsys.readouterr().out)
    rows = _table(_section("docs/counting.md", "An example by hand"))
    ops = [row for row in rows if len(row) == 4]
    assert [(r[0], r[1], _sum(r[2]), _sum(r[3])) for r in ops] == [
        (f"`{op['name']}`", f"`{op['kind']}`", op["flop"], op["traffic_bytes"])
        for op in counted["ops"]
    ]
    totals = {row[0].strip("`"): _sum(row[1]) for row in rows if len(row) == 2}
    assert len(totals) == 5
    assert totals == {name: counted[name] for name in totals}


def test_flop_an_element():
    section = _section("docs/counting.md", "FLOP by kind of op")
    rows = [row for row in _table(section) if row[1].isdigit()]
    for row in rows:
        for kind in re.findall(r"`(\w+)`", row[0]):
            example = OPS[kind].example
            flop = OPS[kind].flop(*example.specs, **example.attrs)
            assert flop == int(row[1]) * example.specs[0].size, kind
    named = set(re.findall(r"`(\w+)`", section))
    assert OPS.keys() <= named
    matrix = {kind for row in _table(section)[:8] for kind in re.findall(r"`(\w+)`", row[0])}
    assert matrix == {kind for kind, row in OPS.items() if row.work}


def test_kinds_that_read_less_than_their_inputs_are_named():
    section = _section("docs/counting.md", "Bytes that are not simply inputs and outputs")
    for kind, row in OPS.items():
        if row.read:
            assert f"`{kind}`" in section or "gradients of pooling" in section, kind
        if row.saved and not kind.endswith("norm"):
            assert f"`{kind}`" in section or kind == "local_response_norm", kind
    for kind in ("embedding", "slice"):
        example = OPS[kind].example
        attrs = freeze_attrs(example.attrs)
        made = outputs_of(kind, example.specs, attrs)
        flop, traffic = cost_of(kind, example.specs, attrs, made)
        assert flop == 0
        assert traffic < sum(spec.size_bytes for spec in (*example.specs, *made))


def test_statuses_and_causes():
    from steptime.records.record import FINAL_STATUSES, STATUSES

    rows = _table(_section("docs/measuring.md", "What came out"))
    assert [row[0].strip("`") for row in rows] == list(STATUSES)
    assert all(
        f"`{status}`" in _section("docs/measuring.md", "What came out") for status in FINAL_STATUSES
    )


@pytest.mark.rare  # test_slow_examples_run and tests/cli/test_calibrate.py hold its commands
@pytest.mark.framework
@pytest.mark.usefixtures("unhurried")
def test_the_task_of_measuring_and_calibrating_runs_in_its_order(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    lines = [line for name, line, _ in EXAMPLES if name == "measure-calibrate.md"]
    assert [_name(line) for line in lines] == ["run", "calibrate", "predict"]
    for line in lines:
        words = _shortened(shlex.split(line)[1:], TINY.get(_name(line), []))
        assert run(words) == 0, capsys.readouterr().err


@pytest.mark.parametrize("page", TASKS, ids=lambda page: page.stem)
def test_a_task_takes_three_commands_at_most(page):
    lines = [line for name, line, _ in EXAMPLES if name == page.name]
    assert 1 <= len(lines) + len(_blocks(page, "python")) <= 3
    assert f"tasks/{page.name}" in _text("docs/index.md")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_paths(page):
    text = page.read_text("utf-8")
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith("https://"):
            continue
        path, _, anchor = target.partition("#")
        to = (page.parent / path) if path else page
        assert to.exists(), target
        if anchor:
            assert anchor in _anchors(to), target
    for path in re.findall(
        r"`((?:src|docs|tests|examples|scripts|validation|benchmarks|\.ci)/[^`\s]*)`", text
    ):
        assert (ROOT / path).exists(), path


def _anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


@pytest.fixture(scope="module")
def architecture():
    """Return what `scripts/draw-architecture` defines."""
    return runpy.run_path(str(ROOT / "scripts/draw-architecture"))


def test_a_class_has_a_name_and_a_meaning_of_its_own(architecture):
    classes = architecture["classes"]()
    count = Counter(name for name, *_ in classes)
    assert {name: n for name, n in count.items() if n > 1} == {}
    assert [name for name, meaning, _ in classes if not name.startswith("_") and not meaning] == []


def test_the_cookbook_names_tables_that_exist():
    text = _text("docs/cookbook.md") + _text("docs/recipes.md")
    for row in _rows(text):
        files = re.findall(r"`((?:src|validation)/[^`]+\.py)`", " ".join(row))
        for table in re.findall(r"`([A-Z]{4,})`", " ".join(row)):
            defined = any(re.search(rf"^{table}\b", _text(file), re.MULTILINE) for file in files)
            assert defined or table in ("FAMILY", "METHOD", "KINDS", "RUNS", "ANALYSIS"), table
    contract = _text("src/steptime/measure/contract.py")
    for name in ("prepare", "RUNS", "STRATEGIES", "device_facts"):
        assert f"`{name}" in contract
        assert f"`{name}" in text


def _rows(text: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if line.startswith("| a")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def test_the_changelog_has_this_version():
    from steptime import __version__

    assert f"## {__version__}" in _text("CHANGELOG.md")


def test_the_pages_of_the_api_and_of_the_vocabulary_are_those_of_the_docstrings():
    made = runpy.run_path(str(ROOT / "scripts/make-api"))
    assert (ROOT / "docs/api.md").read_text("utf-8") == made["page"](), "run scripts/make-api"
    vocabulary = (ROOT / "docs/vocabulary.md").read_text("utf-8")
    assert vocabulary == made["vocabulary"](), "run scripts/make-api"


@pytest.mark.slow
def test_the_packages_of_the_architecture_are_drawn_from_the_imports(architecture):
    page = architecture["page"]()
    assert _text("docs/architecture.md") == page, "stale: run scripts/draw-architecture"
    assert "->" in page
    assert len(page.encode()) <= 12_000


@pytest.mark.slow
def test_the_site_is_built_of_every_page_and_loads_nothing_from_elsewhere(tmp_path):
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "docs", str(tmp_path)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    names = {page.relative_to(ROOT / "docs").with_suffix(".html") for page in PAGES[1:]}
    made = {
        page.relative_to(tmp_path): page.read_text("utf-8") for page in tmp_path.rglob("*.html")
    }
    assert made.keys() - names == {Path("genindex.html"), Path("search.html")}
    for name, text in made.items():
        tags = re.findall(r"<(?:script|img|iframe|link)[^>]*>", text)
        assert not [tag for tag in tags if "//" in tag], name
    options = made[Path("commands/steptime-predict.html")]
    assert "--host" in options
    assert "\u2013host" not in options  # a dash, which no command takes
    index = (tmp_path / "searchindex.js").read_text("utf-8")
    assert "tasks/serve-target" in index


PROSE_BYTES = 240_000
MADE = (
    "api.md",
    "vocabulary.md",
    "reliability.md",
)  # by scripts/make-api, by python -m attack --write
NOT_PROSE = (
    r"^<!-- [^\n]* (?:writes from here|by scripts/[\w-]+) -->\n.*?^<!-- [^\n]* -->\n",  # made
    r"^```.*?^```\n",  # commands, their output, files
    r"^\|.*?\n",  # rows of tables: most are held against the code, row by row
)


def test_prose_written_by_hand_is_short():
    """Count bytes of README, CONTRIBUTING and docs without NOT_PROSE, MADE and pages of keys."""
    pages = [page for page in [*PAGES, ROOT / "CONTRIBUTING.md"] if page.parent.name != "keys"]
    texts = [page.read_text("utf-8") for page in pages if page.name not in MADE]
    for pattern in NOT_PROSE:
        texts = [re.sub(pattern, "", text, flags=re.MULTILINE | re.DOTALL) for text in texts]
    assert sum(len(text.encode()) for text in texts) <= PROSE_BYTES


def test_pictures_are_small_and_shown():
    text = "".join(page.read_text("utf-8") for page in PAGES)
    for path in (ROOT / "docs/pictures").iterdir():
        assert path.stat().st_size < 200_000, path.name
        assert f"pictures/{path.name})" in text
