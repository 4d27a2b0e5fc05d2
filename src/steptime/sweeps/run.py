"""Runs cells: finds those without a final record, measures them, and keeps every record.

Predictions of the cells are kept beside what is measured.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from steptime.core.copying import replace
from steptime.core.dtypes import find_dtype
from steptime.core.errors import InputError
from steptime.core.progress import report_progress
from steptime.core.units import format_bytes
from steptime.core.workload import workload_to_json
from steptime.grids.folder import record_key, select_missing
from steptime.grids.replica_records import predict_replicas
from steptime.grids.step_records import Place
from steptime.hardware.device import Cluster, Device, Link
from steptime.measure import cpus, ranks
from steptime.measure.contract import is_cuda, make_record_method
from steptime.measure.launch import Failure, OnEvent, WorkerDiedError
from steptime.measure.reference import add_reference
from steptime.prediction.method import stack_option, tf32_option
from steptime.records import store
from steptime.records.reading import record_from_json
from steptime.records.record import Record, RecordMethod, current_time
from steptime.sweeps.answers import (
    FailedCell,
    SweepAnswer,
    describe_disturbance,
    describe_progress,
)
from steptime.sweeps.cell_rows import count_statuses
from steptime.sweeps.cells import (
    Cell,
    Mark,
    Processes,
    Trial,
    list_final_marks,
    needed_bytes,
    trials_of,
)
from steptime.sweeps.merged_runs import merge_runs
from steptime.sweeps.progress import Report
from steptime.sweeps.workers import WorkerKey, Workers, key_of


@dataclass(frozen=True)
class Means:
    """How each cell is measured, the same for all cells of a sweep."""

    budget_s: float = 3.0
    time_limit_s: float = 600.0
    parts: bool = False
    runs: int = 1
    try_all: bool = False
    energy: bool = False
    reference: bool = False  # timed beside each run on a CPU


def attempt(
    workers: Workers, trial: Trial, means: Means, begin: Callable[[], object] | None = None
) -> Record:
    """Return the record of a trial, tried where it can run; `begin` is called with its worker."""
    cell = workers.with_threads(trial.cell)
    key = workers.key(cell)
    if obstacle := _find_obstacle(cell, key, means):
        return _fail(trial, key, means, obstacle)
    if begin:  # a cell counts as begun only once its worker has started
        workers.get(*cell.process)
        begin()
    return measure_cell(workers, trial, means)


def measure_cell(workers: Workers, trial: Trial, means: Means, on_event: OnEvent = None) -> Record:
    """Return the record of a trial from `means.runs` processes; reports go to `on_event`."""
    records = []
    has_replicas = trial.cell.workload.plan.data > 1
    has_reference = means.reference and trial.cell.options.device == "cpu"
    for number in range(means.runs):
        (record,) = _ask_worker(workers, trial, means, on_event, do="measure")
        # An unsupported cell is refused by all processes alike; after a failure they may differ.
        has_failed = record.status not in {"ok", "unsupported"}
        if has_failed and has_replicas:
            workers.close()  # the others may still wait for the one that failed
        if record.status != "ok":
            return record
        records.append(add_reference(record) if has_reference else record)
        if on_event and means.runs > 1:  # a sweep says its own progress
            report_progress("runs", number + 1, means.runs)
    return merge_runs(records)


def profile_cell(workers: Workers, trial: Trial, means: Means, trace: str = "") -> list[Record]:
    """Return a record for each op of a trial's step under the profiler, or one of what failed."""
    return _ask_worker(workers, trial, means, None, do="profile", trace=trace)


def _ask_worker(
    workers: Workers, trial: Trial, means: Means, on_event: OnEvent, **action: str
) -> list[Record]:
    """Return the records that a worker answers with, or the one that says how it died."""
    cell = workers.with_threads(trial.cell)
    # Each of several runs is a process of its own.
    worker = workers.get(*cell.process, fresh=means.runs > 1)
    key = key_of(worker)
    request = {
        **action,  # `do`, and the arguments of what is done
        "workload": workload_to_json(cell.workload),
        "code": cell.workload.code,
        "options": asdict(cell.options),
        "platform": key.platform,
        "timing": {"budget_s": means.budget_s},
        "parts": means.parts,
        "energy": means.energy,
        "runs": means.runs,
        "env": _record_facts(trial, means),
    }
    try:
        answer = worker.ask(request, means.time_limit_s, on_event)
    except WorkerDiedError as died:
        workers.close()
        return [_fail(trial, key, means, died.failure)]
    # A profile is answered by `records`, a measurement by a single record.
    return list(map(record_from_json, answer.get("records", [answer])))


def _record_facts(trial: Trial, means: Means) -> dict[str, object]:
    """Return the facts of a trial that its record holds, whoever writes it."""
    return {"cell": trial.id, "round": trial.round, "budget_s": means.budget_s}


