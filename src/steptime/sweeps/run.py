"""Runs cells: asks the store what is done, workers for what is missing, and keeps every record.

Predictions of the cells are kept beside what is measured.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from steptime.core.dtypes import find_dtype
from steptime.core.errors import InputError
from steptime.core.units import size
from steptime.core.workload import workload_to_json
from steptime.grids.folder import lacking, part_key
from steptime.grids.grid import Place
from steptime.grids.replicas import predict_replicas
from steptime.hardware.device import Cluster, Device, Link
from steptime.measure import cpus, ranks
from steptime.measure.contract import method
from steptime.measure.launch import Failure, OnEvent, WorkerDiedError
from steptime.prediction.method import stack_option, tf32_option
from steptime.records import store
from steptime.records.reading import record_from_json
from steptime.records.record import Quantity, Record, RecordMethod, now
from steptime.sweeps.answers import FailedCell, SweepAnswer, describe_progress
from steptime.sweeps.cell_rows import count_statuses
from steptime.sweeps.cells import Cell, Mark, Trial, done_marks, needed_bytes, trials_of
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


def attempt(
    workers: Workers, trial: Trial, how: Means, begin: Callable[[], object] | None = None
) -> Record:
    """Return the record of a trial, tried where it can run; `begin` is called with its worker."""
    cell = workers.settled(trial.cell)
    key = workers.key(cell)
    if why := _why_not(cell, key, how):
        return _unmeasured(trial, key, how, why)
    if begin:
        workers.get(*cell.process)
        begin()
    return measure_cell(workers, trial, how)


def measure_cell(workers: Workers, trial: Trial, how: Means, on_event: OnEvent = None) -> Record:
    """Return the record of a trial, measured in `how.runs` fresh processes if they are several.

    `on_event` is called with what a worker says of how far it is.
    """
    records = []
    for _ in range(how.runs):
        (record,) = _asked(workers, trial, how, on_event, do="measure")
        if record.status not in {"ok", "unsupported"} and trial.cell.workload.plan.data > 1:
            workers.close()  # the others may still wait for the one that failed
        if record.status != "ok":
            return record
        records.append(record)
    return _joined(records)


def profile_cell(workers: Workers, trial: Trial, how: Means, trace: str = "") -> list[Record]:
    """Return a record for each op of a trial's step under the profiler, or one of what failed."""
    return _asked(workers, trial, how, None, do="profile", trace=trace)


def _asked(
    workers: Workers, trial: Trial, how: Means, on_event: OnEvent, **do: str
) -> list[Record]:
    """Return the records that a worker answers with, or the one that says how it died."""
    cell = workers.settled(trial.cell)
    worker = workers.get(*cell.process, fresh=how.runs > 1)
    key = key_of(worker)
    request = {
        **do,
        "workload": workload_to_json(cell.workload),
        "code": cell.workload.code,
        "options": asdict(cell.options),
        "platform": key.platform,
        "timing": {"budget_s": how.budget_s},
        "parts": how.parts,
        "energy": how.energy,
        "runs": how.runs,
        "env": _known(trial, how),
    }
    try:
        answer = worker.ask(request, how.time_limit_s, on_event)
    except WorkerDiedError as died:
        workers.close()
        return [_unmeasured(trial, key, how, died.failure)]
    return list(map(record_from_json, answer.get("records", [answer])))


def _known(trial: Trial, how: Means) -> dict[str, Any]:
    """Return what the record of a trial says of it, whoever writes it."""
    return {"cell": trial.id, "round": trial.round, "budget_s": how.budget_s}


def _method(cell: Cell, key: WorkerKey, runs: int) -> RecordMethod:
    """Return the method that records of a cell carry where workers have this key."""
    options = replace(cell.options, threads=key.threads)
    return method(cell.backend, key.version, options, runs)


def _unmeasured(trial: Trial, key: WorkerKey, how: Means, failure: Failure) -> Record:
    own = _method(trial.cell, key, how.runs)
    platform = key.platform
    return unmeasured(trial, how, own, platform, failure, threads=key.threads)


def unmeasured(
    trial: Trial, how: Means, own: RecordMethod, platform: str, failure: Failure, **env: Any
) -> Record:
    """Return the record of a trial that has no number, by its `own` method, and why."""
    return Record(
        origin="measured",
        method=own,
        workload=trial.cell.workload,
        platform=platform,
        quantities={},
        status=failure.status,
        cause=failure.cause,
        note=failure.note,
        env={**_known(trial, how), **env},
        taken_at=now(),
    )


def _joined(records: list[Record]) -> Record:
    """Return one record with the samples of all runs; single values are the largest of the runs."""
    quantities = {}
    for name, quantity in records[0].quantities.items():
        parts = [one.quantities.get(name, Quantity()) for one in records]
        if quantity.samples:
            columns = {
                key: tuple(x for part in parts for x in part.columns.get(key, ()))
                for key in quantity.columns
            }
            columns["run"] = tuple(run for run, part in enumerate(parts) for _ in part.samples)
            samples = tuple(x for part in parts for x in part.samples)
            quantities[name] = Quantity(samples=samples, columns=columns)
        else:
            values = [part.value for part in parts if part.value is not None]
            quantities[name] = Quantity(max(values)) if values else quantity
    env = dict(records[0].env)
    if len(records) > 1:
        steady = [one.env.get("steady") for one in records]
        env |= {
            "steady": all(steady),
            "few_samples": any(one.env.get("few_samples") for one in records),
            "steady_of_run": steady,
            "warmup_s": [one.env.get("warmup_s") for one in records],
        }
    return replace(records[0], quantities=quantities, env=env)


