"""Progress on stderr: a line that is redrawn on a terminal, else one line a result."""

import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from time import monotonic

from steptime.core.errors import escape_controls
from steptime.core.progress import note, status
from steptime.core.units import duration, seconds
from steptime.records.record import Record
from steptime.records.row import exchange_name

BAR_WIDTH = 20
ERASE = "\r\x1b[K"  # to the beginning of the line, and nothing behind

Report = Callable[[Record, int, int], None]


def line(record: Record) -> str:
    """Return one result as a line: the network, and its median time or what went wrong."""
    workload, options = record.workload, record.method.options
    name = f"{workload.label} batch {workload.batch_per_replica} {workload.phase} {workload.dtype}"
    if workload.plan.data > 1:
        exchange = exchange_name(options.get("strategy"), options.get("overlap", True))
        name += f", {workload.plan.data} replicas{exchange}"
    if record.status != "ok":
        return f"{name}: {record.status} ({record.cause}): {record.note}"
    return f"{name}: {seconds(median(record.quantities['step_s'].samples))} a step"


def bar(number: int, total: int, left: str, last: str, width: int) -> str:
    """Return a bar of progress and the last result, in at most `width` columns."""
    full = BAR_WIDTH * number // total
    text = f"[{'#' * full}{' ' * (BAR_WIDTH - full)}] {number}/{total} {left} left  {last}"
    return text[: width - 1]


@contextmanager
def reporter() -> Iterator[Report]:
    """Yield the function that a sweep calls after each measurement.

    Nothing moves in between: drawing takes time from what is measured.
    """
    began = monotonic()
    terminal = sys.stderr.isatty()

    def show(record: Record, number: int, total: int) -> None:
        status.erase()
        left = duration((monotonic() - began) / number * (total - number))
        if not terminal:
            note(f"[{number}/{total}, {left} left] {line(record)}")
            return
        if record.status != "ok":
            sys.stderr.write(ERASE)
            note(line(record))
        width = shutil.get_terminal_size().columns
        sys.stderr.write(ERASE + escape_controls(bar(number, total, left, line(record), width)))
        sys.stderr.flush()

    try:
        yield show
    finally:
        if terminal:
            sys.stderr.write(ERASE)
            sys.stderr.flush()
