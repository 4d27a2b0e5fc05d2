"""A submitted sweep: where its cells stand, what ends them, and records for the lost ones."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from steptime.core.errors import InputError
from steptime.core.progress import note
from steptime.core.question import argument, question
from steptime.core.table import Answer, Table, columns
from steptime.records import store
from steptime.sweeps.cluster import status as cluster
from steptime.sweeps.cluster import submission

MOST_SHOWN = 20  # rows of a table
MOST_NOTED = 100  # characters of a note in it
Where = Annotated[Path, argument("DIR", "The folder of a submitted sweep.")]


def check_submitted(folder: Path) -> None:
    """Raise `InputError` for a folder from which nothing was submitted."""
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder")
    if not submission.folders(folder):
        raise InputError(f"{folder}: nothing was submitted from here (sweep --launcher slurm)")


@question()
def status(folder: Where) -> Answer:
    """Show where the cells of a submitted sweep stand, and why."""
    check_submitted(folder)
    document = cluster.status(folder, note)
    counts = ", ".join(f"{document[word]} {word}" for word in cluster.WORDS if document[word])
    older = []
    if document["older"]:
        said = f"{document['older']} more are of the experiment as it was before"
        older.append(f"! {said}; they are not counted")
    failed = []
    for row in document["unsuccessful"]:
        said, beyond = row["note"][:MOST_NOTED], row["note"][MOST_NOTED:]
        failed.append({**row, "note": f"{said}..." if beyond else said})
    jobs = Table(
        columns("job", "state", "text=why or where", "cells_left=cells left"),
        document["jobs"],
        most=MOST_SHOWN,
    )
    always = ("status", "cause", "gpu", "?staging", "model", "batch")
    after = ("note", "again=tried again by")
    apart = {"id", "note", "again", *(name.lstrip("?") for name in always)}
    more = [key for key in failed[0] if key not in apart and differs(failed, key)] if failed else []
    cells = Table(columns(*always, *more, *after), failed, most=MOST_SHOWN)
    return Answer(
        document,
        [table for table in (jobs, cells) if table.rows],
        before=[f"{folder}: {document['cells']} cells: {counts or 'none'}", *older],
    )


def differs(rows: Sequence[Mapping[str, Any]], name: str) -> bool:
    """Whether a column tells rows apart."""
    return len({str(row[name]) for row in rows}) > 1


@question()
def collect(folder: Where) -> Answer:
    """Write a record of every cell whose job is over without one."""
    check_submitted(folder)
    with store.exclusive(folder):
        written = cluster.collect(folder, note)
    causes = Counter(record.cause for record in written)
    why = ", ".join(f"{n} {cause}" for cause, n in causes.items())
    return Answer(
        {"out": str(folder), "written": len(written), "causes": dict(causes)},
        notes=[f"{folder}: {len(written)} cells lost by their jobs" + (f": {why}" if why else "")],
    )


@question()
def cancel(folder: Where) -> Answer:
    """Cancel the jobs of a submitted sweep that wait or run."""
    check_submitted(folder)
    jobs = cluster.cancel(folder)
    what = f"cancelled {', '.join(jobs)}" if jobs else "no job waits or runs"
    return Answer({"out": str(folder), "cancelled": jobs}, notes=[f"{folder}: {what}"])
