"""`evaluate` of a folder scores the steps of `analyse results`, one case a step."""

import pytest

import steptime
import synthetic
from steptime.calibration.record_cases import SEVERAL_REPLICAS, list_record_cases
from steptime.core.copying import replace
from steptime.core.workload import Plan, Workload
from steptime.records import store
from steptime.records.record import Quantity

STEP = Workload("fc", {"layers": 4, "nodes": 64, "inputs": 32, "outputs": 10}, 64)


def _measured(*samples_s, origin="measured", workload=STEP, **changes):
    record = synthetic.measured(workload)
    step = Quantity(samples=samples_s) if origin == "measured" else Quantity(value=samples_s[0])
    quantities = {"step_s": step}
    return replace(record, origin=origin, platform="t4", quantities=quantities, **changes)


def _folder(path, *records):
    with store.open_writer(path) as writer:
        writer.append_all(records)
    return path


def test_runs_of_a_step_are_one_case_of_their_pooled_time(tmp_path):
    days = ("2026-01-01T00:00:00+00:00", "2026-01-02T00:00:00+00:00", "2026-01-03T00:00:00+00:00")
    runs = [
        _measured(value, taken_at=day) for value, day in zip((1.0, 1.1, 9.0), days, strict=True)
    ]
    folder = _folder(tmp_path, *runs)
    (case,) = list_record_cases(folder, print)
    (row,) = steptime.analyse("results", folder).rows
    assert case.seconds == pytest.approx(1.1)
    assert case.seconds == row.measured_s
    assert (case.workload, case.place) == (STEP, f"{STEP.label}, batch 64")


def test_a_published_number_counts_where_nothing_was_measured(tmp_path):
    other = replace(STEP, batch_per_replica=32)
    folder = _folder(
        tmp_path,
        _measured(2.0),
        _measured(3.0, origin="published"),
        _measured(4.0, origin="published", workload=other),
    )
    cases = list_record_cases(folder, print)
    assert [(case.workload.batch_per_replica, case.seconds) for case in cases] == [
        (64, 2.0),
        (32, 4.0),
    ]


def test_steps_that_cannot_be_asked_have_a_reason(tmp_path):
    unknown = replace(_measured(1.0), platform="no such card")
    several = _measured(1.0, workload=replace(STEP, plan=Plan(data=2)))
    folder = _folder(tmp_path, _measured(1.0), unknown, several)
    unasked = []
    assert len(list_record_cases(folder, print, unasked)) == 1
    reasons = [reason for _, reason in unasked]
    assert SEVERAL_REPLICAS in reasons
    assert any("no such card" in reason for reason in reasons)
    remarks = []
    list_record_cases(folder, remarks.append)
    assert all(remark.startswith("1 records left out: ") for remark in remarks)
    assert len(remarks) == 2
