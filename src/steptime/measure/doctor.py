"""What this machine has for measuring, what is missing, and how to get it."""

import ctypes.util
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from steptime import __version__
from steptime.core.errors import InputError
from steptime.core.units import counted, percent, size
from steptime.hardware import catalog
from steptime.measure import cpus, machine
from steptime.measure.disturbance import AbsentError
from steptime.measure.meters import rapl
from steptime.measure.procfs import ROOT

FRAMEWORKS = ("torch", "numpy", "jax", "tensorflow", "tensorflow-cpu", "onnx", "onnxruntime")
INSTALL_TORCH = (
    "choose a build at pytorch.org/get-started/locally (a build for CPUs only is far smaller), "
    "or: pip install 'steptime[torch]'"
)
NVIDIA_FIELDS = ("name", "driver_version", "memory.total", "power.limit", "mig.mode.current")
TOOLS = {  # what: (commands, any of which will do; what it is for, and how to get it)
    "g++": (
        ("g++", "c++", "clang++"),
        "torch.compile needs a C++ compiler: install your system's package 'g++'",
    ),
    "slurm": (("sbatch",), "only sending work to a cluster needs Slurm: run where 'sbatch' is"),
}


def examine(root: Path = ROOT) -> dict[str, Any]:
    """Return what was found as JSON values; imports no framework.

    `missing` names what some feature would need and how to get it; `problems` are lines that say
    what makes measurements doubtful or impossible, and the remedy. Unknown is None.
    """
    found = cpus.cores(root)
    listed = cpus.caches(root)
    report: dict[str, Any] = {
        "steptime": __version__,
        "python": sys.version.partition(" ")[0],
        "cpu": {
            "model": machine.cpu_model(root),
            "virtual_machine": machine.is_virtual(root),
            **asdict(found),
            "default_threads": cpus.default_threads(root),
        },
        "caches": None if listed is None else [asdict(cache) for cache in listed],
        "memory": asdict(machine.memory(root)),
        "gpus": nvidia_gpus(),
        "frameworks": {name: machine.installed_version(name) for name in FRAMEWORKS},
        "meters": meters(root),
        "tools": {
            name: next(filter(None, map(shutil.which, commands)), None)
            for name, (commands, _) in TOOLS.items()
        },
        "user_devices": _user_devices(),
        "load": machine.load(),
    }
    report["platform"] = machine.platform_name("cpu", report["cpu"]["model"], None)
    lacks = {
        "PyTorch": "" if report["frameworks"]["torch"] else INSTALL_TORCH,
        **{name: "" if report["tools"][name] else remedy for name, (_, remedy) in TOOLS.items()},
        **report["meters"],
        "probe": report["user_devices"]["reason"],
    }
    report["missing"] = [
        {"what": what, "remedy": remedy} for what, remedy in lacks.items() if remedy
    ]
    report["problems"] = [f"{what}: {remedy}" for what, remedy in _problems(report)]
    return report


def nvidia_gpus() -> list[dict[str, str]] | None:
    """Return the NVIDIA GPUs as their driver lists them; None where its tool does not answer."""
    query = f"--query-gpu={','.join(NVIDIA_FIELDS)}"
    text = machine.output("nvidia-smi", query, "--format=csv,noheader")
    if text is None:
        return None
    rows = [[value.strip() for value in line.split(",")] for line in text.splitlines()]
    return [dict(zip(NVIDIA_FIELDS, row, strict=True)) for row in rows if len(row) == 5]


def driver_of(device: str) -> dict[str, str]:
    """Return the version of a GPU's `driver`; {} for a CPU and where no driver tells."""
    gpus = nvidia_gpus() if device.startswith("cuda") else None
    return {"driver": gpus[0]["driver_version"]} if gpus else {}


def meters(root: Path = ROOT) -> dict[str, str | None]:
    """Return the meters of energy: None where it can be read, else what helps."""
    lack = None
    try:
        rapl(root)
    except AbsentError as error:
        lack = f"{error}: energy needs a bare machine, and leave to read its counters (chmod a+r)"
    nvml = ctypes.util.find_library("nvidia-ml")
    return {
        "nvml": None if nvml else "power of an NVIDIA GPU needs its driver: nvidia.com/drivers",
        "rapl": lack,
    }


