"""Facts of this machine: CPU, memory, the name of its platform, peak memory; `cpus` has cores.

Read from /proc and /sys (`root` lets a test give another tree). Elsewhere than on Linux most of
it is None, and `NO_TREE` is the reason.
"""

import ctypes
import gc
import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from steptime import __version__
from steptime.core.json_types import JsonObject
from steptime.hardware import catalog, device_words
from steptime.measure import procfs
from steptime.measure.contract import DeviceFacts, Peak
from steptime.measure.cpus import CPUS, cores, default_threads, last_cache_bytes

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # of glibc's malloc.h
BUSY_LOAD = 0.5  # a load above this share of the CPUs disturbs measurements


@dataclass(frozen=True)
class MainMemory:
    """Main memory in bytes; None is unknown, with `reason`; a limit of None is none.

    `usable_bytes` is the smaller of what is available and what the control group leaves.
    """

    total_bytes: int | None
    available_bytes: int | None
    limit_bytes: int | None
    usable_bytes: int | None
    reason: str = ""


def cpu_model(root: Path = procfs.ROOT) -> str:
    """Return the CPU's name as it reports itself, such as `AMD EPYC 9R14`.

    A hypervisor may hide the model (`Intel(R) Xeon(R) Processor`): a name without a digit gets
    family, model and stepping behind it, so that two machines do not share a name by accident.
    """
    info = procfs.fields(root / "proc/cpuinfo")
    name = info.get("model name") or info.get("Model") or ""
    if not name and "CPU part" in info:  # Arm gives numbers in place of a name
        name = f"{platform.machine()} {info.get('CPU implementer')} {info['CPU part']}"
    if not name and sys.platform == "darwin":
        name = read_command_output("sysctl", "-n", "machdep.cpu.brand_string") or ""
    name = name or platform.processor() or platform.machine() or "unknown"
    # Under a hypervisor the name may be that of all models: numbers then tell two machines apart.
    hides_model = not re.search(r"\d", name)
    if hides_model and "cpu family" in info:
        family = info["cpu family"]
        model = info.get("model", "?")
        stepping = info.get("stepping", "?")
        name += f" f{family}m{model}s{stepping}"
    return name


