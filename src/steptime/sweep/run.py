"""Runs cells: asks the store what is done, workers for what is missing, and keeps every record."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from steptime import catalog, store
from steptime.build import build_step
from steptime.core.errors import InputError
from steptime.core.hardware import Cluster, Device
from steptime.core.record import Method, Quantity, Record, record_from_json
from steptime.core.units import size
from steptime.core.workload import Workload, workload_to_json
from steptime.count import peak_memory_bytes
from steptime.launch.local import Death, Worker, WorkerDiedError
from steptime.measure.contract import Options, method
from steptime.predict import DEFAULT, cost_model
from steptime.sweep.cells import Cell


@dataclass(frozen=True)
class How:
    """How each cell is measured, the same for all cells of a sweep."""

    budget_s: float = 3.0
    time_limit_s: float = 600.0
    parts: bool = False
    runs: int = 1
    try_all: bool = False
    energy: bool = False


@dataclass
class Outcome:
    """What a sweep did: cells in all, done before, and the records of this time by status."""

    cells: int = 0
    done_before: int = 0
    statuses: dict[str, int] = field(default_factory=dict)
    unsuccessful: list[Record] = field(default_factory=list)

    def add(self, record: Record) -> None:
        """Count one record of a cell."""
        self.statuses[record.status] = self.statuses.get(record.status, 0) + 1
        if record.status != "ok":
            self.unsuccessful.append(record)


class Workers:
    """At most one live worker, for one backend and its options; replaced after a death."""

    def __init__(self) -> None:
        self._worker: Worker | None = None
        self._place: tuple[str, Options] | None = None

    def get(self, backend: str, options: Options, fresh: bool = False) -> Worker:
        """Give a worker for this place, a new process if `fresh` or if the place changed."""
        place = backend, options.of_process
        if fresh or self._place != place or self._worker is None:
            self.close()
            self._worker, self._place = Worker(*place), place
        return self._worker

    def close(self) -> None:
        """End the worker, if there is one."""
        if self._worker is not None:
            self._worker.close()
        self._worker = self._place = None


@dataclass(frozen=True)
class Place:
    """Where cells of one backend and its options run: the greeting of its worker."""

    platform: str
    version: str
    memory_bytes: int | None
    threads: int

    def method(self, cell: Cell, runs: int) -> Method:
        """Give the method that records of `cell` carry here."""
        options = replace(cell.options, threads=self.threads)
        return method(cell.backend, self.version, options, runs)


def place_of(worker: Worker) -> Place:
    """Give the place that a worker's greeting says."""
    greeting = worker.greeting
    return Place(
        greeting["platform"], greeting["version"], greeting["memory_bytes"], greeting["threads"]
    )


def attempt(workers: Workers, cell: Cell, how: How, round_: int) -> Record:
    """Give the record of one cell, which is not tried if predicted not to fit in memory."""
    place = place_of(workers.get(*cell.place))
    if how.try_all or _fits(cell, place):
        return measure_cell(workers, cell, how, round_)
    return _unmeasured(cell, place, how, round_, _too_large(cell, place))


def measure_cell(workers: Workers, cell: Cell, how: How, round_: int = 0) -> Record:
    """Give the record of one cell, measured in `how.runs` fresh processes if they are several."""
    records = []
    for run in range(how.runs):
        worker = workers.get(cell.backend, cell.options, fresh=how.runs > 1)
        record = _measure_once(workers, worker, cell, how, round_)
        if record.status != "ok":
            return record
        records.append(_in_run(record, run))
    return _joined(records)


def _measure_once(workers: Workers, worker: Worker, cell: Cell, how: How, round_: int) -> Record:
    place = place_of(worker)
    request = {
        "do": "measure",
        "workload": workload_to_json(cell.workload),
        "options": asdict(cell.options),
        "platform": place.platform,
        "timing": {"budget_s": how.budget_s},
        "parts": how.parts,
        "energy": how.energy,
        "runs": how.runs,
        "round": round_,
    }
    try:
        return record_from_json(worker.ask(request, how.time_limit_s))
    except WorkerDiedError as died:
        workers.close()
        return _unmeasured(cell, place, how, round_, died.death)


