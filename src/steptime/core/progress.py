"""How far long work has come: told to whoever listens, which nobody does but a command.

`note` says a line to people at once.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

from steptime.core.errors import one_line

Item = TypeVar("Item")
Progress = Callable[[str, int, int], None]  # what is done, and how many parts of how many

EVERY = 200  # items are told of together
ERASE_LINE = "\r\x1b[K"  # moves a terminal's cursor to the begin of the line and clears the rest


_listener: ContextVar[Progress] = ContextVar("listener", default=lambda *_: None)


@contextmanager
def listening(progress: Progress) -> Iterator[None]:
    """Tell `progress` of the work inside."""
    before = _listener.set(progress)
    try:
        yield
    finally:
        _listener.reset(before)


def tell(what: str, done: int, total: int) -> None:
    """Tell the listener that so many parts of so many are done."""
    _listener.get()(what, done, total)


def watched(items: Sequence[Item], what: str, every: int = 0) -> Iterator[Item]:
    """Yield the items, and tell the listener now and then, `every` so many, how many are done."""
    every = every or EVERY
    for done, item in enumerate(items):
        if done and done % every == 0:
            tell(what, done, len(items))
        yield item


class Status:
    """A line on a terminal that says what a command does; the next note replaces it."""

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
