"""Labels of results: whatever setting two of them differ in, the labels differ, too."""

from __future__ import annotations

from typing import Any

import pytest

from steptime.core.copying import replace
from steptime.core.workload import Plan, StateMode, Tuning, Workload
from steptime.records.data import Data
from steptime.records.record import Quantity, Record, RecordMethod

WORKLOAD = Workload("fc", {"layers": 2}, 64)
MEASURED = Record(
    "measured",
    RecordMethod("torch", "2.0", {"threads": 1}),
    WORKLOAD,
    "t4",
    {"step_s": Quantity(1.0)},
)
PREDICTED = replace(MEASURED, origin="predicted", method=RecordMethod("calibrated", "1", {}))


def labels(*records: Record) -> list[str]:
    """Return the labels of the results of records."""
    return [row["label"] for row in Data.from_records(records).results]


@pytest.mark.parametrize(
    "changes",
    [
        {"dtype": "bfloat16"},
        {"phase": "infer", "optimizer": "none"},
        {"optimizer": "adam"},
        {"batch_per_replica": 32},
        {"plan": Plan(data=2)},
        {"plan": Plan(tensor=2)},
        {"tuning": Tuning(rank=8)},
        {"tuning": Tuning(states=(StateMode.EIGHT_BIT,))},
        {"sha256": "a" * 64, "file": "nets/fc.onnx"},
        {"params": {"layers": 3}},
    ],
)
def test_a_setting_of_the_network_is_in_the_label(changes: dict[str, Any]):
    other = replace(MEASURED, workload=replace(WORKLOAD, **changes))
    assert len({*labels(MEASURED, other)}) == 2


def test_two_ways_of_fine_tuning_have_two_labels():
    both = [
        replace(MEASURED, workload=replace(WORKLOAD, tuning=Tuning(rank=8, methods=methods)))
        for methods in (("peft",), ("unsloth",))
    ]
    assert labels(*both) == [
        "fc tuning LoRA r=8 on attention, how peft, batch 64",
        "fc tuning LoRA r=8 on attention, how unsloth, batch 64",
    ]


def test_a_file_is_named_by_the_first_digits_of_its_hash():
    files = [
        replace(MEASURED, workload=replace(WORKLOAD, sha256=digit * 64, file="fc.onnx"))
        for digit in "ab"
    ]
    assert labels(*files) == ["fc file aaaaaaaa, batch 64", "fc file bbbbbbbb, batch 64"]


@pytest.mark.parametrize(
    "method",
    [
        RecordMethod("jax", "0.4", {"threads": 1}),
        RecordMethod("torch", "2.1", {"threads": 1}),
        RecordMethod("torch", "2.0", {"threads": 4}),
        RecordMethod("torch", "2.0", {"threads": 1, "compile": True}),
        RecordMethod("torch", "2.0", {"threads": 1, "layout": "nhwc"}),
        RecordMethod("torch", "2.0", {"threads": 1, "strategy": "allreduce"}),
        RecordMethod("torch", "2.0", {"threads": 1, "gpu": "k80"}),
        RecordMethod("torch", "2.0", {"threads": 1, "staging": "local"}),
        RecordMethod("torch", "2.0", {"threads": 1, "prefetch": 3}),
    ],
)
def test_an_option_of_the_measurement_is_in_the_label(method: RecordMethod):
    assert len({*labels(MEASURED, replace(MEASURED, method=method))}) == 2


def test_the_stack_of_a_prediction_is_in_its_label():
    stacks = ("torch", "torch-compile")
    records = [replace(PREDICTED, env={"stack": stack}) for stack in stacks]
    assert labels(*records) == ["fc batch 64, torch", "fc batch 64, torch-compile"]


def test_a_measurement_says_its_stack_once():
    compiled = replace(
        MEASURED, method=RecordMethod("torch", "2.0", {"threads": 1, "compile": True})
    )
    assert labels(MEASURED, compiled) == ["fc batch 64, torch", "fc batch 64, torch-compile"]