def _make_method(cell: Cell, key: WorkerKey, runs: int) -> RecordMethod:
    """Return the method that records of a cell carry where workers have this key."""
    options = replace(cell.options, threads=key.threads)
    return make_record_method(cell.backend, key.version, options, runs)


def _fail(trial: Trial, key: WorkerKey, means: Means, failure: Failure) -> Record:
    record_method = _make_method(trial.cell, key, means.runs)
    threads = key.threads
    return make_unmeasured(trial, means, record_method, key.platform, failure, threads=threads)


def make_unmeasured(
    trial: Trial,
    means: Means,
    record_method: RecordMethod,
    platform: str,
    failure: Failure,
    **env: object,
) -> Record:
    """Return the record of a trial that has no number, with the failure that explains it."""
    return Record(
        origin="measured",
        method=record_method,
        workload=trial.cell.workload,
        platform=platform,
        quantities={},
        status=failure.status,
        cause=failure.cause,
        note=failure.note,
        env={**_record_facts(trial, means), **env},
        taken_at=current_time(),
    )


@dataclass(frozen=True)
class SweepRequest:
    """A sweep: the cells of an experiment, and what is to be done with them.

    Attributes:
        name: the name of the experiment.
        cells: the cells.
        out: the folder of the records.
        means: how each cell is measured.
        rounds: number of visits of each cell.
        predict_on: the devices on which the cells are predicted.
        link: joins the replicas of predictions.
        by_op: keep the predictions of every op.
        must_fit: leave out cells that are predicted not to fit; otherwise they are recorded so and
            not tried (unless `means.try_all`), as are cells that need more CPUs than there are.
        retry: statuses of the cells that are tried again.
        force: measure all cells again.
        is_shard: the cells are a part of the experiment's (`--shard`).
        remarks: lines on the cells that are left out now.
        text: the axes of the cells, in words.
    """

    name: str
    cells: Collection[Cell]
    out: Path
    means: Means
    rounds: int = 1
    predict_on: Sequence[Place] = ()
    link: Link | None = None
    by_op: bool = False
    must_fit: bool = False
    retry: Collection[str] = ()
    force: bool = False
    is_shard: bool = False
    remarks: Sequence[str] = ()
    text: str = ""


def sweep(request: SweepRequest, warn: Callable[[str], None], report: Report) -> SweepAnswer:
    """Measure and predict the cells that a folder lacks.

    Each record is on the disk before it is reported by `report(record, number, total)`.

    Raises:
        InputError: for a folder that is no store, or in use, and under a launcher of several
            processes.
    """
    if ranks.find_rank().size > 1:
        raise InputError("a sweep starts its processes itself: leave out torchrun or srun")
    records: list[Record] = []
    with ExitStack() as stack:
        stack.enter_context(store.exclusive(request.out))
        earlier = store.load(request.out, warn, required=False)
        final_marks = list_final_marks(earlier, request.retry, request.force)
        writer = stack.enter_context(store.open_writer(request.out))
        workers = Workers()
        stack.callback(workers.close)
        cells = [workers.with_threads(cell) for cell in request.cells]
        keys = {cell.process: workers.key(cell) for cell in cells}
        if request.must_fit:
            cells = [cell for cell in cells if not _lacks_bytes(cell, keys[cell.process])]
        predict(cells, request, writer, earlier, warn)
        warn(f"{request.name}: {request.text}")
        trials = list(trials_of(cells, request.means.runs, request.rounds))
        missing = _order_missing(trials, keys, final_marks)
        for number, trial in enumerate(missing, start=1):
            record = attempt(workers, trial, request.means)
            writer.append(record)
            records.append(record)
            report(record, number, len(missing))
    return _sweep_answer(request, len(trials), records)


def _order_missing(
    trials: Sequence[Trial], keys: Mapping[Processes, WorkerKey], final_marks: Collection[Mark]
) -> list[Trial]:
    """Return the trials without a final record, round by round.

    Cells of one worker follow each other, since a change of worker costs a start.
    """
    missing = [
        trial
        for trial in trials
        if not _has_final_record(trial, keys[trial.cell.process], final_marks)
    ]
    worker_order = {process: position for position, process in enumerate(keys)}
    return sorted(missing, key=lambda trial: (trial.round, worker_order[trial.cell.process]))


