"""The energy of predicted steps, by hand."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from printed import answer
from steptime.cli.main import run
from steptime.core.toml_files import DATA
from steptime.hardware.datasheet import Datasheet
from steptime.hardware.device import Device
from steptime.prediction.kernel import NOTHING, Interval
from steptime.prediction.lower import Row
from steptime.prediction.power import StepEnergy, step_energy, utilisation
from steptime.prediction.schedule import RowTime, Timeline
from steptime.questions.predict.run_energy import EnergyRequest

DEVICE = Device(
    "d", "gpu", Datasheet({"float32": 1e12}, 1e11, "a test", idle_w=100.0, peak_w=300.0)
)


def _times(forward: Interval, backward: Interval, update_s: float) -> Timeline:
    row = RowTime(Row("op", "matmul"), forward, backward, Interval(update_s), NOTHING, (1, 1, 1))
    parts = (forward.value, backward.value, update_s)
    return Timeline((row,), *parts, None, None, None, is_extrapolated=False)


def _seconds(compute_s: float, memory_s: float, value: float) -> Interval:
    return Interval(value, compute_s=compute_s, memory_s=memory_s)


# arithmetic runs 0.4 + 0.6 of 2 s; the update moves bytes
HALF = _times(_seconds(0.4, 0.7, 0.7), _seconds(0.6, 0.5, 0.8), 0.5)


def test_energy_is_idle_power_and_the_share_of_the_rest():
    found = step_energy(HALF, DEVICE)
    assert found.utilisation == pytest.approx(0.5)
    assert found.energy_j == pytest.approx(100 * 2 + (300 - 100) * 0.5 * 2)
    assert found.max_j == pytest.approx(300 * 2)
    assert found.note == ""


def test_a_device_that_only_moves_bytes_idles_and_a_busy_one_draws_its_peak():
    moves = step_energy(_times(_seconds(0, 2, 2), NOTHING, 0), DEVICE)
    assert moves.utilisation == 0
    assert moves.energy_j == pytest.approx(200)
    busy = step_energy(_times(_seconds(2, 1, 2), NOTHING, 0), DEVICE)
    assert busy.utilisation == 1
    assert busy.energy_j == pytest.approx(600)


def test_waiting_for_the_host_is_not_arithmetic():
    waits = replace(HALF, forward_s=HALF.forward_s + 2)
    assert utilisation(waits) == pytest.approx(1 / 4)


def test_a_step_of_no_time_has_no_utilisation_and_no_energy():
    found = step_energy(_times(NOTHING, NOTHING, 0), DEVICE)
    assert (found.utilisation, found.energy_j, found.max_j) == (None, 0, 0)


def test_unknown_power_is_unknown_energy():
    no_idle = step_energy(HALF, DEVICE.with_figures(idle_w=None))
    assert (no_idle.energy_j, no_idle.max_j) == (None, 600)
    assert no_idle.note == "d: idle_W unknown"
    no_peak = step_energy(HALF, DEVICE.with_figures(peak_w=None))
    assert (no_peak.energy_j, no_peak.max_j) == (None, None)
    assert no_peak.note == "d: tdp_W unknown"
    neither = step_energy(HALF, DEVICE.with_figures(idle_w=None, peak_w=None))
    assert neither.note == "d: idle_W and tdp_W unknown"
    assert neither.utilisation == pytest.approx(0.5)


def test_doubtful_power_is_said():
    swapped = step_energy(HALF, DEVICE.with_figures(idle_w=301.0))
    assert (swapped.energy_j, swapped.max_j) == (None, None)
    assert swapped.note == "d: idle_W is above tdp_W"
    unverified = step_energy(HALF, DEVICE.with_figures(unverified=("clock_MHz", "idle_W")))
    assert unverified.energy_j == pytest.approx(400)
    assert unverified.note == "d: idle_W unverified"


def test_a_run_comes_to_kwh_cost_and_co2():
    energy = StepEnergy(None, 100.0, 300.0, "")
    run = EnergyRequest(36_000, 0.25, 400.0).of_run(0.01, energy)
    assert (run.run_s, run.energy_kwh, run.energy_max_kwh) == (360.0, 1.0, 3.0)
    assert (run.cost_total, run.co2_g) == (0.25, 400.0)
    unpriced = EnergyRequest(72_000).of_run(0.01, energy)
    assert (unpriced.energy_kwh, unpriced.cost_total, unpriced.co2_g) == (2.0, None, None)
    free = EnergyRequest(36_000, 0.0, 0.0).of_run(0.01, energy)
    assert (free.cost_total, free.co2_g) == (0.0, 0.0)
    bounded = EnergyRequest(36_000, 0.25).of_run(0.01, StepEnergy(None, None, 300.0, ""))
    assert (bounded.energy_kwh, bounded.energy_max_kwh, bounded.cost_total) == (None, 3.0, 0.75)
    assert EnergyRequest().of_run(0.01, energy) is None


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


def test_predict_says_the_energy(tmp_path, capsys):
    path = tmp_path / "mine.toml"
    path.write_text(FILE, encoding="utf-8")
    words = ["predict", "fc", "--batch", "64", "--method", "analytic", "--device"]
    found = answer(capsys, *words, str(path))
    busy_s = sum(op["forward_compute_s"] + op["backward_compute_s"] for op in found["ops"])
    assert found["utilisation"] == pytest.approx(busy_s / found["step_s"])
    assert found["energy_j"] == pytest.approx(50 * found["step_s"] + 200 * busy_s)
    assert found["energy_max_j"] == pytest.approx(250 * found["step_s"])
    assert run([*words, "t4"]) == 0
    shown = capsys.readouterr().out
    assert "energy       at most " in shown
    assert "(t4: idle_W unknown)" in shown
    assert run([*words, str(DATA / "devices/k40.toml")]) == 0
    assert "energy       unknown (K40: idle_W and tdp_W unknown)" in capsys.readouterr().out


def test_calibrated_knows_the_energy_of_a_gpu(tmp_path, capsys):
    path = tmp_path / "mine.toml"
    path.write_text(FILE, encoding="utf-8")
    words = ["predict", "fc", "--batch", "64", "--method", "calibrated", "--device"]
    found = answer(capsys, *words, str(path))
    assert 50 * found["step_s"] < found["energy_j"] <= found["energy_max_j"]
    assert found["energy_low_j"] < found["energy_j"] < found["energy_high_j"]
    assert run([*words, "t4"]) == 0  # whose idle_W nobody says
    assert re.search(r"energy +[\d.]+ m?J \[[\d.]+-[\d.]+\]", capsys.readouterr().out)


def test_predict_says_the_energy_of_a_run(tmp_path, capsys):
    path = tmp_path / "mine.toml"
    path.write_text(FILE, encoding="utf-8")
    words = ["predict", "fc", "--batch", "64", "--steps", "1000000", "--kwh-price", "2"]
    words += ["--method", "analytic", "--device"]
    found = answer(capsys, *words, str(path), "--kwh-co2", "300")
    whole = found["run"]
    kwh = 1e6 * found["energy_j"] / 3.6e6
    assert whole["run_s"] == pytest.approx(1e6 * found["step_s"])
    assert whole["energy_kwh"] == pytest.approx(kwh)
    assert whole["cost_total"] == pytest.approx(2 * kwh)
    assert whole["co2_g"] == pytest.approx(300 * kwh)
    assert whole["energy_max_kwh"] == pytest.approx(1e6 * found["energy_max_j"] / 3.6e6)
    whole = answer(capsys, *words, "t4")["run"]
    assert (whole["energy_kwh"], whole["co2_g"]) == (None, None)
    assert run([*words, "t4"]) == 0
    assert "energy         at most " in capsys.readouterr().out
    assert run([*words, str(DATA / "devices/k40.toml")]) == 0
    assert "energy         unknown" in capsys.readouterr().out
