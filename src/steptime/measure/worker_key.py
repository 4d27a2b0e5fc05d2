"""What tells the records of one place from those of another, known before its worker starts."""

from dataclasses import dataclass

from steptime.measure import cpus, machine, ranks, registry
from steptime.measure.contract import Options


@dataclass(frozen=True)
class WorkerKey:
    """Platform and framework version of a worker's records, its threads, and its memory.

    `memory_bytes` is what a network may take there: an accelerator's memory, or what of the
    host's can still be used; None is unknown.
    """

    platform: str
    version: str
    memory_bytes: int | None
    threads: int


def worker_key(backend: str, options: Options) -> WorkerKey | None:
    """Return the key of a worker that was not started; None where only the worker itself knows it.

    That is so on an accelerator, under a launcher of several processes, and where the framework is
    not installed. Raises `InputError` for an unknown backend and threads that are not here.
    """
    version = registry.version(backend)
    if options.device != "cpu" or version is None or ranks.here().size > 1:
        return None
    threads = options.threads or cpus.default_threads()
    cpus.check_cpus(threads)
    platform = machine.platform_name(options.device, machine.cpu_model(), threads)
    return WorkerKey(platform, version, machine.memory().usable_bytes, threads)
