"""How long steps wait for their input, by the host's clock."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

HOST_CLOCK = "host's clock, from asking for the batch to the end of its copy"


def clocked(
    take: Callable[[], None], clock: Callable[[], float] = perf_counter
) -> tuple[Callable[[], None], Callable[[], float]]:
    """Give `take` on a clock, and what gives the seconds spent in it since that was last asked."""
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
