"""A part of what `python -m attack` does, and that each attack sees what it is to see."""

import json
import subprocess
import sys

import pytest

from attack import archives, disks, kill_scenarios, page, texts
from attack.__main__ import GROUPS, INPUTS, PAGE, RESULTS
from places import ROOT

SHARES = {"kills": 0.005, "disks": 0.1, "writers": 1.0, "texts": 0.1, "archives": 1.0}
LONG = {"kills", "disks", "texts", "archives"}  # other tests hold a few cases of each
APART = {"inputs", "mutants"}  # tests/cli/test_attack.py and tests/test_mutants.py run a part
# The two that start PyTorch are more than half of the time: tests/measure/test_replicas.py kills
# replicas, tests/cli/test_calibrate.py a calibration.
QUICK_KILLS = """
import sys
from pathlib import Path
from attack import kill_scenarios, kills

for scenario in kill_scenarios.SCENARIOS:
    if scenario.name not in {"replicas", "calibrate"}:
        tally = kills.attack(scenario, 1, 0, Path(sys.argv[1]))
        print(scenario.name, tally.faults)
"""
EACH_EVENT = """
import sys
from itertools import count
from pathlib import Path
from signal import SIGKILL
from attack.victims import Point, run
from steptime.core.copying import replace
from steptime.core import scratch

def act():
    scratch.make_temporary_folder()
    return 0

for number in count(1):
    end = run(act, Path(sys.argv[1]), Point(SIGKILL, number))
    print(number, end.left, end.orphans)
    if not end.was_sent:
        break
"""
TOO_EARLY = """
import json, os, sys
from pathlib import Path
from attack import kill_scenarios, kills
from steptime.core.copying import replace
from steptime.records import store

def append(story):
    some = next(one for one in kill_scenarios.synthetic.sweep() if one.origin == "measured")

    def act():
        with store.open_writer(Path("out")) as writer:
            for number in range(kill_scenarios.APPENDED):
                os.write(1, f"[{number + 1}/{kill_scenarios.APPENDED}]\\n".encode())
                note = "again" if number == 7 else f"{story.runs}-{number}"
                taken_at = f"2026-01-01T00:00:00.{story.runs:06}Z"
                writer.append(replace(some, note=note, taken_at=taken_at))
        return 0

    return act

kills.EVENT_SHARE = 1.0  # which events a drawn time hits depends on the load of the machine
scenario = replace(kill_scenarios.SCENARIOS[0], name="too early", act=append)
print(json.dumps(kills.attack(scenario, 20, 0, Path(sys.argv[1])).row()))
"""
FORGETFUL = """
import json, sys
from pathlib import Path
from attack import kills, slurm_kills
from attack.tally import Tally
from attack.victims import run
from steptime.sweeps.cluster import status, submit

status.list_queued = lambda _: {}
submit._withdraw_arrays = lambda _: False
scenario = slurm_kills.SCENARIOS[-1]
tally = Tally({}, harm=kills.HARM)
story = kills._begin_story(scenario, Path(sys.argv[1]), 0)
for _ in range(2):
    kills._judge(scenario, story, run(scenario.act(story), story.folder), tally)
print(json.dumps(tally.row()))
"""


def _run(*words: str) -> subprocess.CompletedProcess[str]:
    """Return how a process ended that forks: this one may have threads."""
    line = [sys.executable, "-W", "ignore::UserWarning", *words]
    return subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.fixture(autouse=True)
def _as_documented(monkeypatch):
    """Run attacks as the page says it, in a clone: nothing helps them to find a module."""
    monkeypatch.delenv("PYTHONPATH")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.mark.slow
@pytest.mark.framework
@pytest.mark.parametrize(
    "group",
    [pytest.param(name, marks=pytest.mark.rare if name in LONG else ()) for name in SHARES],
)
def test_a_part_of_each_attack_finds_nothing(group):
    done = _run("-m", "attack", group, "--share", str(SHARES[group]))
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{group}: 0 faults in " in done.stdout


@pytest.mark.rare
@pytest.mark.framework
def test_a_kill_of_each_quick_command_finds_nothing(tmp_path):
    done = _run("-c", QUICK_KILLS, str(tmp_path))
    names = [one.name for one in kill_scenarios.SCENARIOS]
    expected = [f"{name} 0" for name in names if name not in {"replicas", "calibrate"}]
    assert done.stdout.splitlines() == expected, done.stderr
    assert len(expected) == len(names) - 2


@pytest.mark.rare
@pytest.mark.framework
def test_more_kills_find_nothing():
    done = _run("-m", "attack", "kills", "--share", "0.05", "--seed", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "kills: 0 faults in " in done.stdout


def test_every_attack_is_run_by_a_test_and_has_its_full_size_on_the_page():
    assert {*GROUPS} == {*SHARES, *APART} == {*page.ABOUT}
    assert {name: page.FULL[name].split()[0] for name in GROUPS} == {
        "kills": f"{sum(one.kills for one in kill_scenarios.SCENARIOS):,}",
        "disks": str(len(disks.DISKS) * len(disks.COMMANDS) * disks.DRAWS),
        "writers": str(disks.WRITERS),
        "inputs": f"{INPUTS:,}",
        "texts": str(len(texts.FIELDS) + len(texts.KEYS) + 1),
        "archives": str(len(archives.ARCHIVES)),
        "mutants": "29",
    }
    ways = len(texts.SINKS) + len(texts.OF_DEVICES)
    assert f"{len(texts.TEXTS)} texts, {ways} ways out" in page.FULL["texts"]


def test_the_page_says_what_the_results_say():
    results = json.loads(RESULTS.read_text())
    assert PAGE.read_text() == page.page(results)
    assert {*results} == {*GROUPS}
    assert {name: one["faults"] for name, one in results.items()} == dict.fromkeys(GROUPS, 0)


@pytest.mark.slow
def test_a_kill_at_any_event_leaves_no_temporary_folder(tmp_path):
    done = _run("-c", EACH_EVENT, str(tmp_path))
    lines = done.stdout.splitlines()
    assert len(lines) > 5, done.stderr
    assert {line.partition(" ")[2] for line in lines} == {"() 0"}, done.stdout


@pytest.mark.slow
def test_kills_find_what_is_acknowledged_before_it_is_kept_and_what_is_there_twice(tmp_path):
    done = _run("-c", TOO_EARLY, str(tmp_path))
    row = json.loads(done.stdout)
    assert row["kills"] == 20, done.stderr
    assert row["lost"] > 0
    assert row["doubled"] > 0


@pytest.mark.slow
def test_kills_find_a_sweep_that_forgets_its_jobs(tmp_path):
    done = _run("-c", FORGETFUL, str(tmp_path))
    row = json.loads(done.stdout)
    assert row["doubled"] > 0, done.stderr


def test_texts_that_would_run_are_seen():
    for text in (
        "<script>window.ran=1</script>",
        '<svg onload="window.ran=1">',
        '<img src=x onerror="window.ran=1">',
        '<a href="javascript:window.ran=1">x</a>',
    ):
        assert texts.page_runs(text), text
    assert not texts.page_runs("&lt;script>window.ran=1&lt;/script>")
    assert texts.formulas("a,=1+1\n-2.5,+x,@y\n") == ["=1+1", "+x", "@y"]
