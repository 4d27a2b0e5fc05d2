"""Energy from the machine's own meters: RAPL counters of a CPU, NVML of an NVIDIA GPU.

Steps run for a while after the timed ones, with the meters read at both ends and every 50 ms in
between: a counter's rises are added up, whatever it wraps at, and power is integrated over time
(trapezoids). RAPL counts whole processor packages and their memory, NVML a whole GPU, whoever
uses them. A meter that is absent gives no number and says why.
"""

import importlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from steptime.measure.disturbance import AbsentError
from steptime.measure.procfs import read_text

READ_INTERVAL_S = 0.05
MIN_RUN_S = 1.0  # GPUs renew their counters about every 0.1 s

Clock = Callable[[], float]


@dataclass(frozen=True)
class Meter:
    """One meter: `read` gives joules since some moment, or watts, and raises `AbsentError`.

    A counter of joules begins again at 0 after `range_j`; None for one that never does.
    """

    name: str
    read: Callable[[], float]
    unit: Literal["J", "W"]
    range_j: float | None = None


@dataclass(frozen=True)
class Energy:
    """Joules a step and mean power, both None where there is no meter; `meter` then says why."""

    step_j: float | None
    power_w: float | None
    meter: str


def rise_j(meter: Meter, before: float, after: float, elapsed_s: float) -> float:
    """Return the joules between two readings; raises `AbsentError` for a counter set back."""
    if meter.unit == "W":  # power, integrated as a trapezoid
        return (before + after) / 2 * elapsed_s
    if after >= before:
        return after - before
    # The counter has restarted at 0: it passed its range, or was reset where it has none.
    if meter.range_j is None:
        raise AbsentError(f"{meter.name} was reset")
    return after - before + meter.range_j


def meters(
    device: str, root: Path = Path("/"), environ: Mapping[str, str] = os.environ
) -> tuple[Meter, ...]:
    """Return the meters of `cpu` or `cuda[:n]`, to be added; raises `AbsentError`, saying why."""
    kind, _, number = device.partition(":")
    if kind == "cpu":
        return list_rapl_meters(root)
    if kind != "cuda":
        raise AbsentError(f"no meter is known for {kind}")
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError as error:
        raise AbsentError("NVML needs the package nvidia-ml-py") from error
    return (open_nvml_meter(nvml, int(number or 0), environ),)


def list_rapl_meters(root: Path) -> tuple[Meter, ...]:
    """Return the RAPL counters of packages and memory; raises `AbsentError`, saying why."""
    counters = []
    for zone in sorted((root / "sys/class/powercap").glob("intel-rapl:*")):
        name = read_text(zone / "name") or ""
        # Zones for cores and graphics lie within a package, and would count twice.
        if name.startswith("package-") or name == "dram":
            read = partial(_read_joules, zone / "energy_uj")
            read()  # raises where it may not be read
            range_j = _read_joules(zone / "max_energy_range_uj")
            counters.append(Meter(f"RAPL {name}", read, "J", range_j))
    if not counters:
        raise AbsentError("no RAPL counters under /sys/class/powercap")
    return tuple(counters)


def _read_joules(path: Path) -> float:
    try:
        return int(path.read_text(encoding="utf-8")) * 1e-6
    except PermissionError as error:
        raise AbsentError(f"RAPL: no permission to read {path}") from error
    except (OSError, ValueError) as error:
        raise AbsentError(f"RAPL: cannot read {path}") from error


def open_nvml_meter(nvml: Any, number: int, environ: Mapping[str, str]) -> Meter:
    """Return the meter of the GPU that CUDA calls `number`, by the module `pynvml`.

    The counter of energy (Volta and later), else power. Raises `AbsentError`, saying why.
    """
    with _raising_absent(nvml):
        nvml.nvmlInit()
        handle = _find_nvml_handle(nvml, number, environ)
        with suppress(nvml.NVMLError):  # a GPU that cannot be cut
            is_cut, _is_cut_after_reset = nvml.nvmlDeviceGetMigMode(handle)
            if is_cut:
                fault = "the GPU is cut into instances (MIG), its meter is of all of them"
                raise AbsentError(f"NVML: {fault}")

    @_raising_absent(nvml)
    def read_energy_j() -> float:
        return float(nvml.nvmlDeviceGetTotalEnergyConsumption(handle)) / 1000  # mJ

    @_raising_absent(nvml)
    def read_power_w() -> float:
        return float(nvml.nvmlDeviceGetPowerUsage(handle)) / 1000  # mW

    try:
        read_energy_j()
    except AbsentError:  # before Volta
        read_power_w()
        return Meter("NVML sampled power", read_power_w, "W")
    return Meter("NVML energy counter", read_energy_j, "J")


