"""Traces with missing marks, without launches or kernels, and as a list of events alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from test_torch_trace import BASE_US, make_loop, make_slice, profile, write_trace

from steptime.records.readers import read_path


def drop_events(events: list[Any], *categories: str) -> list[Any]:
    return [event for event in events if event["cat"] not in categories]


def read_step_s(path: Path) -> tuple[float, list[str]]:
    """Return the value of the step of a trace and the notes on it."""
    content = read_path(path)
    step = next(record for record in content.records if not record.scope)
    quantity = step.quantities["step_s"]
    value = quantity.value if quantity.value is not None else sum(quantity.samples)
    return value, content.notes


def test_a_step_that_is_not_marked_lengthens_no_other_step():
    events = [event for event in make_loop(4, 20_000, 60_000) if event["name"] != "ProfilerStep#1"]
    assert profile(events).step_s == pytest.approx([0.06] * 3, rel=0.05)


def test_kernels_without_launches_give_the_mean_of_the_marked_steps(tmp_path):
    events = drop_events(make_loop(4, 20_000, 60_000), "cuda_runtime")
    step_s, notes = read_step_s(write_trace(tmp_path / "a.json", events))
    assert step_s == pytest.approx(0.06, rel=0.05)
    assert notes == [
        "a.json: says not which step launched a kernel: the mean of its 4 marked steps"
    ]


def test_marks_of_the_device_are_steps_where_launches_are_missing():
    kernels = [event for event in make_loop(4, 20_000, 60_000) if event["cat"] == "kernel"]
    marks = [
        make_slice("gpu_user_annotation", f"ProfilerStep#{step}", BASE_US + 60_000 * step, 60_000)
        for step in range(4)
    ]
    assert profile([*kernels, *marks]).step_s == pytest.approx([0.06] * 4, rel=0.05)


def test_launches_without_kernels_are_said_to_be_the_time_of_the_host(tmp_path):
    events = drop_events(make_loop(4, 20_000, 60_000), "kernel")
    _, notes = read_step_s(write_trace(tmp_path / "a.json", events))
    assert notes == ["a.json: launches kernels but holds none: its times are those of the host"]


def test_a_list_of_events_alone_is_a_trace(tmp_path):
    path = tmp_path / "a.json"
    path.write_text(json.dumps(make_loop(4, 20_000, 60_000)))
    step_s, _ = read_step_s(path)
    assert step_s == pytest.approx(4 * 0.06, rel=0.05)


def test_an_annotation_that_repeats_suggests_the_number_of_steps(tmp_path):
    events = make_loop(4, 20_000, 60_000)
    for event in events:
        event["name"] = event["name"].replace("ProfilerStep#", "train_step ")
    _, notes = read_step_s(write_trace(tmp_path / "a.json", events))
    assert notes[0].endswith(
        "`--steps 4` divides it if it holds 4 (its annotation 'train_step' ran 4 times)"
    )
