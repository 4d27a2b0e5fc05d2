"""What a line of a record says of its workload."""

import json
import re

import pytest

from steptime.build import make_workload, read_model
from steptime.core.workload import Plan, Tuning, Workload
from steptime.prediction.records import records
from steptime.prediction.steps.step_model import StepModel
from steptime.records.reading import read_line, record_of
from steptime.records.record import Record, RecordMethod, record_to_json


def test_a_plan_comes_back_as_it_stands_so_that_its_key_does():
    keys = set()
    for imbalance in (2, 2.0):
        plan = Plan(tensor=2, stages=(3, 1), imbalance=imbalance)
        workload = Workload("fc", {"layers": 4}, 8, plan=plan)
        record = Record("measured", RecordMethod("torch", "2"), workload, "cpu", {})
        line = json.dumps(record_to_json(record) | {"workload_key": ""})
        found = record_of(read_line(line.encode())).workload
        assert (found, found.key) == (workload, workload.key)
        assert type(found.plan.imbalance) is type(imbalance)
        keys.add(found.key)
    assert len(keys) == 2


def test_a_fine_tuning_comes_back_and_one_that_there_is_not_is_a_fault():
    tuning = Tuning(rank=4, on="q+v", weights="nf4")
    workload = make_workload(read_model("transformer"), 1, dtype="bfloat16", tuning=tuning)
    record = records(StepModel(workload, "a100"))[0]
    table = json.loads(json.dumps(record_to_json(record)))
    found = read_line(json.dumps(table).encode())
    assert record_of(found).workload == workload
    assert found.key == workload.key
    for said, why in (
        ({"rank": -1}, "r is at least 1"),
        ({"rnk": 3}, "did you mean 'rank'?"),
        ({"rank": "x"}, "Expected `int`"),
        ({"rank": 2, "weights": "nf5"}, "unknown weights 'nf5'; known: nf4, nf4-dq, "),
    ):
        table["workload"]["tuning"] = said
        with pytest.raises(ValueError, match=re.escape(why)):
            read_line(json.dumps(table).encode())
