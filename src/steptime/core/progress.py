"""Progress of long work, reported to a listener that only commands set.

`note` prints a line for people at once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Lock
from typing import TYPE_CHECKING, TypeVar

from steptime.core.errors import escape_controls

if TYPE_CHECKING:
    from rich.live import Live

Item = TypeVar("Item")
Progress = Callable[[str, int, int], None]  # the noun of the parts, finished parts, all parts

REPORT_INTERVAL = 200  # items between two reports


_listener: ContextVar[Progress] = ContextVar("listener", default=lambda *_: None)


@contextmanager
def report_progress_to(progress: Progress) -> Iterator[None]:
    """Call `progress` for the work inside of the context."""
    before = _listener.set(progress)
    try:
        yield
    finally:
        _listener.reset(before)


def report_progress(noun: str, finished: int, total: int) -> None:
    """Report to the listener how many parts are finished: `tell("networks", 3, 20)`."""
    _listener.get()(noun, finished, total)


def track_progress(items: Sequence[Item], noun: str, interval: int = 0) -> Iterator[Item]:
    """Yield the items, and report progress after each `interval` of them (0: `REPORT_INTERVAL`)."""
    interval = interval or REPORT_INTERVAL
    for finished, item in enumerate(items):
        if finished and finished % interval == 0:
            report_progress(noun, finished, len(items))
        yield item


class Status:
    """A line on a terminal about the running work; the next note removes it.

    It is drawn once and again when it changes, never in between: drawing takes time from what is
    measured.
    """

    def __init__(self) -> None:
        self._live: Live | None = None
        self._lock = Lock()

    @property
    def is_visible(self) -> bool:
        """Whether the line stands on the terminal."""
        return self._live is not None

    def show(self, line: str) -> None:
        """Draw the line on stderr, in place of the line before."""
        from rich.console import Console
        from rich.live import Live
        from rich.text import Text

        text = Text(escape_controls(line), no_wrap=True, overflow="ellipsis")
        with self._lock:
            if self._live is not None:
                self._live.update(text, refresh=True)
                return
            self._live = Live(
                text,
                console=Console(stderr=True),
                auto_refresh=False,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live.start(refresh=True)

    def erase(self) -> None:
        """Remove the line, if it is shown."""
        with self._lock:
            live, self._live = self._live, None
            if live is not None:
                live.stop()


status = Status()


def print_note(line: str) -> None:
    """Print one line for people on stderr."""
    status.erase()
    sys.stderr.write(escape_controls(line) + "\n")
    sys.stderr.flush()
