"""Layers of CDECatapult as cases: what a TensorFlow 1 session runs, and that its host waits."""

import gzip
from pathlib import Path

import pytest

from steptime.calibration.cases import Case
from steptime.calibration.columns import Columns
from steptime.hardware import catalog

ROW = "tesla-m60,2,9,3,4,3,2,VALID,1,relu,{},1.5,0.01\n"
HEAD = "device,b,size,c_in,c_out,kernel,stride,padding,bias,activation,optimizer,time_ms,spread\n"


def layer(folder: Path, optimizer: str) -> Case:
    from validation.fitting import catapult

    path = folder / "measured/cdecatapult/conv.csv.gz"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress((HEAD + ROW.format(optimizer)).encode()))
    (case,) = catapult.convolutions(folder)
    return case


def test_a_forward_pass_is_a_kernel_for_each_op(tmp_path):
    case = layer(tmp_path, "none")
    assert [one.kind for one in case.kernels] == ["conv2d", "bias", "relu"]
    assert case.kernels[0].channels_last
    assert (case.seconds, case.condition) == (1.5e-3, "call")


def test_a_step_trains_input_and_target_too(tmp_path):
    kernels = layer(tmp_path, "adam").kernels
    updates = [one for one in kernels if one.pass_ == "update"]
    made = 2 * 4 * 4 * 4  # places of 9 x 9 under 3 x 3 with stride 2: 4 x 4, of 4 filters
    sizes = [2 * 3 * 9 * 9, 4 * 3 * 3 * 3, 4, made]
    assert sorted(one.bytes for one in updates) == sorted(10 * 4 * size for size in sizes)
    assert {one.launches for one in updates} == {3}
    assert "conv_transpose2d" in [one.kind for one in kernels]


def test_the_host_waits_for_the_end_of_a_call(tmp_path):
    case = layer(tmp_path, "none")
    from validation.fitting import catapult

    constants = {name: one.value for name, one in catalog.priors("gpu", catapult.STACK).items()}
    quick = constants | {"host.forward_op_s": 1e-9, "launch.gap_s": 1e-9}
    slow = quick | {"host.forward_op_s": 1.0}
    base = quick["host.step_s"] * quick["host.factor"]
    (device_s,) = Columns([case]).predict_s(quick) - base
    assert 0 < device_s < 1e-3
    assert Columns([case]).predict_s(slow) == pytest.approx(base + 3.0)  # 3 ops of 1 s
