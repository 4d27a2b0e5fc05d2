"""Progress on stderr: a bar with the time left on a terminal, else one line a result."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from time import monotonic
from typing import Any

from steptime.analysis.row import exchange_name, facts
from steptime.cli.output import note
from steptime.core.record import Record
from steptime.core.units import duration, seconds

BAR_WIDTH = 20
OTHER_COLUMNS = BAR_WIDTH + 40  # the bar, how many, the time left

Report = Callable[[Any, Record, int, int], None]


def line(record: Record) -> str:
    """Give one result as a line: the network, and its median time or what went wrong."""
    workload = record.workload
    name = f"{workload.label} batch {workload.batch_per_replica} {workload.phase} {workload.dtype}"
    if workload.plan.data > 1:
        name += f", {workload.plan.data} replicas{exchange_name(facts(record))}"
    if record.status != "ok":
        return f"{name}: {record.status} ({record.cause}): {record.note}"
    return f"{name}: {_found(record)} a step"


def _found(record: Record) -> str:
    if record.status != "ok":
        return record.status
    return seconds(median(record.quantities["step_s"].samples))


@contextmanager
def reporter() -> Iterator[Report]:
    """Give the function that a sweep calls after each measurement."""
    began = monotonic()

    def left(done: int, total: int) -> str:
        return duration((monotonic() - began) / done * (total - done))

    if not sys.stderr.isatty():

        def say(_: Any, record: Record, done: int, total: int) -> None:
            note(f"[{done}/{total}, {left(done, total)} left] {line(record)}")

        yield say
        return

    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    console = Console(stderr=True)
    columns = (
        BarColumn(bar_width=BAR_WIDTH),
        TextColumn("{task.completed}/{task.total}"),
        TextColumn("{task.fields[left]} left"),
        TextColumn("{task.description}", markup=False),
    )
    # drawn after each result alone: a bar that moves by itself takes time from what is measured
    with Progress(*columns, console=console, transient=True, auto_refresh=False) as bar:
        task = bar.add_task("starting", total=None, left="?")
        bar.refresh()

        def show(_: Any, record: Record, done: int, total: int) -> None:
            if record.status != "ok":
                console.print(line(record), markup=False, highlight=False)
            bar.update(
                task,
                total=total,
                completed=done,
                description=f"{_found(record)}  {line(record)}"[: console.width - OTHER_COLUMNS],
                left=left(done, total),
            )
            bar.refresh()

        yield show
