"""How long steps wait for their input, by the host's clock."""

from collections.abc import Callable
from time import perf_counter


class Stopwatch:
    """Seconds spent in what it times, the device (`sync`) waited for before and after."""

    def __init__(
        self, sync: Callable[[], object] = lambda: None, clock: Callable[[], float] = perf_counter
    ) -> None:
        self._sync, self._clock, self._spent_s = sync, clock, 0.0

    def wrap(self, run: Callable[[], None]) -> Callable[[], None]:
        """Return `run` on this watch."""

        def timed_run() -> None:
            self._sync()  # earlier work of the device does not count
            start_s = self._clock()
            run()
            self._sync()
            self._spent_s += self._clock() - start_s

        return timed_run

    def read(self) -> float:
        """Return the seconds since the last reading."""
        spent_s, self._spent_s = self._spent_s, 0.0
        return spent_s


def time_input(
    take_input: Callable[[], None], clock: Callable[[], float] = perf_counter
) -> tuple[Callable[[], None], Callable[[], float]]:
    """Return `take_input` on a clock, and what gives the seconds spent in it since last asked."""
    watch = Stopwatch(clock=clock)
    return watch.wrap(take_input), watch.read


def chain_calls(*calls: Callable[[], None] | None) -> Callable[[], None]:
    """Return the step that makes these calls one after the other, such as taking its input."""
    present_calls = [call for call in calls if call]
    if len(present_calls) == 1:
        return present_calls[0]

    def step() -> None:
        for call in present_calls:
            call()

    return step