@dataclass(frozen=True)
class SweepRequest:
    """A sweep as asked for: its cells, where records go, how often, and what is tried again.

    With `must_fit`, cells that are predicted not to fit are left out; otherwise they are recorded
    so and not tried (unless `how.try_all`), as are cells that need more CPUs than there are.
    `predict_on` are where, `link` what joins the replicas of predictions, and
    `by_op` keeps the predictions of every op. Not `whole` are the cells of a part (`--shard`).
    `remarks` say what of the experiment is left out now, `text` of which axes its cells are.
    """

    name: str
    cells: Collection[Cell]
    out: Path
    how: Means
    rounds: int = 1
    predict_on: Sequence[Place] = ()
    link: Link | None = None
    by_op: bool = False
    must_fit: bool = False
    retry: Collection[str] = ()
    force: bool = False
    whole: bool = True
    remarks: Sequence[str] = ()
    text: str = ""


def sweep(request: SweepRequest, warn: Callable[[str], None], report: Report) -> SweepAnswer:
    """Measure and predict the cells that a folder lacks.

    Each record is on the disk before it is reported by `report(record, number, total)`.

    Raises:
        InputError: for a folder that is no store, or in use, and under a launcher of several
            processes.
    """
    if ranks.here().size > 1:
        raise InputError("a sweep starts its processes itself: leave out torchrun or srun")
    out, means = request.out, request.how
    records: list[Record] = []
    with ExitStack() as stack:
        stack.enter_context(store.exclusive(out))
        earlier = store.load(out, warn, required=False)
        final_marks = done_marks(earlier, request.retry, request.force)
        writer = stack.enter_context(store.open_writer(out))
        workers = Workers()
        stack.callback(workers.close)
        cells = [workers.settled(cell) for cell in request.cells]
        keys = {cell.process: workers.key(cell) for cell in cells}
        if request.must_fit:
            cells = [cell for cell in cells if not _lacks_bytes(cell, keys[cell.process])]
        predict(cells, request, writer, earlier, warn)
        warn(f"{request.name}: {request.text}")

        trials = list(trials_of(cells, means.runs, request.rounds))
        missing = [
            trial
            for trial in trials
            if not _is_done(trial, keys[trial.cell.process], means, final_marks)
        ]
        place = {process: i for i, process in enumerate(keys)}  # a change of worker costs a start
        missing.sort(key=lambda trial: (trial.round, place[trial.cell.process]))
        for number, trial in enumerate(missing, start=1):
            record = attempt(workers, trial, means)
            writer.append(record)
            records.append(record)
            report(record, number, len(missing))
    return _sweep_answer(request, len(trials), records)


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


def _is_done(trial: Trial, key: WorkerKey, how: Means, done: Collection[Mark]) -> bool:
    """Whether a trial has a record of here, or one of old, which knew it by its step."""
    if not done or (trial.id, key.platform, key.version) in done:
        return bool(done)
    step = store.identity(_method(trial.cell, key, how.runs))
    return (trial.cell.workload.key, key.platform, step, trial.round) in done


def _lacks_bytes(cell: Cell, key: WorkerKey) -> int | None:
    """Return the memory that a cell needs here, where there is not so much; else None."""
    rank = ranks.here()
    needed = needed_bytes(cell, cell.workload.plan.data if rank.size == 1 else rank.local_size)
    return needed if key.memory_bytes is not None and needed > key.memory_bytes else None


def _why_not(cell: Cell, key: WorkerKey, how: Means) -> Failure | None:
    """Return why a cell is not tried, None if it is; what a launcher started looks to its CPUs."""
    if ranks.here().size == 1:
        try:
            cpus.check_cpus(key.threads, cell.workload.plan.data)
        except InputError as error:
            return Failure("unsupported", "too-few-cpus", str(error))
    needed = None if how.try_all else _lacks_bytes(cell, key)
    if needed is None:
        return None
    note = f"needs {size(needed)}, {key.platform} has {size(key.memory_bytes or 0)}; not tried"
    return Failure("oom", "predicted-not-to-fit", note)


def predict(
    cells: Iterable[Cell],
    request: SweepRequest,
    writer: store.Writer,
    known: Iterable[Record],
    warn: Callable[[str], None],
) -> None:
    """Write the predictions that a sweep asks for and that are not among the `known` records."""
    there = set(map(part_key, known)) if request.predict_on else set()
    seen = set()
    unpredicted = 0
    for device, dtype in request.predict_on:
        for one in cells:
            workload = replace(one.workload, dtype=find_dtype(dtype or one.workload.dtype))
            cell, options = replace(one, workload=workload), one.options
            mark = (workload.key, options.strategy, options.overlap, device.name, cell.stack)
            if mark in seen or not cell.is_run:
                continue
            seen.add(mark)
            try:
                head, *ops = predictions(cell, device, request.link, request.by_op) or (None,)
            except InputError as error:
                raise InputError(f"{workload.label}: {error}") from None
            if head is None:
                unpredicted += 1
            else:
                writer.append_all(lacking((*ops, head), there))
    if unpredicted:
        how = 'link = "local" or the name of a link says what joins them'
        warn(f"{unpredicted} predictions of several replicas are left out: {how}")


def predictions(cell: Cell, device: Device, link: Link | None, by_op: bool) -> list[Record]:
    """Return the prediction of a cell on a device by the default method.

    `link` joins its replicas; none are given where that is needed and not known.
    """
    how, told = cell.options, stack_option(cell.stack)
    if how.device.startswith("cuda"):
        told |= tf32_option(how.tf32, device)
    if cell.workload.plan.data > 1 and link is None and how.strategy != "independent":
        return []
    cluster = Cluster(device, ((cell.workload.plan.data, link),) if link else ())
    every = predict_replicas(cell.workload, cluster, how.strategy, how.overlap, options=told)
    return list(every) if by_op else [every[0]]
