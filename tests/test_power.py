"""The energy of predicted steps, by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from steptime.cli.main import run
from steptime.core.hardware import Device
from steptime.predict.costs import Row
from steptime.predict.estimate import Estimate, RowSeconds
from steptime.predict.power import step_energy, utilisation
from steptime.predict.work import Seconds

DEVICE = Device("d", "gpu", {"float32": 1e12}, 1e11, "a test", idle_w=100.0, peak_w=300.0)


def _times(forward: Seconds, backward: Seconds, update_s: float) -> Estimate:
    row = RowSeconds(Row("op", "matmul", ()), forward, backward, update_s, 0.0)
    return Estimate((row,), forward.total_s, backward.total_s, update_s, None, 0.0, 0.0, 0.0)


# arithmetic runs 0.4 + 0.6 of 2 s; the update moves bytes
HALF = _times(Seconds(0.4, 0.7, 0.7), Seconds(0.6, 0.5, 0.8), 0.5)


def test_energy_is_idle_power_and_the_share_of_the_rest() -> None:
    found = step_energy(HALF, DEVICE)
    assert found.utilisation == pytest.approx(0.5)
    assert found.energy_j == pytest.approx(100 * 2 + (300 - 100) * 0.5 * 2)
    assert found.at_most_j == pytest.approx(300 * 2)
    assert found.note == ""


def test_a_device_that_only_moves_bytes_idles_and_a_busy_one_draws_its_peak() -> None:
    moves = step_energy(_times(Seconds(0, 2, 2), Seconds(0, 0, 0), 0), DEVICE)
    assert (moves.utilisation, moves.energy_j) == (0, pytest.approx(200))
    busy = step_energy(_times(Seconds(2, 1, 2), Seconds(0, 0, 0), 0), DEVICE)
    assert (busy.utilisation, busy.energy_j) == (1, pytest.approx(busy.at_most_j))


def test_waiting_for_the_host_is_not_arithmetic() -> None:
    waits = replace(HALF, forward_s=HALF.forward_s + 2)
    assert utilisation(waits) == pytest.approx(1 / 4)


def test_a_step_of_no_time_has_no_utilisation_and_no_energy() -> None:
    found = step_energy(_times(Seconds(0, 0, 0), Seconds(0, 0, 0), 0), DEVICE)
    assert (found.utilisation, found.energy_j, found.at_most_j) == (None, 0, 0)


def test_unknown_power_is_unknown_energy() -> None:
    no_idle = step_energy(HALF, replace(DEVICE, idle_w=None))
    assert (no_idle.energy_j, no_idle.at_most_j) == (None, 600)
    assert no_idle.note == "d: idle_W unknown"
    no_peak = step_energy(HALF, replace(DEVICE, peak_w=None))
    assert (no_peak.energy_j, no_peak.at_most_j) == (None, None)
    assert no_peak.note == "d: tdp_W unknown"
    neither = step_energy(HALF, replace(DEVICE, idle_w=None, peak_w=None))
    assert neither.note == "d: idle_W and tdp_W unknown"
    assert neither.utilisation == pytest.approx(0.5)


def test_doubtful_power_is_said() -> None:
    swapped = step_energy(HALF, replace(DEVICE, idle_w=301.0))
    assert (swapped.energy_j, swapped.at_most_j) == (None, None)
    assert swapped.note == "d: idle_W is above tdp_W"
    unverified = step_energy(HALF, replace(DEVICE, unverified=("clock_MHz", "idle_W")))
    assert (unverified.energy_j, unverified.note) == (pytest.approx(400), "d: idle_W unverified")


FILE = """
name = "mine"
kind = "gpu"
source = "a test"
memory_GB_per_s = 1000
idle_W = 50
tdp_W = 250
[peak_TFLOP_per_s]
float32 = 10
"""


def test_predict_says_the_energy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(FILE, encoding="utf-8")
    words = ["predict", "fc", "--batch", "64", "--device"]
    assert run([*words, str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    busy_s = sum(op["forward_compute_s"] + op["backward_compute_s"] for op in found["ops"])
    assert found["utilisation"] == pytest.approx(busy_s / found["step_s"])
    assert found["energy_j"] == pytest.approx(50 * found["step_s"] + 200 * busy_s)
    assert found["energy_at_most_j"] == pytest.approx(250 * found["step_s"])
    assert run([*words, "t4"]) == 0
    shown = capsys.readouterr().out
    assert "energy       at most " in shown
    assert "(t4: idle_W unknown)" in shown
    assert run([*words, "K40"]) == 0
    assert "energy       unknown (K40: idle_W and tdp_W unknown)" in capsys.readouterr().out
