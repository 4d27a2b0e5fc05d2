"""Traces of PyTorch's profiler: whose time a step has, and what is refused, in which words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import steptime
from steptime.core.errors import InputError
from steptime.records import store
from steptime.records.readers import read_path
from steptime.records.record import NO_OP
from steptime.records.traces.trace import Profile, build_profile
from steptime.records.traces.trace_events import read_events

OPS = 5
BASE_US = 1_700_000_000_000_000.0  # as Kineto writes times: microseconds since 1970


def make_slice(category: str, name: str, start: float, length: float, **arguments: Any) -> Any:
    """Return a complete event; kernels are on the track of a device."""
    tid = 7 if category in ("kernel", "gpu_memcpy") else 1
    fields = {"ph": "X", "cat": category, "name": name, "ts": start, "dur": length}
    return {**fields, "pid": 9, "tid": tid, "args": arguments}


def make_loop(
    steps: int, host_us: float, device_us: float, *, marked: bool = True, sync: bool = False
) -> list[Any]:
    """Return a loop whose host launches kernels in `host_us` a step, of `device_us` in all."""
    events = []
    host_time, device_time = BASE_US, 0.0
    for step in range(steps):
        begin = host_time
        for op in range(OPS):
            number = step * OPS + op + 1
            length = host_us / OPS
            events.append(make_slice("cpu_op", "aten::mm", host_time, 0.8 * length))
            launch = host_time + 0.4 * length
            events.append(make_slice("cuda_runtime", "launch", launch, 0.1, correlation=number))
            start = max(device_time, launch + 1)
            device_time = start + device_us / OPS
            events.append(make_slice("kernel", "gemm", start, device_us / OPS, correlation=number))
            host_time += length
        if sync:
            host_time = max(host_time, device_time)
        if marked:
            name = f"ProfilerStep#{step}"
            events.append(make_slice("user_annotation", name, begin, host_time - begin))
    return events


def write_trace(path: Path, events: list[Any]) -> Path:
    """Write a trace and return its path."""
    path.write_text(json.dumps({"traceEvents": events}))
    return path


def profile(events: list[Any]) -> Profile:
    """Return the profile of events, as they are read from JSON."""
    return build_profile(read_events(json.dumps({"traceEvents": events})))


@pytest.mark.parametrize(
    ("host_us", "device_us", "sync", "expected_us"),
    [
        (20_000, 60_000, False, 60_000),  # the device is the slower one, and nobody waits for it
        (20_000, 60_000, True, 60_000),
        (60_000, 20_000, False, 60_000),  # the host is the slower one
        (60_000, 20_000, True, 60_000),
    ],
)
def test_a_step_ends_with_the_last_kernel_that_it_launched(host_us, device_us, sync, expected_us):
    loop = profile(make_loop(4, host_us, device_us, sync=sync))
    # A step that waits for its device pays the launch of its first kernel, 8 % of the host's time.
    assert loop.step_s == pytest.approx([expected_us * 1e-6] * 4, rel=0.05)
    for step, step_s in enumerate(loop.step_s):
        busy_s = sum(times[step] for times in loop.seconds_by_part.values())
        assert busy_s <= step_s * (1 + 1e-9)
    busy_s = sum(sum(times) for times in loop.seconds_by_part.values())
    assert busy_s == pytest.approx(4 * device_us * 1e-6, rel=1e-3)


def test_kernels_of_steps_before_the_trace_are_not_of_its_first_step():
    events = make_loop(4, 1_000, 50_000)
    backlog_us = 90_000.0
    for event in events:
        if event["cat"] == "kernel":
            event["ts"] += backlog_us
    events.append(make_slice("kernel", "old", BASE_US, backlog_us, correlation=99_999))
    assert profile(events).step_s == pytest.approx([0.05] * 4, rel=0.01)


def test_copies_for_the_next_step_count_in_the_step_in_which_they_run():
    events = [
        make_slice("user_annotation", "ProfilerStep#0", 0, 100),
        make_slice("cpu_op", "aten::mm", 0, 10),
        make_slice("cuda_runtime", "launch", 1, 1, correlation=1),
        make_slice("kernel", "gemm", 10, 200, correlation=1),
        make_slice("user_annotation", "ProfilerStep#1", 100, 100),
        make_slice("cpu_op", "aten::copy_", 100, 10),
        make_slice("cuda_runtime", "copy", 101, 1, correlation=2),
        make_slice("gpu_memcpy", "Memcpy HtoD", 205, 45, correlation=2),  # 5 us beside the kernel
        make_slice("cpu_op", "aten::mm", 120, 10),
        make_slice("cuda_runtime", "launch", 121, 1, correlation=3),
        make_slice("kernel", "gemm", 250, 150, correlation=3),
    ]
    loop = profile(events)
    assert loop.step_s == pytest.approx([210e-6, 190e-6])
    seconds = {part.op: times for part, times in loop.seconds_by_part.items()}
    assert seconds["aten::mm"] == pytest.approx([200e-6, 150e-6])
    assert seconds["aten::copy_"] == pytest.approx([0.0, 40e-6])


def test_no_record_of_an_op_is_below_zero(tmp_path):
    path = write_trace(tmp_path / "loop.json", make_loop(7, 333.3, 1_777.7))
    steptime.import_(path, tmp_path / "out")
    records = list(store.load(tmp_path / "out", pytest.fail))
    idle = next(record for record in records if record.scope == NO_OP)
    assert len(records) == 3
    assert min(idle.quantities["step_s"].samples) >= 0


def test_a_marked_step_in_which_nothing_ran_is_left_out(tmp_path):
    last = BASE_US + 4 * 60_000
    events = [
        *make_loop(4, 60_000, 20_000),
        make_slice("user_annotation", "ProfilerStep#4", last, 3),
    ]
    assert len(profile(events).step_s) == 4
    found = read_path(write_trace(tmp_path / "a.json", events))
    assert found.notes == ["a.json: 1 marked step in which nothing ran left out"]


def test_names_of_before_pytorch_1_12_are_read():
    older = {"kernel": "Kernel", "cuda_runtime": "Runtime", "cpu_op": "Operator"}
    events = make_loop(3, 1_000, 5_000)
    for event in events:
        event["cat"] = older.get(event["cat"], event["cat"])
    assert profile(events).step_s == pytest.approx([0.005] * 3, rel=0.1)


@pytest.mark.parametrize(
    "name",
    [
        r'"torch\cuda\nn\__init__.py(219)"',  # Windows, with_stack=True
        r'"C:\Users\me\torch\u_net.py"',
        '"torch/_inductor/config.py(0): \x08\x01\n"',
    ],
)
def test_texts_that_are_not_escaped_are_read(name):
    text = json.dumps({"traceEvents": make_loop(3, 20_000, 60_000)})
    broken = text.replace('"aten::mm"', name, 1)
    with pytest.raises(json.JSONDecodeError):
        json.loads(broken)
    assert build_profile(read_events(broken)).step_s == pytest.approx([0.06] * 3, rel=0.05)


def test_a_quote_within_a_text_stays_where_backslashes_are_not_escaped():
    events = [make_slice("cpu_op", 'aten::"mm"', 0, 1), make_slice("cpu_op", "MARK", 1, 1)]
    text = json.dumps({"traceEvents": events}).replace("MARK", r"a\sb")
    assert [event.name for event in read_events(text)] == ['aten::"mm"', r"a\sb"]


def test_a_trace_without_marks_is_one_step_and_says_so(tmp_path):
    path = write_trace(tmp_path / "net.json", make_loop(3, 20_000, 60_000, marked=False))
    one = steptime.import_(path, tmp_path / "one")
    (note,) = one.notes
    assert note == (
        "net.json: marks no steps: read as one step of 181.6 ms; `--steps 15` divides it if it "
        "holds 15 (each op ran 15 times or a multiple of that)"
    )
    answer = steptime.import_(path, tmp_path / "three", steps=3)
    assert not answer.notes
    records = list(store.load(tmp_path / "three", pytest.fail))
    step = next(record for record in records if not record.scope)
    assert step.quantities["step_s"].value == pytest.approx(0.1816 / 3, rel=1e-3)
    assert not step.quantities["step_s"].samples
    ops = [record for record in records if record.scope]
    total_s = sum(record.quantities["step_s"].value for record in ops)
    assert total_s == pytest.approx(step.quantities["step_s"].value)


def test_the_number_of_steps_is_suggested_by_the_optimizer(tmp_path):
    events = make_loop(6, 20_000, 60_000, marked=False)
    for step in range(3):  # gradients of two batches are added up
        start = BASE_US + 40_000 * (step + 1) - 10
        name = "Optimizer.step#AdamW.step"
        events.append(make_slice("user_annotation", name, start, 5))
    (note,) = read_path(write_trace(tmp_path / "net.json", events)).notes
    assert note.endswith("`--steps 3` divides it (its optimizer stepped 3 times)")


def test_a_number_of_steps_is_refused_where_it_has_no_meaning(tmp_path):
    marked = write_trace(tmp_path / "marked.json", make_loop(4, 20_000, 60_000))
    with pytest.raises(InputError, match="marks 4 steps itself: --steps is for a trace without"):
        steptime.import_(marked, tmp_path / "out", steps=3)
    plain = write_trace(tmp_path / "plain.json", make_loop(4, 20_000, 60_000, marked=False))
    steptime.import_(plain, tmp_path / "out")
    with pytest.raises(InputError, match="holds this trace as 1 step: import it into another"):
        steptime.import_(plain, tmp_path / "out", steps=4)


JAX = [  # of jax.profiler.trace, jax 0.10
    {"ph": "M", "pid": 701, "name": "process_name", "args": {"name": "/host:CPU"}},
    {"ph": "X", "pid": 701, "tid": 1, "ts": 1.0, "dur": 2.0, "name": "PjitFunction(step)"},
]
TENSORFLOW = [  # of tf.profiler: processes as XProf names them
    {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": "/device:GPU:0"}},
    {"ph": "X", "pid": 1, "tid": 1, "ts": 1.0, "dur": 2.0, "name": "EagerLocalExecute: MatMul"},
]
TIMELINE = [  # of tensorflow.python.client.timeline
    {
        "ph": "M",
        "pid": 1,
        "name": "process_name",
        "args": {"name": "/job:localhost/replica:0/task:0/device:CPU:0 Compute"},
    },
    {"ph": "X", "cat": "Op", "pid": 1, "tid": 1, "ts": 1.0, "dur": 2.0, "name": "MatMul"},
]


@pytest.mark.parametrize(
    ("events", "name"), [(JAX, "JAX"), (TENSORFLOW, "TensorFlow"), (TIMELINE, "TensorFlow")]
)
def test_traces_of_other_profilers_are_refused_by_name(events, name, tmp_path):
    found = read_path(write_trace(tmp_path / "host.trace.json", events))
    (entry,) = found.unread
    assert entry.reason.startswith(f"is a profile of {name}: it holds instructions")


def test_a_profile_of_xprof_is_refused_by_name(tmp_path):
    (tmp_path / "vm.xplane.pb").write_bytes(b"\x0a\x12/host:CPU\0\0")
    (entry,) = read_path(tmp_path).unread
    assert entry.reason.startswith("is a profile of JAX or TensorFlow: ")
