"""A clock of the host that moves only when a test says, whatever the load of the machine."""

from __future__ import annotations


class SteppedClock:
    """A clock of which a reading takes 0.1 ms, and else only what a test says."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def read(self) -> float:
        self.now_s += 1e-4
        return self.now_s

    def wait(self, seconds: float) -> None:
        self.now_s += seconds
