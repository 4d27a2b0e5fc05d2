"""The measured steps of each node, with the references and predictions of the same steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import polars as pl

from steptime.analysis.comparison.pairing import Pairing
from steptime.core.errors import InputError
from steptime.records.data import Data
from steptime.records.groups.group_members import Ids
from steptime.records.groups.record_groups import Cells, RecordGroups, finite_cells
from steptime.records.pair_keys import check_quantity
from steptime.records.results import MEASURED, PREDICTED, group_predicted_and_measured
from steptime.records.row import Row

IDENTITY = ("workload_key", "platform", "strategy", "overlap")  # equal for equal steps
METHOD = ("method", "method_options")
STEP_CELLS: Cells = {
    name: name
    for name in (
        *IDENTITY,
        *METHOD,
        *("model", "family", "batch", "dtype", "status", "cause"),
    )
}


class StepNumber(NamedTuple):
    """A number of a step with its interval.

    Attributes:
        value: the number; None where unknown.
        low: low end of its interval.
        high: high end of its interval.
    """

    value: float | None
    low: float | None
    high: float | None


UNKNOWN_NUMBER = StepNumber(value=None, low=None, high=None)


class StepMeasurement(NamedTuple):
    """A step of a network as one node measured it.

    Attributes:
        group: the group of its records.
        host: the node; "" where unknown.
        name: the network, with the settings in which it differs from other rows.
        facts: columns of its last record, by the names of `STEP_CELLS`.
        number: what was measured; its interval is of 95 %.
        prediction: the prediction of the step; its interval is of 80 %.
    """

    group: int
    host: str
    name: str
    facts: Row
    number: StepNumber
    prediction: StepNumber

    @property
    def identity(self) -> tuple[object, ...]:
        """The values that equal steps on all nodes share."""
        return tuple(self.facts[name] for name in IDENTITY)


@dataclass(frozen=True)
class MeasuredSteps:
    """The measured steps of a quantity.

    Attributes:
        data: the records.
        quantity: the quantity.
        source: the file that names the quantity, for an error message.
        is_by_host: whether each node has its own; else nodes are pooled.
    """

    data: Data
    quantity: str
    source: str = ""
    is_by_host: bool = True

    @cached_property
    def groups(self) -> RecordGroups:
        """The groups of records; raises `InputError` for a quantity that no record has."""
        try:
            check_quantity(self.data, self.quantity)
        except InputError as error:
            prefix = f"{self.source}: " if self.source else ""
            raise InputError(f"{prefix}{error}") from None
        is_step = pl.col("scope") == ""
        return group_predicted_and_measured(
            self.data, self.quantity, is_step, is_by_host=self.is_by_host
        )

    @cached_property
    def steps(self) -> Sequence[StepMeasurement]:
        """All measured steps, in the order of their first records."""
        return list(self._make_steps())

    def _make_steps(self) -> Iterator[StepMeasurement]:
        """Yield the measured steps of each node, each with its last prediction."""
        groups = self.groups
        is_measured = groups.columns.level != groups.level_index(PREDICTED)
        ids = np.flatnonzero(is_measured)
        if not len(ids):
            return
        # `Pairing` serves only to name the groups: the host is no part of the name.
        names = Pairing(groups, PREDICTED, level_words={}, free_columns=("host",)).names(ids)
        facts = groups.facts(ids, STEP_CELLS)
        levels = groups.level_of(ids)
        predictions = self._predictions()
        for group, name, level in zip(ids.tolist(), names, levels, strict=True):
            yield StepMeasurement(
                group=group,
                # Levels of measured groups are "measured" and the name of the host.
                host=level.removeprefix(MEASURED),
                name=name,
                facts=facts[group],
                number=self._group_numbers[group],
                prediction=predictions.get(group, UNKNOWN_NUMBER),
            )

    def _predictions(self) -> Mapping[int, StepNumber]:
        """Return the last prediction of each measured group that has one."""
        pairs = self.groups.pairs(PREDICTED)  # ids of groups: "a" predicted, "b" measured
        last_seq = self.groups.columns.last_seq
        newest: dict[int, int] = {}
        for predicted, measured in zip(pairs["a"].tolist(), pairs["b"].tolist(), strict=True):
            previous = newest.get(measured)
            # The later a record, the higher its number.
            if previous is None or last_seq[predicted] > last_seq[previous]:
                newest[measured] = predicted
        return {measured: self._group_numbers[predicted] for measured, predicted in newest.items()}

    @cached_property
    def _group_numbers(self) -> Sequence[StepNumber]:
        """The number of each group, unknown where its records failed."""
        columns = self.groups.columns
        values = finite_cells(columns.value)
        lows = finite_cells(columns.low)
        highs = finite_cells(columns.high)
        numbers = []
        for value, low, high, has_value in zip(values, lows, highs, columns.has_value, strict=True):
            # A group of failed steps has no value; a time or rate of 0 cannot be compared.
            is_comparable = has_value and value is not None and value > 0
            numbers.append(StepNumber(value, low, high) if is_comparable else UNKNOWN_NUMBER)
        return numbers

    def predicted_numbers(self) -> Mapping[tuple[object, ...], StepNumber]:
        """Return the last prediction of each step, by the values of `IDENTITY`."""
        groups = self.groups
        ids = np.flatnonzero(groups.columns.level == groups.level_index(PREDICTED))
        if not len(ids):
            return {}
        facts = groups.facts(ids, {name: name for name in IDENTITY})  # columns, under their names
        return {
            tuple(row[name] for name in IDENTITY): self._group_numbers[group]
            for group, row in facts.items()
        }

    def read_texts(self, expressions: Mapping[str, pl.Expr]) -> Mapping[int, Row]:
        """Return further columns of the last record of each step, by group."""
        ids: Ids = np.array([step.group for step in self.steps], np.int64)
        return self.groups.facts(ids, expressions) if len(ids) else {}


def reference_numbers(reference: Data, steps: Sequence[StepMeasurement]) -> list[StepNumber]:
    """Return the step of a reference machine for each measured step, unknown where it has none.

    The nodes of the reference are pooled. Of several measurements of an equal step the one by the
    same method with the same options counts, else the last one; a reference that was only
    predicted counts where nothing was measured.

    Raises:
        InputError: if none of the steps is in the reference.
    """
    measured = MeasuredSteps(reference, "step_s", is_by_host=False)  # its nodes are pooled
    # A number of the same method is taken if there is one, else that of the step by any method.
    by_method: dict[tuple[object, ...], StepNumber] = {}
    by_identity: dict[tuple[object, ...], StepNumber] = {}
    for step in measured.steps:
        # A step that failed on the reference machine is judged by its prediction.
        number = step.prediction if step.number.value is None else step.number
        if number.value is not None:
            by_identity[step.identity] = number
            # Later steps replace earlier ones: the last measurement counts.
            by_method[_method_key(step)] = number
    # What was only predicted counts last: `setdefault` keeps each measured number.
    for identity, number in measured.predicted_numbers().items():
        by_identity.setdefault(identity, number)
    numbers = []
    for step in steps:
        equal_step = by_identity.get(step.identity, UNKNOWN_NUMBER)
        numbers.append(by_method.get(_method_key(step), equal_step))
    if steps and not any(number.value for number in numbers):
        raise InputError("holds none of the measured steps on the same device")
    return numbers


def _method_key(step: StepMeasurement) -> tuple[object, ...]:
    """Return the key of equal steps that were measured by the same method with its options."""
    return (step.identity, *(step.facts[name] for name in METHOD))
