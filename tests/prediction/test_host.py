"""The host's side of a step, by hand: 1 s an op, 4 s a kernel."""

import random
from dataclasses import replace

import numpy as np
import pytest

from steptime.core.errors import InputError
from steptime.grids.grid import grid
from steptime.hardware import catalog
from steptime.hardware.stack import stack_from_table
from steptime.prediction.host import Host, count_calls, find_host, host_of_launches, wait_for_host
from steptime.prediction.kernel import Exchange, Kernel
from steptime.prediction.steps.step_model import StepModel

SECONDS = {
    "host.step_s": 2.0,
    "host.update_s": 1.0,
    "host.forward_op_s": 1.0,
    "host.backward_op_s": 2.0,
    "host.update_op_s": 0.5,
    "host.launch_s": 0.25,
    "host.view_s": 0.125,
    "host.factor": 1.0,
}


def kernel(pass_, kind="relu", launches=1, views=0, exchange=None):
    return Kernel(
        "op", kind, pass_, "float32", "vector", 1, 1,
        launches=launches, views=views, exchange=exchange,
    )  # fmt: skip


STEP = [
    kernel("forward", views=2),
    kernel("forward", "conv2d", launches=3),
    kernel("backward"),
    kernel("backward", "all_reduce", launches=0, exchange=Exchange("op", 2, 1)),
    kernel("update", "adam", launches=7),
    kernel("update", "adam", launches=0),
]


def test_the_host_of_a_step_is_its_base_and_what_it_calls():
    host = find_host(count_calls(STEP), SECONDS)
    forward = 2.0 + 2 * 1.0 + 2 * 0.25 + 2 * 0.125
    assert host.base_s == 2.0
    assert host.issued_s == (forward, forward + 2.0, forward + 2.0 + 1.0 + 8 * 0.5)


def test_a_kind_may_have_seconds_of_its_own_and_a_slower_host_takes_longer_for_all():
    own = {**SECONDS, "host.forward_conv2d_s": 5.0, "host.factor": 2.0}
    host = find_host(count_calls(STEP[:2]), own)
    assert host.issued_s[0] == 2 * (2.0 + 1.0 + 5.0 + 2 * 0.25 + 2 * 0.125)
    assert host.issued_s[2] == host.issued_s[0]  # nothing is updated
    assert find_host(count_calls(STEP), {}) is None


def test_a_convolution_s_gradients_are_two_calls_of_its_own_seconds():
    own = {**SECONDS, "host.backward_conv2d_s": 5.0, "host.backward_batch_norm_s": 7.0}
    kinds = ("conv2d_grad_weight", "conv_transpose2d", "batch_norm_grad", "relu_grad")
    host = find_host(count_calls([kernel("backward", kind) for kind in kinds]), own)
    assert host.issued_s[1] - host.issued_s[0] == 2 * 5.0 + 7.0 + 2.0


def test_a_host_that_runs_ahead_hides_behind_the_device_or_the_device_behind_it():
    host = Host((3.0, 4.0, 5.0), base_s=1.0, waits=False)
    assert wait_for_host([4.0, 4.0, 1.0], host) == (
        4.0,
        4.0,
        1.0,
    )  # 9 s of the device, 5 of the host
    assert wait_for_host([1.0, 2.0, 1.0], host) == (2.0, 2.0, 1.0)  # the forward pass waits
    assert sum(wait_for_host([0.0, 0.0, 0.0], host)) == 5.0


def test_a_host_that_waits_begins_each_step_with_its_base():
    host = Host((3.0, 4.0, 5.0), base_s=1.0, waits=True)
    assert wait_for_host([4.0, 4.0, 1.0], host) == (5.0, 4.0, 1.0)
    assert wait_for_host([1.0, 2.0, 1.0], host) == (3.0, 2.0, 1.0)


def test_a_step_takes_no_less_than_host_or_device_and_no_more_than_both():
    draw = random.Random(11)  # noqa: S311
    for waits in (False, True):
        for _ in range(200):
            parts = [draw.choice([0.0, draw.random()]) for _ in range(3)]
            base, *steps = (draw.choice([0.0, draw.random()]) for _ in range(4))
            issued = (base + steps[0], base + sum(steps[:2]), base + sum(steps))
            found = wait_for_host(parts, Host(issued, base, waits))
            assert all(took >= part - 1e-12 for took, part in zip(found, parts, strict=True))
            assert sum(found) >= max(sum(parts), issued[2]) - 1e-12
            assert sum(found) <= sum(parts) + issued[2] + 1e-12
            if not waits:
                assert sum(found) == pytest.approx(max(sum(parts), issued[2]))


def test_arrays_wait_as_numbers_do():
    for waits in (False, True):
        parts = [np.array([4.0, 1.0]), np.array([4.0, 2.0]), np.array([1.0, 1.0])]
        host = Host((3.0, 4.0, 5.0), 1.0, waits)
        together = np.array(wait_for_host(parts, host))
        for i in range(2):
            assert tuple(together[:, i]) == wait_for_host([part[i] for part in parts], host)


def test_a_step_of_tiny_kernels_takes_the_host_s_time_and_a_large_one_the_device_s():
    model = StepModel("fc:layers=8,nodes=32", "t4", method="calibrated")
    small, large = model.timeline(1), model.timeline(2**20)
    assert small.step_s == pytest.approx(small.host_s)
    assert large.host_s == small.host_s
    assert large.step_s == pytest.approx(sum(row.step_s for row in large.rows))
    waiting = StepModel("fc:layers=8,nodes=32", "t4", method="calibrated", options={"waits": "yes"})
    host = catalog.stack().host
    base = host["host.factor"].value * host["host.step_s"].value
    assert waiting.timeline(2**20).step_s == pytest.approx(large.step_s + base)


def test_a_device_file_overrides_the_host_by_name():
    t4 = catalog.device("t4")
    factor = 3 * catalog.stack().host["host.factor"].value
    slow = t4.with_calibration({"constants": {"host.factor": factor}})
    fast, slowed = (StepModel("fc", one, method="calibrated").timeline(1) for one in (t4, slow))
    assert slowed.host_s == pytest.approx(3 * fast.host_s)


def test_a_grid_has_the_steps_of_single_predictions():
    devices = [catalog.device(name) for name in ("t4", "v100")]
    model = StepModel("fc", "t4", method="calibrated")
    batches = [1, 64, 1000, 4096, 30000]

    def make(batch):
        return replace(model.workload, batch_per_replica=batch or 64)

    for cell in grid([make], devices, batches, [1], None, "calibrated", {}):
        alone = StepModel(make(cell.batch), cell.device, method="calibrated").timeline()
        assert cell.step_s == pytest.approx(alone.step_s)


def test_a_stack_without_a_host_is_said_and_one_with_an_unknown_name_refused(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('name = "mine"\nsource = "me"\n')
    model = StepModel("fc", "t4", method="calibrated", options={"stack": str(file)})
    assert any("no [host]" in one for one in model.remarks())
    constant = {"value": 1.0, "spread": 0.0, "fitted_on": "me"}
    table = {"name": "mine", "source": "me", "host": {"forward_ops": constant}}
    with pytest.raises(InputError, match=r"host\.forward_op_s"):
        stack_from_table(table, "mine.toml")
    table["host"] = {"forward_op_s": constant}
    with pytest.raises(InputError, match=r"lacks host\.step_s"):
        stack_from_table(table, "mine.toml")


def test_launches_alone_are_issued_one_after_another():
    assert host_of_launches([2, 3, 0], 0.5) == Host((1.0, 2.5, 2.5))
    assert host_of_launches([2, 3, 0], None) is None
