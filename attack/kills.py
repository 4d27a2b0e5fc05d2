"""Kills of what writes: acknowledged records stay, none is there twice, nobody is left behind.

A scenario is one command in a folder. It is killed again and again in the state that the kill
before left, until it ends by itself; then all must be there once, and a new folder begins.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import fake_slurm

import synthetic
from attack.tally import Tally
from attack.victims import LIMIT_S, SIGNALS, Act, End, Point, run, warm
from steptime.calibration import here
from steptime.cli.main import run as command
from steptime.records import store
from steptime.records.readers import source_key
from steptime.records.record import Record
from steptime.sweeps.cluster import commands, submission, task

AT_EVENTS = 0.6  # of the kills; the others come after a share of the time
UNHURT = 0.1  # of the runs, which no signal meets
APPENDED = 40  # records of a writer
POINTS = 3  # of a calibration
ROWS = 300  # of an import
MODEL = "fc:layers=1,nodes=4,inputs=4,outputs=2"
SWEEP = {
    "name": "swept", "backend": "null", "budget_s": 0.02, "batch": [2], "predict": ["T4"],
    "by_op": True,
    "networks": [
        {"family": "fc", "layers": [1, 2], "nodes": [4, 8], "inputs": 8, "outputs": 4}
    ],
}  # fmt: skip
SPACE = {
    "name": "predicted", "measure": False, "batch": [1, 2, 4, 8], "predict": ["T4", "V100"],
    "networks": [{"family": "fc", "layers": [1, 2, 3, 4], "nodes": [64, 128]}],
}  # fmt: skip
SUITE = {
    "name": "suite", "backend": "null", "threads": 1, "budget_s": 0.02, "batch": [2, 4],
    "networks": [{"family": "fc", "layers": [1, 2], "nodes": 4, "inputs": 8, "outputs": 4}],
    "slurm": {"gpu": "k80", "cells_per_task": 4, "time": "30", "requeues": 1000},
}  # fmt: skip
TWO_JOBS = {**SUITE, "slurm": {"gpu": ["k80", "p100"], "cells_per_task": 2}}
UNANSWERED = 3  # of so many arrays one is taken, and sbatch says that its socket timed out
EXECUTE = commands.execute  # the real one, which starts programs
MAPPING = """name = "rows"
source = "rows"
model = "fc:layers={layers}"
platform = "T4"
batch = "{batch}"
[quantities.step_s]
column = "t"
scale = 0.001
"""
HARM = ("lost", "doubled", "orphans", "left in TMPDIR", "tracebacks")
SQL = "SELECT count(*), count(DISTINCT model), sum(step_s) FROM records"


@dataclass
class Story:
    """What happened to one folder so far: what was acknowledged, and what must be there."""

    folder: Path
    runs: int = 0
    whole: frozenset[Hashable] = frozenset()  # what is there after a run that nobody meets
    before: frozenset[Hashable] = frozenset()
    least: int = 0  # records that were acknowledged
    state: Any = None


@dataclass(frozen=True)
class Scenario:
    """A command, how many of 1,000 kills it gets, and what is looked at after each.

    `records` gives what is kept so far, `acknowledged` how many it said to be kept in one run.
    """

    name: str
    kills: int
    prepare: Callable[[Story], None]
    act: Callable[[Story], Act]
    records: Callable[[Story], Iterable[Hashable]]
    acknowledged: Callable[[End], int] = lambda _: 0
    check: Callable[[Story, End], str] = lambda _story, _end: ""  # what is wrong
    is_same: bool = True  # one folder holds in the end what another does


def attack(scenario: Scenario, kills: int, seed: int, scratch: Path) -> Tally:
    """Return what became of so many kills of a scenario."""
    rng, tally = random.Random(f"{seed} {scenario.name}"), Tally({}, harm=HARM)  # noqa: S311  # draws, no secret
    sent, at_events = Counter[signal.Signals](), 0
    story = _begun(scenario, scratch, 0)
    usual = warm(scenario.act(story), story.folder)
    _judge(scenario, story, usual, tally)
    whole, number = frozenset(scenario.records(story)), 0
    story = _begun(scenario, scratch, number := number + 1)
    usual = run(scenario.act(story), story.folder)  # as quick as all that follow
    _judge(scenario, story, usual, tally)
    ends = True
    while sent.total() < kills:
        if ends:
            story = _begun(scenario, scratch, number := number + 1)
            story.whole = whole if scenario.is_same else frozenset()
        point = None if rng.random() < UNHURT else _point(rng, usual)
        end = run(scenario.act(story), story.folder, point)
        story.runs += 1
        _judge(scenario, story, end, tally)
        ends = not end.was_sent
        if point and end.was_sent:
            sent[point.number] += 1
            at_events += point.event > 0
        if story.runs > 50 * kills:
            tally.wrong.append("it is never killed")
            break
    of_each = " ".join(str(sent[one]) for one in SIGNALS)
    tally.first = {"command": scenario.name, "kills": sent.total(), "KILL TERM INT": of_each}
    tally.first["at an event"] = at_events
    return tally


def _begun(scenario: Scenario, scratch: Path, number: int) -> Story:
    story = Story(scratch / f"{scenario.name.replace(' ', '-').replace(',', '')}-{number}")
    story.folder.mkdir(parents=True)
    scenario.prepare(story)
    return story


def _point(rng: random.Random, usual: End) -> Point:
    number, is_torn = rng.choice(SIGNALS), rng.random() < 0.5
    if rng.random() < AT_EVENTS:
        return Point(number, rng.randint(1, max(1, usual.events)), is_torn)
    return Point(number, seconds=rng.uniform(0.0, usual.seconds))


def _judge(scenario: Scenario, story: Story, end: End, tally: Tally) -> None:
    """Add to the tally what a run did to its folder."""
    kept = Counter(scenario.records(story))
    lines = scenario.acknowledged(end)
    story.least += lines
    is_whole = not end.was_sent
    wanted = story.before | (story.whole if is_whole else frozenset())
    lost = max(len(wanted - kept.keys()), story.least - kept.total())
    doubled = kept.total() - len(kept)
    wrong = [scenario.check(story, end)]
    if is_whole and end.code:
        wrong.append(f"exit code {end.code}")
    harm = (max(0, lost), doubled, end.orphans, len(end.left), end.has_traceback)
    tally.add({"ended by itself": is_whole, "acknowledged": lines})
    tally.add(dict(zip(HARM, harm, strict=True)))
    texts = [*filter(None, wrong)]
    if lost > 0 or doubled or end.orphans or end.left or end.has_traceback or texts:
        about = f"lost {lost}, doubled {doubled}, orphans {end.orphans}, left {end.left}: {texts}"
        print(f"{scenario.name}: {about}: {end.code} {end.said[-1500:]}", file=sys.stderr)
    tally.wrong += texts
    story.before, story.least = frozenset(kept), kept.total()


def _words(*words: str) -> Callable[[Story], Act]:
    return lambda _: lambda: command([*words])


def _file(name: str, table: object) -> Callable[[Story], None]:
    def prepare(story: Story) -> None:
        (story.folder / name).write_text(json.dumps(table))

    return prepare


def _in(name: str) -> Callable[[Story], list[Record]]:
    return lambda story: store.load(story.folder / name, lambda _: None, required=False)


def _steps(story: Story) -> Iterable[Hashable]:
    return ((store.done_key(one), one.scope) for one in _in("out")(story))


def _progress(end: End) -> int:
    """Return how many cells or points a command said to be done."""
    return len(re.findall(r"^\[\d+/\d+", end.said, re.MULTILINE))


def _append(story: Story) -> Act:
    some = next(one for one in synthetic.sweep() if one.origin == "measured")

    def act() -> int:
        with store.open_writer(Path("out")) as writer:
            for number in range(APPENDED):
                writer.append(replace(some, note=f"{story.runs}-{number}"))
                os.write(1, f"[{number + 1}/{APPENDED}]\n".encode())
        return 0

    return act


def _notes(story: Story) -> Iterable[Hashable]:
    return (one.note for one in _in("out")(story))


def _kept_points(story: Story) -> Iterable[Hashable]:
    """Return the points of a calibration: of its log, or of the file of the device."""
    devices = story.folder / "home/devices"
    logs = [one.read_text().splitlines() for one in devices.glob(".calibrating-*")]
    points = max([0, *(sum('"point":' in line for line in lines) for lines in logs)])
    for path in devices.glob("*.toml"):
        made = tomllib.loads(path.read_text()).get("calibration", {})
        points = max(points, made.get("measured_points", 0))
    return range(min(points, POINTS))


def _said_points(story: Story, end: End) -> str:
    """Return what is wrong where a calibration said more points than are kept."""
    numbers = [0, *map(int, re.findall(r"^\[(\d+)/", end.said, re.MULTILINE))]
    kept = len([*_kept_points(story)])
    return f"{numbers[-1]} points said, {kept} kept" if min(numbers[-1], POINTS) > kept else ""


def _calibrate(_: Story) -> Act:
    words = ["calibrate", "--backend", "null", "--threads", "1", "--minutes", "0.05"]

    def act() -> int:
        here.points_s = lambda *_: LIMIT_S  # points end it, however busy this machine is
        return command([*words, "--points", str(POINTS)])

    return act


def _rows(story: Story) -> None:
    lines = [f"{1 + i % 7},{1 + i},{10 + i}" for i in range(ROWS)]
    (story.folder / "rows.csv").write_text("\n".join(["layers,batch,t", *lines]) + "\n")
    (story.folder / "m.toml").write_text(MAPPING)


def _synthetic(times: int) -> Callable[[Story], None]:
    """Return what writes so many times the records of a sweep, and notes what they are."""

    def prepare(story: Story) -> None:
        lines = "".join(f"{store.line_of(one)}\n" for one in synthetic.sweep(ops=times > 1))
        (story.folder / "sound").mkdir()
        (story.folder / "sound/records-0.jsonl").write_text(lines * times)
        story.state = lines * times

    return prepare


def _unchanged(story: Story) -> str:
    content = (story.folder / "sound/records-0.jsonl").read_text()
    return "" if content == story.state else "its records changed"


def _whole_page(story: Story, end: End) -> str:
    page = story.folder / "r.html"
    is_whole = page.exists() and page.read_text().rstrip().endswith("</html>")
    half = page.exists() and not is_whole
    missing = end.code == 0 and not is_whole
    return _unchanged(story) or ("half of a page" if half else "no page" if missing else "")


def _same_answer(story: Story, end: End) -> str:
    number = story.state.count("\n")
    is_right = any(line.startswith(f"{number},") for line in end.said.splitlines())
    return _unchanged(story) or ("" if end.was_sent or is_right else f"not {number} records")


def _submit(story: Story) -> None:
    """Submit a suite to a Slurm of this process."""
    commands.execute = fake_slurm.execute
    fake_slurm.reset()
    _file("suite.json", SUITE)(story)
    out, devnull = story.folder / "out", os.open(os.devnull, os.O_WRONLY)
    kept = [os.dup(one) for one in (1, 2)]
    for descriptor in (1, 2):
        os.dup2(devnull, descriptor)
    command(["sweep", str(story.folder / "suite.json"), "--out", str(out), "--launcher", "slurm"])
    sys.stdout.flush()
    for descriptor, real in zip((1, 2), kept, strict=True):
        os.dup2(real, descriptor)
        os.close(real)
    os.close(devnull)
    (story.state,) = submission.read_submissions(out)


def _task(story: Story) -> Act:
    def act() -> int:
        os.environ["SLURM_ARRAY_JOB_ID"] = str(fake_slurm.FIRST_JOB)
        os.environ["SLURM_RESTART_COUNT"] = str(story.runs)
        return task.main([str(story.state.folder), "0"])

    return act


def _cells(story: Story) -> Iterable[Hashable]:
    return (one.env["cell"] for one in _in("out")(story) if not one.env.get("again"))


def _lost_node(story: Story) -> None:
    _submit(story)
    fake_slurm.set_state("NODE_FAIL")


def _programs(story: Story) -> None:
    """Write a suite, and the programs of a Slurm that live longer than who calls them."""
    _file("suite.json", TWO_JOBS)(story)
    state = fake_slurm.State(unanswered=UNANSWERED)
    story.state = fake_slurm.install_commands(story.folder / "slurm", state)


def _send(story: Story) -> Act:
    def act() -> int:
        commands.execute = EXECUTE
        programs = story.state.parent / "bin"
        os.environ["PATH"] = f"{programs}{os.pathsep}{os.environ['PATH']}"
        return command(["sweep", "suite.json", "--out", "out", "--launcher", "slurm"])

    return act


def _cells_to_measure(story: Story) -> Iterable[Hashable]:
    """Yield the cells that the tasks of all jobs will measure, as often as they will."""
    submissions = {one.folder: one for one in submission.read_submissions(story.folder / "out")}
    begun = set()
    for job in fake_slurm.load(story.state).jobs.values():
        folder = Path(job.script).parent
        sent = submissions.get(folder)
        if sent is None or job.first in sent.read_withdrawn() or (folder, job.first) in begun:
            continue  # its tasks end at once
        begun.add((folder, job.first))
        for number in range(job.first, job.first + job.tasks):
            yield from (trial.id for trial in sent.tasks[number].trials)


def _nothing(_: Story) -> Iterable[Hashable]:
    return ()


SCENARIOS = (
    Scenario("writer of records", 260, lambda _: None, _append, _notes, _progress,
             is_same=False),
    Scenario(
        "sweep, measured and predicted by op", 200, _file("e.json", SWEEP),
        _words("sweep", "e.json", "--out", "out"), _steps, _progress,
    ),
    Scenario(
        "sweep, predicted", 60, _file("e.json", SPACE),
        _words("sweep", "e.json", "--out", "out"), _steps,
    ),
    Scenario(
        "predict --in", 60, _synthetic(1),
        _words("predict", "--in", "sound", "--device", "V100", "--by-op"),
        lambda story: ((store.done_key(one), one.scope) for one in _in("sound")(story)
                       if one.origin == "predicted" and one.platform.startswith("v100")),
    ),
    Scenario(
        "calibrate", 60, lambda _: None, _calibrate,
        _kept_points, check=_said_points,
    ),
    Scenario(
        "import", 80, _rows, _words("import", "rows.csv", "--mapping", "m.toml", "--out", "out"),
        lambda story: (source_key(one) for one in _in("out")(story)),
    ),
    Scenario(
        "report", 60, _synthetic(1), _words("report", "sound", "-o", "r.html"), _nothing,
        check=_whole_page,
    ),
    Scenario(
        "query, with a cache", 60, _synthetic(8),
        _words("query", SQL, "--in", "sound", "--format", "csv"), _nothing, check=_same_answer,
    ),
    Scenario("Slurm suite, a task", 60, _submit, _task, _cells),
    Scenario("Slurm suite, collecting", 20, _lost_node, _words("sweep", "collect", "out"), _cells),
    Scenario("Slurm suite, submitting", 40, _programs, _send, _cells_to_measure),
    Scenario(
        "replicas", 40, lambda _: None,
        _words("run", MODEL, "--batch", "2", "--replicas", "2", "--threads", "1", "--budget",
               "0.05", "--out", "out"),
        lambda story: ((one.taken_at, one.note, number) for number, one in
                       enumerate(_in("out")(story))),
        is_same=False,
    ),
)  # fmt: skip
