"""Cells of a submitted sweep as rows of answers, with every setting in which two can differ."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from steptime.core.answer import AnswerRow
from steptime.sweeps.cells import Trial


class CellRow(AnswerRow, frozen=True, kw_only=True):
    """A cell of a sweep, as Slurm gets it.

    Attributes:
        id: the name of the cell in its submission.
        model: the network.
        batch: examples of one replica in a step.
        replicas: number of data-parallel copies.
        gpu: type of GPU that Slurm is asked for, "" for none.
        node: the node that Slurm is asked for, "" for any.
        staging: where the files of a data set are read.
        dtype: data type of weights and activations.
        phase: train or infer.
        optimizer: the optimizer of a training.
        backend: the library that runs the steps.
        device: the device that runs the steps.
        threads: CPU threads of one process, None for all cores.
        compile: whether the backend compiles the network.
        tf32: whether products of float32 may run as TF32.
        input: where the input comes from.
        loaders: processes that read ahead (loaders).
        prefetch: batches that each loader has ready.
        strategy: how replicas reduce gradients, "" for one replica.
        overlap: whether replicas communicate during the backward pass.
        allocation: name of the table of the experiment file that asks for the node.
        round: number of the round, from 0 on.
    """

    id: str
    model: str
    batch: int
    replicas: int
    gpu: str
    node: str
    staging: str
    dtype: str
    phase: str
    optimizer: str
    backend: str
    device: str
    threads: int | None
    compile: bool
    tf32: bool
    input: str
    loaders: int
    prefetch: int
    strategy: str
    overlap: bool
    allocation: str
    round: int


CellKind = TypeVar("CellKind", bound=CellRow)


class StatusCount(AnswerRow, frozen=True, kw_only=True):
    """The number of cells of one status.

    Attributes:
        status: ok, oom, timeout, unsupported or failed.
        cells: number of cells.
    """

    status: str
    cells: int


class CauseCount(AnswerRow, frozen=True, kw_only=True):
    """The number of cells without a number for one cause.

    Attributes:
        cause: the cause: a word of the table of causes in docs/sweeps.md.
        cells: number of cells.
    """

    cause: str
    cells: int


def make_cell_row(trial: Trial, kind: type[CellKind], **fields: Any) -> CellKind:
    """Return a row of a kind that describes a trial, with further fields of that kind."""
    workload, options = trial.cell.workload, trial.cell.options
    return kind(
        id=trial.id,
        model=workload.label,
        batch=workload.batch_per_replica,
        replicas=workload.plan.data,
        gpu=options.gpu,
        node=trial.cell.request.node if trial.cell.request else "",
        staging=options.staging,
        backend=trial.cell.backend,
        round=trial.round,
        dtype=workload.dtype,
        phase=workload.phase,
        optimizer=workload.optimizer,
        device=options.device,
        threads=options.threads,
        compile=options.compile,
        tf32=options.tf32,
        input=options.input,
        loaders=options.loaders,
        prefetch=options.prefetch,
        strategy=options.strategy,
        overlap=options.overlap,
        allocation=options.allocation,
        **fields,
    )


def count_statuses(statuses: Iterable[str]) -> tuple[StatusCount, ...]:
    """Return the number of cells of each status, in the order of first occurrence."""
    counts = Counter(statuses)
    return tuple(StatusCount(status=status, cells=cells) for status, cells in counts.items())


def count_causes(causes: Iterable[str]) -> tuple[CauseCount, ...]:
    """Return the number of cells of each cause, in the order of first occurrence."""
    counts = Counter(causes)
    return tuple(CauseCount(cause=cause, cells=cells) for cause, cells in counts.items())


def column_differs(rows: Sequence[AnswerRow], name: str) -> bool:
    """Whether a column tells rows apart."""
    return len({str(getattr(row, name)) for row in rows}) > 1
