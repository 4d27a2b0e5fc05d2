"""Which op the time of a step belongs to: from events of a fake GPU, and of real steps here."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from every import every
from steptime.build import build, make_workload, read_model
from steptime.core.errors import InputError
from steptime.measure.contract import Options
from steptime.measure.profile import profile_cell
from steptime.records.record import NO_OP, UNATTRIBUTED
from steptime.records.traces.op_times import list_op_times
from steptime.records.traces.trace import TracePart, build_profile
from steptime.records.traces.trace_events import read_events


def _event(cat: str, name: str, ts: float, dur: float, tid: object = 1, **args: object) -> Any:
    said = {key.replace("_", " "): value for key, value in args.items()}
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "pid": 9, "tid": tid,
            "args": said}  # fmt: skip


def _text(events: list[Any]) -> str:
    return json.dumps({"schemaVersion": 1, "traceEvents": events})


GPU_STEP = [  # as torch.profiler writes a step on a GPU: backward runs on a thread of its own
    _event("user_annotation", "ProfilerStep#0", 0, 1000),
    _event("user_annotation", "fc1/linear", 10, 90),
    _event("cpu_op", "aten::empty", 12, 2, Sequence_number=7),  # makes no node, sees its number
    _event("cpu_op", "aten::linear", 20, 70, Sequence_number=7),
    _event("cpu_op", "aten::addmm", 30, 50, Sequence_number=7),
    _event("cuda_runtime", "cudaLaunchKernel", 40, 5, correlation=1),
    _event("kernel", "sgemm", 100, 200, tid="7", correlation=1),
    _event("cpu_op", "autograd::engine::evaluate_function: AddmmBackward0", 300, 90, tid=2,
           Sequence_number=7),
    _event("cpu_op", "AddmmBackward0", 301, 80, tid=2, Sequence_number=7),
    _event("cpu_op", "aten::mm", 310, 60, tid=2),
    _event("cuda_runtime", "cudaLaunchKernel", 320, 5, tid=2, correlation=2),
    _event("kernel", "sgemm_t", 350, 250, tid="7", correlation=2),
    _event("cpu_op", "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", 392, 9,
           tid=2),
    _event("cpu_op", "aten::add_", 393, 7, tid=2),
    _event("cuda_runtime", "cudaLaunchKernel", 394, 3, tid=2, correlation=3),
    _event("kernel", "elementwise", 550, 100, tid="8", correlation=3),  # half beside the other
    _event("user_annotation", "Optimizer.step#SGD.step", 500, 90),
    _event("cpu_op", "aten::_foreach_add_", 510, 50),
    _event("cuda_runtime", "cudaLaunchKernel", 520, 5, correlation=4),
    _event("kernel", "multi_tensor", 700, 100, tid="7", correlation=4),
    _event("gpu_memcpy", "Memcpy HtoD", 850, 50, tid="7", correlation=99),  # launched before
]  # fmt: skip


def test_kernels_belong_to_the_ops_that_launched_them():
    profile = build_profile(read_events(_text(GPU_STEP)))
    assert profile.is_on_device
    assert profile.step_s == pytest.approx([1e-3])
    seconds = {part: values[0] for part, values in profile.seconds_by_part.items()}
    assert seconds == pytest.approx(
        {
            TracePart("fc1/linear", "aten::linear", "forward"): 200e-6,
            TracePart("fc1/linear", "aten::linear", "backward"): 300e-6,  # 250, and 50 of 100 alone
            TracePart("optimizer", "aten::_foreach_add_", "update"): 100e-6,
            TracePart("", "Memcpy HtoD", "forward"): 50e-6,
        }
    )
    found = {
        one.scope: one for one in list_op_times(profile, {"fc1/linear": "linear"}, first_step=0)
    }
    assert list(found) == ["fc1/linear", "optimizer", UNATTRIBUTED, NO_OP]
    assert found["fc1/linear"].kind == "linear"
    assert found[NO_OP].quantities["step_s"].samples == pytest.approx((350e-6,))


def test_without_a_device_the_time_is_the_hosts():
    of_gpu = ("kernel", "gpu_memcpy", "cuda_runtime")
    events = [event | {"tid": 1} for event in GPU_STEP if event["cat"] not in of_gpu]
    profile = build_profile(read_events(_text(events)))
    seconds = {part: values[0] for part, values in profile.seconds_by_part.items()}
    assert seconds == pytest.approx(
        {
            TracePart("fc1/linear", "aten::empty", "forward"): 2e-6,
            TracePart("fc1/linear", "aten::linear", "forward"): 70e-6,  # of the node: it came last
            TracePart("fc1/linear", "aten::linear", "backward"): 67e-6,
            TracePart("optimizer", "aten::_foreach_add_", "update"): 50e-6,
        }
    )


@every(
    ("text", "said"),
    [
        ("{}", "holds no list of trace events"),
        (_text([]), "holds no op of PyTorch's profiler"),
        (
            _text(
                [
                    _event("user_annotation", "ProfilerStep#0", 0, 9),
                    _event("cpu_op", "aten::linear", 1, 5, tid=3) | {"tid": 3},
                ]
            ),
            "holds no op",
        ),
        (_text(GPU_STEP)[:900], "is torn or no JSON: "),
        ('{"traceEvents": [' + "[" * 100_000, "is torn or no JSON"),
        ('{"traceEvents": [3, null, {"ph": "X", "ts": "1", "dur": -1}]}', "holds no op"),
        ('{"traceEvents": [{"ph": "X", "cat": "kernel", "ts": 1e999, "dur": 1}]}', "holds no op"),
    ],
)
def test_what_is_no_trace_is_said_in_a_line(text, said):
    with pytest.raises(InputError, match=said):
        build_profile(read_events(text))


@pytest.mark.parametrize("after", ['"C:\\Users\\me.json"}', '"torn'])
def test_what_follows_the_events_need_not_be_json(after):
    whole = _text(GPU_STEP)
    assert whole.endswith("}")
    assert read_events(f'{whole[:-1]}, "traceName": {after}') == read_events(whole)


def test_a_trace_becomes_records(tmp_path):
    from steptime.records.readers import read_path

    path = tmp_path / "my net.pt.trace.json"
    path.write_text(
        _text(GPU_STEP).replace(
            '"schemaVersion"',
            '"deviceProperties": [{"id": 0, "name": "Tesla T4"}], "schemaVersion"',
        )
    )
    found = read_path(path)
    assert found.formats == {"torch-trace": 1}
    step, *ops = found.records
    assert (step.origin, step.platform, step.workload.model) == ("published", "t4", "my-net")
    assert step.quantities["step_s"].samples == pytest.approx((1e-3,))
    assert {op.scope: op.env["op_kind"] for op in ops} == {
        "fc1/linear": "linear", "optimizer": "optimizer", "Memcpy HtoD": "copy", NO_OP: NO_OP,
    }  # fmt: skip


@pytest.mark.framework
@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "no_kernel"),
    [
        ("fc:layers=2,nodes=16,inputs=8,outputs=4", {"bias"}),
        ("cnn:image=8,blocks=1-1-1-1,filters=4,classes=4", {"bias"}),
        ("rnn:cell=lstm,layers=1,embedding=8,length=4,vocabulary=16", {"bias"}),
        ("transformer:layers=1,width=16,heads=2,length=8,vocabulary=32", {"bias"}),
    ],
)
def test_every_op_of_a_network_is_in_its_profile(model, no_kernel, tmp_path):
    from steptime.measure.backends.torch import backend

    workload = make_workload(read_model(model), 2, "float32", "train", "sgd")
    kept = tmp_path / "trace.json"
    found = profile_cell(backend, workload, Options(threads=1), 0.01, str(kept))
    times = {one.scope: one.quantities for one in found}
    graph = build(workload)
    kinds = {op.name: op.kind for op in graph.ops}
    absent = [name for name in kinds if name not in times]
    assert {kinds[name] for name in absent} <= no_kernel, absent
    for name, kind in kinds.items():  # the backward pass of what multiplies matrices is its own
        if kind in {"linear", "matmul", "conv2d", "lstm", "attention"}:
            assert min(times[name]["forward_s"].samples) > 0
            assert min(times[name]["backward_s"].samples) > 0
    assert min(times["optimizer"]["update_s"].samples) > 0
    assert min(times[NO_OP]["step_s"].samples) >= 0
    profile = build_profile(read_events(kept.read_text()))
    for step, whole in enumerate(profile.step_s[1:]):
        parts = sum(one["step_s"].samples[step] for one in times.values())
        assert parts == pytest.approx(whole, rel=1e-9)
    # of the ops that ran, all are attributed but the seed of the gradient
    stray = Counter(
        part.op for part in profile.seconds_by_part if part.scope not in {*kinds, "optimizer"}
    )
    assert set(stray) <= {"aten::ones_like", "torch::autograd::AccumulateGrad", "aten::detach"}, (
        stray
    )
