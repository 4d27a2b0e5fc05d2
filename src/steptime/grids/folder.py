"""Predict every network that a folder of records holds, beside what was measured."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Self

from steptime.core.errors import InputError
from steptime.core.progress import track_progress
from steptime.core.workload import Workload
from steptime.grids.replica_records import predict_replicas
from steptime.grids.step_records import Place, predict_records
from steptime.hardware import catalog
from steptime.hardware.device import Cluster, Device, Link
from steptime.prediction import DEFAULT, cost_model
from steptime.prediction.method import Method, stack_option
from steptime.records import store
from steptime.records.record import Record
from steptime.records.stacks import stack_of

CHUNK_RECORDS = 1000  # records put on the disk together


@dataclass
class Predicted:
    """The numbers of predictions in a folder.

    Attributes:
        added: predictions that were written.
        present: predictions that the folder held already.
        refused: steps without a prediction, by the reason.
    """

    added: int = 0
    present: int = 0
    refused: Counter[str] = field(default_factory=Counter)

    def __add__(self, other: Self) -> Self:
        """Add the numbers of both."""
        refused = self.refused + other.refused
        return type(self)(self.added + other.added, self.present + other.present, refused)


RecordKey = tuple[store.FinalKey, str]


def record_key(record: Record) -> RecordKey:
    """Return the key of a prediction of a step, or of one of its ops."""
    return store.final_key(record), record.scope


def select_missing(predictions: Iterable[Record], stored_keys: set[RecordKey]) -> list[Record]:
    """Return the predictions that a folder lacks, and add their keys: a kill may leave some ops."""
    missing_records = [record for record in predictions if record_key(record) not in stored_keys]
    stored_keys.update(map(record_key, missing_records))
    return missing_records


def predict_folder(
    folder: Path,
    warn: Callable[[str], None],
    devices: Sequence[Device] | None = None,
    method: str | Method = DEFAULT,
    options: Mapping[str, str] = MappingProxyType({}),
    link: Link | None = None,
    by_op: bool = False,
) -> Predicted:
    """Write predictions of all steps in a folder, measured or published, that it lacks.

    Args:
        folder: a folder of records.
        warn: takes a line on each record that cannot be read.
        devices: the devices; None is the device of each record.
        method: the cost model.
        options: options of the method; without a stack, that of each record is taken.
        link: what joins replicas.
        by_op: write the predictions of every op too.

    Raises:
        InputError: for a folder that is no store, in use or without steps, an unknown method.
    """
    predicted = Predicted()
    records = store.load(folder, warn)
    stored_keys = set(map(record_key, records))  # so that no record is written twice
    steps = _select_steps(records)
    if not steps:
        raise InputError(f"{folder}: holds no step that was measured or published")
    takes_stack = "stack" in cost_model(method).options
    with store.exclusive(folder), store.open_writer(folder) as writer:
        for record in track_progress(steps, "networks"):
            step_options = dict(options)
            if takes_stack:
                # The stack that ran the step, unless the user names another.
                step_options = {**stack_option(stack_of(record)), **options}
            for device in devices or _find_device(record, predicted):
                try:
                    step, *ops = _predict_step(record, device, link, method, step_options)
                except InputError as error:
                    predicted.refused[str(error)] += 1
                    continue
                # Ops come first: where a kill cuts the writing short, no step lacks its ops. A step
                # that is stored already, without ops, still gets them.
                predictions = [*ops, step] if by_op else [step]
                missing_records = select_missing(predictions, stored_keys)
                writer.append_all(missing_records)
                if missing_records:
                    predicted.added += 1
                else:
                    predicted.present += 1
    return predicted


def _step_key(record: Record) -> tuple[object, ...]:
    """Return the key of a measured step; records of one key have the same prediction."""
    settings = record.method.options
    exchange = settings.get("strategy"), settings.get("overlap")
    return record.workload.key, record.platform, *exchange, stack_of(record)


def _predict_step(
    record: Record,
    device: Device,
    link: Link | None,
    method: str | Method,
    options: Mapping[str, str],
) -> Sequence[Record]:
    """Predict the step of a record on a device: the step, then its ops."""
    workload = record.workload
    settings = record.method.options
    # Records leave out settings that have their defaults.
    strategy = settings.get("strategy", "allreduce")
    does_overlap = settings.get("overlap", True)
    replica_count = workload.plan.data
    levels = ((replica_count, link),) if link else ()
    cluster = Cluster(device, levels)
    return predict_replicas(workload, cluster, strategy, does_overlap, method, options)


def _select_steps(records: Iterable[Record]) -> list[Record]:
    """Return the steps that were measured or published, repeated ones once."""
    steps_by_key: dict[tuple[object, ...], Record] = {}
    for record in records:
        is_step = not record.scope  # records of ops have a scope
        if is_step and record.origin != "predicted":
            steps_by_key.setdefault(_step_key(record), record)
    return list(steps_by_key.values())


def _find_device(record: Record, predicted: Predicted) -> Sequence[Device]:
    """Return the device that a record is from; count the record as refused if no file has it."""
    try:
        return (catalog.device(record.platform),)
    except InputError:
        predicted.refused[f"no device file has the name of platform '{record.platform}'"] += 1
        return ()


def predict_space(
    folder: Path,
    workloads: Iterable[Workload],
    places: Sequence[Place],
    warn: Callable[[str], None],
    method: str | Method = DEFAULT,
    options: Mapping[str, str] = MappingProxyType({}),
    must_fit: bool = False,
) -> Predicted:
    """Write predictions of workloads at places that a folder lacks; all if it is new.

    Args:
        folder: a folder of records, or a new one.
        workloads: the steps of one replica.
        places: devices with data types.
        warn: takes a line on each record that cannot be read.
        method: the cost model.
        options: options of the method.
        must_fit: leave out steps that do not fit the device.

    Raises:
        InputError: as `predict_folder`.
    """
    predicted = Predicted()

    def predict_missing(stored_keys: set[store.FinalKey]) -> Iterator[Record]:
        for record in predict_records(workloads, places, method, options, predicted.refused):
            key = store.final_key(record)
            is_unfit = record.status != "ok"
            if is_unfit and must_fit:
                predicted.refused["does not fit in memory"] += 1
            elif key in stored_keys:
                predicted.present += 1
            else:
                stored_keys.add(key)
                predicted.added += 1
                yield record

    with store.exclusive(folder), store.open_writer(folder) as writer:
        stored_records = store.load(folder, warn, required=False)
        records = predict_missing(store.final_keys(stored_records))
        while chunk := list(islice(records, CHUNK_RECORDS)):
            writer.append_all(chunk)
    return predicted