def read_command_output(*command: str) -> str | None:
    """Run a command and return its output, or None where it is absent, fails, or takes too long."""
    try:
        process = subprocess.run(command, capture_output=True, text=True, timeout=10.0, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return process.stdout.strip()


def memory(root: Path = procfs.ROOT) -> MainMemory:
    """Return total, available, limited and usable main memory in bytes."""
    info = procfs.fields(root / "proc/meminfo")
    if "MemTotal" not in info:  # not Linux
        return MainMemory(
            total_bytes=_physical_bytes(),
            available_bytes=None,
            limit_bytes=None,
            usable_bytes=None,
            reason=procfs.NO_TREE,
        )
    total_bytes = procfs.kilobytes(info.get("MemTotal"))
    available_bytes = procfs.kilobytes(info.get("MemAvailable"))
    limits_bytes = []
    usable_bytes = [] if available_bytes is None else [available_bytes]
    for folder in procfs.group_folders("memory", root):
        # The files of control groups version 2, then those of version 1.
        limit_bytes = procfs.number(folder / "memory.max", folder / "memory.limit_in_bytes")
        used_bytes = procfs.number(folder / "memory.current", folder / "memory.usage_in_bytes")
        if limit_bytes is None:  # "max", or no file
            continue
        # "No limit" is a very large number in version 1.
        is_effective = total_bytes is None or limit_bytes < total_bytes
        if is_effective:
            limits_bytes.append(limit_bytes)
            usable_bytes.append(max(0, limit_bytes - (used_bytes or 0)))
    reason = "" if available_bytes is not None else "this kernel does not tell what is available"
    return MainMemory(
        total_bytes=total_bytes,
        available_bytes=available_bytes,
        limit_bytes=min(limits_bytes, default=None),
        usable_bytes=min(usable_bytes, default=None),
        reason=reason,
    )


def _physical_bytes() -> int | None:
    with suppress(AttributeError, OSError, ValueError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


def host_facts() -> DeviceFacts:
    """Return the facts of this machine's CPU, memory, and caches that this process reaches."""
    main_memory = memory()
    return DeviceFacts(
        product=cpu_model(),
        memory_bytes=main_memory.limit_bytes or main_memory.total_bytes,
        room_bytes=main_memory.usable_bytes,
        cache_bytes=last_cache_bytes(cores().allowed),
    )


def slug(name: str) -> str:
    """Return a product's name as part of a platform's name.

    `Intel(R) Xeon(R) Platinum 8375C CPU @ 2.90GHz` is `intel-xeon-platinum-8375c`,
    `AMD EPYC 7763 64-Core Processor` is `amd-epyc-7763`.
    """
    text = re.sub(r"\((r|tm|c)\)|@.*|\b\d+-core\b|\b(cpu|processor)\b", " ", name.lower())
    return re.sub(r"[^a-z0-9]+", "-", text).strip("-")


def platform_name(device: str, product: str, threads: int | None) -> str:
    """Return the platform of a run on `device` (`cpu`, `cuda:0`, `mps`) whose product is known.

    The name of a device in data/ where its `products` hold it, for a CPU if as many threads run as
    it has cores; else `cpu-<model>-<threads>t`, or the product of an accelerator.
    """
    shipped_name = device_words.platform_of(product)
    if device != "cpu":
        return shipped_name or slug(product)
    thread_count = threads or default_threads()
    if shipped_name:
        # a device file of a CPU describes all its cores, and not fewer or more threads
        core_count = catalog.device(shipped_name).datasheet.cores
        if core_count is None or core_count == thread_count:
            return shipped_name
    return f"cpu-{slug(product)}-{thread_count}t"


def environment() -> Mapping[str, Any]:
    """Return the environment of a record on this machine; `unknown` has a reason for each None."""
    cpu_cores = cores()
    main_memory = memory()
    thread_text = os.environ.get("OMP_NUM_THREADS", "")  # bound for this process
    facts: JsonObject = {
        "host": platform.node(),
        "os": platform.platform(terse=True),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "steptime": __version__,
        "cpu_model": cpu_model(),
        "cpus": list(cpu_cores.allowed),
        "threads": int(thread_text) if thread_text.isdigit() else None,
        "physical_cores": cpu_cores.physical,
        "memory_bytes": main_memory.total_bytes,
        "memory_limit_bytes": main_memory.limit_bytes,
        "virtual_machine": is_virtual(),
        "governor": procfs.read_text(procfs.ROOT / CPUS / "cpu0/cpufreq/scaling_governor"),
        "huge_pages": procfs.read_text(procfs.ROOT / "sys/kernel/mm/transparent_hugepage/enabled"),
        "load": load_per_cpu(),
    }
    with suppress(OSError, KeyError):
        facts["os"] = platform.freedesktop_os_release()["PRETTY_NAME"]
    facts["unknown"] = {
        key: _REASON_OF_UNKNOWN.get(key, procfs.NO_TREE)
        for key, value in facts.items()
        if value is None
    }
    return facts


_REASON_OF_UNKNOWN = {
    "threads": "threads were not bound",
    "memory_limit_bytes": "the control group sets no limit",
    "governor": "the system shows no frequency control",
}


def installed_version(package: str) -> str | None:
    """Return the version of an installed package without importing it, or None where it is not."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def is_virtual(root: Path = procfs.ROOT) -> bool | None:
    """Return whether the CPU says it runs under a hypervisor; None where it does not tell."""
    flags = procfs.fields(root / "proc/cpuinfo").get("flags")
    return None if flags is None else "hypervisor" in flags.split()


def load_per_cpu() -> float | None:
    """Return the load of the last minute: processes that wanted a CPU, a CPU; None if unknown."""
    return os.getloadavg()[0] / (os.cpu_count() or 1) if hasattr(os, "getloadavg") else None


def resident_memory_meter(root: Path = procfs.ROOT) -> Peak:
    """Start a meter of this process's peak resident set, and return what reads it.

    A reading is the bytes above the level at the start with the meter's name, or None with why.
    Garbage is collected and the allocator's free pages are returned first, so that a network
    before does not lend its memory to this one unseen. Linux only: elsewhere the mark cannot be
    set back, and the reading is None.
    """
    meter_name = "resident set (VmHWM above VmRSS at the start)"
    # Free pages of earlier networks go back to the system, else this one would use them unseen.
    gc.collect()
    _call_libc("malloc_trim", 0)
    try:
        # "5" sets the high-water mark VmHWM back to the present resident set (man proc).
        (root / "proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError as error:
        note = f"the high-water mark cannot be set back: {error.strerror}"
        return lambda: (None, note)
    resident_bytes_before = procfs.kilobytes(procfs.fields(root / "proc/self/status").get("VmRSS"))

    def read_peak() -> tuple[int | None, str]:
        peak_bytes = procfs.kilobytes(procfs.fields(root / "proc/self/status").get("VmHWM"))
        if resident_bytes_before is None or peak_bytes is None:
            return None, "the system does not tell the resident set"
        return max(0, peak_bytes - resident_bytes_before), meter_name

    return read_peak


def keep_freed_memory() -> None:
    """Have the C library (glibc) keep what is freed, so that arrays do not lie in new pages."""
    _call_libc("mallopt", _M_MMAP_MAX, 0)
    _call_libc("mallopt", _M_TRIM_THRESHOLD, 2**31 - 1)


def _call_libc(name: str, *arguments: int) -> None:
    """Call a function of the C library, where it has one of that name."""
    function = getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None
    if function is not None:
        function(*arguments)
