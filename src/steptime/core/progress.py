"""Progress of long work, reported to a listener that only commands set.

`note` prints a line for people at once.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

from steptime.core.errors import one_line

Item = TypeVar("Item")
Progress = Callable[[str, int, int], None]  # the noun of the parts, finished parts, all parts

REPORT_INTERVAL = 200  # items between two reports
ERASE_LINE = "\r\x1b[K"  # moves a terminal's cursor to the begin of the line and clears the rest


_listener: ContextVar[Progress] = ContextVar("listener", default=lambda *_: None)


@contextmanager
def listening(progress: Progress) -> Iterator[None]:
    """Call `progress` for the work inside of the context."""
    before = _listener.set(progress)
    try:
        yield
    finally:
        _listener.reset(before)


def tell(noun: str, finished: int, total: int) -> None:
    """Report to the listener how many parts are finished: `tell("networks", 3, 20)`."""
    _listener.get()(noun, finished, total)


def watched(items: Sequence[Item], noun: str, interval: int = 0) -> Iterator[Item]:
    """Yield the items, and report progress after each `interval` of them (0: `REPORT_INTERVAL`)."""
    interval = interval or REPORT_INTERVAL
    for finished, item in enumerate(items):
        if finished and finished % interval == 0:
            tell(noun, finished, len(items))
        yield item


class Status:
    """A line on a terminal about the running work; the next note replaces it."""

    def __init__(self) -> None:
        self.is_shown = False

    def show(self, line: str) -> None:
        """Write the line on stderr; the cursor stays behind it."""
        self.is_shown = True
        sys.stderr.write(one_line(line))
        sys.stderr.flush()

    def erase(self) -> None:
        """Erase the line, if it is shown."""
        if self.is_shown:
            self.is_shown = False
            sys.stderr.write(ERASE_LINE)
            sys.stderr.flush()


status = Status()


def note(line: str) -> None:
    """Print one line for people on stderr."""
    status.erase()
    sys.stderr.write(one_line(line) + "\n")
    sys.stderr.flush()
