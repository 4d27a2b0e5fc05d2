"""History: a change is found where it was, and a series without one raises no alarm."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import clusters
import synthetic
from every import every
from steptime.analysis.analyses import analysis
from steptime.analysis.history import change_points
from steptime.cli.main import run
from steptime.core.copying import replace
from steptime.records import store
from steptime.records.data import Data
from steptime.records.record import Quantity, Record

SERIES = 300
Floats = NDArray[np.float64]


def correlated(rng: np.random.Generator, folders: int) -> Floats:
    values = rng.normal(0, 0.03, folders)
    for night in range(1, folders):
        values[night] = 0.8 * values[night - 1] + 0.6 * values[night]
    return values


def two_speeds(rng: np.random.Generator, folders: int) -> Floats:
    return 0.05 * (rng.random(folders) < 0.5) + rng.normal(0, 0.003, folders)


KINDS: dict[str, Callable[[np.random.Generator, int], Floats]] = {
    "normal": lambda rng, folders: rng.normal(0, 0.03, folders),
    "correlated": correlated,
    "two speeds": two_speeds,
    "rare speed": lambda rng, n: 0.1 * (rng.random(n) < 0.2) + rng.normal(0, 0.003, n),
    "heavy tails": lambda rng, folders: 0.02 * rng.standard_t(2, folders),
}


@pytest.mark.slow
@every("kind", KINDS)
@every("folders", [5, 8, 10, 30])
def test_constant_series_raise_no_alarm(folders, kind):
    rng = np.random.default_rng(7)
    alarms = [
        bool(change_points([*KINDS[kind](rng, folders)], [0.0] * folders, 0, math.log1p(0.03)))
        for _ in range(SERIES)
    ]
    assert np.mean(alarms) <= 0.07  # 5 % and two standard errors


@every(("folders", "at", "share"), [(30, 15, 0.95), (30, 28, 0.9), (30, 29, 0.6), (12, 6, 0.8)])
def test_a_change_is_found_where_it_was(folders, at, share):
    rng = np.random.default_rng(8)
    found = []
    for _ in range(SERIES // 2):
        logs = rng.normal(0, 0.01, folders)
        logs[at:] += math.log1p(0.06)
        places = [change.level_start for change in change_points([*logs], [0.0] * folders, 0, 0.03)]
        found.append(len(places) == 1 and abs(places[0] - at) <= 1)
    assert np.mean(found) >= share


def test_few_folders_show_only_large_changes():
    errors = [0.01, 0.01, 0.01]
    assert change_points([0.0, 0.0, 0.1], errors, 12) == []
    (change,) = change_points([0.0, 0.0, 0.4], errors, 12)
    assert change.level_start == 2
    assert change_points([0.0, 0.4], [0.0, 0.0], 0) == []  # single runs


def test_several_changes_by_hand():
    logs = [0.0] * 6 + [0.1] * 6 + [0.02] * 6
    up, down = change_points(logs, [1e-4] * 18, 0)
    assert (up.level_start, down.level_start) == (6, 12)
    assert (up.size, down.size) == (pytest.approx(0.1), pytest.approx(-0.08))
    assert up.low < 0.1 < up.high
    assert change_points(logs, [1e-4] * 18, 0, margin=0.2) == []
    assert change_points([0.5], [0.0], 0) == []


def _night(day: int, slower: Mapping[str, float], torch: str) -> list[Record]:
    rng = np.random.default_rng(day)
    found = []
    for number, workload in enumerate(synthetic.workloads(), start=1):
        factor = slower.get(workload.model, 1.0)
        step = clusters.step(clusters.noise(rng, 3), 0.001 * number * factor)
        one = synthetic.measured(workload)
        env = {**one.env, "framework": f"torch {torch}"}
        at = f"2026-10-{day + 1:02}T03:00:00Z"
        found.append(replace(one, quantities={"step_s": step}, env=env, taken_at=at))
    return found


def _nights() -> list[tuple[str, Sequence[Record]]]:
    """Return 20 nights, the last first; from the 11th on rnn and cnn are 6 % slower."""
    slow = {"rnn": 1.06, "cnn": 1.06}
    nights = [
        (f"night-{day:02}", _night(day, slow if day >= 10 else {}, "2.10" if day >= 10 else "2.9"))
        for day in range(20)
    ]
    return nights[::-1]


def test_a_change_is_told_with_how_many_share_it_and_what_else_changed():
    one = analysis("history")
    data = Data(*_nights())
    table = one.answer(data)
    found: Any = table.summary
    assert found["folders"][0] == "night-00"  # by date, whatever the order of the arguments
    (event,) = found["events"]
    assert (event["before"], event["after"]) == ("night-09", "night-10")
    assert (event["changed"], event["networks"], event["verdict"]) == (12, 24, "slower")
    assert event["changed_fraction"] == pytest.approx(0.06, abs=0.01)
    assert event["differ"] == ["framework torch 2.9 -> torch 2.10"]
    assert {row["family"] for row in found["changes"]} == {"rnn", "cnn"}
    assert all(row["low_fraction"] < 0.06 < row["high_fraction"] for row in found["changes"][:3])
    first, slower, power, last = one.describe(table)
    assert first.startswith("12 of 24 networks became ")
    assert first.endswith(
        " % slower between night-09 and night-10: framework torch 2.9 -> torch 2.10"
    )
    assert slower.startswith("slower now than before: ")
    assert power.startswith("a slowdown of ")
    assert last == "24 networks over 20 folders by date: night-00 to night-19"
    assert len(table.rows) == 24 * 20
    assert [row["name"] for row in table.rows[::20]] == sorted({r["name"] for r in table.rows})
    spec = one.draw(table)
    marked = [row for row in spec["data"]["values"] if row["became"] != "as before"]
    assert len(marked) == 12
    assert {row["became"] for row in marked} == {"slower"}
    assert one.answer(data, margin="10%").summary["changes"] == []


def test_published_steps_say_nothing_of_runs():
    found = [
        (
            name,
            [
                replace(one, origin="published", quantities={"step_s": Quantity(value=at)}, env={})
                for one in held
            ],
        )
        for at, (name, held) in enumerate(_nights()[:3], start=1)
    ]
    assert analysis("history").answer(Data(*found)).summary["networks"] == 24
    alone = analysis("history").answer(Data(found[0]))
    (said,) = analysis("history").describe(alone)
    assert said.endswith("24 networks over 1 folder by date, and a history takes two or more")


def test_the_command(tmp_path, capsys):
    folders = []
    for name, records in _nights()[2:18]:
        path = tmp_path / name / "results"  # folders of one name are told by their paths
        with store.open_writer(path) as writer:
            writer.append_all(records)
        folders.append(str(path))
    assert run(["analyse", "history", *folders, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    (event,) = document["summary"]["events"]
    assert event["after"] == str(tmp_path / "night-10/results")
    assert document["headline"][0].startswith("12 of 24 networks became ")


def test_a_history_fails_on_what_became_slower_or_is_gone(tmp_path):
    one = analysis("history")

    def codes(nights: Sequence[Sequence[Record]]) -> list[int]:
        table = one.answer(Data(*((str(at), held) for at, held in enumerate(nights))))
        lists = (one.fails[word] for word in ("slower", "changed", "vanished"))
        return [3 * any(table.summary[name] for name in names) for names in lists]

    alike = [_night(day, {}, "2.9") for day in range(4)]
    slower = [_night(day, {"rnn": 1.3}, "2.9") for day in range(4, 8)]
    faster = [_night(day, {"rnn": 0.7}, "2.9") for day in range(4, 8)]
    assert codes(alike) == [0, 0, 0]
    assert codes([*alike, *slower]) == [3, 3, 0]
    assert codes([*alike, *faster]) == [0, 3, 0]
    gone = [*alike[1:3], alike[3][1:]]
    assert codes(gone) == [3, 3, 3]
    for at, records in enumerate(gone):
        with store.open_writer(tmp_path / str(at)) as writer:
            writer.append_all(records)
    paths = [str(tmp_path / str(at)) for at in range(3)]
    assert run(["analyse", "history", *paths, "--fail-on", "vanished"]) == 3
    assert run(["analyse", "history", *paths[:2], "--fail-on", "changed"]) == 0


def test_a_mended_regression_passes(tmp_path):
    one = analysis("history")
    levels = [1.0] * 8 + [1.2] * 4 + [1.0] * 8
    nights = [
        (f"night-{day:02}", _night(day, {"rnn": level}, "2.9")) for day, level in enumerate(levels)
    ]
    mended = one.answer(Data(*nights)).summary
    assert {row["after"] for row in mended["changes"]} == {"night-08", "night-12"}
    assert (mended["slower"], mended["faster"]) == ([], [])
    slow = one.answer(Data(*nights[:12])).summary
    assert len(slow["slower"]) == sum(w.model == "rnn" for w in synthetic.workloads())
    assert 0 < slow["smallest_slowdown"] < 0.2
    for name, records in nights:
        with store.open_writer(tmp_path / name) as writer:
            writer.append_all(records)
    paths = [str(tmp_path / name) for name, _ in nights]
    assert run(["analyse", "history", *paths, "--fail-on", "slower"]) == 0
    assert run(["analyse", "history", *paths[:12], "--fail-on", "slower"]) == 3


def test_dates_with_time_zones_are_instants():
    dates = ["2026-10-01T00:00:00-07:00", "2026-10-01T01:30:00+01:00", "2026-10-01T00:45:00"]
    folders = [
        (f"tz{number}", [replace(record, taken_at=date) for record in _night(number, {}, "2.9")])
        for number, date in enumerate(dates)
    ]
    summary = analysis("history").answer(Data(*folders)).summary
    assert summary["folders"] == ["tz1", "tz2", "tz0"]  # 00:30, 00:45 and 07:00 UTC


def test_a_history_of_single_runs_in_two_folders_cannot_be_judged(tmp_path, capsys):
    paths = []
    for day in range(2):
        records = [
            replace(record, quantities={"step_s": Quantity(value=0.01)}, origin="published")
            for record in _night(day, {}, "2.9")
        ]
        with store.open_writer(tmp_path / str(day)) as writer:
            writer.append_all(records)
        paths.append(str(tmp_path / str(day)))
    assert run(["analyse", "history", *paths, "--fail-on", "slower", "--json"]) == 2
    document = json.loads(capsys.readouterr().out)
    assert document["summary"]["is_judged"] is False
    assert document["headline"][-1].startswith("nothing can be judged: 2 folders of single runs")
    assert run(["analyse", "history", *paths, "--fail-on", "vanished"]) == 0
