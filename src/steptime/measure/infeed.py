"""How long steps wait for their input, by the host's clock."""

from collections.abc import Callable
from time import perf_counter


class Stopwatch:
    """Seconds spent in what it times, the device (`sync`) waited for before and after."""

    def __init__(
        self, sync: Callable[[], object] = lambda: None, clock: Callable[[], float] = perf_counter
    ) -> None:
        self._sync, self._clock, self._spent_s = sync, clock, 0.0

    def timed(self, run: Callable[[], None]) -> Callable[[], None]:
        """Return `run` on this watch."""

        def timed() -> None:
            self._sync()
            began = self._clock()
            run()
            self._sync()
            self._spent_s += self._clock() - began

        return timed

    def read(self) -> float:
        """Return the seconds since the last reading."""
        since, self._spent_s = self._spent_s, 0.0
        return since


def clocked(
    take: Callable[[], None], clock: Callable[[], float] = perf_counter
) -> tuple[Callable[[], None], Callable[[], float]]:
    """Return `take` on a clock, and what gives the seconds spent in it since last asked."""
    watch = Stopwatch(clock=clock)
    return watch.timed(take), watch.read


def in_turn(*calls: Callable[[], None] | None) -> Callable[[], None]:
    """Return the step that makes these calls one after the other, such as taking its input."""
    several = [call for call in calls if call]
    if len(several) == 1:
        return several[0]

    def step() -> None:
        for call in several:
            call()

    return step
