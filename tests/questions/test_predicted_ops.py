"""Predicted ops that a folder does not hold are those that a prediction by op would store."""

from __future__ import annotations

from dataclasses import replace

import pytest

from steptime.prediction.records import records
from steptime.prediction.step_model import StepModel
from steptime.questions.ops import MOST, predicted_ops, with_ops
from steptime.records.data import Data
from steptime.records.record import Quantity, Record

STEP, *OPS = records(StepModel("fc:layers=2,nodes=64", "t4"))


def test_they_are_those_that_would_be_stored() -> None:
    assert OPS
    assert list(predicted_ops([STEP])) == [replace(one, taken_at=STEP.taken_at) for one in OPS]


@pytest.mark.parametrize(
    "other",
    [
        replace(STEP, quantities={**STEP.quantities, "step_s": Quantity(1.0)}),
        replace(STEP, quantities={}),
        replace(STEP, platform="a machine of theirs"),
        replace(STEP, method=replace(STEP.method, name="theirs")),
        replace(STEP, origin="measured"),
    ],
)
def test_a_step_that_comes_out_otherwise_has_none(other: Record) -> None:
    assert not list(predicted_ops([other]))


def test_records_of_few_steps_without_ops_get_them() -> None:
    assert [one.scope for one in with_ops(Data.of([STEP])).records] == [
        one.scope for one in (STEP, *OPS)
    ]
    for as_they_are in (Data.of([STEP, OPS[0]]), Data.of([STEP] * (MOST + 1)), Data.of([])):
        assert with_ops(as_they_are) is as_they_are
