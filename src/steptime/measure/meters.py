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
from itertools import repeat
from pathlib import Path
from typing import Any, Literal

from steptime.measure.disturbance import AbsentError
from steptime.measure.procfs import read_text

EVERY_S = 0.05
LEAST_S = 1.0  # GPUs renew their counters about every 0.1 s

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
    if meter.unit == "W":
        return (before + after) / 2 * elapsed_s
    if after >= before:
        return after - before
    if meter.range_j is None:
        raise AbsentError(f"{meter.name} was reset")
    return after - before + meter.range_j


def meters(
    device: str, root: Path = Path("/"), environ: Mapping[str, str] = os.environ
) -> tuple[Meter, ...]:
    """Return the meters of `cpu` or `cuda[:n]`, to be added; raises `AbsentError`, saying why."""
    kind, _, number = device.partition(":")
    if kind == "cpu":
        return rapl(root)
    if kind != "cuda":
        raise AbsentError(f"no meter is known for {kind}")
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError as error:
        raise AbsentError("NVML needs the package nvidia-ml-py") from error
    return (gpu(nvml, int(number or 0), environ),)


def rapl(root: Path) -> tuple[Meter, ...]:
    """Return the RAPL counters of packages and memory; raises `AbsentError`, saying why."""
    found = []
    for zone in sorted((root / "sys/class/powercap").glob("intel-rapl:*")):
        name = read_text(zone / "name") or ""
        if name.startswith("package-") or name == "dram":
            read = partial(_microjoules, zone / "energy_uj")
            read()
            range_j = _microjoules(zone / "max_energy_range_uj")
            found.append(Meter(f"RAPL {name}", read, "J", range_j))
    if not found:
        raise AbsentError("no RAPL counters under /sys/class/powercap")
    return tuple(found)


def _microjoules(path: Path) -> float:
    try:
        return int(path.read_text(encoding="utf-8")) * 1e-6
    except PermissionError as error:
        raise AbsentError(f"RAPL: no permission to read {path}") from error
    except (OSError, ValueError) as error:
        raise AbsentError(f"RAPL: cannot read {path}") from error


def gpu(nvml: Any, number: int, environ: Mapping[str, str]) -> Meter:
    """Return the meter of the GPU that CUDA calls `number`, by the module `pynvml`.

    The counter of energy (Volta and later), else power. Raises `AbsentError`, saying why.
    """
    with _named(nvml):
        nvml.nvmlInit()
        handle = _handle(nvml, number, environ)
        with suppress(nvml.NVMLError):  # a GPU that cannot be cut
            if nvml.nvmlDeviceGetMigMode(handle)[0]:
                cut = "the GPU is cut into instances (MIG), its meter is of all of them"
                raise AbsentError(f"NVML: {cut}")

    @_named(nvml)
    def counter() -> float:
        return float(nvml.nvmlDeviceGetTotalEnergyConsumption(handle)) / 1000  # mJ

    @_named(nvml)
    def power() -> float:
        return float(nvml.nvmlDeviceGetPowerUsage(handle)) / 1000  # mW

    try:
        counter()
    except AbsentError:  # before Volta
        power()
        return Meter("NVML sampled power", power, "W")
    return Meter("NVML energy counter", counter, "J")


@contextmanager
def _named(nvml: Any) -> Iterator[None]:
    try:
        yield
    except nvml.NVMLError as error:
        raise AbsentError(f"NVML: {error}") from error


def _handle(nvml: Any, number: int, environ: Mapping[str, str]) -> Any:
    """Return NVML's handle of a CUDA device. CUDA numbers GPUs in another order unless told."""
    visible = [name.strip() for name in environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    name = str(number)
    if visible != [""]:
        name = visible[number] if number < len(visible) else ""
    if name.startswith("GPU-"):
        return nvml.nvmlDeviceGetHandleByUUID(name)
    count = nvml.nvmlDeviceGetCount()
    ordered = count == 1 or environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    if not (ordered and name.isdecimal() and int(name) < count):
        which = f"cannot tell which of {count} GPUs cuda:{number} is"
        raise AbsentError(f"NVML: {which} (CUDA_DEVICE_ORDER=PCI_BUS_ID says it)")
    return nvml.nvmlDeviceGetHandleByIndex(int(name))


def take_energy(
    step: Callable[[], None],
    sync: Callable[[], object],
    steps: int,
    least_s: float,
    find: Callable[[], Sequence[Meter]],
    clock: Clock = time.perf_counter,
) -> Energy:
    """Return the energy of a step: run `steps` and `sync`, again and again, for `least_s` seconds.

    `find` gives the meters, which a thread reads meanwhile. What `step` raises passes through.
    """
    rises_j = list[float]()
    lacks = list[str]()
    done = 0
    try:
        found = find()
        sync()
        readings = [([meter.read() for meter in found], clock())]
    except AbsentError as error:
        return Energy(None, None, str(error))

    def add() -> None:
        try:
            readings.append(([meter.read() for meter in found], clock()))
            (before, then_s), (now, now_s) = readings[-2:]
            rises_j.extend(map(rise_j, found, before, now, repeat(now_s - then_s)))
        except AbsentError as error:
            lacks.append(str(error))

    def run() -> None:
        while not ended.wait(EVERY_S):
            add()

    ended, thread = threading.Event(), threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        began_s = clock()
        while not done or clock() - began_s < least_s:
            for _ in range(steps):
                step()
            sync()
            done += steps
    finally:
        ended.set()
        thread.join()
        add()
    name = " + ".join(meter.name for meter in found)
    joules = sum(rises_j)
    seconds = readings[-1][1] - readings[0][1]
    if lacks or not joules:
        return Energy(None, None, (*lacks, f"{name} stood still for {seconds:.3g} s")[0])
    return Energy(joules / done, joules / seconds, name)
