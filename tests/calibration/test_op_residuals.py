"""Standard ops of a CPU: as PyTorch's profiler writes them, timed, and in traces that move."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

import steptime
from steptime.calibration.traces.kernels import kernels_of
from steptime.calibration.traces.transfer import TracedStepChange, move_step, price_ops
from steptime.hardware.device import Device
from steptime.measure.probe import op_times
from steptime.prediction import cost_model
from steptime.prediction.kernel import Settings
from steptime.records.traces.standard_ops import list_standard_ops
from steptime.records.traces.trace_events import TracedInput, read_events
from steptime.records.traces.traced_ops import OpKey, TracedOp, TracedStep

CALIBRATED = cost_model("calibrated")
DTYPES = ("float32", "bfloat16")


def make_device() -> Device:
    """Return a CPU whose file has no times of ops."""
    return steptime.device("ampere-altra-q80-30").with_figures(
        peak_flop_per_s={"float32": 1e12, "bfloat16": 2e12}
    )


def with_op_times(device: Device, factors: Mapping[str, float], dtype: str) -> Device:
    """Return a device on which standard ops take so many times their prediction, by name."""
    ops = list_standard_ops()
    predicted = price_ops([op.make_key(dtype) for op in ops], device, None, CALIBRATED)
    times = {
        op.label: factors.get(op.name, 1.0) * seconds
        for op, seconds in zip(ops, predicted, strict=True)
    }
    return replace(device, measured={"ops": {dtype: times}})


def make_step(*keys: OpKey) -> TracedStep:
    """Return a step in which each op takes 1 ms."""
    ops = tuple(TracedOp(key, seconds=1e-3, calls=1) for key in keys)
    return TracedStep(
        step_s=1e-3 * len(ops),
        ops=ops,
        unshaped_s={},
        is_on_device=False,
        gap_s=0.0,
        issue_s=1e-3,
        step_count=1,
        is_marked=True,
    )


PRODUCT = OpKey(
    "aten::mm", "forward", (TracedInput((300, 200), "float"), TracedInput((200, 100), "float"))
)
DROPOUT = OpKey("aten::bernoulli_", "forward", (TracedInput((64, 1000), "float"),))


def test_labels_of_standard_ops_are_unique() -> None:
    labels = [op.label for op in list_standard_ops()]
    assert len(set(labels)) == len(labels)


@pytest.mark.parametrize("dtype", DTYPES)
def test_each_standard_op_has_a_price(dtype: str) -> None:
    keys = [op.make_key(dtype) for op in list_standard_ops()]
    assert min(price_ops(keys, make_device(), None, CALIBRATED)) > 0


def test_an_op_moves_as_the_standard_ops_of_its_kind_do() -> None:
    origin = with_op_times(make_device(), {"mm": 2.0}, "float32")
    target = with_op_times(make_device(), {"mm": 1.0, "bernoulli_": 3.0}, "float32")
    step = make_step(PRODUCT, DROPOUT)
    moved = move_step(step, origin, target, TracedStepChange(), CALIBRATED)
    product, dropout = (op.moved_s for op in moved.ops)
    assert product == pytest.approx(1e-3 / 2.0)
    assert dropout == pytest.approx(1e-3 * 3.0)
    back = move_step(step, target, origin, TracedStepChange(), CALIBRATED)
    assert [op.moved_s for op in back.ops] == pytest.approx([2e-3, 1e-3 / 3])


def test_sizes_nearby_weigh_more_than_sizes_far_away() -> None:
    device = make_device()
    origin = with_op_times(device, {}, "float32")
    times = dict(origin.measured["ops"]["float32"])
    slowed = {label: 4 * seconds for label, seconds in times.items() if label == "relu 65536x64"}
    assert len(slowed) == 1
    target = replace(device, measured={"ops": {"float32": times | slowed}})
    moved_s = []
    for rows in (64, 60_000):
        key = OpKey("aten::relu", "forward", (TracedInput((rows, 64), "float"),))
        moved = move_step(make_step(key), origin, target, TracedStepChange(), CALIBRATED)
        moved_s.append(moved.step_s)
    assert moved_s[0] == pytest.approx(1e-3, rel=0.01)
    assert moved_s[1] == pytest.approx(4e-3, rel=0.05)


def test_times_of_a_data_type_move_a_step_to_it() -> None:
    floats = with_op_times(make_device(), {}, "float32")
    halves = with_op_times(make_device(), {"mm": 5.0}, "bfloat16")
    device = replace(floats, measured={"ops": {**floats.measured["ops"], **halves.measured["ops"]}})
    plain, corrected = (
        move_step(make_step(PRODUCT), side, side, TracedStepChange(None, "bfloat16"), CALIBRATED)
        for side in (make_device(), device)
    )
    assert corrected.step_s == pytest.approx(5 * plain.step_s)


@pytest.mark.parametrize("is_origin", [True, False])
def test_times_of_a_single_side_change_nothing(is_origin: bool) -> None:
    plain = make_device()
    timed = with_op_times(plain, {"mm": 5.0}, "float32")
    sides = (timed, plain) if is_origin else (plain, timed)
    moved = move_step(make_step(PRODUCT), *sides, TracedStepChange(), CALIBRATED)
    assert moved.step_s == pytest.approx(1e-3)


def test_a_small_budget_times_no_op() -> None:
    assert op_times.time_standard_ops(op_times.MIN_BUDGET_S - 1) == {}


@pytest.mark.framework
@pytest.mark.parametrize("dtype", DTYPES)
def test_standard_ops_are_those_that_the_profiler_writes(dtype: str, tmp_path: Any) -> None:
    import torch
    from torch.profiler import ProfilerActivity, profile

    smallest = {op.name: op for op in reversed(list_standard_ops())}
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        for op in smallest.values():
            assert op_times.time_op(op, getattr(torch, dtype)) > 0
    path = tmp_path / "trace.json"
    profiler.export_chrome_trace(str(path))
    events = [event for event in read_events(path.read_text()) if event.inputs]
    for op in smallest.values():
        if op.name == "cat" and dtype != "float32":
            continue  # the profiler writes no types of lists of tensors
        key = op.make_key(dtype)
        traced_keys = [
            key._replace(inputs=event.inputs) for event in events if event.name == key.name
        ]
        assert kernels_of(key, None, Settings()) in [
            kernels_of(traced_key, None, Settings()) for traced_key in traced_keys
        ], key.name
