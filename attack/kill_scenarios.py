"""The commands that are killed: sweeps, calibrations, imports, reports, queries, Slurm suites."""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Callable, Hashable, Iterable
from pathlib import Path

import synthetic
from attack import slurm_kills
from attack.kills import Scenario, Story
from attack.victims import LIMIT_S, Act, End
from steptime.calibration import here
from steptime.cli.main import run as command
from steptime.core.copying import replace
from steptime.records import store
from steptime.records.readers import source_key
from steptime.records.record import Record, record_to_line

APPENDED = 40  # records of a writer
POINTS = 3  # of a calibration
ROWS = 300  # of an import
MODEL = "fc:layers=1,nodes=4,inputs=4,outputs=2"
SWEEP = {
    "name": "swept",
    "backend": "null",
    "budget_s": 0.02,
    "batch": [2],
    "predict": ["T4"],
    "by_op": True,
    "networks": [{"family": "fc", "layers": [1, 2], "nodes": [4, 8], "inputs": 8, "outputs": 4}],
}
SPACE = {
    "name": "predicted",
    "measure": False,
    "batch": [1, 2, 4, 8],
    "predict": ["T4", "V100"],
    "networks": [{"family": "fc", "layers": [1, 2, 3, 4], "nodes": [64, 128]}],
}
MAPPING = """name = "rows"
source = "rows"
model = "fc:layers={layers}"
platform = "T4"
batch = "{batch}"
[quantities.step_s]
column = "t"
scale = 0.001
"""
SQL = "SELECT count(*), count(DISTINCT model), sum(step_s) FROM records"
CALIBRATION = ["calibrate", "--backend", "null", "--threads", "1", "--minutes", "0.05"]
REPLICAS = ["--replicas", "2", "--threads", "1", "--budget", "0.05"]


def _call(*words: str) -> Callable[[Story], Act]:
    """Return the act of a command line."""
    return lambda _: lambda: command([*words])


def _write_json(name: str, table: object) -> Callable[[Story], None]:
    """Return the preparation that writes a table into a file."""

    def prepare(story: Story) -> None:
        (story.folder / name).write_text(json.dumps(table))

    return prepare


def _prepare_nothing(_: Story) -> None:
    """Begin with an empty folder."""


def _list_nothing(_: Story) -> Iterable[Hashable]:
    return ()


def _load(story: Story, name: str = "out") -> list[Record]:
    return store.load(story.folder / name, lambda _: None, required=False)


def _list_steps(story: Story) -> Iterable[Hashable]:
    return ((store.final_key(record), record.scope) for record in _load(story))


def _list_predictions(story: Story) -> Iterable[Hashable]:
    records = (record for record in _load(story, "sound") if record.origin == "predicted")
    on_v100 = (record for record in records if record.platform.startswith("v100"))
    return ((store.final_key(record), record.scope) for record in on_v100)


def _list_imported(story: Story) -> Iterable[Hashable]:
    return (source_key(record) for record in _load(story))


def _list_runs(story: Story) -> Iterable[Hashable]:
    records = enumerate(_load(story))
    return ((record.taken_at, record.note, number) for number, record in records)


def _list_notes(story: Story) -> Iterable[Hashable]:
    return (record.note for record in _load(story))


def _count_progress(end: End) -> int:
    """Return the number of cells or points that a command reported."""
    return len(re.findall(r"^\[\d+/\d+", end.said, re.MULTILINE))


def _append(story: Story) -> Act:
    """Return the act that appends records, and reports each after it is kept."""
    record = next(record for record in synthetic.sweep() if record.origin == "measured")

    def act() -> int:
        with store.open_writer(Path("out")) as writer:
            for number in range(APPENDED):
                writer.append(replace(record, note=f"{story.runs}-{number}"))
                os.write(1, f"[{number + 1}/{APPENDED}]\n".encode())
        return 0

    return act


def _list_points(story: Story) -> range:
    """Return the points of a calibration: of its log, or of the file of the device."""
    devices = story.folder / "home/devices"
    logs = [path.read_text().splitlines() for path in devices.glob(".calibrating-*")]
    points = max([0, *(sum('"point":' in line for line in lines) for lines in logs)])
    for path in devices.glob("*.toml"):
        calibration = tomllib.loads(path.read_text()).get("calibration", {})
        points = max(points, calibration.get("measured_points", 0))
    return range(min(points, POINTS))


