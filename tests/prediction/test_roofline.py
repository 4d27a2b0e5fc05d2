"""The roofline by hand, on a device that does not exist."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from steptime.build import build_step, make_workload, read_model
from steptime.core.copying import replace
from steptime.core.errors import InputError
from steptime.hardware.catalog import device
from steptime.hardware.device import Device, device_hash
from steptime.network.count import count
from steptime.prediction import DEFAULT, METHODS, cost_model
from steptime.prediction.price import peak_flop_per_s
from steptime.prediction.records import records
from steptime.prediction.steps.step_model import StepModel
from steptime.records.reading import record_from_json
from steptime.records.record import Record, record_to_json

TOY = """
name = "toy"
kind = "gpu"
source = "made up for this test"
memory_GB = 0.001
memory_GB_per_s = 1.0
launch_us = 10.0

[peak_TFLOP_per_s]
float32 = 0.001
tf32 = 0.008
bfloat16 = 0.004
"""
LAUNCH_S = 10e-6
FC = "fc:layers=1,nodes=4,inputs=3,outputs=2"


@pytest.fixture
def toy(tmp_path):
    """1 GFLOP/s, 1 GB/s, 1 MB, 10 microseconds to issue an op."""
    path = tmp_path / "toy.toml"
    path.write_text(TOY)
    return device(path)


def predicted(
    found: Device,
    text: str = FC,
    batch: int = 5,
    dtype: str = "float32",
    phase: str = "train",
    **options: str,
) -> Sequence[Record]:
    workload = make_workload(read_model(text), batch, dtype, phase)
    return records(StepModel(workload, found, method="roofline", options=options))


def value(record: Record, name: str) -> float:
    found = record.quantities[name].value
    assert found is not None
    return found


FORWARD = [  # FLOP and bytes of batch 5 through 3 -> 4 -> 2, in float32
    ("fc1/linear", 2 * 5 * 3 * 4, (15 + 12 + 20) * 4),
    ("fc1/bias", 20, (20 + 4 + 20) * 4),
    ("fc1/relu", 20, (20 + 20) * 4),
    ("output/linear", 2 * 5 * 4 * 2, (20 + 8 + 10) * 4),
    ("output/bias", 10, (10 + 2 + 10) * 4),
]


def test_inference_by_hand(toy):
    """At 1 GFLOP/s and 1 GB/s an op takes max(FLOP, bytes) nanoseconds, and is issued in 10 us."""
    step, *ops = predicted(toy, phase="infer")
    assert [(r.scope, value(r, "flop"), value(r, "traffic_bytes")) for r in ops] == FORWARD
    times = [max(flop, moved) * 1e-9 + LAUNCH_S for _, flop, moved in FORWARD]
    assert [value(r, "step_s") for r in ops] == pytest.approx(times, rel=1e-12)
    assert value(step, "step_s") == pytest.approx(sum(times), rel=1e-12)
    assert value(step, "forward_s") == value(step, "step_s")
    assert value(step, "backward_s") == value(step, "update_s") == 0
    assert value(step, "flop") == value(step, "forward_flop") == 120 + 20 + 20 + 80 + 10


def test_an_op_bound_by_arithmetic_and_one_by_memory(toy):
    text = "fc:layers=1,nodes=100,inputs=100,outputs=1"
    ops = {r.scope: r for r in predicted(toy, text, 100, phase="infer", dispatch="no")}
    products = 2 * 100 * 100 * 100  # 2 MFLOP over 3 * 10^4 * 4 bytes
    assert value(ops["fc1/linear"], "step_s") == pytest.approx(products * 1e-9)
    assert value(ops["fc1/relu"], "step_s") == pytest.approx(2 * 10_000 * 4 * 1e-9)


def test_training_by_hand(toy):
    step, *ops = predicted(toy, dispatch="no")
    output = next(r for r in ops if r.scope == "output/linear")
    # both gradients: dy [5, 2], w [2, 4] -> [5, 4], and dy, x [5, 4] -> [2, 4]; bytes bound all
    data, weight = (10 + 8 + 20) * 4, (10 + 20 + 8) * 4
    assert value(output, "backward_s") == pytest.approx((data + weight) * 1e-9)
    assert value(output, "update_s") == pytest.approx(3 * 8 * 4 * 1e-9)  # w, dw -> w
    assert value(output, "flop") == 3 * 80 + 2 * 8
    assert value(output, "forward_flop") == 80
    first = next(r for r in ops if r.scope == "fc1/linear")
    assert value(first, "flop") == 2 * 120 + 2 * 12  # no data gradient
    assert value(step, "update_s") == pytest.approx(3 * (12 + 4 + 8 + 2) * 4 * 1e-9)


@pytest.mark.parametrize("phase", ["train", "infer"])
@pytest.mark.parametrize(
    "text",
    [
        "fc:layers=3,nodes=20",
        "cnn:blocks=1,filters=4,image=40",
        "rnn:layers=2,embedding=8,length=4",
        "transformer:layers=2,width=16,heads=2,length=8,vocabulary=20,max_length=9",
    ],
)
def test_parts_and_ops_add_up_to_the_step(toy, text, phase):
    for dtype in ("float32", "bfloat16-mixed"):
        step, *ops = predicted(toy, text, 3, dtype, phase)
        for name in ("step_s", "forward_s", "backward_s", "update_s", "flop", "forward_flop",
                     "traffic_bytes"):  # fmt: skip
            total = sum(value(r, name) for r in ops)
            assert total == pytest.approx(value(step, name), rel=1e-12)
        parts = [value(step, f"{part}_s") for part in ("forward", "backward", "update")]
        assert sum(parts) == pytest.approx(value(step, "step_s"), rel=1e-12)
        assert all(part > 0 for part in parts) == (phase == "train")
        workload = make_workload(read_model(text), 3, dtype, phase)
        counted = count(build_step(workload))
        assert value(step, "flop") == counted.flop
        assert value(step, "traffic_bytes") == counted.traffic_bytes
        assert value(step, "peak_bytes") == counted.peak_bytes
        forward = [op.name for op in counted.ops if op.part == "forward"]
        assert [r.scope for r in ops] == forward


def test_dispatch_is_an_option(toy):
    with_it, without = predicted(toy)[0], predicted(toy, dispatch="no")[0]
    ops = len(build_step(with_it.workload).ops)
    assert value(with_it, "step_s") - value(without, "step_s") == pytest.approx(ops * LAUNCH_S)
    assert with_it.method.options["launch_s"] == pytest.approx(LAUNCH_S)
    assert without.method.options["launch_s"] is None
    unknown = toy.with_figures(launch_s=None)
    assert value(predicted(unknown)[0], "step_s") == value(without, "step_s")
    assert predicted(unknown)[0].method.options["launch_s"] is None


def test_peaks_follow_the_dtype(toy):
    text = "fc:layers=1,nodes=200,inputs=200,outputs=1"

    def product_s(dtype: str, **options: str) -> float:
        made = predicted(toy, text, 200, dtype, "infer", dispatch="no", **options)
        return value(next(r for r in made if r.scope == "fc1/linear"), "step_s")

    products = 2 * 200**3
    assert product_s("float32") == pytest.approx(products / 1e9)
    assert product_s("bfloat16") == product_s("bfloat16-mixed") == pytest.approx(products / 4e9)
    assert product_s("float32", tf32="yes") == pytest.approx(products / 8e9)
    assert product_s("bfloat16", tf32="yes") == product_s("bfloat16")  # tf32 is float32's
    assert peak_flop_per_s(toy, "float32", tf32=True) == 8e9


def test_what_is_not_known_is_not_guessed(toy):
    no_half = "device 'toy': no peak is known for float16; known: float32, tf32, bfloat16"
    for dtype in ("float16", "float16-mixed"):
        with pytest.raises(InputError, match=no_half):
            predicted(toy, dtype=dtype)
    no_tf32 = toy.with_figures(peak_flop_per_s={"float32": 1e9})
    with pytest.raises(InputError, match="no peak is known for tf32; known: float32"):
        predicted(no_tf32, tf32="yes")
    with pytest.raises(InputError, match="unknown option 'dispach'; did you mean 'dispatch'"):
        predicted(toy, dispach="no")
    with pytest.raises(InputError, match="option tf32 is auto, on, off, yes or no, not 'maybe'"):
        predicted(toy, tf32="maybe")
    with pytest.raises(InputError, match="unknown method 'rooflin'; did you mean 'roofline'"):
        cost_model("rooflin")
    assert DEFAULT in METHODS
    assert cost_model("roofline").options.keys() == {"dispatch", "tf32"}


def test_what_does_not_fit_is_said(toy):
    small, large = predicted(toy)[0], predicted(toy, batch=50_000)
    assert (small.status, small.cause, small.note) == ("ok", "", "")
    memory = value(large[0], "peak_bytes")
    assert memory > 1e6
    assert {(r.status, r.cause) for r in large} == {("oom", "predicted-not-to-fit")}
    needs = f"needs {memory / 1e6:.4g} MB, toy has 1 MB"
    assert large[0].note == f"out of memory by {memory / 1e6 - 1:.4g} MB: {needs}"
    unknown = toy.with_figures(memory_bytes=None)
    assert predicted(unknown, batch=50_000)[0].status == "ok"


def test_a_step_that_just_fits(toy):
    memory = value(predicted(toy)[0], "peak_bytes")
    assert predicted(toy.with_figures(memory_bytes=memory))[0].status == "ok"
    assert predicted(toy.with_figures(memory_bytes=memory - 1))[0].status == "oom"


def test_the_record_says_what_it_rests_on(toy):
    step, first, *_ = predicted(toy)
    assert (step.origin, step.platform, step.scope) == ("predicted", "toy", "")
    assert (step.method.name, step.method.version) == ("roofline", "1")
    assert step.method.options == {
        "device": "toy",
        "device_hash": device_hash(toy),
        "peak_flop_per_s": 1e9,
        "memory_bytes_per_s": 1e9,
        "launch_s": pytest.approx(LAUNCH_S),
    }
    assert predicted(toy, tf32="yes")[0].method.options["tf32"] == "yes"
    assert "peak_bytes" not in first.quantities  # of a step, not of an op
    assert record_from_json(record_to_json(step)) == step
    faster = toy.with_figures(memory_bytes_per_s=2e9)
    assert predicted(faster)[0].method.options["device_hash"] != device_hash(toy)
    probed = replace(toy, measured={"platform": "cpu-toy-2t"})
    assert predicted(probed)[0].platform == "cpu-toy-2t"  # where its measurements are
