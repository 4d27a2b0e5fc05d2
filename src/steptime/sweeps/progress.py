"""Progress on stderr: a line that is redrawn on a terminal, else one line a result."""

import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from time import monotonic

from steptime.core.errors import escape_controls
from steptime.core.progress import print_note, status
from steptime.core.units import format_duration, format_seconds
from steptime.records.record import Record
from steptime.records.row import exchange_name

BAR_WIDTH = 20
ERASE = "\r\x1b[K"  # to the beginning of the line, and nothing behind

Report = Callable[[Record, int, int], None]


def line(record: Record) -> str:
    """Return one result as a line: the network, and its median time or what went wrong."""
    workload = record.workload
    name = f"{workload.label} batch {workload.batch_per_replica} {workload.phase} {workload.dtype}"
    if workload.plan.data > 1:
        options = record.method.options
        strategy = exchange_name(options.get("strategy"), options.get("overlap", True))
        name += f", {workload.plan.data} replicas{strategy}"
    if record.status != "ok":
        return f"{name}: {record.status} ({record.cause}): {record.note}"
    step_s = median(record.quantities["step_s"].samples)
    return f"{name}: {format_seconds(step_s)} a step"


def bar(number: int, total: int, left: str, last: str, width: int) -> str:
    """Return a bar of progress and the last result, in at most `width` columns."""
    filled_width = BAR_WIDTH * number // total
    marks = "#" * filled_width + " " * (BAR_WIDTH - filled_width)
    text = f"[{marks}] {number}/{total} {left} left  {last}"
    return text[: width - 1]


@contextmanager
def reporter() -> Iterator[Report]:
    """Yield the function that a sweep calls after each measurement.

    Nothing moves in between: drawing takes time from what is measured.
    """
    start_s = monotonic()
    is_terminal = sys.stderr.isatty()

    def show(record: Record, number: int, total: int) -> None:
        status.erase()
        mean_s = (monotonic() - start_s) / number  # of a record
        left = format_duration(mean_s * (total - number))
        result = line(record)
        if not is_terminal:
            print_note(f"[{number}/{total}, {left} left] {result}")
            return
        if record.status != "ok":  # it stays above the bar
            sys.stderr.write(ERASE)
            print_note(result)
        width = shutil.get_terminal_size().columns
        sys.stderr.write(ERASE + escape_controls(bar(number, total, left, result, width)))
        sys.stderr.flush()

    try:
        yield show
    finally:
        if is_terminal:
            sys.stderr.write(ERASE)
            sys.stderr.flush()