def _check_points(story: Story, end: End) -> str:
    """Return the fault of a calibration that reported more points than are kept."""
    numbers = [0, *map(int, re.findall(r"^\[(\d+)/", end.said, re.MULTILINE))]
    points = len(_list_points(story))
    is_short = min(numbers[-1], POINTS) > points
    return f"{numbers[-1]} points reported, {points} on the disk" if is_short else ""


def _calibrate(_: Story) -> Act:
    def act() -> int:
        here.points_s = lambda *_: LIMIT_S  # points end it, however busy this machine is
        return command([*CALIBRATION, "--points", str(POINTS)])

    return act


def _write_rows(story: Story) -> None:
    lines = [f"{1 + i % 7},{1 + i},{10 + i}" for i in range(ROWS)]
    (story.folder / "rows.csv").write_text("\n".join(["layers,batch,t", *lines]) + "\n")
    (story.folder / "m.toml").write_text(MAPPING)


def _write_synthetic(times: int) -> Callable[[Story], None]:
    """Return the preparation that writes the records of a sweep, of so many runs."""

    def prepare(story: Story) -> None:
        records = synthetic.sweep(ops=times > 1)
        copies = (
            replace(record, note=f"run {number}") for number in range(times) for record in records
        )  # records that differ in nothing count once
        story.state = "".join(f"{record_to_line(record)}\n" for record in copies)
        (story.folder / "sound").mkdir()
        (story.folder / "sound/records-0.jsonl").write_text(story.state)

    return prepare


def _check_unchanged(story: Story) -> str:
    content = (story.folder / "sound/records-0.jsonl").read_text()
    return "" if content == story.state else "its records changed"


def _check_page(story: Story, end: End) -> str:
    """Return the fault of a report: changed records, half of a page, no page."""
    page = story.folder / "r.html"
    is_complete = page.exists() and page.read_text().rstrip().endswith("</html>")
    if changed := _check_unchanged(story):
        return changed
    if page.exists() and not is_complete:
        return "half of a page"
    return "no page" if end.code == 0 and not is_complete else ""


def _check_answer(story: Story, end: End) -> str:
    """Return the fault of a query: changed records, another number of them."""
    number = story.state.count("\n")
    is_right = any(line.startswith(f"{number},") for line in end.said.splitlines())
    if changed := _check_unchanged(story):
        return changed
    return "" if end.was_sent or is_right else f"not {number} records"


SCENARIOS = (
    Scenario(
        "writer of records",
        260,
        _prepare_nothing,
        _append,
        _list_notes,
        _count_progress,
        is_repeatable=False,
    ),
    Scenario(
        "sweep, measured and predicted by op",
        200,
        _write_json("e.json", SWEEP),
        _call("sweep", "e.json", "--out", "out"),
        _list_steps,
        _count_progress,
    ),
    Scenario(
        "sweep, predicted",
        60,
        _write_json("e.json", SPACE),
        _call("sweep", "e.json", "--out", "out"),
        _list_steps,
    ),
    Scenario(
        "predict --in",
        60,
        _write_synthetic(1),
        _call("predict", "--in", "sound", "--device", "V100", "--by-op"),
        _list_predictions,
    ),
    Scenario(
        "calibrate",
        60,
        _prepare_nothing,
        _calibrate,
        _list_points,
        check=_check_points,
    ),
    Scenario(
        "import",
        80,
        _write_rows,
        _call("import", "rows.csv", "--mapping", "m.toml", "--out", "out"),
        _list_imported,
    ),
    Scenario(
        "report",
        60,
        _write_synthetic(1),
        _call("report", "sound", "-o", "r.html"),
        _list_nothing,
        check=_check_page,
    ),
    Scenario(
        "query, with a cache",
        60,
        _write_synthetic(8),
        _call("query", SQL, "--in", "sound", "--format", "csv"),
        _list_nothing,
        check=_check_answer,
    ),
    *slurm_kills.SCENARIOS,
    Scenario(
        "replicas",
        40,
        _prepare_nothing,
        _call("run", MODEL, "--batch", "2", *REPLICAS, "--out", "out"),
        _list_runs,
        is_repeatable=False,
    ),
)
