"""The answers of `sweep`: cells measured here or submitted, and the cost of a submission."""

from collections.abc import Sequence
from dataclasses import replace

from steptime.core.answer import Answer, AnswerRow
from steptime.core.tables.table import UNSUCCESSFUL, Column, Printout, Table
from steptime.core.units import format_bytes, format_count, format_duration
from steptime.records.record import Record
from steptime.sweeps.cell_rows import CellRow, StatusCount, column_differs

MAX_TABLE_ROWS = 20
CELL_HEADINGS = {
    "id": "cell",
    "model": "network",
    "batch": "batch",
    "replicas": "replicas",
    "gpu": "gpu",
    "staging": "staging",
}
"""Columns of a preview with their headings; other columns stand only where they differ."""
JOB_COLUMNS = (
    Column("gpu"),
    Column("replicas"),
    Column("nodes"),
    Column("cells"),
    Column("tasks"),
    Column("longest", "longest task"),
    Column("node_hours", "node-hours", form=".3g"),
    Column("needs_bytes", "memory"),
    Column("has_bytes", "of", is_spare=True),
    Column("node_needs_bytes", "of a node"),
    Column("predicted_on", "by", is_spare=True),
)


class FailedCell(AnswerRow, frozen=True, kw_only=True):
    """A cell that was tried and has no number.

    Attributes:
        model: the network.
        batch: examples of one replica in a step.
        replicas: number of data-parallel copies.
        status: oom, timeout, unsupported or failed.
        cause: the cause: a word of the table of causes in docs/sweeps.md.
        note: the cause in a sentence.
    """

    model: str
    batch: int
    replicas: int
    status: str
    cause: str
    note: str


class SweepAnswer(Answer, frozen=True, kw_only=True):
    """What a sweep on this machine measured.

    Attributes:
        name: the name of the experiment.
        out: the folder of the records.
        cells: cells of the experiment, counted once for each round.
        finished_before: cells that had a final record before.
        measured: cells that were tried now.
        cells_by_status: number of cells tried now of each status.
        unsuccessful: the cells tried now that have no number.
        headline: the main numbers in words.
        notes: remarks that change how the answer is read.
    """

    name: str
    out: str
    cells: int
    finished_before: int
    measured: int
    cells_by_status: tuple[StatusCount, ...]
    unsuccessful: tuple[FailedCell, ...]
    headline: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """3 if a cell has no number."""
        return UNSUCCESSFUL if self.unsuccessful else 0


class SubmissionAnswer(Answer, frozen=True, kw_only=True):
    """The cells that were sent to Slurm.

    Attributes:
        name: the name of the experiment.
        out: the folder of the records.
        cells: cells of the experiment, counted once for each round.
        finished_before: cells that had a final record before.
        in_flight: cells that wait or run.
        collected: cells whose jobs ended without a record: a record of the failure was written now.
        submitted: cells that Slurm took now.
        unsent: cells that a limit of the site kept back.
        tasks: tasks that measure the submitted cells.
        jobs: Slurm's numbers of the jobs of the tasks.
        folder: the folder of the submission, None where nothing was to submit.
        headline: the main numbers in words.
        notes: remarks that change how the answer is read.
    """

    name: str
    out: str
    cells: int
    finished_before: int
    in_flight: int
    collected: int
    submitted: int
    unsent: int
    tasks: int
    jobs: tuple[str, ...]
    folder: str | None
    headline: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def exit_code(self) -> int:
        """3 if a cell was kept back."""
        return UNSUCCESSFUL if self.unsent else 0


class JobEstimate(AnswerRow, frozen=True, kw_only=True):
    """A job that would be submitted, and what it would take.

    Attributes:
        gpu: type of GPU, "" for none.
        partition: the partition, "" for Slurm's default.
        replicas: data-parallel copies of each cell.
        nodes: nodes of a task.
        cells: cells of all tasks.
        tasks: number of tasks.
        longest_task_s: predicted seconds of the longest task.
        node_hours: predicted hours of all tasks, times their nodes.
        needs_bytes: memory that the largest cell needs: of a GPU, or of the node for steps on a
            CPU.
        has_bytes: memory of the GPU or the node, None if unknown.
        node_needs_bytes: memory that the largest cell needs of a node.
        node_has_bytes: memory of a node that the job may use, None if unknown.
        predicted_on: the device for which the times are predicted, None if only the time budget of
            a cell counts.
        script: the batch script.
    """

    gpu: str
    partition: str
    replicas: int
    nodes: int
    cells: int
    tasks: int
    longest_task_s: float
    node_hours: float
    needs_bytes: int
    has_bytes: float | None
    node_needs_bytes: int
    node_has_bytes: float | None
    predicted_on: str | None
    script: str


