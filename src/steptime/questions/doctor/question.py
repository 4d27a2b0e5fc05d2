"""What this machine is, what it lacks for measuring, and how to get it: the question `doctor`."""

import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path

from steptime import __version__
from steptime.core.errors import InputError
from steptime.core.units import format_percent
from steptime.hardware import catalog, device_words, item_files
from steptime.hardware.device_calibration import DeviceCalibration
from steptime.measure import cpus, machine
from steptime.measure.drivers import NvidiaGpu, meter_remedies, read_nvidia_gpus
from steptime.measure.procfs import ROOT
from steptime.questions.doctor.answer import (
    CalibrationState,
    Cpu,
    CpuCache,
    DoctorAnswer,
    HostMemory,
    MeterState,
    MissingPart,
    Package,
    Probe,
    Tool,
    UserDevices,
)

FRAMEWORKS = ("torch", "numpy", "jax", "tensorflow", "tensorflow-cpu", "onnx", "onnxruntime")
INSTALL_TORCH = (
    "choose a build at pytorch.org/get-started/locally (a build for CPUs only is far smaller), "
    "or: pip install 'steptime[torch]'"
)
COMMANDS_BY_TOOL = {"g++": ("g++", "c++", "clang++"), "slurm": ("sbatch",)}
"""Tools with the commands of which any will do."""
TOOL_REMEDIES = {
    "g++": "torch.compile needs a C++ compiler: install your system's package 'g++'",
    "slurm": "only sending work to a cluster needs Slurm: run where 'sbatch' is",
}


def doctor() -> DoctorAnswer:
    """Show what this machine is, what it lacks, and how to get it."""
    return examine_machine()


def examine_machine(root: Path = ROOT) -> DoctorAnswer:
    """Return the hardware and software of this machine and its lacks; imports no framework.

    Args:
        root: the folder of `proc` and `sys`.
    """
    cpu = _read_cpu(root)
    gpus = read_nvidia_gpus()
    versions = {name: machine.installed_version(name) for name in FRAMEWORKS}
    tools = tuple(
        Tool(name=name, path=_find_first_command(names)) for name, names in COMMANDS_BY_TOOL.items()
    )
    remedy_by_meter = meter_remedies(root)
    user_devices = _read_user_devices()
    load = machine.load_per_cpu()
    # The remedy for each part of the machine; "" where nothing is missing.
    remedy_by_part = {
        "PyTorch": "" if versions["torch"] else INSTALL_TORCH,
        **{tool.name: "" if tool.path else TOOL_REMEDIES[tool.name] for tool in tools},
        **remedy_by_meter,
        "probe": user_devices.reason,
    }
    problems = [
        *_find_load_problems(cpu, load),
        *_find_device_problems(user_devices, cpu, gpus, versions),
    ]
    return DoctorAnswer(
        steptime=__version__,
        python=sys.version.partition(" ")[0],
        platform=machine.platform_name("cpu", cpu.model, None),
        cpu=cpu,
        caches=_read_caches(root),
        memory=_read_memory(root),
        gpus=gpus,
        frameworks=tuple(Package(name=name, version=text) for name, text in versions.items()),
        meters=tuple(MeterState(name=name, remedy=text) for name, text in remedy_by_meter.items()),
        tools=tools,
        user_devices=user_devices,
        load=load,
        missing=tuple(
            MissingPart(name=name, remedy=text) for name, text in remedy_by_part.items() if text
        ),
        problems=tuple(problems),
    )


def _read_cpu(root: Path) -> Cpu:
    return Cpu(
        model=machine.cpu_model(root),
        is_virtual=machine.is_virtual(root),
        default_threads=cpus.default_threads(root),
        **asdict(cpus.cores(root)),
    )


def _read_caches(root: Path) -> tuple[CpuCache, ...] | None:
    caches = cpus.caches(root)
    return None if caches is None else tuple(CpuCache(**asdict(cache)) for cache in caches)


