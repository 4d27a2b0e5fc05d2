"""Predictions of every network that a folder of records holds, beside what was measured."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Self

from steptime.core.errors import InputError
from steptime.core.progress import watched
from steptime.core.workload import Workload
from steptime.grids.grid import Place, predicted
from steptime.grids.replicas import predict_replicas
from steptime.hardware import catalog
from steptime.hardware.device import Cluster, Device, Link
from steptime.prediction import DEFAULT, cost_model
from steptime.prediction.method import Method, stack_option
from steptime.records import store
from steptime.records.record import Record
from steptime.records.stacks import stack_of

AT_ONCE = 1000  # records put on the disk together


@dataclass
class Predicted:
    """How many predictions were written, how many were there, and steps by why they were not."""

    written: int = 0
    there: int = 0
    refused: Counter[str] = field(default_factory=Counter)

    def __add__(self, other: Self) -> Self:
        """Return what both are together."""
        refused = self.refused + other.refused
        return type(self)(self.written + other.written, self.there + other.there, refused)


def part_key(record: Record) -> tuple[store.FinalKey, str]:
    """Return what tells a prediction of a step from others, and those of its ops."""
    return store.final_key(record), record.scope


def lacking(predictions: Iterable[Record], there: set[tuple[store.FinalKey, str]]) -> list[Record]:
    """Return the predictions that are not `there`, and add them: a kill may leave some ops."""
    lacks = [one for one in predictions if part_key(one) not in there]
    there.update(map(part_key, lacks))
    return lacks


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

    They are on `devices`, else on that of each record; `by_op` keeps those of every op. Raises
    `InputError` for a folder that is no store, in use or without steps, an unknown method.
    """
    found = Predicted()
    known = store.load(folder, warn)
    there = set(map(part_key, known))
    steps: dict[tuple[object, ...], Record] = {}
    for one in known:
        if one.origin != "predicted" and not one.scope:
            told = one.method.options
            how = told.get("strategy"), told.get("overlap"), stack_of(one)
            steps.setdefault((one.workload.key, one.platform, *how), one)
    if not steps:
        raise InputError(f"{folder}: holds no step that was measured or published")

    def predicted_on(device: Device, record: Record) -> Sequence[Record]:
        workload, told, given = record.workload, record.method.options, options
        if "stack" in cost_model(method).options:
            given = {**stack_option(stack_of(record)), **given}
        how = told.get("strategy", "allreduce"), told.get("overlap", True)
        cluster = Cluster(device, ((workload.plan.data, link),) if link else ())
        return predict_replicas(workload, cluster, *how, method, given)

    with store.exclusive(folder), store.open_writer(folder) as writer:
        for record in watched(list(steps.values()), "networks"):
            for device in devices or _own_device(record, found):
                try:
                    head, *ops = predicted_on(device, record)
                except InputError as error:
                    found.refused[str(error)] += 1
                    continue
                # a step that is there gets its ops beside it
                lacks = lacking([*(ops if by_op else ()), head], there)
                writer.append_all(lacks)
                found.written += bool(lacks)
                found.there += not lacks
    return found


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

    With `must_fit` those that do not fit are left out. Raises `InputError` as `predict_folder`.
    """
    found = Predicted()

    def missing(done: set[store.FinalKey]) -> Iterator[Record]:
        for one in predicted(workloads, places, method, options, found.refused):
            key = store.final_key(one)
            if one.status != "ok" and must_fit:
                found.refused["does not fit in memory"] += 1
            elif key in done:
                found.there += 1
            else:
                done.add(key)
                found.written += 1
                yield one

    with store.exclusive(folder), store.open_writer(folder) as writer:
        made = missing(store.final_keys(store.load(folder, warn, required=False)))
        while some := list(islice(made, AT_ONCE)):
            writer.append_all(some)
    return found


def _own_device(record: Record, found: Predicted) -> Sequence[Device]:
    try:
        return (catalog.device(record.platform),)
    except InputError:
        found.refused[f"no device file has the name of platform '{record.platform}'"] += 1
        return ()