@contextmanager
def _raising_absent(nvml: Any) -> Iterator[None]:
    try:
        yield
    except nvml.NVMLError as error:
        raise AbsentError(f"NVML: {error}") from error


def _find_nvml_handle(nvml: Any, number: int, environ: Mapping[str, str]) -> Any:
    """Return NVML's handle of a CUDA device. CUDA numbers GPUs in another order unless told."""
    visible_names = [name.strip() for name in environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    restricts_devices = visible_names != [""]  # the variable is set
    if not restricts_devices:
        name = str(number)
    elif number < len(visible_names):
        name = visible_names[number]
    else:
        name = ""  # no such device: refused below
    if name.startswith("GPU-"):
        return nvml.nvmlDeviceGetHandleByUUID(name)
    count = nvml.nvmlDeviceGetCount()
    # NVML numbers GPUs by their PCI bus, CUDA by speed unless it is told to do as NVML does.
    has_order_of_nvml = count == 1 or environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    is_device_number = name.isdecimal() and int(name) < count
    if not (has_order_of_nvml and is_device_number):
        fault = f"cannot tell which of {count} GPUs cuda:{number} is"
        raise AbsentError(f"NVML: {fault} (CUDA_DEVICE_ORDER=PCI_BUS_ID says it)")
    return nvml.nvmlDeviceGetHandleByIndex(int(name))


def take_energy(
    step: Callable[[], None],
    sync: Callable[[], object],
    steps: int,
    min_s: float,
    find_meters: Callable[[], Sequence[Meter]],
    clock: Clock = time.perf_counter,
) -> Energy:
    """Measure the energy of a step, while a thread reads the meters.

    Args:
        step: runs a step; its errors pass through.
        sync: waits for the end of all steps.
        steps: steps between two calls of `sync`.
        min_s: seconds that the steps run at least.
        find_meters: returns the meters whose energy is added.
        clock: a clock in seconds.
    """
    try:
        meters = find_meters()
        sync()
        log = _EnergyLog(meters, clock)
    except AbsentError as error:
        return Energy(step_j=None, power_w=None, meter=str(error))
    has_ended = threading.Event()

    def read_regularly() -> None:
        while not has_ended.wait(READ_INTERVAL_S):
            log.read()

    thread = threading.Thread(target=read_regularly, daemon=True)
    thread.start()
    step_count = 0
    try:
        began_s = clock()
        while not step_count or clock() - began_s < min_s:
            for _ in range(steps):
                step()
            sync()
            step_count += steps
    finally:
        has_ended.set()
        thread.join()
        log.read()
    return log.energy(step_count)


class _EnergyLog:
    """The energy that meters have counted since the log began.

    Raises:
        AbsentError: at once, if a meter cannot be read.
    """

    def __init__(self, meters: Sequence[Meter], clock: Clock) -> None:
        self._meters = meters
        self._clock = clock
        self._faults: list[str] = []
        self._joules = 0.0
        self._values = [meter.read() for meter in meters]
        self._start_s = clock()
        self._time_s = self._start_s

    def read(self) -> None:
        """Read the meters and add their rise; a meter that fails is noted."""
        try:
            values = [meter.read() for meter in self._meters]
            time_s = self._clock()
            elapsed_s = time_s - self._time_s
            for meter, before, after in zip(self._meters, self._values, values, strict=True):
                self._joules += rise_j(meter, before, after, elapsed_s)
        except AbsentError as error:
            self._faults.append(str(error))  # one fault makes the energy unknown
            return
        self._values = values
        self._time_s = time_s

    def energy(self, step_count: int) -> Energy:
        """Return the energy of one of so many steps, or the reason why it is unknown."""
        name = " + ".join(meter.name for meter in self._meters)
        elapsed_s = self._time_s - self._start_s
        if self._faults:
            return Energy(step_j=None, power_w=None, meter=self._faults[0])
        if not self._joules:
            fault = f"{name} stood still for {elapsed_s:.3g} s"
            return Energy(step_j=None, power_w=None, meter=fault)
        return Energy(
            step_j=self._joules / step_count, power_w=self._joules / elapsed_s, meter=name
        )
