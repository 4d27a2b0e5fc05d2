"""The questions about a submitted sweep: where its cells stand, their lost records, their end."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from steptime.core.answer import Answer, AnswerRow
from steptime.core.causes import retry_of
from steptime.core.errors import InputError
from steptime.core.progress import print_note
from steptime.core.tables.table import Column, Table
from steptime.questions import kinds
from steptime.records import store
from steptime.sweeps.cell_rows import (
    CauseCount,
    CellRow,
    StatusCount,
    column_differs,
    count_causes,
    count_statuses,
    make_cell_row,
)
from steptime.sweeps.cluster import status as cluster
from steptime.sweeps.cluster import submission
from steptime.sweeps.cluster.jobs import QueuedTask
from steptime.sweeps.cluster.status import CellState, Snapshot

MAX_TABLE_ROWS = 20
MAX_NOTE_CHARACTERS = 100  # of a note in a table
JOB_COLUMNS = (
    Column("job"),
    Column("state"),
    Column("text", "reason or node"),
    Column("cells_left", "cells left"),
)
CELL_COLUMNS = (
    Column("status"),
    Column("cause"),
    Column("gpu"),
    Column("staging", is_spare=True),
    Column("model"),
    Column("batch"),
)  # those of every table
NOTE_COLUMNS = (Column("note"), Column("retried_by", "tried again by"))
NO_COLUMNS = ("id", "note", "retried_by", "status", "cause", "gpu", "staging", "model", "batch")


class TaskState(AnswerRow, frozen=True, kw_only=True):
    """A task of a job that waits or runs.

    Attributes:
        job: Slurm's name of the task.
        state: Slurm's word for its state.
        text: why it waits, or where it runs.
        cells_left: cells that it has still to measure.
    """

    job: str
    state: str
    text: str
    cells_left: int


class EndedCell(CellRow, frozen=True, kw_only=True):
    """A cell that has no number.

    Attributes:
        status: oom, timeout, unsupported or failed.
        cause: the cause: a word of the table of causes in docs/sweeps.md.
        note: the cause in a sentence.
        retried_by: the command that tries it again.
    """

    status: str
    cause: str
    note: str
    retried_by: str


class StatusAnswer(Answer, frozen=True, kw_only=True):
    """Where the cells of a submitted sweep stand.

    Attributes:
        out: the folder of the sweep.
        cells: cells of the experiment as it was last submitted.
        queued: cells that wait.
        running: cells that are measured now.
        finished: cells with a final record.
        failed: cells that ended without a number and would be tried again.
        unsent: cells that Slurm did not take.
        older: cells of an earlier state of the experiment, which no other count holds.
        cells_by_status: number of ended cells of each status.
        cells_by_cause: number of cells without a number of each cause.
        jobs: the tasks that wait or run.
        unsuccessful: the cells that ended without a number.
        headline: the folder with the number of cells in each state.
        notes: remarks that change how the answer is read.
    """

    out: str
    cells: int
    queued: int
    running: int
    finished: int
    failed: int
    unsent: int
    older: int
    cells_by_status: tuple[StatusCount, ...]
    cells_by_cause: tuple[CauseCount, ...]
    jobs: tuple[TaskState, ...]
    unsuccessful: tuple[EndedCell, ...]
    headline: tuple[str, ...]
    notes: tuple[str, ...]

    def tables(self) -> list[Table]:
        """Return the tasks that wait or run, and the cells without a number."""
        job_rows = [job.to_dict() for job in self.jobs]
        job_table = Table(JOB_COLUMNS, job_rows, max_rows=MAX_TABLE_ROWS)
        tables = (job_table, _make_cell_table(self.unsuccessful))
        return [table for table in tables if table.rows]


def _make_cell_table(cells: Sequence[EndedCell]) -> Table:
    """Return the cells without a number, with a column of each setting in which they differ."""
    differing = [
        Column(name)
        for name in EndedCell.__struct_fields__
        if name not in NO_COLUMNS and column_differs(cells, name)
    ]
    columns = (*CELL_COLUMNS, *differing, *NOTE_COLUMNS)
    rows = [cell.to_dict() | {"note": _shorten(cell.note)} for cell in cells]
    return Table(columns, rows, max_rows=MAX_TABLE_ROWS)


class CollectAnswer(Answer, frozen=True, kw_only=True):
    """The records that were written for cells whose jobs ended without them.

    Attributes:
        out: the folder of the sweep.
        records: number of records that were written.
        cells_by_cause: number of cells that got a record, for each cause.
        headline: the main numbers in words.
    """

    out: str
    records: int
    cells_by_cause: tuple[CauseCount, ...]
    headline: tuple[str, ...]


class CancelAnswer(Answer, frozen=True, kw_only=True):
    """The jobs that were cancelled.

    Attributes:
        out: the folder of the sweep.
        cancelled: Slurm's names of the jobs that were cancelled.
        headline: the main numbers in words.
    """

    out: str
    cancelled: tuple[str, ...]
    headline: tuple[str, ...]


def status(folder: kinds.Folder) -> StatusAnswer:
    """Show where the cells of a submitted sweep stand, and why.

    Args:
        folder: The folder of a submitted sweep.

    Raises:
        InputError: for a folder from which nothing was submitted.
        SchedulerError: if Slurm does not answer.
    """
    path = _submitted_folder(folder)
    snapshot = cluster.take_snapshot(path, print_note)
    current_cells = _choose_current_cells(path, snapshot)
    ended = _ended_cells(current_cells)
    unsuccessful = tuple(cell for cell in ended if cell.status != "ok")
    count_by_state = Counter(cell.state for cell in current_cells)
    older_count = len(snapshot.states) - len(current_cells)
    cell_counts = f"{len(current_cells)} cells: {_format_counts(count_by_state)}"
    return StatusAnswer(
        out=str(path),
        cells=len(current_cells),
        queued=count_by_state["queued"],
        running=count_by_state["running"],
        finished=count_by_state["finished"],
        failed=count_by_state["failed"],
        unsent=count_by_state["unsent"],
        older=older_count,
        cells_by_status=count_statuses(cell.status for cell in ended),
        cells_by_cause=count_causes(cell.cause for cell in unsuccessful),
        jobs=_live_tasks(snapshot),
        unsuccessful=unsuccessful,
        headline=(f"{path}: {cell_counts}",),
        notes=_describe_older_cells(older_count),
    )


def _choose_current_cells(folder: Path, snapshot: Snapshot) -> list[CellState]:
    """Return the cells of the latest submission; the folder may hold those of earlier ones."""
    current_ids = submission.read_current_ids(folder)
    if current_ids is None:  # nobody wrote down which cells are current
        return list(snapshot.states)
    return [cell for cell in snapshot.states if cell.trial.id in current_ids]


def _format_counts(count_by_state: Mapping[str, int]) -> str:
    """Return the cells in each state: `3 queued, 2 running`; `none` without any."""
    counts = [
        f"{count_by_state[state]} {state}" for state in cluster.STATES if count_by_state[state]
    ]
    return ", ".join(counts) or "none"


def _describe_older_cells(older_count: int) -> tuple[str, ...]:
    """Return the note on cells that the latest submission no longer holds."""
    if not older_count:
        return ()
    return (f"{older_count} more are of the experiment as it was before; they are not counted",)


def collect(folder: kinds.Folder) -> CollectAnswer:
    """Write a record of every cell whose job is over without one.

    Args:
        folder: The folder of a submitted sweep.

    Raises:
        InputError: for a folder from which nothing was submitted, and for one in use.
        SchedulerError: if Slurm does not answer.
    """
    path = _submitted_folder(folder)
    with store.exclusive(path):
        records = cluster.collect(path, print_note)
    counts = count_causes(record.cause for record in records)
    causes = ", ".join(f"{count.cells} {count.cause}" for count in counts)
    headline = f"{path}: {len(records)} cells lost by their jobs"
    return CollectAnswer(
        out=str(path),
        records=len(records),
        cells_by_cause=counts,
        headline=(f"{headline}: {causes}" if causes else headline,),
    )


def cancel(folder: kinds.Folder) -> CancelAnswer:
    """Cancel the jobs of a submitted sweep that wait or run.

    Args:
        folder: The folder of a submitted sweep.

    Raises:
        InputError: for a folder from which nothing was submitted.
        SchedulerError: if Slurm does not answer.
    """
    path = _submitted_folder(folder)
    jobs = tuple(cluster.cancel(path))
    text = f"cancelled {', '.join(jobs)}" if jobs else "no job waits or runs"
    return CancelAnswer(out=str(path), cancelled=jobs, headline=(f"{path}: {text}",))


def _submitted_folder(folder: kinds.Folder) -> Path:
    """Return the folder of a submitted sweep; raises `InputError` for another folder."""
    path = Path(folder)
    if not path.is_dir():
        raise InputError(f"{path}: no such folder")
    if not submission.list_folders(path):
        raise InputError(f"{path}: nothing was submitted from here (sweep --launcher slurm)")
    return path


def _ended_cells(states: list[CellState]) -> list[EndedCell]:
    """Return the cells whose measurement is over, with what became of them."""
    ended_cells = [cell for cell in states if cell.state in {"finished", "failed"}]
    lost_cells = [cell for cell in ended_cells if cell.state == "failed" and cell.record is None]
    failure_by_trial = cluster.explain_lost(lost_cells)
    rows = []
    for cell in ended_cells:
        outcome = cell.record or failure_by_trial[cell.trial.id]
        row = make_cell_row(
            cell.trial,
            EndedCell,
            status=outcome.status,
            cause=outcome.cause,
            note=outcome.note,
            retried_by=retry_of(outcome.status, outcome.cause),
        )
        rows.append(row)
    return rows


def _live_tasks(snapshot: Snapshot) -> tuple[TaskState, ...]:
    """Return the tasks that wait or run, each with its number of cells left."""
    cells_by_task: dict[QueuedTask, list[CellState]] = {}
    for cell in snapshot.states:
        if cell.queued is not None:  # Slurm's queue still holds the task of this cell
            cells_by_task.setdefault(cell.queued, []).append(cell)
    task_states = []
    for queued, cells in cells_by_task.items():
        live_cells = [cell for cell in cells if cell.state in cluster.LIVE_STATES]
        task_state = TaskState(
            job=queued.task.text,
            state=queued.state,
            text=queued.text,
            cells_left=len(live_cells),
        )
        task_states.append(task_state)
    return tuple(task_states)


def _shorten(text: str) -> str:
    """Return a note that fits in a table: `OSError: [Errno 28] No space...`."""
    is_long = len(text) > MAX_NOTE_CHARACTERS
    return f"{text[:MAX_NOTE_CHARACTERS]}..." if is_long else text
