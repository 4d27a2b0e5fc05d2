"""The CPUs that this process may use, the cores and caches behind them, and binding to them.

Read from /proc and /sys (`root` lets a test give another tree), as `machine` is.
"""

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from steptime.core.errors import InputError
from steptime.measure import procfs

CPUS = "sys/devices/system/cpu"
THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)
FRAMEWORKS = ("numpy", "torch", "jax", "tensorflow")


@dataclass(frozen=True)
class Cores:
    """CPUs of this machine. `allowed` are those this process may use, in ascending order.

    `quota` is the time limit of the control group in CPUs (None: no limit); `physical` counts the
    cores behind the allowed CPUs (None: unknown, with `reason`).
    """

    logical: int
    allowed: tuple[int, ...]
    physical: int | None
    quota: float | None
    reason: str = ""


@dataclass(frozen=True)
class Cache:
    """One cache as an allowed CPU sees it; `type` is data, instruction or unified."""

    level: int
    type: str
    size_bytes: int
    shared_by: int


def _allowed(root: Path) -> tuple[int, ...]:
    listed = procfs.fields(root / "proc/self/status").get("Cpus_allowed_list")
    return procfs.number_list(listed) if listed else tuple(range(os.cpu_count() or 1))


def _siblings(cpu: int, root: Path) -> tuple[int, ...] | None:
    listed = procfs.read_text(root / CPUS / f"cpu{cpu}/topology/thread_siblings_list")
    return procfs.number_list(listed) if listed else None


def cores(root: Path = procfs.ROOT) -> Cores:
    """Return the CPUs: how many there are, which are allowed, cores behind them, quota."""
    allowed = _allowed(root)
    online = procfs.read_text(root / CPUS / "online")
    siblings = {_siblings(cpu, root) for cpu in allowed}
    has_siblings = None not in siblings
    return Cores(
        logical=len(procfs.number_list(online)) if online else os.cpu_count() or 1,
        allowed=allowed,
        physical=len(siblings) if has_siblings else None,
        quota=_cpu_quota(root),
        reason="" if has_siblings else procfs.NO_TREE,
    )


def _cpu_quota(root: Path) -> float | None:
    quotas = []
    for folder in procfs.group_folders("cpu", root):
        both = procfs.read_text(folder / "cpu.max")  # control groups of version 2
        if not both:  # version 1
            quota_text = procfs.read_text(folder / "cpu.cfs_quota_us") or ""
            period_text = procfs.read_text(folder / "cpu.cfs_period_us") or ""
            both = f"{quota_text} {period_text}"
        words = both.split()
        if len(words) != 2:
            continue
        quota_us, period_us = words
        is_unlimited = quota_us in ("max", "-1")
        if not is_unlimited:
            quotas.append(int(quota_us) / int(period_us))
    return min(quotas, default=None)


def _caches(cpu: int, root: Path) -> Iterator[tuple[int, str, int, str]]:
    """Yield level, type, bytes (0: unknown) and the sharing CPUs of a CPU's caches."""
    for index in sorted((root / CPUS / f"cpu{cpu}/cache").glob("index*")):
        level, kind, size, shared = (
            procfs.read_text(index / name) or ""
            for name in ("level", "type", "size", "shared_cpu_list")
        )
        yield int(level or 0), kind.lower(), procfs.cache_bytes(size), shared


def caches(root: Path = procfs.ROOT) -> tuple[Cache, ...] | None:
    """Return the caches seen from the first allowed CPU, nearest first; None where unknown."""
    first_cpu = _allowed(root)[0]
    cpu_caches = []
    for level, kind, size_bytes, sharing_cpus in _caches(first_cpu, root):
        if size_bytes and level:
            cpu_count = len(procfs.number_list(sharing_cpus)) or 1
            cpu_caches.append(Cache(level, kind, size_bytes, cpu_count))
    return tuple(cpu_caches) or None


def last_cache_bytes(cpus: Iterable[int], root: Path = procfs.ROOT) -> int | None:
    """Return the bytes of all last-level caches that `cpus` reach together; None where unknown."""
    sizes_bytes: dict[tuple[int, str], int] = {}  # by level and CPUs: a shared cache counts once
    for cpu in cpus:
        for level, _, size_bytes, sharing_cpus in _caches(cpu, root):
            sizes_bytes[level, sharing_cpus or str(cpu)] = size_bytes
    last_level = max((level for level, _ in sizes_bytes), default=0)
    total_bytes = sum(size for (level, _), size in sizes_bytes.items() if level == last_level)
    return total_bytes or None


def default_threads(root: Path = procfs.ROOT, processes: int = 1) -> int:
    """Return the threads of each of some processes: one a physical core, within the quota."""
    cpus = cores(root)
    threads = cpus.physical or len(cpus.allowed)
    return max(1, min(threads, int(cpus.quota or threads)) // processes)


def check_cpus(threads: int, processes: int = 1, root: Path = procfs.ROOT) -> None:
    """Raise `InputError` for less than a thread, and more than one for each allowed CPU."""
    allowed = len(_allowed(root))
    if not 1 <= threads <= allowed:
        raise InputError(f"threads: {threads} is not in 1..{allowed}, the CPUs allowed here")
    if processes * threads > allowed:
        need = f"{processes} processes x {threads} threads need {processes * threads} CPUs"
        raise InputError(f"{need}; {allowed} are allowed here")


def choose_cpus(
    threads: int, root: Path = procfs.ROOT, process: int = 0, processes: int = 1
) -> tuple[int, ...]:
    """Return `threads` allowed CPUs: different physical cores first, one socket before the next.

    They are those of one `process` of several here, which share none. Raises as `check_cpus`.
    """
    check_cpus(threads, processes, root)
    allowed = _allowed(root)

    def order(cpu: int) -> tuple[int, int, int]:
        siblings = _siblings(cpu, root) or (cpu,)
        rank = [other for other in siblings if other in allowed].index(cpu)
        package = procfs.read_text(root / CPUS / f"cpu{cpu}/topology/physical_package_id")
        return rank, int(package or "0"), cpu

    first = process * threads
    return tuple(sorted(sorted(allowed, key=order)[first : first + threads]))


def affinity(pid: int = 0) -> set[int]:
    """Return the CPUs that a process may use; of this one all, where the system cannot bind."""
    allowed: Callable[[int], set[int]] | None = getattr(os, "sched_getaffinity", None)
    return allowed(pid) if allowed else set(range(os.cpu_count() or 1))


def bind_threads(threads: int, process: int = 0, processes: int = 1) -> tuple[int, ...]:
    """Bind this process to `threads` CPUs, tell it to the libraries, and return the CPUs.

    They are no other's of the `processes` on this machine. Raises `InputError` where the system
    says that the process has not got them.

    Some libraries read the variables (OpenMP, BLAS), others count the CPUs of the affinity mask
    (XLA), and all of them once, when they are loaded: raises `RuntimeError` where one already is.
    Where the system cannot bind, only the variables are set and the answer is empty.
    """
    loaded = [name for name in FRAMEWORKS if name in sys.modules]
    if loaded:
        raise RuntimeError(f"threads must be bound before {loaded[0]} is imported")
    cpus = choose_cpus(threads, process=process, processes=processes)
    os.environ.update(dict.fromkeys(THREAD_VARIABLES, str(threads)), OMP_DYNAMIC="FALSE")
    if not hasattr(os, "sched_setaffinity"):
        return ()
    os.sched_setaffinity(0, cpus)
    bound = affinity()
    if bound != set(cpus):
        raise InputError(f"asked for the CPUs {cpus}, the system gave {tuple(sorted(bound))}")
    return cpus
