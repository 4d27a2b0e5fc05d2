"""Predicted ops computed again, as a folder of records holds the predictions of whole steps."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from math import isclose

from steptime.core.errors import InputError
from steptime.prediction import cost_model
from steptime.prediction.records import records
from steptime.prediction.step_model import StepModel
from steptime.questions.why import device_of
from steptime.records import store
from steptime.records.data import Data
from steptime.records.record import Quantity, Record
from steptime.records.row import grouped, headline

MOST = 100  # steps: a hundredth of a second each
_COUNTS = """
    SELECT count(*) FILTER (scope = '') AS steps, count(*) FILTER (scope <> '') AS ops
    FROM records WHERE origin = 'predicted'
"""


def with_ops(data: Data) -> Data:
    """Return records of one folder with the ops of predictions, where it holds none of them.

    Of more than `MOST` predicted steps the records are returned as they are.
    """
    ((steps, ops),) = (row.values() for row in data.rows(_COUNTS))
    if ops or not 0 < steps <= MOST or len(data.names) != 1:
        return data
    return Data.of([*data.records, *predicted_ops(data.records)], *data.names)


def predicted_ops(steps: Iterable[Record]) -> Iterator[Record]:
    """Yield the ops of each predicted step of one replica that comes out the same when made again.

    It does not where its device is not known here, or has other figures by now.
    """
    made = [one for one in steps if one.origin == "predicted" and one.workload.plan.data == 1]
    for platform, held in grouped(made, lambda one: one.platform).items():
        try:
            device = device_of(platform)
        except InputError:
            continue
        for one in held:
            try:
                known = cost_model(one.method.name).options.keys() & one.method.options.keys()
                told = {name: str(one.method.options[name]) for name in known}
                step, *ops = records(StepModel(one.workload, device, None, one.method.name, told))
            except InputError:
                continue
            if _same(step, one):
                yield from (replace(op, taken_at=one.taken_at) for op in ops)


def _same(step: Record, other: Record) -> bool:
    told, known = (headline(one.quantities.get("step_s", Quantity())) for one in (step, other))
    named = store.identity(step.method) == store.identity(other.method)
    return named and told is not None and known is not None and isclose(told, known)