def _unmeasured(cell: Cell, place: Place, how: How, round_: int, death: Death) -> Record:
    return Record(
        origin="measured",
        method=place.method(cell, how.runs),
        workload=cell.workload,
        platform=place.platform,
        quantities={},
        status=death.status,
        cause=death.cause,
        note=death.note,
        env={"round": round_, "threads": place.threads, "budget_s": how.budget_s},
        taken_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _in_run(record: Record, run: int) -> Record:
    """Give the record with its samples marked as of `run`."""
    quantities = {
        name: replace(q, columns={**q.columns, "run": (run,) * len(q.samples)}) if q.samples else q
        for name, q in record.quantities.items()
    }
    return replace(record, quantities=quantities)


def _joined(records: list[Record]) -> Record:
    """Give one record with the samples of all runs; single values are the largest of the runs."""
    first, *others = records
    if not others:
        return first
    quantities = {}
    for name, quantity in first.quantities.items():
        parts = [record.quantities[name] for record in records if name in record.quantities]
        if quantity.samples:
            columns = {
                key: tuple(x for part in parts for x in part.columns.get(key, ()))
                for key in quantity.columns
            }
            samples = tuple(x for part in parts for x in part.samples)
            quantities[name] = Quantity(samples=samples, columns=columns)
        else:
            values = [part.value for part in parts if part.value is not None]
            quantities[name] = Quantity(max(values)) if values else quantity
    per_run = {key: [record.env.get(key) for record in records] for key in ("steady", "warmup_s")}
    flags = {
        "steady": all(per_run["steady"]),
        "few_samples": any(record.env.get("few_samples") for record in records),
        "steady_of_run": per_run["steady"],
        "warmup_s": per_run["warmup_s"],
    }
    return replace(first, quantities=quantities, env={**first.env, **flags})


def predictions(workload: Workload, device: Device, by_op: bool) -> list[Record]:
    """Give the prediction of a workload on a device by the default method."""
    graph = build_step(workload)
    records = cost_model(DEFAULT)(graph, workload, Cluster(device), {})
    return list(records) if by_op else [records[0]]


Report = Callable[[Cell, Record, int, int], None]


@dataclass(frozen=True)
class Request:
    """A sweep as asked for: its cells, where records go, how often, and what is tried again.

    With `must_fit`, cells that are predicted not to fit are left out; otherwise they are recorded
    so and not tried (unless `how.try_all`). `predict_on` names devices, and `by_op` keeps the
    predictions of every op.
    """

    name: str
    cells: Collection[Cell]
    out: Path
    how: How
    rounds: int = 1
    predict_on: tuple[str, ...] = ()
    by_op: bool = False
    must_fit: bool = False
    retry: Collection[str] = ()
    force: bool = False


def sweep(request: Request, warn: Callable[[str], None], report: Report) -> Outcome:
    """Measure and predict the cells that a folder lacks; what is reported is on the disk.

    `report(cell, record, done, total)` is called after each measurement. Raises `InputError` for a
    folder that is no store, or in use.
    """
    cells, out, how, rounds = request.cells, request.out, request.how, request.rounds
    outcome = Outcome()
    with ExitStack() as stack:
        stack.enter_context(store.exclusive(out))
        known = store.load(out, warn, required=False)
        done = store.done_keys(known, retry=request.retry, force=request.force)
        writer = stack.enter_context(store.open_writer(out))
        workers = Workers()
        stack.callback(workers.close)
        places = _places(workers, cells)
        if request.must_fit:
            cells = [cell for cell in cells if _fits(cell, places[cell.place])]
        predict(cells, request, writer, store.done_keys(known))

        def missing() -> Iterator[tuple[int, Cell]]:
            for round_, place, cell in _visits(cells, places, rounds):
                if _key(cell, place, how, round_) not in done:
                    yield round_, cell

        outcome.cells = len(cells) * rounds
        total = sum(1 for _ in missing())
        outcome.done_before = outcome.cells - total
        for number, (round_, cell) in enumerate(missing(), start=1):
            record = attempt(workers, cell, how, round_)
            writer.append(record)
            outcome.add(record)
            report(cell, record, number, total)
    return outcome


def _visits(
    cells: Collection[Cell], places: Mapping[tuple[str, Options], Place], rounds: int
) -> Iterator[tuple[int, Place, Cell]]:
    """Give all cells in every round, those of one place together: each change costs a worker."""
    for round_ in range(rounds):
        for where, place in places.items():
            for cell in cells:
                if cell.place == where:
                    yield round_, place, cell


def _key(cell: Cell, place: Place, how: How, round_: int) -> store.DoneKey:
    identity = store.identity(place.method(cell, how.runs))
    return cell.workload.key, place.platform, identity, round_


def _places(workers: Workers, cells: Iterable[Cell]) -> dict[tuple[str, Options], Place]:
    found: dict[tuple[str, Options], Place] = {}
    for cell in cells:
        key = cell.place
        if key not in found:
            found[key] = place_of(workers.get(*key))
    return found


def _fits(cell: Cell, place: Place) -> bool:
    needed = peak_memory_bytes(build_step(cell.workload))
    return place.memory_bytes is None or needed <= place.memory_bytes


def _too_large(cell: Cell, place: Place) -> Death:
    needed = peak_memory_bytes(build_step(cell.workload))
    note = f"needs {size(needed)}, {place.platform} has {size(place.memory_bytes or 0)}; not tried"
    return Death("oom", "predicted-not-to-fit", note)


def predict(
    cells: Iterable[Cell], request: Request, writer: store.Writer, done: set[store.DoneKey]
) -> None:
    """Write the predictions that are not there yet, of every cell on every device asked for."""
    devices = [catalog.device(name) for name in request.predict_on]
    seen = set()
    for device in devices:
        for cell in cells:
            workload = cell.workload
            if (workload.key, device.name) in seen:
                continue
            seen.add((workload.key, device.name))
            try:
                records = predictions(workload, device, request.by_op)
            except InputError as error:
                raise InputError(f"{workload.label}: {error}") from None
            head = records[0]
            if (workload.key, head.platform, store.identity(head.method), 0) in done:
                continue
            # ops first: the record of the whole step says that all of them are there
            for record in (*records[1:], head):
                writer.append(record)


def summary(outcome: Outcome) -> dict[str, Any]:
    """Give the outcome as JSON values."""
    return {
        "cells": outcome.cells,
        "done_before": outcome.done_before,
        "measured": sum(outcome.statuses.values()),
        "status": outcome.statuses,
        "unsuccessful": [
            {
                "model": record.workload.label,
                "batch": record.workload.batch_per_replica,
                "status": record.status,
                "cause": record.cause,
                "note": record.note,
            }
            for record in outcome.unsuccessful
        ],
    }
