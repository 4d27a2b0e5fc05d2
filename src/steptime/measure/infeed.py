"""How long steps wait for their input, by the host's clock, and what ends their waiting."""

import re
from collections.abc import Callable
from time import perf_counter

from steptime.measure.contract import KilledError

HOST_CLOCK = "host's clock, from asking for the batch to the end of its copy"


def clocked(
    take: Callable[[], None], clock: Callable[[], float] = perf_counter
) -> tuple[Callable[[], None], Callable[[], float]]:
    """Return `take` on a clock, and what gives the seconds spent in it since last asked."""
    spent_s = 0.0

    def timed() -> None:
        nonlocal spent_s
        began = clock()
        take()
        spent_s += clock() - began

    def waited() -> float:
        nonlocal spent_s
        since, spent_s = spent_s, 0.0
        return since

    return timed, waited


_LOADER_DEATH = re.compile(r"DataLoader worker \(pid.*\) (is killed by signal: K|exited unexpect)")


def loader_death(error: Exception) -> KilledError | None:
    """Return what an error of PyTorch says of a loader that was killed; None where nothing."""
    found = _LOADER_DEATH.search(str(error))
    return KilledError("a loader ended with exit code -9") if found else None
