"""The workers of a sweep: one at a time, kept as long as cells can share it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from steptime.core.errors import InputError
from steptime.core.record import Method
from steptime.launch.local import Worker
from steptime.measure import cpus, ranks
from steptime.measure.contract import Options, method
from steptime.sweep.cells import Cell

Where = tuple[str, Options, int]  # backend, what its processes are told, how many there are


def where(cell: Cell) -> Where:
    """Give what the processes of a cell are started for."""
    backend, options = cell.worker_key
    replicas = cell.workload.plan.data
    if replicas > 1 and options.threads is None:
        options = replace(options, threads=cpus.default_threads(processes=replicas))
    return backend, options, replicas


@dataclass(frozen=True)
class Place:
    """Where cells of one backend and its options run: the greeting of its worker."""

    platform: str
    version: str
    memory_bytes: int | None
    threads: int

    def method(self, cell: Cell, runs: int) -> Method:
        """Give the method that records of `cell` carry here."""
        options = replace(cell.options, threads=self.threads)
        return method(cell.backend, self.version, options, runs)


def place_of(worker: Worker) -> Place:
    """Give the place that a worker's greeting says."""
    greeting = worker.greeting
    return Place(
        greeting["platform"], greeting["version"], greeting["memory_bytes"], greeting["threads"]
    )


class Workers:
    """At most one live worker, for one backend and its options; replaced after a death.

    Several replicas are as many processes on this machine; where a launcher (torchrun, srun) has
    started this process once for each, it has the worker of its own rank, and every rank must make
    the same calls. Only the rank that `leads` gets samples and keeps records.
    """

    def __init__(self) -> None:
        self._worker: Worker | None = None
        self._place: tuple[str, Options, int] | None = None
        self._places: dict[Where, Place] = {}
        self._rank = ranks.here()
        self._started = 0

    @property
    def leads(self) -> bool:
        """Whether records of this process are to be kept."""
        return self._rank.leads

    @property
    def joined(self) -> bool:
        """Whether a launcher started this process as one of several."""
        return self._rank.size > 1

    @property
    def name(self) -> str:
        """Which rank this is, for people."""
        return f"rank {self._rank.rank}"

    def get(self, backend: str, options: Options, replicas: int = 1, fresh: bool = False) -> Worker:
        """Give a worker for this place, a new process if `fresh` or if the place changed.

        Raises `InputError` where a launcher started another number of processes.
        """
        place = backend, options.of_process, replicas
        if fresh or self._place != place or self._worker is None:
            self.close()
            self._worker, self._place = self._start(*place), place
        return self._worker

    def place(self, cell: Cell) -> Place:
        """Give where a cell would run, as one process there tells of itself."""
        backend, options, replicas = where(cell)
        key = backend, options, replicas if self._rank.size > 1 else 1
        if key not in self._places:
            self._places[key] = place_of(self.get(*key))
        return self._places[key]

    def _start(self, backend: str, options: Options, replicas: int) -> Worker:
        size = self._rank.size
        if size == 1:
            if replicas > 1:
                threads = options.threads or cpus.default_threads(processes=replicas)
                cpus.check_cpus(threads, replicas)
            return Worker(backend, options, replicas)
        if replicas != size:
            raise InputError(f"{replicas} replicas, but the launcher started {size} processes")
        self._started += 1
        return Worker(backend, options, variables={ranks.ATTEMPT: str(self._started)})

    def close(self) -> None:
        """End the worker, if there is one."""
        if self._worker is not None:
            self._worker.close()
        self._worker = self._place = None
