"""Folders as people leave them: small files, torn lines, runs with warm-up, failures alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import synthetic
from every import every
from steptime.cli.main import run
from steptime.core.copying import replace
from steptime.core.scratch import remove_stale
from steptime.records.data import Data
from steptime.records.record import Record, record_to_line
from steptime.reports.charts import draw
from steptime.reports.networks import read_steps
from steptime.reports.page import page
from told import frame_rows

NETWORKS = synthetic.workloads()[:5]


@pytest.mark.slow
def test_what_a_killed_command_leaves_goes_with_it_or_with_the_next(tmp_path):
    code = (
        "import os, signal, synthetic\n"
        "from steptime.records.data import Data\n"
        "data = Data.from_records(synthetic.sweep())\n"
        "assert data.count_records()\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    env = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", code], env=env, check=False)
        assert done.returncode == -9
    remove_stale(tmp_path, "steptime-")
    assert not list(tmp_path.glob("steptime-*"))


def left(folder: Path, *files: list[Record]) -> Data:
    """Return the data of a folder with a file for each list of records; the first ends torn."""
    folder.mkdir()
    for number, records in enumerate(files):
        text = "".join(f"{record_to_line(record)}\n" for record in records)
        torn = '{"schema": 2, "orig' if number == 0 else ""
        (folder / f"records-{number}.jsonl").write_text(text + torn, encoding="utf-8")
    return Data.load([folder], lambda _: None)


def test_records_are_found_in_whichever_small_file_they_lie(tmp_path):
    records = [synthetic.measured(one) for one in NETWORKS]
    data = left(tmp_path / "r", records[:2], records[2:3], records[3:])
    places = [row["place"] for row in frame_rows(data, "place")]
    found = data.read_records(0, places)
    assert [found[at].workload.key for at in places] == [one.workload.key for one in records]
    assert data.read_records(0, places[3:4])[places[3]].quantities == records[3].quantities
    drawn = draw("samples", data)["data"]["values"]
    assert len(drawn) == sum(len(one.quantities["step_s"].samples) for one in records)


def test_a_page_shows_the_warm_up_of_each_run_before_its_samples():
    record = synthetic.measured(NETWORKS[0], runs=2)
    record = replace(record, env={**record.env, "warmup_s": [[0.5], []]})
    text, _ = page([record], "r")
    assert "<h1" in text
    kinds = [(value, kind) for value, kind in read_steps(record)]
    assert kinds[0] == (0.5, "w")
    assert len(kinds) == 1 + len(record.quantities["step_s"].samples)


def test_published_speeds_without_samples_are_drawn(tmp_path):
    made = [synthetic.measured(one) for one in NETWORKS]
    stated = [
        replace(one, origin="published", quantities={
            "step_s": replace(one.quantities["step_s"], samples=(), columns={}, value=0.25)
        })
        for one in made
    ]  # fmt: skip
    rows = draw("devices", left(tmp_path / "r", stated))["data"]["values"]
    speeds = {row["speed"] for row in rows}
    assert speeds == {one.workload.global_batch / 0.25 for one in stated}


FAILED = "no step here succeeded: 3 failed, most often (2) with oom: killed"


@every(
    ("words", "code"),
    [
        ("compare {r}", 2), ("analyse speedup {r}", 2), ("analyse sensitivity {r}", 2),
        ("analyse table {r}", 0), ("analyse roofline {r}", 0), ("analyse heatmap {r}", 0),
        ("analyse breakdown {r}", 0), ("analyse results {r}", 0),
        ("analyse samples {r} -o {r}/x.svg", 2), ("analyse roofline {r} -o {r}/x.svg", 2),
        ("report {r} -o {r}/x.md", 0),
    ],
)  # fmt: skip
def test_failures_alone_are_told_in_one_sentence(tmp_path, capsys, words, code):
    causes = [("oom", "killed"), ("timeout", "time-limit"), ("oom", "killed")]
    records = [synthetic.failed(w, *c, "") for w, c in zip(NETWORKS, causes, strict=False)]
    left(tmp_path / "r", records)
    assert run(words.format(r=tmp_path / "r").split()) == code
    page = tmp_path / "r" / "x.md"
    told = capsys.readouterr().err + (page.read_text() if page.exists() else "")
    assert told.count(FAILED) == 1