def _read_memory(root: Path) -> HostMemory:
    memory = machine.memory(root)
    return HostMemory(
        capacity_bytes=memory.total_bytes,
        available_bytes=memory.available_bytes,
        limit_bytes=memory.limit_bytes,
        usable_bytes=memory.usable_bytes,
        reason=memory.reason,
    )


def _find_first_command(names: tuple[str, ...]) -> str | None:
    """Return the path of the first of the commands that is installed."""
    return next(filter(None, map(shutil.which, names)), None)


def _read_user_devices() -> UserDevices:
    folder = item_files.user_folder("devices")
    # The folder is made when a device is written: what counts is where it would be made.
    existing_folder = next(path for path in (folder, *folder.parents) if path.exists())
    probe = None
    reason = ""
    try:
        device = catalog.device(device_words.LOCAL)
    except InputError as error:
        reason = str(error)
    else:
        calibration = read_calibration(device.calibration) if device.is_calibrated else None
        probe = Probe(name=device.name, source=device.datasheet.source, calibration=calibration)
    return UserDevices(
        folder=str(folder),
        is_writable=os.access(existing_folder, os.W_OK),
        probe=probe,
        reason=reason,
    )


def read_calibration(calibration: DeviceCalibration) -> CalibrationState:
    """Return the date and versions of a calibration as its device file says them."""
    # A device file without a value reads as "".
    return CalibrationState(
        date=calibration.date or None,
        backend=calibration.backend or None,
        version=calibration.version or None,
        driver=calibration.driver or None,
        threads=calibration.threads,
    )


def _find_load_problems(cpu: Cpu, load: float | None) -> Iterator[str]:
    """Yield disturbances of a measurement now: other work, and a quota below the visible CPUs."""
    visible_count = len(cpu.allowed)
    if load is not None and load > machine.BUSY_LOAD:
        yield (
            f"this machine is busy: its load is {format_percent(load)} of its CPUs: "
            "wait until it is idle, or trust the minima, not the medians"
        )
    if cpu.quota is not None and cpu.quota < visible_count:
        yield (
            f"the control group allows {cpu.quota:g} CPUs of the {visible_count} that can be seen: "
            f"run with --threads {cpu.default_threads}, or steps are throttled"
        )


def _find_device_problems(
    devices: UserDevices,
    cpu: Cpu,
    gpus: tuple[NvidiaGpu, ...] | None,
    versions: Mapping[str, str | None],
) -> Iterator[str]:
    """Yield problems of the user's devices, their calibration, and the GPUs."""
    if not devices.is_writable:
        yield f"{devices.folder} cannot be written to: set STEPTIME_HOME to a folder of yours"
    calibration = None if devices.probe is None else devices.probe.calibration
    if calibration is not None:
        for name, old, new in find_changed_settings(
            calibration, cpu.default_threads, gpus, versions
        ):
            yield (
                f"the calibration of 'local' is of {name} {old}, here is {new}: "
                "steptime calibrate measures it again"
            )
    if gpus and not versions["torch"]:
        yield f"a GPU is here but no PyTorch to use it: {INSTALL_TORCH}"


def find_changed_settings(
    calibration: CalibrationState,
    default_threads: int,
    gpus: tuple[NvidiaGpu, ...] | None,
    versions: Mapping[str, str | None],
) -> Iterator[tuple[str, str, str]]:
    """Yield the version, threads and driver that differ from those of a calibration.

    Each is a name with its value in the calibration and its value now. The number of threads is
    compared for a CPU alone.
    """
    backend = calibration.backend or ""
    new_driver = gpus[0].driver if gpus else None
    # What was calibrated, its value then, and its value now.
    settings = [(backend, calibration.version, versions.get(backend))]
    # Threads decide the speed of a CPU alone.
    is_of_cpu = calibration.driver is None
    if is_of_cpu and calibration.threads is not None:
        settings.append(("threads", str(calibration.threads), str(default_threads)))
    settings.append(("driver", calibration.driver, new_driver))
    for name, old, new in settings:
        if old is None or new is None:  # unknown on one side: nothing to compare
            continue
        new_release = new.partition("+")[0]  # without the build: 2.9.1+cu128
        if old != new_release:
            yield name, old, new_release