class LargeCell(CellRow, frozen=True, kw_only=True):
    """A cell that needs more memory than there is.

    Attributes:
        of: what lacks memory: a GPU or a node.
        needs_bytes: memory that the cell needs.
        has_bytes: memory that there is.
    """

    of: str
    needs_bytes: int
    has_bytes: float | None


class PreviewAnswer(Answer, frozen=True, kw_only=True):
    """What a sweep would submit, and what it would take.

    Attributes:
        name: the name of the experiment.
        out: the folder of the records.
        cells: cells of the experiment, counted once for each round.
        finished_before: cells that have a final record.
        in_flight: cells that wait or run.
        rows: the cells that would be submitted.
        jobs: the jobs that would be submitted.
        node_hours: predicted node-hours of all jobs.
        not_fitting: cells that need more memory than there is.
        headline: the main numbers in words.
        notes: remarks that change how the answer is read.
    """

    name: str
    out: str
    cells: int
    finished_before: int
    in_flight: int
    rows: tuple[CellRow, ...]
    jobs: tuple[JobEstimate, ...]
    node_hours: float
    not_fitting: tuple[LargeCell, ...]
    headline: tuple[str, ...]
    notes: tuple[str, ...]

    def tables(self) -> list[Table]:
        """Return the cells and the jobs that would be submitted."""
        # Beside the usual columns, those in which the cells differ.
        names = list(CELL_HEADINGS)
        if self.rows:
            names = [
                name
                for name in CellRow.__struct_fields__
                if name in CELL_HEADINGS or column_differs(self.rows, name)
            ]
        cell_columns = [Column(name, CELL_HEADINGS.get(name, name)) for name in names]
        cell_rows = [
            {name: None if value == "" else value for name, value in row.to_dict().items()}
            for row in self.rows
        ]
        job_rows = []
        for job in self.jobs:
            texts = {
                "gpu": job.gpu or None,
                "longest": format_duration(job.longest_task_s),
                "predicted_on": job.predicted_on or "the budget alone",
            }
            job_rows.append(job.to_dict() | texts)
        title = f"predicted: {self.node_hours:.3g} node-hours"
        return [
            Table(cell_columns, cell_rows, "would be submitted", max_rows=MAX_TABLE_ROWS),
            Table(JOB_COLUMNS, job_rows, title),
        ]

    def printout(self) -> Printout:
        """Return the answer as the command line prints it, the batch scripts last."""
        scripts = "".join(job.script for job in self.jobs)
        return replace(super().printout(), script=scripts)


def describe_large_cell(cell: LargeCell) -> str:
    """Return `will not fit: fc, batch 8: needs 2 GB, a GPU has 1 GB`."""
    memory = "unknown" if cell.has_bytes is None else format_bytes(cell.has_bytes)
    needs = f"needs {format_bytes(cell.needs_bytes)}, {cell.of} has {memory}"
    return f"will not fit: {cell.model}, batch {cell.batch}: {needs}"


def describe_progress(name: str, cells: int, finished_before: int) -> str:
    """Return `small: 12 cells, 4 done before`."""
    return f"{name}: {cells} cells, {finished_before} done before"


def describe_disturbance(records: Sequence[Record]) -> tuple[str, ...]:
    """Return a note that counts the cells whose samples other work disturbed; none without any."""
    steps = [record.quantities.get("step_s") for record in records]
    disturbed_count = sum(step is not None and step.is_disturbed for step in steps)
    if not disturbed_count:
        return ()
    cells = f"{disturbed_count} of {format_count(len(steps), 'cell')}"
    remark = f"over a quarter of the samples of {cells} were disturbed: other work used these CPUs"
    return (remark,)