def _sweep_answer(request: SweepRequest, cells: int, records: Sequence[Record]) -> SweepAnswer:
    """Return the answer that describes the records of a sweep on this machine."""
    counts = count_statuses(record.status for record in records)
    unsuccessful = tuple(_failed_cell(record) for record in records if record.status != "ok")
    finished_before = cells - len(records)
    progress = describe_progress(request.name, cells, finished_before)
    counts_text = ", ".join(f"{count.cells} {count.status}" for count in counts) or "none"
    return SweepAnswer(
        name=request.name,
        out=str(request.out),
        cells=cells,
        finished_before=finished_before,
        measured=len(records),
        cells_by_status=counts,
        unsuccessful=unsuccessful,
        headline=(
            f"{progress}, now {counts_text}; records in {request.out}",
            *(
                f"  {cell.status} ({cell.cause}): {cell.model}, batch {cell.batch}: {cell.note}"
                for cell in unsuccessful
            ),
        ),
        notes=describe_disturbance(records),
    )


def _failed_cell(record: Record) -> FailedCell:
    return FailedCell(
        model=record.workload.label,
        batch=record.workload.batch_per_replica,
        replicas=record.workload.plan.data,
        status=record.status,
        cause=record.cause,
        note=record.note,
    )


def _has_final_record(trial: Trial, key: WorkerKey, final_marks: Collection[Mark]) -> bool:
    """Whether a trial has a final record of this platform and version of the framework."""
    return (trial.id, key.platform, key.version) in final_marks


def _lacks_bytes(cell: Cell, key: WorkerKey) -> int | None:
    """Return the memory that a cell needs where that is too much for this machine, else None."""
    rank = ranks.find_rank()
    needed = needed_bytes(cell, cell.workload.plan.data if rank.size == 1 else rank.local_size)
    return needed if key.memory_bytes is not None and needed > key.memory_bytes else None


def _find_obstacle(cell: Cell, key: WorkerKey, means: Means) -> Failure | None:
    """Return why a cell is not tried, None if it is; a launcher looks to the CPUs itself."""
    if ranks.find_rank().size == 1:  # a launcher looks to the CPUs of its ranks itself
        try:
            cpus.check_cpus(key.threads, cell.workload.plan.data)
        except InputError as error:
            return Failure("unsupported", "too-few-cpus", str(error))
    needed = None if means.try_all else _lacks_bytes(cell, key)
    if needed is None:
        return None
    capacity = f"{key.platform} has {format_bytes(key.memory_bytes or 0)}"
    note = f"needs {format_bytes(needed)}, {capacity}; not tried"
    return Failure("oom", "predicted-not-to-fit", note)


def predict(
    cells: Iterable[Cell],
    request: SweepRequest,
    writer: store.Writer,
    records: Iterable[Record],
    warn: Callable[[str], None],
) -> None:
    """Write the predictions that a sweep asks for and that are not among the `records`."""
    stored_keys = set(map(record_key, records)) if request.predict_on else set()
    unpredicted = 0
    for cell, device in _list_predictions(cells, request.predict_on):
        try:
            step_and_ops = predictions(cell, device, request.link, request.by_op)
        except InputError as error:
            raise InputError(f"{cell.workload.label}: {error}") from None
        if not step_and_ops:  # several replicas without a link
            unpredicted += 1
            continue
        step, *ops = step_and_ops  # written last: where the step is stored, so are its ops
        writer.append_all(select_missing((*ops, step), stored_keys))
    if unpredicted:
        hint = 'link = "local" or the name of a link says what joins them'
        warn(f"{unpredicted} predictions of several replicas are left out: {hint}")


def _list_predictions(
    cells: Iterable[Cell], places: Iterable[Place]
) -> Iterator[tuple[Cell, Device]]:
    """Yield each cell with each device, once; a place may have a data type of its own."""
    predicted_marks = set()
    for device, dtype in places:
        for sweep_cell in cells:
            workload = sweep_cell.workload
            workload = workload.with_dtype(find_dtype(dtype or workload.dtype))
            cell = replace(sweep_cell, workload=workload)
            options = cell.options
            mark = (workload.key, options.strategy, options.overlap, device.name, cell.stack)
            # A cell that trains by a stack that only infers is never run.
            if mark not in predicted_marks and cell.is_run:
                predicted_marks.add(mark)
                yield cell, device


def predictions(cell: Cell, device: Device, link: Link | None, by_op: bool) -> list[Record]:
    """Return the prediction of a cell on a device by the default method.

    `link` joins its replicas; where it is needed and not known, there is no prediction.
    """
    options = cell.options
    method_options = stack_option(cell.stack)
    if is_cuda(options.device):
        method_options |= tf32_option(options.tf32, device)
    replicas = cell.workload.plan.data
    # Without a link the exchange of gradients has no time.
    if replicas > 1 and link is None and options.strategy != "independent":
        return []
    cluster = Cluster(device, ((replicas, link),) if link else ())
    records = predict_replicas(
        cell.workload, cluster, options.strategy, options.overlap, options=method_options
    )
    step_record, *_op_records = records
    return list(records) if by_op else [step_record]
