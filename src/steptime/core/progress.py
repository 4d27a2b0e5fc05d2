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


def note(line: str) -> None:
    """Print one line for people on stderr."""
    sys.stderr.write(one_line(line) + "\n")
    sys.stderr.flush()
