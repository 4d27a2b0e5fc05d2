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


def _read_allowed_cpus(root: Path) -> tuple[int, ...]:
    cpu_list = procfs.fields(root / "proc/self/status").get("Cpus_allowed_list")
    return procfs.number_list(cpu_list) if cpu_list else tuple(range(os.cpu_count() or 1))


def _read_thread_siblings(cpu: int, root: Path) -> tuple[int, ...] | None:
    cpu_list = procfs.read_text(root / CPUS / f"cpu{cpu}/topology/thread_siblings_list")
    return procfs.number_list(cpu_list) if cpu_list else None


def cores(root: Path = procfs.ROOT) -> Cores:
    """Return the CPUs: how many there are, which are allowed, cores behind them, quota."""
    allowed = _read_allowed_cpus(root)
    online = procfs.read_text(root / CPUS / "online")
    # CPUs of one core (hyper-threads) have the same list of siblings: a list is a physical core.
    siblings = {_read_thread_siblings(cpu, root) for cpu in allowed}
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
        quota_and_period = procfs.read_text(folder / "cpu.max")  # control groups of version 2
        if not quota_and_period:  # version 1
            quota_text = procfs.read_text(folder / "cpu.cfs_quota_us") or ""
            period_text = procfs.read_text(folder / "cpu.cfs_period_us") or ""
            quota_and_period = f"{quota_text} {period_text}"
        words = quota_and_period.split()
        if len(words) != 2:  # the group has no such file
            continue
        quota_us, period_us = words  # CPU time that the group may use in each period
        is_unlimited = quota_us in ("max", "-1")
        if not is_unlimited:
            quotas.append(int(quota_us) / int(period_us))
    return min(quotas, default=None)  # the strictest of the nested groups holds


def _read_cpu_caches(cpu: int, root: Path) -> Iterator[tuple[int, str, int, str]]:
    """Yield level, type, bytes (0: unknown) and the sharing CPUs of a CPU's caches."""
    for index in sorted((root / CPUS / f"cpu{cpu}/cache").glob("index*")):
        level, kind, size, sharing_cpus = (
            procfs.read_text(index / name) or ""
            for name in ("level", "type", "size", "shared_cpu_list")
        )
        yield int(level or 0), kind.lower(), procfs.cache_bytes(size), sharing_cpus


def caches(root: Path = procfs.ROOT) -> tuple[Cache, ...] | None:
    """Return the caches seen from the first allowed CPU, nearest first; None where unknown."""
    first_cpu = _read_allowed_cpus(root)[0]
    cpu_caches = []
    for level, kind, size_bytes, sharing_cpus in _read_cpu_caches(first_cpu, root):
        if size_bytes and level:
            cpu_count = len(procfs.number_list(sharing_cpus)) or 1
            cpu_caches.append(Cache(level, kind, size_bytes, cpu_count))
    return tuple(cpu_caches) or None


def last_cache_bytes(cpus: Iterable[int], root: Path = procfs.ROOT) -> int | None:
    """Return the bytes of all last-level caches that `cpus` reach together; None where unknown."""
    # By level and sharing CPUs, so that a shared cache counts once.
    bytes_of_cache: dict[tuple[int, str], int] = {}
    for cpu in cpus:
        for level, _, size_bytes, sharing_cpus in _read_cpu_caches(cpu, root):
            bytes_of_cache[level, sharing_cpus or str(cpu)] = size_bytes
    last_level = max((level for level, _ in bytes_of_cache), default=0)
    total_bytes = sum(
        size_bytes for (level, _), size_bytes in bytes_of_cache.items() if level == last_level
    )
    return total_bytes or None


def default_threads(root: Path = procfs.ROOT, processes: int = 1) -> int:
    """Return the threads of each of some processes: one a physical core, within the quota."""
    cpus = cores(root)
    threads = cpus.physical or len(cpus.allowed)  # the cores are unknown without /sys
    return max(1, min(threads, int(cpus.quota or threads)) // processes)


def check_cpus(threads: int, processes: int = 1, root: Path = procfs.ROOT) -> None:
    """Raise `InputError` for less than a thread, and more than one for each allowed CPU."""
    allowed_count = len(_read_allowed_cpus(root))
    if not 1 <= threads <= allowed_count:
        raise InputError(f"threads: {threads} is not in 1..{allowed_count}, the CPUs allowed here")
    if processes * threads > allowed_count:
        need = f"{processes} processes x {threads} threads need {processes * threads} CPUs"
        raise InputError(f"{need}; {allowed_count} are allowed here")


def choose_cpus(
    threads: int, root: Path = procfs.ROOT, process: int = 0, processes: int = 1
) -> tuple[int, ...]:
    """Return `threads` allowed CPUs: different physical cores first, one socket before the next.

    They are those of one `process` of several here, which share none. Raises as `check_cpus`.
    """
    check_cpus(threads, processes, root)
    allowed = _read_allowed_cpus(root)

    # First one hyper-thread of each core, then the second ones; within these by socket.
    def sort_key(cpu: int) -> tuple[int, int, int]:
        siblings = _read_thread_siblings(cpu, root) or (cpu,)
        allowed_siblings = [sibling for sibling in siblings if sibling in allowed]
        thread_of_core = allowed_siblings.index(cpu)
        socket = procfs.read_text(root / CPUS / f"cpu{cpu}/topology/physical_package_id")
        return thread_of_core, int(socket or "0"), cpu

    preferred_cpus = sorted(allowed, key=sort_key)
    start = process * threads  # the CPUs before belong to the earlier processes
    return tuple(sorted(preferred_cpus[start : start + threads]))


def affinity(pid: int = 0) -> set[int]:
    """Return the CPUs that a process may use; of this one all, where the system cannot bind."""
    get_affinity: Callable[[int], set[int]] | None = getattr(os, "sched_getaffinity", None)
    return get_affinity(pid) if get_affinity else set(range(os.cpu_count() or 1))


def bind_threads(threads: int, process: int = 0, processes: int = 1) -> tuple[int, ...]:
    """Bind this process to `threads` CPUs, tell it to the libraries, and return the CPUs.

    They are no other's of the `processes` on this machine. Raises `InputError` where the system
    says that the process has not got them.

    Some libraries read the variables (OpenMP, BLAS), others count the CPUs of the affinity mask
    (XLA), and all of them once, when they are loaded: raises `RuntimeError` where one already is.
    Where the system cannot bind, only the variables are set and the answer is empty.
    """
    loaded_frameworks = [name for name in FRAMEWORKS if name in sys.modules]
    if loaded_frameworks:
        # Libraries read the variables and the mask of CPUs once, when they are loaded.
        raise RuntimeError(f"threads must be bound before {loaded_frameworks[0]} is imported")
    cpus = choose_cpus(threads, process=process, processes=processes)
    os.environ.update(dict.fromkeys(THREAD_VARIABLES, str(threads)), OMP_DYNAMIC="FALSE")
    if not hasattr(os, "sched_setaffinity"):  # macOS, Windows: nothing is bound
        return ()
    os.sched_setaffinity(0, cpus)
    bound_cpus = affinity()
    if bound_cpus != set(cpus):
        raise InputError(f"asked for the CPUs {cpus}, the system gave {tuple(sorted(bound_cpus))}")
    return cpus
