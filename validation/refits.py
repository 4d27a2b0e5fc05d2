"""Ops and networks of a device that no stage of the fit has seen."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import cast

import numpy as np

from steptime.calibration.cases import Case
from steptime.calibration.columns import Columns
from steptime.calibration.evaluate import score_with_constants
from steptime.core.errors import InputError
from steptime.hardware import catalog
from validation.fitting.hierarchy import hierarchical
from validation.fitting.stages import STAGES, by_device, even
from validation.score import CaseAnswer, op_reply
from validation.sets import neutral_value
from validation.ways import Off, Row, Way, constants_of, far, places, told_of

PER_KIND = 100  # rows of a kind of a device, in a stage
Values = Mapping[str, float]


def refitted(rows: Sequence[Row], data: Path) -> Off:
    """Return how far ops are off by constants fitted to other devices.

    The ways are those of constants that rows told and no stage fits.
    """
    if not data.is_dir():
        raise InputError(f"--data: {data}: no folder of reference data to fit stages to")
    groups: dict[tuple[str, str], list[int]] = defaultdict(list)
    for i, row in enumerate(rows):
        groups[row.question.texts["device"], _case(row).stack or catalog.DEFAULT_STACK].append(i)
    after, fitted = [*rows], {name for stage in STAGES.values() for name in stage.free}
    moves: dict[tuple[str, tuple[str, ...]], list[tuple[list[int], list[float]]]] = defaultdict(
        list
    )
    for (device, stack), own in groups.items():
        known = {name: one.value for name, one in constants_of(rows[own[0]]).items()}
        known |= {name: one for name, one in without(device, stack, data).items() if name in known}
        cases = [_case(rows[i]) for i in own]
        scores = {id(one.case): one for one in score_with_constants(cases, known)}
        for i, case in zip(own, cases, strict=True):
            one = scores[id(case)]
            after[i] = rows[i]._replace(reply=op_reply(one.value, one.low, one.high))
        told = {name: one.rows for i in own for name, one in told_of(rows[i]).items()}
        columns = Columns(cases)
        before = columns.predict_s(known)
        for name in told.keys() - fitted:
            value = neutral_value(name)
            if value is not None:
                way = np.log(before / columns.predict_s({**known, name: value}))
                moves[name, told[name]].append((own, way.tolist()))
    at = places(after)
    found = []
    for (name, sets), parts in moves.items():
        by = {i: one for own, way in parts for i, one in zip(own, way, strict=True)}
        found.append(Way(name, sets, np.array([by.get(i, 0.0) for i, _ in at])))
    return Off(after, at, np.array([far(after[i], name) for i, name in at]), found)


def without(device: str, stack: str, data: Path) -> Values:
    """Return what stages of the fit say under a stack without a device, by full name."""
    values_by_stack = fit_without(device, data)
    return {**values_by_stack.get("", {}), **values_by_stack.get(stack, {})}


@lru_cache(maxsize=256)
def fit_without(device: str, data: Path) -> Mapping[str, Values]:
    """Return what stages fit to all devices but one: of the host by stack, else under ""."""
    return fitted_without(device, {name: stage_columns(data, name) for name in STAGES})


@lru_cache(maxsize=64)
def stage_columns(data: Path, stage: str) -> Mapping[str, Columns]:
    """Return the cases that tell a stage of the fit, by device."""
    cases = by_device(STAGES[stage].cases(data), PER_KIND)
    return {device: Columns(own) for device, own in cases.items()}


def fitted_without(
    device: str, columns: Mapping[str, Mapping[str, Columns]]
) -> dict[str, dict[str, float]]:
    """Return what stages fit to the columns of all devices but one: of the host by stack, else "".

    Constants that the device alone told are neutral.
    """
    found: dict[str, dict[str, float]] = defaultdict(dict)
    for name, stage in STAGES.items():
        if device not in columns[name]:
            continue
        others = [one for other, one in columns[name].items() if other != device]
        before = found[""] | found[stage.stack]
        known = {
            key: one._replace(value=before.get(key, one.value))
            for key, one in stage.known().items()
        }
        values = {key: neutral_value(key) for key in stage.free}
        if others:
            weights = [even(one) for one in others]
            fit, _ = hierarchical(
                others, known, [*stage.free], weights, stage.shared, stage.held, stage.freedom
            )
            values = {key: fit[key] for key in stage.free}
        for key, value in values.items():
            if value is not None:
                found[stage.stack if key.startswith("host.") else ""][key] = value
    return found


def _case(row: Row) -> Case:
    return cast("CaseAnswer", row.question.answer).case
