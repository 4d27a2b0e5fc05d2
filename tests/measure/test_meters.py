"""Meters of energy: a false sysfs tree, a false NVML, counters that steps turn."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from types import ModuleType

import pytest

from every import every
from reference import backend as numpy_backend
from steptime.analysis.measurement import measurement
from steptime.build import make_workload, read_model
from steptime.cli.main import run
from steptime.core.workload import workload_to_json
from steptime.measure import cell, worker
from steptime.measure import meters as module
from steptime.measure.contract import Options
from steptime.measure.disturbance import AbsentError
from steptime.measure.drivers import meter_remedies
from steptime.measure.meters import (
    Meter,
    list_rapl_meters,
    meters,
    open_nvml_meter,
    rise_j,
    take_energy,
)
from steptime.records.reading import record_from_json
from steptime.records.record import Record, record_to_json

RANGE_J = 262143.328850


class NVMLError(Exception):
    """What NVML raises."""


class Nvml(ModuleType):
    """The functions of `pynvml` that are used, for `count` GPUs; GPU n draws 100 + n W."""

    NVMLError = NVMLError

    def __init__(self, count: int = 1, counter: bool = True, power: bool = True) -> None:
        super().__init__("pynvml")
        self.count, self.counter, self.power, self.cut = count, counter, power, 0

    def nvmlInit(self) -> None:  # noqa: N802  # NVML's name, as all below
        """Begin."""

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        """Return how many GPUs there are."""
        return self.count

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        """Return a handle: here the number itself."""
        return index

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> int:  # noqa: N802
        """Return a handle: here the number in the name."""
        return int(uuid.removeprefix("GPU-"))

    def nvmlDeviceGetMigMode(self, handle: int) -> list[int]:  # noqa: N802
        """Return the present and the coming mode."""
        if handle > 8:
            raise NVMLError("Not Supported")
        return [self.cut, self.cut]

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: int) -> int:  # noqa: N802
        """Return millijoules."""
        if not self.counter:
            raise NVMLError("Not Supported")
        return 5000 + handle

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:  # noqa: N802
        """Return milliwatts."""
        if not self.power:
            raise NVMLError("Not Supported")
        return 100_000 + 1000 * handle


def _zone(root: Path, zone: str, name: str, microjoules: str = "1500000") -> Path:
    folder = root / "sys/class/powercap" / zone
    folder.mkdir(parents=True)
    (folder / "name").write_text(f"{name}\n", encoding="utf-8")
    (folder / "energy_uj").write_text(f"{microjoules}\n", encoding="utf-8")
    (folder / "max_energy_range_uj").write_text("262143328850\n", encoding="utf-8")
    return folder


def test_rapl_adds_packages_and_memory_and_leaves_out_what_is_in_them(tmp_path):
    _zone(tmp_path, "intel-rapl:0", "package-0")
    _zone(tmp_path, "intel-rapl:0:0", "core")
    _zone(tmp_path, "intel-rapl:0:1", "dram", "250000")
    _zone(tmp_path, "intel-rapl:1", "psys")
    _zone(tmp_path, "intel-rapl-mmio:0", "package-0")
    found = list_rapl_meters(tmp_path)
    assert [meter.name for meter in found] == ["RAPL package-0", "RAPL dram"]
    assert [meter.read() for meter in found] == [1.5, 0.25]
    assert {(meter.unit, meter.range_j) for meter in found} == {("J", RANGE_J)}
    assert meters("cpu", tmp_path)[0].read() == 1.5


def test_rapl_that_is_absent_or_broken_says_so(tmp_path):
    with pytest.raises(AbsentError, match=r"^no RAPL counters under /sys/class/powercap$"):
        list_rapl_meters(tmp_path)
    _zone(tmp_path, "intel-rapl:0", "package-0", "nonsense")
    with pytest.raises(
        AbsentError, match=r"^RAPL: cannot read /.*/powercap/intel-rapl:0/energy_uj$"
    ):
        list_rapl_meters(tmp_path)


def test_rapl_without_permission_says_so(tmp_path, monkeypatch):
    folder = _zone(tmp_path, "intel-rapl:0", "package-0")
    if os.geteuid():
        (folder / "energy_uj").chmod(0)
    else:  # root may read everything
        real = Path.read_text

        def denied(path: Path, encoding: str | None = None, errors: str | None = None) -> str:
            if path.name == "energy_uj":
                raise PermissionError(13, "Permission denied")
            return real(path, encoding, errors)

        monkeypatch.setattr(Path, "read_text", denied)
    with pytest.raises(AbsentError, match=f"no permission to read {folder}/energy_uj"):
        list_rapl_meters(tmp_path)
    assert "chmod a+r" in meter_remedies(tmp_path)["rapl"]


def test_a_counter_may_wrap_once_and_power_is_integrated():
    wraps = Meter("m", float, "J", 100.0)
    assert rise_j(wraps, 40.0, 60.0, 1.0) == 20
    assert rise_j(wraps, 90.0, 15.0, 1.0) == 25
    assert rise_j(Meter("m", float, "W"), 100.0, 200.0, 0.5) == 75
    with pytest.raises(AbsentError, match=r"^m was reset$"):
        rise_j(Meter("m", float, "J"), 90.0, 15.0, 1.0)


def test_nvml_gives_its_counter_or_else_its_power():
    counter = open_nvml_meter(Nvml(), 0, {})
    assert (counter.name, counter.unit, counter.read()) == ("NVML energy counter", "J", 5.0)
    power = open_nvml_meter(Nvml(counter=False), 0, {})
    assert (power.name, power.unit, power.read()) == ("NVML sampled power", "W", 100.0)
    with pytest.raises(AbsentError, match=r"^NVML: Not Supported$"):
        open_nvml_meter(Nvml(counter=False, power=False), 0, {})


@every(
    ("number", "environ", "watts"),
    [
        (1, {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, 101),
        (0, {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "3,1"}, 103),
        (1, {"CUDA_VISIBLE_DEVICES": "GPU-2, GPU-9"}, 109),
    ],
)
def test_the_gpu_is_that_of_cuda(number, environ, watts):
    assert open_nvml_meter(Nvml(4, counter=False), number, environ).read() == watts


@every(
    ("number", "environ"),
    [
        (0, {}),
        (4, {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}),
        (1, {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "3"}),
        (0, {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "MIG-1"}),
    ],
)
def test_no_gpu_is_guessed(number, environ):
    with pytest.raises(AbsentError, match=f"which of 4 GPUs cuda:{number} is"):
        open_nvml_meter(Nvml(4), number, environ)


def test_a_gpu_that_is_cut_has_no_meter_of_its_own():
    nvml = Nvml()
    nvml.cut = 1
    with pytest.raises(AbsentError, match="MIG"):
        open_nvml_meter(nvml, 0, {})


def test_meters_of_other_places(monkeypatch):
    with pytest.raises(AbsentError, match=r"^no meter is known for mps$"):
        meters("mps")
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(AbsentError, match=r"^NVML needs the package nvidia-ml-py$"):
        meters("cuda")
    monkeypatch.setitem(sys.modules, "pynvml", Nvml())
    assert meters("cuda:0", environ={})[0].read() == 5.0


class Turned:
    """A counter of 3 J a step that wraps at 5000 J."""

    def __init__(self) -> None:
        self.joules = 4990.0

    def step(self) -> None:
        """Take 5 ms and 3 J."""
        time.sleep(0.005)
        self.joules = (self.joules + 3.0) % 5000.0

    def read(self) -> float:
        """Return the counter."""
        return self.joules


def _energy(found: Callable[[], list[Meter]], step: Callable[[], None]) -> module.Energy:
    return take_energy(step, lambda: None, 3, 0.25, found)


def test_the_energy_of_a_step_is_what_the_counters_rose():
    turned = Turned()
    found = _energy(
        lambda: [Meter("a", turned.read, "J", 5000.0), Meter("b", turned.read, "J", 5000.0)],
        turned.step,
    )
    assert found.step_j == pytest.approx(6.0)
    assert found.power_w
    assert 0 < found.power_w <= 6 / 0.005
    assert found.meter == "a + b"


def test_the_energy_of_a_step_is_power_over_time():
    found = _energy(lambda: [Meter("p", lambda: 200.0, "W")], Turned().step)
    assert found.power_w == pytest.approx(200)
    assert found.step_j
    assert found.step_j >= 200 * 0.005


def test_a_meter_that_stands_still_or_fails_gives_no_number():
    still = _energy(lambda: [Meter("s", lambda: 7.0, "J")], Turned().step)
    assert (still.step_j, still.power_w) == (None, None)
    assert still.meter.startswith("s stood still for 0.")
    falls = iter([9.0])
    reset = _energy(lambda: [Meter("r", lambda: next(falls, 1.0), "J")], Turned().step)
    assert (reset.step_j, reset.power_w, reset.meter) == (None, None, "r was reset")

    def absent() -> list[Meter]:
        raise AbsentError("nothing here")

    assert _energy(absent, Turned().step) == module.Energy(None, None, "nothing here")


def _record(monkeypatch: pytest.MonkeyPatch, found: Callable[[str], list[Meter]]) -> Record:
    monkeypatch.setattr(cell, "meters", found)
    monkeypatch.setattr(cell, "MIN_RUN_S", 0.1)
    session = worker.WorkerSession(numpy_backend, "null", Options(threads=1), {})
    workload = make_workload(read_model("fc:layers=1,nodes=4,inputs=8,outputs=4"), 2)
    request = {
        "workload": workload_to_json(workload),
        "platform": "here",
        "timing": {"budget_s": 0.02},
        "parts": False,
        "energy": True,
        "options": asdict(Options(threads=1)),
        "runs": 1,
        "env": {},
    }
    return worker.measure(session, request)


def test_a_record_keeps_joules_a_step_and_their_meter(monkeypatch):
    record = _record(monkeypatch, lambda _: [Meter("a meter", lambda: 50.0, "W")])
    assert record.quantities["power_w"].samples == pytest.approx((50.0,))
    assert record.env["energy_meter"] == "a meter"
    assert record_from_json(json.loads(json.dumps(record_to_json(record)))) == record
    shown = measurement(record, 1.0, {})
    assert shown["power_w"] == pytest.approx(50.0)
    assert shown["energy_j"] == record.quantities["energy_j"].samples[0] > 0
    assert not any("energy" in remark for remark in shown["remarks"])


@pytest.mark.slow
def test_a_record_without_a_meter_says_why(monkeypatch):
    def absent(_: str) -> list[Meter]:
        raise AbsentError("nothing here")

    record = _record(monkeypatch, absent)
    assert record.status == "ok"
    shown = measurement(record, 1.0, {})
    assert (shown["energy_j"], shown["power_w"]) == (None, None)
    assert "no energy: nothing here" in shown["remarks"]


@pytest.mark.slow
def test_run_meters_energy_or_says_why_not(capsys):
    words = ["run", "fc:layers=1,nodes=4", "--batch", "2", "--backend", "null", "--budget", "0.05"]
    assert run([*words, "--runs", "2", "--energy", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    absent = [remark for remark in found["notes"] if remark.startswith("no energy: ")]
    assert (found["energy_j"] is None) == (found["power_w"] is None) == bool(absent)
    assert found["env"]["energy_meter"]
    assert run([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["energy_j"], "energy_meter" in found["env"]) == (None, False)
    assert not any("energy" in remark for remark in found["notes"])


def test_run_shows_energy_and_its_meter(monkeypatch, capsys):
    record = _record(monkeypatch, lambda _: [Meter("a meter", lambda: 50.0, "W")])
    monkeypatch.setattr("steptime.sweeps.run.measure_cell", lambda *_, **__: record)
    assert run(["run", "fc", "--backend", "null", "--energy"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "J mean power 50 W (a meter)" in shown


@pytest.mark.slow
def test_a_broken_device_file_costs_no_result(monkeypatch, capsys):
    record = _record(monkeypatch, lambda _: [Meter("a meter", lambda: 50.0, "W")])
    broken = Path(os.environ["STEPTIME_HOME"]) / "devices/mine.toml"
    broken.parent.mkdir(parents=True)
    broken.write_text("name = 3")
    said_before: list[str] = []

    def measured(*_: object, **__: object) -> Record:
        said_before.append(capsys.readouterr().err)
        return record

    monkeypatch.setattr("steptime.sweeps.run.measure_cell", measured)
    assert run(["run", "fc", "--backend", "null"]) == 0
    (said,) = said_before
    assert "mine.toml" in said
    assert said.count("\n") == 1
    assert "step, median" in capsys.readouterr().out
