"""Traced ops as kernels: against PyTorch at another batch, `predict_op`, and hand arithmetic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import steptime
from steptime.calibration.traces.batch import BatchChange, WeightShapes, find_batch, scale_batch
from steptime.calibration.traces.calls import is_recognised, table_call
from steptime.calibration.traces.transfer import TracedStepChange, move_step
from steptime.core.errors import InputError
from steptime.prediction import cost_model
from steptime.records.traces.trace_events import TracedInput, read_events
from steptime.records.traces.traced_ops import OpKey, TracedOp, TracedStep, read_traced_step

CPU = "ampere-altra-q80-30"
MS = 1e-3
CALIBRATED = cost_model("calibrated")


def make_tensor(*shape: int) -> TracedInput:
    """Return a tensor of float32 as an input."""
    return TracedInput(shape, "float")


def make_product(seconds: float = 4 * MS, calls: float = 2) -> TracedOp:
    """Return products `[512, 256] x [256, 1024]` with a time."""
    key = OpKey("aten::mm", "forward", (make_tensor(512, 256), make_tensor(256, 1024)))
    return TracedOp(key, seconds, calls)


def make_traced_step(*ops: TracedOp, **fields: Any) -> TracedStep:
    """Return a step of ops on a CPU, of 5 ms unless said otherwise."""
    values = {
        "step_s": 5 * MS,
        "unshaped_s": {},
        "is_on_device": False,
        "gap_s": 1 * MS,
        "issue_s": 5 * MS,
        "step_count": 1,
        "is_marked": True,
    }
    return TracedStep(ops=ops, **{**values, **fields})


def make_image_step(torch: Any, batch: int) -> Callable[[], None]:
    """Return a training step of a network of images."""
    nn = torch.nn
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 16, 3, padding=1, groups=16),
        nn.GELU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 24),
        nn.Tanh(),
        nn.Linear(24, 10),
    )
    return make_training(torch, model, torch.randn(batch, 3, 8, 8))


def make_sequence_step(torch: Any, batch: int) -> Callable[[], None]:
    """Return a training step of a network of words."""
    nn = torch.nn

    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(50, 24)
            self.norm, self.joint, self.head = nn.LayerNorm(24), nn.Linear(24, 72), nn.Linear(24, 9)

        def forward(self, words: Any) -> Any:
            x = self.norm(self.table(words))
            parts = self.joint(x).view(*x.shape[:2], 3, 2, 12).permute(2, 0, 3, 1, 4)
            attended = nn.functional.scaled_dot_product_attention(*parts.unbind(0))
            return self.head(attended.transpose(1, 2).reshape(x.shape).mean(1))

    return make_training(torch, Words(), torch.randint(0, 50, (batch, 7)))


def make_training(torch: Any, model: Any, x: Any) -> Callable[[], None]:
    """Return a step of SGD with momentum."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    labels = torch.randint(0, 9, x.shape[:1])

    def step() -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), labels).backward()
        optimizer.step()

    step()
    return step


