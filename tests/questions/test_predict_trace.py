"""`predict --trace`: traces of a CPU by PyTorch, of a GPU by hand, and what is refused."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

import steptime
from steptime.core.errors import InputError

CPU = "ampere-altra-q80-30"
US = 1e-6
PRODUCT_US, ADD_US, STEP_US = 200.0, 300.0, 1000.0


def make_event(category: str, name: str, start: float, length: float, **args: Any) -> Any:
    """Return a complete event; kernels are on the track of a device."""
    tid = 7 if category == "kernel" else 1
    fields = {"ph": "X", "cat": category, "name": name, "ts": start, "dur": length}
    return {**fields, "pid": 9, "tid": tid, "args": args}


def make_inputs(*shapes: list[int]) -> dict[str, Any]:
    """Return what the profiler writes of tensors of float32."""
    return {"Input Dims": list(shapes), "Input type": ["float"] * len(shapes)}


def make_gpu_events(steps: int = 5, *, extra: str = "") -> list[Any]:
    """Return steps of a product and an addition on a GPU, and of an op without shapes.

    Kernels fill half of a step, so that the host decides its length.
    """
    events = []
    for step in range(steps):
        begin = 1000 + step * STEP_US
        correlation = 10 * step
        product = make_inputs([256, 512], [512, 1024])
        events.append(make_event("user_annotation", f"ProfilerStep#{step}", begin, STEP_US))
        events.append(make_event("cpu_op", "aten::mm", begin, 50, **product))
        launch = {"correlation": correlation + 1}
        events.append(make_event("cuda_runtime", "cudaLaunchKernel", begin + 10, 5, **launch))
        events.append(make_event("kernel", "sgemm", begin + 20, PRODUCT_US, **launch))
        added = make_inputs([8192, 4096], [8192, 4096])
        events.append(make_event("cpu_op", "aten::add_", begin + 60, 50, **added))
        launch = {"correlation": correlation + 2}
        events.append(make_event("cuda_runtime", "cudaLaunchKernel", begin + 70, 5, **launch))
        events.append(make_event("kernel", "elementwise", begin + 430, ADD_US, **launch))
        if extra:
            launch = {"correlation": correlation + 3}
            events.append(make_event("cpu_op", extra, begin + 120, 50))
            events.append(make_event("cuda_runtime", "cudaLaunchKernel", begin + 130, 5, **launch))
            events.append(make_event("kernel", "triton_0", begin + 740, 400.0, **launch))
    return events


def write_gpu_trace(path: Path, product: str = "NVIDIA A100-SXM4-80GB", **options: Any) -> Path:
    """Write a trace of a GPU, and return its path."""
    document = {
        "deviceProperties": [{"id": 0, "name": product}],
        "traceEvents": make_gpu_events(**options),
    }
    path.write_text(json.dumps(document))
    return path


def test_kernels_of_a_gpu_move_to_another(tmp_path: Path) -> None:
    trace = write_gpu_trace(tmp_path / "step.json")
    same = steptime.predict(trace=trace)
    assert (same.from_device, same.device) == ("a100-sxm4-80gb", "a100-sxm4-80gb")
    assert same.step_s == pytest.approx(STEP_US * US)
    assert {row.kind: row.measured_s for row in same.rows} == {
        "mm": pytest.approx(PRODUCT_US * US),
        "add_": pytest.approx(ADD_US * US),
    }
    other = steptime.predict(trace=trace, device="h100")
    seconds = {
        device: steptime.predict_op("matmul", ((256, 512), (512, 1024)), "float32", device).seconds
        for device in ("a100-sxm4-80gb", "h100")
    }
    ratio = seconds["h100"] / seconds["a100-sxm4-80gb"]
    row = next(row for row in other.rows if row.kind == "mm")
    assert row.step_s == pytest.approx(PRODUCT_US * US * ratio, rel=0.1)
    assert other.step_s == pytest.approx(STEP_US * US)  # the host issues it as fast as before


def test_a_share_without_shapes_is_named_and_a_large_one_refused(tmp_path: Path) -> None:
    trace = write_gpu_trace(tmp_path / "step.json", extra="CompiledFxGraph abc")
    with pytest.raises(InputError, match=r"step.json: 40 % of its step has no shapes"):
        steptime.predict(trace=trace)


def test_a_named_share_is_in_the_notes_and_the_json(tmp_path: Path) -> None:
    events = make_gpu_events()
    for start in range(5):
        begin = 1000 + start * STEP_US
        launch = {"correlation": 500 + start}
        events.append(make_event("cpu_op", "mylib::scan", begin + 130, 20))
        events.append(make_event("cuda_runtime", "cudaLaunchKernel", begin + 135, 5, **launch))
        events.append(make_event("kernel", "scan", begin + 800, 100, **launch))
    path = tmp_path / "step.json"
    path.write_text(json.dumps({"traceEvents": events}))
    answer = steptime.predict(trace=path, from_device="a100", device="t4")
    document = answer.to_dict()
    assert document["unshaped_share"] == pytest.approx(0.1)
    assert any("10 %" in note and "mylib::scan" in note for note in document["notes"])
    bandwidths = [steptime.device(name).datasheet.memory_bytes_per_s for name in ("a100", "t4")]
    assert answer.unshaped_s == pytest.approx(100 * US * bandwidths[0] / bandwidths[1])


def test_a_packed_trace_is_read_as_well(tmp_path: Path) -> None:
    plain = write_gpu_trace(tmp_path / "step.json")
    packed = tmp_path / "packed.json.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert steptime.predict(trace=packed).step_s == steptime.predict(trace=plain).step_s


def test_batch_and_type_change_kernels(tmp_path: Path) -> None:
    trace = write_gpu_trace(tmp_path / "step.json")
    base = steptime.predict(trace=trace)
    doubled = steptime.predict(trace=trace, batch=512, from_batch=256)
    assert (doubled.batch, doubled.from_batch) == (512, 256)
    assert "from_batch" not in doubled.assumed
    added = {row.kind: row.step_s for row in doubled.rows}["add_"]
    assert added == pytest.approx(2 * ADD_US * US, rel=0.25)
    halved = steptime.predict(trace=trace, dtype="bfloat16")
    assert sum(row.step_s for row in halved.rows) < sum(row.step_s for row in base.rows)


def test_a_trace_of_torch_on_a_cpu_runs_with_more_threads(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 8))
    x = torch.randn(32, 64)
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, record_shapes=True) as profiler:
        model(x).sum().backward()
    path = tmp_path / "cpu.json"
    profiler.export_chrome_trace(str(path))
    answer = steptime.predict(trace=path, from_device=CPU)
    assert 0 < answer.step_s <= answer.measured_s * 1.001
    assert answer.assumed["from_batch"] == "32"
    assert answer.examples_per_s == pytest.approx(32 / answer.step_s)
    cores = steptime.device(CPU).datasheet.cores or 1
    fewer = steptime.predict(trace=path, from_device=CPU, threads=max(1, cores // 8))
    assert fewer.step_s > 0
    assert any("in proportion to threads" in note for note in fewer.notes)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "fc"}, "MODEL does not go with --trace"),
        ({"optimizer": "adam"}, "--optimizer is of a network, and --trace is a step as"),
        ({"threads": 2}, "--threads is of a CPU, and a100-sxm4-80gb is none"),
        ({"threads": 2, "device": "t4"}, "--threads is of the device of the trace"),
        ({"dtype": "bfloat16-mixed"}, "--dtype of a trace"),
        ({"steps": 3}, "marks 5 steps itself"),
        ({"from_batch": 0}, "--from-batch"),
        ({"device": "t5"}, "t5"),
    ],
)
def test_what_does_not_go_with_a_trace_is_refused(
    options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    trace = write_gpu_trace(tmp_path / "step.json")
    with pytest.raises(InputError) as refusal:
        steptime.predict(trace=trace, **options)
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_files_that_are_no_traces_with_shapes_are_refused(tmp_path: Path) -> None:
    absent, other, plain = (tmp_path / name for name in ("absent.json", "a.json", "plain.json"))
    other.write_text('{"step": 1}')
    events = make_gpu_events()
    for event in events:
        event["args"].pop("Input Dims", None)
    plain.write_text(json.dumps({"traceEvents": events}))
    for path, message in (
        (absent, "there is no such file"),
        (other, "is no trace of torch.profiler"),
        (plain, "record_shapes=True"),
    ):
        with pytest.raises(InputError, match=message):
            steptime.predict(trace=path, from_device="t4")
    unknown = write_gpu_trace(tmp_path / "unknown.json", product="Unknown 9000")
    with pytest.raises(InputError, match="its device 'Unknown 9000' is unknown; add --from-device"):
        steptime.predict(trace=unknown)