def _user_devices() -> dict[str, Any]:
    folder = catalog.user_folder("devices")
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    report: dict[str, Any] = {"folder": str(folder), "writable": os.access(existing, os.W_OK)}
    try:
        probed = catalog.device(catalog.LOCAL)
    except InputError as error:
        return {**report, "probe": None, "reason": str(error)}
    found: dict[str, Any] = {"name": probed.name, "source": probed.source}
    if probed.calibration:
        told = ("date", "backend", "version", "threads", "driver")
        found["calibration"] = {k: v for k, v in probed.calibration.items() if k in told}
    return {**report, "probe": found, "reason": ""}


def _problems(report: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    cpu, load, devices = report["cpu"], report["load"], report["user_devices"]
    seen = len(cpu["allowed"])
    if load is not None and load > machine.BUSY:
        busy = f"this machine is busy: its load is {percent(load)} of its CPUs"
        yield busy, "wait until it is idle, or trust the least times, not the medians"
    if cpu["quota"] is not None and cpu["quota"] < seen:
        few = f"the control group allows {cpu['quota']:g} CPUs of the {seen} that can be seen"
        yield few, f"run with --threads {cpu['default_threads']}, or steps are throttled"
    if not devices["writable"]:
        closed = f"{devices['folder']} cannot be written to"
        yield closed, "set STEPTIME_HOME to a folder of yours"
    for what, then, now in stale(report):
        old = f"the calibration of 'local' is of {what} {then}, here is {now}"
        yield old, "steptime calibrate measures it again"
    if report["gpus"] and not report["frameworks"]["torch"]:
        yield "a GPU is here but no PyTorch to use it", INSTALL_TORCH


def stale(report: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield what differs now from when `local` was calibrated: its name, then and now."""
    made = (report["user_devices"]["probe"] or {}).get("calibration", {})
    backend = made.get("backend", "")
    gpus = report["gpus"] or []
    now = {
        "version": report["frameworks"].get(backend),
        "threads": None if "driver" in made else report["cpu"]["default_threads"],
        "driver": gpus[0]["driver_version"] if gpus else None,
    }
    for key, name in (("version", backend), ("threads", "threads"), ("driver", "driver")):
        here = None if now[key] is None else str(now[key]).partition("+")[0]
        if key in made and here is not None and str(made[key]) != here:
            yield name, str(made[key]), here


def doctor_table(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the report without its problems as rows of a name and a text, for a person."""
    cpu, memory, devices, gpus = (report[key] for key in ("cpu", "memory", "user_devices", "gpus"))
    physical = "unknown" if cpu["physical"] is None else cpu["physical"]
    quota = "" if cpu["quota"] is None else f", quota {cpu['quota']:g}"
    allowed = f"{len(cpu['allowed'])} allowed{quota}"
    platform = f"{report['platform']} ({counted(cpu['default_threads'], 'thread')} by default)"
    probe = devices["probe"]
    share = report["load"]
    load = "unknown" if share is None else f"{percent(share)} of the CPUs in the last minute"
    calibrated = (probe or {}).get("calibration", {})
    caches = [
        f"L{c['level']} {c['type']} {c['size_bytes'] // 1024} KiB"
        + (f" for {c['shared_by']} CPUs" if c["shared_by"] > 1 else "")
        for c in report["caches"] or ()
    ]
    said = {"total_bytes": "{}", "limit_bytes": "limit {}", "usable_bytes": "{} usable now"}
    room = [text.format(size(memory[key])) for key, text in said.items() if memory[key] is not None]
    cards = [f"{g['name']}, {g['memory.total']}, driver {g['driver_version']}" for g in gpus or ()]
    no_card = "no nvidia-smi here" if gpus is None else "none that nvidia-smi shows"
    rows = [
        ("steptime", f"{report['steptime']}, Python {report['python']}"),
        ("CPU", cpu["model"] + (" (virtual machine)" if cpu["virtual_machine"] else "")),
        ("cores", f"{physical} physical, {cpu['logical']} CPUs, {allowed}"),
        ("platform", platform),
        ("caches", ", ".join(caches) or "unknown"),
        ("memory", ", ".join(room) or "unknown"),
        ("GPUs", "; ".join(cards) or no_card),
        *((name, version) for name, version in report["frameworks"].items() if version),
        *((name, path) for name, path in report["tools"].items() if path),
        ("meters", ", ".join(n for n, reason in report["meters"].items() if not reason) or "none"),
        ("devices", devices["folder"] + ("" if devices["writable"] else " (cannot be written to)")),
        ("last probe", f"{probe['name']}, {probe['source']}" if probe else "none"),
        ("calibrated", calibrated.get("date", "never: steptime calibrate")),
        ("load", load),
    ]
    rows += [(f"missing: {row['what']}", row["remedy"]) for row in report["missing"]]
    return rows
