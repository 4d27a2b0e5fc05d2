"""Measured steps of a folder of records as cases of an evaluation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from steptime.calibration.cases import Case, Refusals, step_kernels
from steptime.core.errors import InputError
from steptime.hardware import catalog, device_words
from steptime.prediction.records import options_of
from steptime.records import store
from steptime.records.data import Data
from steptime.records.pooled_step import IS_STEP
from steptime.records.record import Record
from steptime.records.results import MEASURED, group_predicted_and_measured
from steptime.records.stacks import stack_of

SEVERAL_REPLICAS = "steps of several replicas are not evaluated"


def list_record_cases(
    folder: Path, warn: Callable[[str], None], refusals: Refusals | None = None
) -> list[Case]:
    """Return the measured steps of one device as cases, one for each step of `analyse results`.

    All runs of a step are one case of their pooled time; a published number counts if there is no
    measurement of that step (`results.group_predicted_and_measured`).

    Args:
        folder: the folder of records.
        warn: gets remarks on lines that are no records, and without `refusals` a line for each
            reason why steps are left out.
        refusals: gets the steps that no prediction can be made for, with the reasons.
    """
    refused_rows: Refusals = [] if refusals is None else refusals
    cases = []
    for record, step_s in _measured_steps(folder, warn):
        place = f"{record.workload.label}, batch {record.workload.batch_per_replica}"
        try:
            cases.append(_make_case(record, step_s, place))
        except InputError as error:
            refused_rows.append((place, str(error)))
    if refusals is None:
        for reason, count in Counter(cause for _, cause in refused_rows).items():
            warn(f"{count:,} records left out: {reason}")
    return cases


def _measured_steps(folder: Path, warn: Callable[[str], None]) -> Iterator[tuple[Record, float]]:
    """Yield the last good record of each measured step, and the pooled time of all its records."""
    with store.readable(folder):
        data = Data.load([folder], warn)
    # Each group holds the repeated records of one step by one method; columns have a row a group.
    groups = group_predicted_and_measured(data, takes_part=IS_STEP)
    columns = groups.columns
    # A group's level tells whether it is predicted or measured.
    is_measured = columns.level == groups.level_index(MEASURED)
    group_indices = np.flatnonzero(is_measured & (columns.value > 0))
    record_numbers = columns.best_seq[group_indices]  # the last good record of each group
    steps_s = columns.value[group_indices]
    # Where each of these records stands in the only folder, and the records by their places.
    places = dict(data.take_records(record_numbers, ["place"]).iter_rows())
    records = data.read_records(folder=0, places=sorted(places.values()))
    for record_number, step_s in zip(record_numbers.tolist(), steps_s.tolist(), strict=True):
        yield records[places[record_number]], step_s


def _make_case(record: Record, step_s: float, place: str) -> Case:
    """Return the case of a step.

    Raises:
        InputError: for a platform that no device file describes, and for several replicas.
    """
    workload = record.workload
    device = catalog.device(device_words.platform_of(record.platform) or record.platform)
    device_count = record.method.options.get("device_count", 1)
    if workload.plan.data > 1 or device_count != 1:
        raise InputError(SEVERAL_REPLICAS)
    options = options_of(record, device)
    stack = stack_of(record)
    return Case(
        kernels=step_kernels(workload, options),
        device=device,
        seconds=step_s,
        kind=workload.model,
        condition="step",
        family=workload.label,
        workload=workload,
        # "" is the usual stack.
        stack="" if stack == catalog.DEFAULT_STACK else stack,
        place=place,
        method_options={name: text for name, text in options.items() if name != "stack"},
    )
