"""The gate of two folders alarms by cause, finds what it says it finds, and else exits with 2."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import steptime
import synthetic
from every import every
from steptime.analysis.comparison.gate import judge_runs, smallest_of_equal
from steptime.analysis.comparison.verdict import judge_folders
from steptime.cli.main import run
from steptime.core.copying import replace
from steptime.records import store
from steptime.records.record import Quantity, Record
from steptime.records.statistics import run_logs

Floats = NDArray[np.float64]
Noise = Callable[[np.random.Generator, tuple[int, ...]], Floats]
DRAWS = 100
MOST_ALARMS = 0.09  # 5 % and two standard errors of 100 draws
WORKLOADS = synthetic.workloads()


def spikes(rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    return rng.normal(0, 0.01, shape) + (rng.random(shape) < 0.05) * rng.uniform(0.2, 0.6, shape)


NOISES: dict[str, Noise] = {
    "normal": lambda rng, shape: rng.normal(0, 0.03, shape),
    "two speeds": lambda rng, shape: 0.05 * (rng.random(shape) < 0.5) + rng.normal(0, 0.001, shape),
    "rare speed": lambda rng, shape: 0.1 * (rng.random(shape) < 0.1) + rng.normal(0, 0.001, shape),
    "heavy tails": lambda rng, shape: 0.02 * rng.standard_t(2, shape),
    "spikes": spikes,
}


def alarm_share(noise: Noise, runs: int, networks: int, draws: int = DRAWS) -> float:
    rng = np.random.default_rng([20151115, runs, networks])
    shape = (networks, runs)
    return float(
        np.mean(
            [
                judge_runs(noise(rng, shape), noise(rng, shape)).is_changed.any()
                for _ in range(draws)
            ]
        )
    )


@pytest.mark.slow
@every("name", NOISES)
@every("runs", [2, 3, 5])
@every("networks", [1, 3, 24])
def test_folders_that_are_alike_seldom_alarm(networks, runs, name):
    assert alarm_share(NOISES[name], runs, networks) <= MOST_ALARMS


def found_share(runs: int, networks: int, noise: float, slower: float, draws: int = 120) -> float:
    rng = np.random.default_rng([7, runs, networks])
    found = 0
    for _ in range(draws):
        a, b = rng.normal(0, noise, (2, networks, runs))
        b[0] += math.log(slower)
        judged = judge_folders(
            a,
            b,
            np.exp(b.mean(axis=1) - a.mean(axis=1)),
            np.zeros(networks),
            np.ones(networks, bool),
            "step_s",
            0.03,
        )
        found += judged["verdict"][0] == "slower"
    return found / draws


@every(
    ("runs", "networks", "noise", "slower"),
    [(5, 24, 0.03, 1.1), (2, 1, 0.05, 1.5), (2, 24, 0.05, 1.5), (2, 24, 0.01, 1.5)],
)
def test_what_is_asked_is_found(runs, networks, noise, slower):
    assert found_share(runs, networks, noise, slower) >= 0.9


@every(("runs", "networks", "noise"), [(2, 24, 0.03), (3, 3, 0.01), (5, 1, 0.03), (10, 8, 0.03)])
def test_the_smallest_change_is_found_with_90_percent(runs, networks, noise):
    smallest = smallest_of_equal(noise, runs, networks)
    assert 0.85 <= found_share(runs, networks, noise, math.exp(smallest)) <= 0.99
    rng = np.random.default_rng(3)
    sides = rng.normal(0, noise, (25, 2, networks, runs))
    answers = [judge_runs(*both).smallest_change for both in sides]
    assert np.median(answers) == pytest.approx(smallest, rel=0.15)


def test_two_runs_of_a_side_have_to_agree():
    quiet = np.tile([0.0, 0.01], (24, 1))
    slower = quiet.copy()
    slower[3] += 0.3
    assert np.flatnonzero(judge_runs(quiet, slower).is_changed).tolist() == [3]
    slower[3, 0] = 0.0  # one of its two runs is as fast as before
    assert not judge_runs(quiet, slower).is_changed.any()


def test_one_outlying_run_never_decides():
    rng = np.random.default_rng(5)
    a, b = rng.normal(0, 0.01, (2, 24, 5))
    b[2, 4] += math.log(3.0)
    b[9] += math.log(1.5)
    assert np.flatnonzero(judge_runs(a, b).is_changed).tolist() == [9]


def test_a_louder_network_is_judged_by_its_own_noise():
    rng = np.random.default_rng(6)
    alarms = 0
    for _ in range(100):
        a, b = rng.normal(0, 0.005, (2, 24, 5))
        a[0] *= 20
        b[0] *= 20
        alarms += judge_runs(a, b).is_changed.any()
    assert alarms <= 8


def test_single_runs_are_not_judged():
    a, b = np.full((2, 3, 4), np.nan)
    a[:, 0], b[:, 0] = 0.0, 1.0
    a[0], b[0] = [0.0, 0.01, 0.02, 0.0], [0.5, 0.51, 0.49, 0.5]
    judged = judge_runs(a, b)
    assert judged.is_changed.tolist() == [True, False, False]
    assert np.isnan(judged.smallest_change).tolist() == [False, True, True]


def test_run_logs_by_hand():
    logs = run_logs([[1.0, 2.0, 3.0, 8.0], [5.0, 0.0], [4.0]], [[0, 0, 0, 1], [0, 1], [0]])
    assert logs[0].tolist() == pytest.approx([math.log(2), math.log(8)])
    assert np.isnan(logs[1]).all()
    assert logs[2, 0] == pytest.approx(math.log(4))
    assert run_logs([], []).shape == (0, 0)


# the command


def sweep(
    seed: int,
    rounds: int,
    slower: dict[int, float] | None = None,
    noise: float = 0.01,
    workloads: Sequence[synthetic.Workload] = WORKLOADS,
) -> list[Record]:
    """Return what a sweep leaves: a record a round, networks slower by factors."""
    rng = np.random.default_rng(seed)
    records = []
    for number in range(rounds):
        for index, workload in enumerate(workloads):
            pace = math.exp(rng.normal(0, noise)) * (slower or {}).get(index, 1.0)
            samples = tuple(0.01 * pace * np.exp(rng.normal(0, 0.005, 20)))
            step = Quantity(samples=samples, columns={"run": (0,) * 20})
            one = synthetic.measured(workload)
            env = {**one.env, "round": number}
            records.append(replace(one, quantities={"step_s": step}, env=env))
    return records


def folder(path: Path, records: Sequence[Record]) -> str:
    with store.open_writer(path) as writer:
        writer.append_all(records)
    return str(path)


def gate(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, object], str]:
    """Return exit code, document and standard error of the gate."""
    code = run(["compare", *words, "--fail-on", "slower", "--margin", "3%", "--json"])
    printed = capsys.readouterr()
    return code, json.loads(printed.out), printed.err


def test_two_rounds_find_one_network_of_24(tmp_path, capsys):
    main = folder(tmp_path / "main", sweep(1, 2))
    alike = folder(tmp_path / "alike", sweep(2, 2))
    branch = folder(tmp_path / "branch", sweep(3, 2, {5: 1.5}))
    code, document, _ = gate(capsys, main, alike)
    assert (code, document["is_judged"]) == (0, True)
    assert 0.03 < document["smallest_slowdown"] < 0.15
    code, document, _ = gate(capsys, main, branch)
    assert code == 3
    (regression,) = document["changes"]["regressions"]
    assert regression["ratio"] == pytest.approx(1.5, rel=0.05)
    assert all(0 < row["smallest_slowdown"] < 0.5 for row in document["rows"])
    assert run(["compare", main, alike, "--fail-on", "slower"]) == 0
    assert "% would be found in 90 of 100 such comparisons" in capsys.readouterr().out


def test_single_runs_exit_with_2_and_say_what_judges(tmp_path, capsys):
    a = folder(tmp_path / "a", sweep(1, 1))
    b = folder(tmp_path / "b", sweep(2, 1, {0: 10.0}))
    code, document, _ = gate(capsys, a, b)
    assert (code, document["is_judged"], document["smallest_slowdown"]) == (2, False, None)
    assert {row["verdict"] for row in document["rows"]} == {"unsure"}
    assert document["notes"][0] == (
        "nothing can be judged: 1 run on a side cannot show 10 %; rounds = 5 can where runs "
        "differ by 3 %"
    )
    answer = steptime.compare([a, b], fail_on="slower")  # does not raise
    assert (answer.exit_code, answer.is_judged) == (2, False)
    assert run(["compare", a, b, "--fail-on", "vanished"]) == 0
    assert run(["compare", a, b]) == 0


def test_numbers_without_samples_exit_with_2(tmp_path, capsys):
    def published(factor: float) -> list[Record]:
        return [
            replace(record, origin="published", quantities={"step_s": Quantity(value=factor)})
            for record in sweep(1, 1)
        ]

    a, b = folder(tmp_path / "a", published(1.0)), folder(tmp_path / "b", published(10.0))
    code, document, _ = gate(capsys, a, b)
    assert (code, document["is_judged"]) == (2, False)
    assert "no samples" in document["notes"][0]
    assert len(document["rows"]) == 24


def test_a_loud_machine_cannot_judge(tmp_path, capsys):
    a = folder(tmp_path / "a", sweep(1, 2, noise=0.4, workloads=WORKLOADS[:3]))
    b = folder(tmp_path / "b", sweep(2, 2, noise=0.4, workloads=WORKLOADS[:3]))
    code, document, _ = gate(capsys, a, b)
    assert (code, document["is_judged"]) == (2, False)
    assert document["smallest_slowdown"] > 1
    assert "cannot show a step twice as slow" in document["notes"][0]


def test_what_would_show_10_percent_is_said(tmp_path, capsys):
    a = folder(tmp_path / "a", sweep(1, 2, noise=0.015, workloads=WORKLOADS[:3]))
    b = folder(tmp_path / "b", sweep(2, 2, noise=0.015, workloads=WORKLOADS[:3]))
    code, document, _ = gate(capsys, a, b)
    assert (code, document["is_judged"]) == (0, True)
    assert document["notes"][0].startswith("2 runs a side cannot show 10 % where runs differ by ")
    assert "; rounds = " in document["notes"][0]


@pytest.mark.parametrize("is_platform", [True, False])
def test_other_hardware_is_named(tmp_path, capsys, is_platform):
    def on(cpu: str, platform: str) -> list[Record]:
        return [
            replace(record, platform=platform, env={**record.env, "cpu_model": cpu})
            for record in sweep(1, 3)
        ]

    other = "cpu-intel-xeon-2t" if is_platform else "cpu-amd-epyc-2t"
    a = folder(tmp_path / "a", on("AMD EPYC 7763", "cpu-amd-epyc-2t"))
    b = folder(tmp_path / "b", on("Intel Xeon 8370C", other))
    code, document, _ = gate(capsys, a, b)
    assert (code, document["is_judged"]) == (2, False)
    assert document["notes"][0] == (
        "the folders are of different hardware: cpu-amd-epyc-2t (AMD EPYC 7763) in the first, "
        f"{other} (Intel Xeon 8370C) in the second; measure both on one machine"
    )


def test_nothing_in_both_folders_exits_with_2(tmp_path, capsys):
    a = folder(tmp_path / "a", sweep(1, 3, workloads=WORKLOADS[:2]))
    b = folder(tmp_path / "b", sweep(1, 3, workloads=WORKLOADS[2:4]))
    code, document, _ = gate(capsys, a, b)
    assert code == 3  # two networks are gone
    assert run(["compare", a, b, "--fail-on", "faster"]) == 2
    assert "nothing can be judged: no step is in both folders" in capsys.readouterr().err
    assert document["is_judged"] is False