def read_torch_trace(torch: Any, step: Callable[[], None], path: Path) -> TracedStep:
    """Return the step of a trace that PyTorch writes."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, record_shapes=True) as profiler:
        step()
    profiler.export_chrome_trace(str(path))
    return read_traced_step(read_events(path.read_text()), is_recognised)


def sizes_read(key: OpKey) -> tuple[Any, ...]:
    """Return an op with the shapes that it reads."""
    return (key.name, key.pass_, tuple(item.shape for item in key.inputs))


@pytest.mark.slow
@pytest.mark.parametrize("make_step", [make_image_step, make_sequence_step])
def test_shapes_at_another_batch_are_those_that_torch_runs(make_step: Any, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    small, large = (
        read_torch_trace(torch, make_step(torch, batch), tmp_path / f"{batch}.json")
        for batch in (5, 15)
    )
    assert find_batch(small.ops) == 5
    weights, change = WeightShapes.from_ops(small.ops), BatchChange(5, 15)
    scaled = Counter(sizes_read(scale_batch(op.key, change, weights)) for op in small.ops)
    expected = Counter(sizes_read(op.key) for op in large.ops)
    heavy = ("mm", "conv", "norm", "pool", "attention", "relu", "gelu", "embedding", "linear")

    def heavy_ops(ops: Counter[Any]) -> dict[Any, int]:
        return {key: count for key, count in ops.items() if any(word in key[0] for word in heavy)}

    assert heavy_ops(scaled) == heavy_ops(expected)
    assert len(heavy_ops(expected)) >= 10


def test_ops_of_known_work_fill_a_step_of_torch(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    step = read_torch_trace(torch, make_image_step(torch, 4), tmp_path / "t.json")
    known = {op.key.name for op in step.ops if table_call(op.key.name, op.key.inputs)}
    forward = {"aten::convolution", "aten::batch_norm", "aten::linear", "aten::gelu", "aten::tanh"}
    backward = {"aten::convolution_backward", "aten::mm", "aten::native_batch_norm_backward"}
    assert forward | backward <= known
    assert step.step_s >= step.ops_s > 0
    assert not step.unshaped_s


def test_what_a_prediction_is_off_by_is_carried_over() -> None:
    origin = steptime.device(CPU)
    peaks = {name: 2 * rate for name, rate in origin.datasheet.peak_flop_per_s.items()}
    target = replace(origin.with_figures(peak_flop_per_s=peaks), name="twice")
    shapes = ((512, 256), (256, 1024))
    predicted = [
        steptime.predict_op("matmul", shapes, "float32", device).seconds
        for device in (origin, target)
    ]
    moved = move_step(
        make_traced_step(make_product()), origin, target, TracedStepChange(), CALIBRATED
    )
    assert moved.step_s == pytest.approx(4 * MS * predicted[1] / predicted[0] + 1 * MS, rel=0.02)
    assert moved.host_s == pytest.approx(1 * MS)  # the gap of the trace stays


def test_the_same_settings_give_the_traced_step() -> None:
    device = steptime.device(CPU)
    step = make_traced_step(make_product(), unshaped_s={"mylib::op": 0.5 * MS})
    moved = move_step(step, device, device, TracedStepChange(), CALIBRATED)
    assert moved.step_s == pytest.approx((4 + 0.5 + 1) * MS)


def test_work_without_shapes_follows_bandwidth_batch_and_size() -> None:
    origin = steptime.device(CPU)
    target = origin.with_figures(memory_bytes_per_s=origin.datasheet.memory_bytes_per_s / 4)
    step = make_traced_step(make_product(), unshaped_s={"CompiledFxGraph f": 1 * MS})
    change = TracedStepChange(BatchChange(512, 1024), "float64")
    moved = move_step(step, origin, target, change, CALIBRATED)
    assert moved.unshaped_s == pytest.approx(1 * MS * 4 * 2 * 2)


def test_more_than_30_percent_without_shapes_is_refused() -> None:
    device = steptime.device(CPU)
    step = make_traced_step(make_product(), unshaped_s={"CompiledFxGraph f": 3 * MS})
    with pytest.raises(InputError, match=r"37.5 % of its step has no shapes.*CompiledFxGraph f"):
        move_step(step, device, device, TracedStepChange(), CALIBRATED)


def test_nothing_is_carried_over_from_a_cpu_to_a_gpu() -> None:
    gpu = steptime.device("h200")
    steps = [make_traced_step(make_product(seconds)) for seconds in (4 * MS, 1 * MS)]
    moved = [
        move_step(step, steptime.device(CPU), gpu, TracedStepChange(), CALIBRATED) for step in steps
    ]
    assert not moved[0].is_carried
    assert moved[0].step_s == moved[1].step_s
    product = steptime.predict_op("matmul", ((512, 256), (256, 1024)), "float32", gpu)
    assert moved[0].pass_s("forward") == pytest.approx(2 * product.seconds, rel=0.25)


def test_weights_and_optimizers_do_not_grow_with_the_batch() -> None:
    weight = make_tensor(16, 8)
    update = OpKey("aten::add_", "update", (weight, weight))
    weights = WeightShapes.from_ops([TracedOp(update, MS, 1)])
    change = BatchChange(8, 64)
    assert scale_batch(update, change, weights) == update
    gradient = OpKey("aten::mm", "backward", (make_tensor(16, 8), make_tensor(8, 8)))
    summed = [item.shape for item in scale_batch(gradient, change, weights).inputs]
    assert summed == [(16, 64), (64, 8)]
