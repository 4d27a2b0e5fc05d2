"""The workers of a sweep: one at a time, kept as long as cells can share it."""

from dataclasses import dataclass, replace
from functools import cache

from steptime.core.errors import InputError
from steptime.measure import cpus, machine, ranks, registry
from steptime.measure.contract import Options
from steptime.measure.launch import Worker
from steptime.sweeps.cells import Cell, Processes


@dataclass(frozen=True)
class WorkerKey:
    """The key of the records of one place: platform, framework version, threads.

    `memory_bytes` is the memory that a network may take there: an accelerator's, or the usable part
    of the host's; None is unknown.
    """

    platform: str
    version: str
    memory_bytes: int | None
    threads: int


def worker_key(backend: str, options: Options) -> WorkerKey | None:
    """Return the key of a worker that was not started; None where only that itself knows it."""
    version = registry.version(backend)
    is_cpu = options.device == "cpu"  # only a worker knows the name of its accelerator
    has_several_ranks = ranks.find_rank().size > 1
    if not is_cpu or version is None or has_several_ranks:
        return None
    threads = options.threads or cpus.default_threads()
    cpus.check_cpus(threads)
    platform = machine.platform_name(options.device, machine.cpu_model(), threads)
    return WorkerKey(platform, version, machine.memory().usable_bytes, threads)


def key_of(worker: Worker) -> WorkerKey:
    """Return the key that a worker's greeting says."""
    return WorkerKey(**{name: worker.greeting[name] for name in WorkerKey.__dataclass_fields__})


class Workers:
    """At most one live worker, for one backend and its options; replaced after a death.

    Several replicas are as many processes on this machine; where a launcher (torchrun, srun) has
    started this process once for each, it has the worker of its own rank, and every rank must make
    the same calls. Only rank 0 gets samples and keeps records.
    """

    def __init__(self) -> None:
        self._worker: Worker | None = None
        self._processes: Processes | None = None
        self._keys: dict[Processes, WorkerKey] = {}
        self._usual = cache(lambda many: cpus.default_threads(processes=many))
        self.rank = ranks.find_rank()
        self._started = 0

    def get(self, backend: str, options: Options, replicas: int = 1, fresh: bool = False) -> Worker:
        """Return the worker of these processes, a new one if `fresh` or if they are others.

        Raises `InputError` where a launcher started another number of processes.
        """
        processes = backend, options.process_options, replicas
        has_changed = self._processes != processes
        if fresh or has_changed or self._worker is None:
            self.close()
            self._worker = self._start(*processes)
            self._processes = processes
        return self._worker

    def with_threads(self, cell: Cell) -> Cell:
        """Return the cell with the threads of each of its processes, where it says none."""
        if cell.options.threads is not None:
            return cell
        threads = self._usual(cell.workload.plan.data)
        return replace(cell, options=replace(cell.options, threads=threads))

    def key(self, cell: Cell) -> WorkerKey:
        """Return the key of a settled cell's records; a worker is asked if need be."""
        backend, options, replicas = cell.process
        # The key does not depend on the number of replicas, and one process starts faster than
        # several; but under a launcher every rank has to start its worker.
        is_launched = self.rank.size > 1
        process_count = replicas if is_launched else 1
        processes = backend, options, process_count
        if processes not in self._keys:
            key = worker_key(backend, options) or key_of(self.get(*processes))
            self._keys[processes] = key
        return self._keys[processes]

    def _start(self, backend: str, options: Options, replicas: int) -> Worker:
        if self.rank.size == 1:  # no launcher: the worker itself starts a process for each replica
            if replicas > 1:
                cpus.check_cpus(options.threads or 1, replicas)
            return Worker(backend, options, replicas)
        if replicas != self.rank.size:
            started = f"the launcher started {self.rank.size} processes"
            raise InputError(f"{replicas} replicas, but {started}")
        # The ranks of a new process group find each other by the number of the attempt, so that
        # none joins an older group.
        self._started += 1
        return Worker(backend, options, variables={ranks.ATTEMPT: str(self._started)})

    def close(self) -> None:
        """End the worker, if there is one."""
        if self._worker is not None:
            self._worker.close()
        self._worker = self._processes = None
